"""Skills in files, the tool that loads them, and the message that announces them."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput, ToolFailed
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Role, system, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls, says
from everstep.agent_domain.tools.tools import Effect, ToolContext, options_of
from everstep.capabilities.files import openat2
from everstep.capabilities.skills import AnnounceSkills, LoadSkillTool, SkillLibrary, UseSkills, library
from everstep.runtime.builder import AgentBuilder
from tests.node import do_without

CONTEXT = ToolContext(UUID(int=1), "c1", 1)
LIST = "Available skills:\n- [pdf]: Fills forms\n- [review]: Reads code"


@pytest.fixture(params=["openat2", "step by step"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations of opening files."""
    if request.param != "openat2":
        monkeypatch.setattr(openat2, "is_available", lambda: False)
    elif not openat2.is_available():
        do_without("this kernel has no openat2, or a sandbox forbids it")


def a_skill(path: Path, description: str = "", body: str = "Do it.", **fields: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{key}: {value}\n" for key, value in ({"description": description} | fields).items())
    path.write_text(f"---\n{lines}---\n\n{body}\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two skills, one of each layout."""
    a_skill(tmp_path / "lib" / "pdf" / "SKILL.md", "Fills forms", "Run $0.")
    a_skill(tmp_path / "lib" / "review.md", "Reads code")
    return tmp_path / "lib"


def names(folder: Path) -> list[str]:
    return list(SkillLibrary(folder).skills)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# --- The library ---


def test_skills_are_read_in_both_layouts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """9.5.1: `{lib}/{name}/SKILL.md` and `{lib}/{name}.md`."""
    (folder / "notes.txt").touch()
    (folder / "empty").mkdir()
    (folder / "deep" / "er").mkdir(parents=True)
    a_skill(folder / "deep" / "er" / "SKILL.md")
    found = SkillLibrary(str(folder))
    assert list(found.skills) == ["pdf", "review"]
    pdf = found.get("pdf")
    assert pdf is not None
    assert (pdf.description, pdf.content(), pdf.resources) == ("Fills forms", "Run $0.", ())
    assert found.get("nope") is None
    assert not warnings_in(caplog)


def test_of_one_name_the_directory_wins(folder: Path) -> None:
    """9.5.1"""
    a_skill(folder / "pdf.md", "flat")
    a_skill(folder / "other" / "SKILL.md", "by its name", name="review")
    assert {name: skill.description for name, skill in SkillLibrary(folder).skills.items()} == {
        "pdf": "Fills forms",
        "review": "by its name",
    }


def test_a_skill_may_have_no_front_matter(folder: Path) -> None:
    """9.5.1: name and description have defaults."""
    (folder / "plain.md").write_bytes(b"\xef\xbb\xbfJust do it.\r\n")
    plain = SkillLibrary(folder).get("plain")
    assert plain is not None
    assert (plain.name, plain.description, plain.body) == ("plain", "", "Just do it.")


@pytest.mark.parametrize(
    "yaml", ["a: [", "a: &x 1\nb: *x", "- a", "just text", "x: " + "y" * 70_000, "!!int x"]
)
def test_front_matter_that_is_not_a_map_is_ignored(folder: Path, yaml: str) -> None:
    """9.5.1: the body is still read."""
    (folder / "odd.md").write_text(f"---\n{yaml}\n---\nBody")
    odd = SkillLibrary(folder).get("odd")
    assert odd is not None
    assert (odd.name, odd.description, odd.body, odd.extra) == ("odd", "", "Body", {})


def test_resources_are_the_files_in_three_directories(folder: Path) -> None:
    """9.5.1: and declared ones, without duplicates; links to the outside are not resources."""
    for path in ("scripts/run.sh", "scripts/deep/x.py", "references/a.md", "assets/b.png", "tests/c", "d.md"):
        (folder / "pdf" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pdf" / path).touch()
    (folder.parent / "secret").touch()
    (folder / "pdf" / "scripts" / "secret").symlink_to(folder.parent / "secret")
    (folder / "pdf" / "scripts" / "same.sh").symlink_to("run.sh")
    (folder / "pdf" / "scripts" / "all").symlink_to("..")
    os.mkfifo(folder / "pdf" / "assets" / "pipe")
    a_skill(folder / "pdf" / "SKILL.md", resources="[scripts/run.sh, FORMS.md]")
    pdf = SkillLibrary(folder).get("pdf")
    assert pdf is not None
    assert pdf.resources == (
        "scripts/run.sh",
        "FORMS.md",
        "assets/b.png",
        "references/a.md",
        "scripts/deep/x.py",
        "scripts/same.sh",
    )


def test_a_library_is_read_once_and_on_first_use(folder: Path) -> None:
    """9.5.1: the loaded skills are cached."""
    found = SkillLibrary(folder)
    a_skill(folder / "late.md")
    first = found.skills
    a_skill(folder / "later.md")
    (folder / "review.md").unlink()
    assert list(first) == ["late", "pdf", "review"]
    assert found.skills is first


def test_a_missing_library_has_no_skills(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """9.5.1, 9.5.2, 9.5.6: and a warning says so."""
    found = SkillLibrary(tmp_path / "gone")
    assert LoadSkillTool(found)() == "(no skills)"
    assert AnnounceSkills(found).before_step(AgentState.empty()) == AgentState.empty()
    assert warnings_in(caplog) == [
        f"skills: {tmp_path}/gone: the directory does not exist, so there are no skills"
    ]


@pytest.mark.parametrize("path", [None, 5, ""])
def test_an_invalid_path_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a directory; pass a path as text or as a Path"):
        SkillLibrary(path)


# --- Hostile files ---


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_directory(path: Path) -> None:
    (path / "SKILL.md").mkdir(parents=True)


def a_link(target: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.symlink_to(target)

    return make


def some_bytes(content: bytes) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (a_pipe, "is no regular file but a pipe"),
        (a_directory, "names a directory"),
        (a_link("../secret.md"), "the link leads out of the library, or to nothing"),
        (a_link("/etc/passwd"), "the link leads out of the library, or to nothing"),
        (a_link("/proc/self/root"), "the link leads out of the library, or to nothing"),
        (a_link("/dev/zero"), "the link leads out of the library, or to nothing"),
        (a_link(".."), "the link leads out of the library, or to nothing"),
        (a_link("gone.md"), "the link leads out of the library, or to nothing"),
        (a_link("bad.md"), "the link leads out of the library, or to nothing"),
        (some_bytes(b"\xff"), "'utf-8' codec can't decode"),
        (some_bytes(b"x" * (library.MAX_BYTES + 1)), "it is larger than 262144 bytes; shorten it"),
    ],
)
def test_a_hostile_file_is_omitted_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], object], why: str
) -> None:
    """9.5.1, 9.5.6: and all others are loaded."""
    a_skill(folder.parent / "secret.md", "the secret")
    make(folder / "bad.md")
    assert names(folder) == ["pdf", "review"]
    assert len(warnings_in(caplog)) == 1
    assert why in warnings_in(caplog)[0]
    assert str(folder / "bad.md") in warnings_in(caplog)[0]


def test_a_directory_that_leads_outside_is_not_a_skill(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """9.5.1, 9.5.6: neither through its own link, nor a link to its file, nor its resources."""
    a_skill(folder.parent / "outside" / "SKILL.md", "the secret")
    (folder.parent / "outside" / "scripts").mkdir()
    (folder.parent / "outside" / "scripts" / "secret.sh").touch()
    (folder / "one").symlink_to("../outside")
    (folder / "two").mkdir()
    (folder / "two" / "SKILL.md").symlink_to("../../outside/SKILL.md")
    (folder / "pdf" / "scripts").symlink_to("../../outside/scripts")
    found = SkillLibrary(folder).skills
    assert list(found) == ["pdf", "review"]
    assert found["pdf"].resources == ()
    assert len(warnings_in(caplog)) == 3


def test_a_link_within_the_library_is_a_skill(folder: Path) -> None:
    """9.5.1"""
    (folder / "again.md").symlink_to("review.md")
    (folder / "twin").symlink_to(folder / "pdf")
    assert names(folder) == ["again", "pdf", "review", "twin"]


def test_a_library_has_limits(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.5.1, 9.5.6: and a warning names the omitted skills."""
    monkeypatch.setattr(library, "MAX_SKILLS", 1)
    monkeypatch.setattr(library, "MAX_RESOURCES", 2)
    (folder / "pdf" / "assets").mkdir()
    for number in range(3):
        (folder / "pdf" / "assets" / f"{number}").touch()
    found = SkillLibrary(folder).skills
    assert list(found) == ["pdf"]
    assert found["pdf"].resources == ("assets/0", "assets/1")
    assert [message.partition(": ")[2] for message in warnings_in(caplog)] == [
        f"{folder}/pdf: only 2 of its resources are listed",
        f"{folder}/review.md: it and later skills are left out; a library has at most 1 skills",
    ]


# --- The tool ---


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, LIST),
        ({"skill_name": None, "list_skills": None, "arguments": None}, LIST),
        ({"list_skills": True, "skill_name": "pdf"}, LIST),
        ({"skill_name": "pdf"}, '<skill name="pdf">\nRun $0.\n</skill>'),
        ({"skill_name": "pdf", "arguments": "it now"}, '<skill name="pdf">\nRun it.\n</skill>'),
        ({"skill_name": "../secret"}, f"Error: No skill named '../secret'\n\n{LIST}"),
    ],
)
def test_the_tool_lists_and_loads(folder: Path, args: dict[str, Any], told: str) -> None:
    """9.5.2, 9.5.3, 9.5.5"""
    tool = LoadSkillTool(SkillLibrary(folder))
    assert tool.call(args, CONTEXT) == told
    assert options_of(tool).quick
    assert options_of(tool).effect is Effect.IDEMPOTENT
    assert list(tool.schema["properties"]) == ["skill_name", "list_skills", "arguments"]
    assert not tool.schema.get("required")


def test_arguments_of_a_wrong_type_fail_the_call(folder: Path) -> None:
    """9.5.3: the result says what to send."""
    with pytest.raises(ToolFailed, match="skill_name: Input should be a valid string"):
        LoadSkillTool(SkillLibrary(folder)).call({"skill_name": 5}, CONTEXT)


# --- The announcement ---


class RecordingModel:
    """A model that records its requests."""

    def __init__(self, *script: InferenceResponse) -> None:
        self.model = ScriptedModel(*script)
        self.heard = list[InferenceRequest]()

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        self.heard.append(request)
        return await self.model.respond(request, on_text)


def test_an_agent_is_informed_of_its_skills_once_and_loads_one(folder: Path) -> None:
    """9.5.3, 9.5.4: before everything else, in every request, in runs of any length."""
    model = RecordingModel(
        calls(("load_skill", {"skill_name": "pdf", "arguments": "x.py"})), says("Done"), says("Again")
    )
    builder = AgentBuilder.base().with_driver(ToolCallingDriver(model)).with_system_prompt("You help.")
    agent = builder.with_capability(UseSkills(SkillLibrary(folder))).build()
    state = agent.run("Fill it in")
    state = agent.run(state.with_user_message("More"))

    assert state.final_response == "Again"
    announced = [message for message in state.messages if "<skills-metadata>" in message.text]
    assert announced == [state.messages[0]]
    assert announced[0].role is Role.SYSTEM
    assert announced[0].text.startswith(f"<skills-metadata>\n{LIST}\n</skills-metadata>\n")
    assert "load_skill" in announced[0].text.partition("</skills-metadata>")[2]
    loaded = [message.text for message in state.messages if "<skill name=" in message.text]
    assert loaded == ['<skill name="pdf">\nRun x.py.\n</skill>']
    for request in model.heard:
        assert [message.text for message in request.messages].count(announced[0].text) == 1


def test_the_announcement_changes_nothing_else(folder: Path) -> None:
    """9.5.4: prepended once."""
    state = AgentState.empty().with_messages([system("You help."), user("<skills-metadata>")])
    state = state.with_metadata("key", "value")
    hook = AnnounceSkills(SkillLibrary(folder))
    announced = hook.before_step(state)
    assert announced.messages[1:] == state.messages
    assert announced.with_messages(state.messages) == state
    assert replace(announced, message_store=state.message_store) == state
    assert hook.before_step(announced) is announced


def test_without_skills_there_is_no_announcement(tmp_path: Path) -> None:
    """9.5.4: with skills present."""
    state = AgentState.empty().with_messages("Hello")
    assert AnnounceSkills(SkillLibrary(tmp_path)).before_step(state) is state


def test_only_a_library_can_be_used(folder: Path) -> None:
    """9.5.1"""
    definition = DefinitionBuilder.base().with_capability(UseSkills(SkillLibrary(folder))).definition()
    assert definition.tools.names == ("load_skill",)
    with pytest.raises(InvalidInput, match=r"is not a SkillLibrary; pass SkillLibrary\(path\)"):
        UseSkills(str(folder))  # type: ignore[arg-type]
