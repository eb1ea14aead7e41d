"""Where a process finds its agents."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model, ToolCallingDriver
from everstep.agent_domain.agents.spawning import needed_resources
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.testing import MockTool
from everstep.agents.agent_files import MAX_BYTES
from everstep.capabilities.catalogue import AgentLocation, Catalogue, CatalogueEntry
from everstep.inference.presets import Presets
from everstep.runtime.agents import AgentBook, by_name, load_agents, load_all_agents
from everstep.runtime.demo_agent import DEMO
from everstep.runtime.settings import Settings
from tests.everstep.agents.test_agent_files import files_with_warnings

PRESETS = Presets.read({"fast": {"driver": "openai", "model": "small"}}, {})


def a_file(path: Path, name: str = "", *front: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["---", f"name: {name or path.stem}", "description: Helps", *front, "---", "You help."]
    path.write_text("\n".join(lines))
    return path


def names(agents: list[AgentDefinition]) -> list[str]:
    return [agent.descriptor.name for agent in agents]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of the process; modules imported from there are removed again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def a_module(here: Path, name: str, agent: str) -> str:
    code = (
        f"from everstep import AgentBuilder\nagents = [AgentBuilder.base().with_name('{agent}', 'Helps')]\n"
    )
    (here / f"{name}.py").write_text(code)
    return f"{name}:agents"


# Sources.


def test_agents_are_found_in_a_folder_in_the_order_of_its_files(here: Path) -> None:
    """10.2.3"""
    for name in ("b.md", "a.md", "deeper/c.md"):
        a_file(here / "agents" / name)
    found = load_agents("agents")
    assert names(found) == ["a", "b"]
    assert [agent.source for agent in found] == ["agents/a.md", "agents/b.md"]


def test_modules_beside_a_source_do_not_shadow_installed_ones(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.2.6: an agent may have written them; the named module itself is always loaded from there."""
    for installed in ("imaplib", "poplib"):
        monkeypatch.delitem(sys.modules, installed, raising=False)
    (here / "imaplib.py").write_text("raise SystemError('written by an agent')")
    (here / "beside.py").write_text("NAME = 'own'")
    where = a_module(here, "poplib", "own")
    with (here / "poplib.py").open("a") as file:
        file.write("import beside, imaplib\n")
    assert names(load_agents(where)) == ["own"]
    for name in ("poplib", "imaplib"):
        monkeypatch.delitem(sys.modules, name)


def test_an_agent_is_found_in_a_file(here: Path) -> None:
    """10.2.3"""
    (found,) = load_agents(str(a_file(here / "a.md", "", "tools: user_input", "max_steps: 3")))
    assert (found.descriptor.name, found.source) == ("a", str(here / "a.md"))
    assert found.descriptor.capabilities == ["user_input"]
    assert found.tools.names == ("user_input",)
    assert found.base_plan.max_steps == 3


def test_agents_are_found_in_a_module_of_the_working_directory(here: Path) -> None:
    """10.2.3"""
    (found,) = load_agents(a_module(here, "found_in_a_module", "coded"))
    assert (found.descriptor.name, found.source) == ("coded", "found_in_a_module:agents")


RESOURCES = """
from everstep import AgentBuilder, resource

@resource
async def pool():
    yield 1

@resource(name="client")
async def listed():
    yield 2

resources, listed = [listed], None
agents = [AgentBuilder.base().with_name(name, "Helps") for name in "ab"]
"""


def test_agents_of_a_module_have_its_resources(here: Path) -> None:
    """9.9.6: those with a name in it, and those of its list."""
    (here / "with_resources.py").write_text(RESOURCES)
    found = load_agents("with_resources:agents")
    assert [[each.name for each in agent.resources] for agent in found] == [["pool", "client"]] * 2
    assert len(needed_resources(found)) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "resources = [pool, 7]",
            "'resources' of the module {} holds 7, which is no resource; put @resource",
        ),
        ("resources = ['a.txt']", None),
        ("import os as resources", None),
    ],
    ids=["no resource", "something else", "a module"],
)
def test_a_list_with_something_else_is_refused(here: Path, line: str, problem: str | None) -> None:
    name = f"listing_{abs(hash(line))}"
    code = RESOURCES.replace("resources, listed = [listed], None", line)
    (here / f"{name}.py").write_text(code)
    if problem is None:
        assert len(load_agents(f"{name}:agents")) == 2
        return
    with pytest.raises(InvalidInput, match=problem.format(name)):
        load_agents(f"{name}:agents")


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("gone", "'gone' names no agents: there is no such folder"),
        ("", "'' names no agents"),
        ("gone.md", "gone.md: .*No such file"),
        ("gone_module:agents", "the module of 'gone_module:agents' cannot be imported"),
        (
            "empty",
            "no agent in the folder empty can be used; an agent is a file there that ends in .md or .json",
        ),
        ("notes.txt", "'notes.txt' names no agents"),
        ("a\x00.md", "a\x00.md: .*null byte"),
        ("x" * 5000, "^'x{100}...' names no agents"),
    ],
)
def test_a_source_without_agents_is_named(here: Path, where: str, problem: str) -> None:
    """10.2.3"""
    (here / "empty").mkdir()
    (here / "notes.txt").write_text("no agent")
    with pytest.raises(InvalidInput, match=problem):
        load_agents(where)


# Invalid folders.


def test_an_invalid_file_causes_a_warning_and_the_others_are_loaded(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """10.2.3"""
    folder = here / "agents"
    a_file(folder / "a.md")
    for name, front in {
        "b-capability.md": "capabilities: shell",
        "c-options.md": "capabilities: {user_input: {timeout: 5}}",
        "d-preset.md": "model: sonnet",
        "e-tool.md": "tools: bahs",
        "f-yaml.md": "tools: [",
        "g-approval.md": "approval: {bash: always}",
        "h-limit.md": "max_steps: many",
    }.items():
        a_file(folder / name, "", front)
    (folder / "i-huge.md").write_bytes(b"x" * (MAX_BYTES + 1))
    (folder / "j-dangling.md").symlink_to(folder / "gone.md")
    os.mkfifo(folder / "k-pipe.md")
    (folder / "l-device.md").symlink_to("/dev/zero")
    (folder / "m-circle.md").symlink_to(folder)
    a_file(folder / "z.md")

    assert names(load_agents("agents")) == ["a", "z"]
    # A link to a folder cannot be read as a file.
    said = files_with_warnings(caplog)
    assert sorted(said) == [
        f"{name}.md"
        for name in (
            "b-capability",
            "c-options",
            "d-preset",
            "e-tool",
            "f-yaml",
            "g-approval",
            "h-limit",
            "i-huge",
            "j-dangling",
            "k-pipe",
            "l-device",
            "m-circle",
        )
    ]
    for name, problem in {
        "b-capability": "No capability named 'shell'. Choose from: bash, files",
        "c-options": "the capability 'user_input' cannot be made with these options: timeout: Unexpected",
        "d-preset": "No preset named 'sonnet'. Name a model with its provider, as in openai",
        "e-tool": "No tool named 'bahs'. Choose from: bash, read_file",
    }.items():
        assert any(f"agents/{name}.md: {problem}" in message for message in caplog.messages)


def test_a_folder_without_any_valid_agent_is_refused(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2.3"""
    a_file(here / "agents" / "a.md", "", "tools: bahs")
    with pytest.raises(InvalidInput, match="no agent in the folder agents can be used"):
        load_agents("agents")
    assert files_with_warnings(caplog) == ["a.md"]


def test_a_link_to_a_file_is_followed(here: Path) -> None:
    """10.2.3: folders of settings are mounted into containers this way."""
    target = a_file(here / "versions" / "1" / "a.md")
    (here / "agents").mkdir()
    (here / "agents" / "a.md").symlink_to(target)
    assert names(load_agents("agents")) == ["a"]
    (here / "linked").symlink_to(here / "agents")
    assert names(load_agents("linked")) == ["a"]


# Names.


def test_two_agents_with_one_name_are_refused_with_both_sources(here: Path) -> None:
    """10.2.3"""
    a_file(here / "agents" / "1.md", "same")
    a_file(here / "agents" / "2.md", "same")
    with pytest.raises(
        InvalidInput, match=re.escape("named 'same' (agents/1.md and agents/2.md); rename one")
    ):
        load_all_agents(["agents"])


def test_an_agent_of_a_folder_does_not_replace_one_of_a_module(here: Path) -> None:
    """10.2.3"""
    a_file(here / "agents" / "coded.md")
    sources = ["agents", a_module(here, "clashing_module", "coded")]
    with pytest.raises(
        InvalidInput, match=re.escape("(agents/coded.md and clashing_module:agents); rename one")
    ):
        load_all_agents(sources)


def test_agents_of_all_sources_are_loaded_and_the_demo_agent_can_be_replaced(here: Path) -> None:
    """10.2.3"""
    a_file(here / "agents" / "a.md")
    sources = ["agents", a_module(here, "another_module", "coded")]
    assert [*load_all_agents(sources)] == ["a", "coded", "assistant"]

    a_file(here / "agents" / "assistant.md")
    known = load_all_agents(sources)
    assert [*known] == ["a", "assistant", "coded"]
    assert known["assistant"].source == "agents/assistant.md"


def test_a_folder_that_is_not_configured_adds_no_agents(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.2.3: a cloned repository must not add agents by itself."""
    monkeypatch.setenv("HOME", str(here / "home"))
    for folder in (".everstep/agents", ".claude/agents", "agents", "home/.everstep/agents"):
        a_file(here / folder / "stranger.md")
    a_file(here / ".everstep" / "agents" / "assistant.md")

    known = load_all_agents(Settings.read().agents)
    assert known == {"assistant": DEMO}

    named = Settings.read(agents=".everstep/agents").agents
    assert [*load_all_agents(named)] == ["assistant", "stranger"]


@pytest.mark.parametrize(
    ("written", "sources"),
    [
        ('agents = "agents"', ("agents",)),
        ('agents = ["agents", "my_app:agents"]', ("agents", "my_app:agents")),
        ("agents = []", ()),
        ("", ()),
    ],
)
def test_the_settings_name_sources(here: Path, written: str, sources: tuple[str, ...]) -> None:
    """10.2.3"""
    (here / "everstep.toml").write_text(written)
    assert Settings.read().agents == sources


def test_the_environment_lists_sources_with_commas(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.2.3"""
    (here / "everstep.toml").write_text('agents = "weaker"')
    monkeypatch.setenv("EVERSTEP_AGENTS", "agents, my_app:agents")
    assert Settings.read().agents == ("agents", "my_app:agents")
    assert Settings.read(agents=("stronger",)).agents == ("stronger",)


# Files beside an agent.


@dataclass
class FolderRecorder:
    """A capability that records the folder in which it was created."""

    here: AgentLocation

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        return builder.with_tools([MockTool("load_skill")])


def test_a_capability_gets_the_folder_the_skills_and_the_other_agents(here: Path) -> None:
    """10.1.3"""
    seen: list[AgentLocation] = []

    def skills(around: AgentLocation) -> FolderRecorder:
        seen.append(around)
        return FolderRecorder(around)

    catalogue = Catalogue([CatalogueEntry("skills", "Loads skills.", ("load_skill",), skills)])
    folder = here / "agents"
    a_file(folder / "a.md", "", "skills: style, tone")
    a_file(folder / "b.md")
    (folder / "c.md").write_text("no agent")

    load_agents("agents", catalogue=catalogue)
    load_agents(str(folder / "a.md"), catalogue=catalogue)

    in_folder, alone = seen
    assert (in_folder.folder, in_folder.working_dir) == (Path("agents"), here)
    assert in_folder.skills == ("style", "tone")
    assert in_folder.other_agents.names() == ["b"]
    assert (alone.folder, alone.other_agents.names()) == (folder, [])


# Models.


class ModelRecorder:
    """Models that record the requested names."""

    def __init__(self) -> None:
        self.wanted: list[object] = []

    def model(self, wanted: str | Mapping[str, Any] | None = None) -> Model:
        self.wanted.append(wanted)
        return DummyModel()


class DummyModel:
    """Is never called."""

    async def respond(self, request: Any, on_text: Any) -> Any:
        raise NotImplementedError


def test_each_agent_uses_the_model_that_its_file_names(here: Path) -> None:
    """10.1.1"""
    a_file(here / "agents" / "a.md")
    a_file(here / "agents" / "b.md", "", "model: fast")
    a_file(here / "agents" / "c.md", "", "model: {driver: openai, model: x, temperature: 0.5}")
    models = ModelRecorder()
    book = AgentBook(load_agents("agents", PRESETS), models)

    for name in "abc":
        definition = book.definition(name)
        assert isinstance(book.driver(name, definition.spec().llm_preset), ToolCallingDriver)
    assert models.wanted == [None, "fast", {"driver": "openai", "model": "x", "temperature": 0.5}]


def test_an_agent_book_refuses_two_agents_with_one_name() -> None:
    """10.2.3"""
    agent = DefinitionBuilder.base().with_name("same").definition()
    with pytest.raises(InvalidInput, match=r"two agents are named 'same'; rename one"):
        AgentBook([agent, agent], ModelRecorder())
    with pytest.raises(UnknownName, match=r"No agent named 'other'. This process knows: same"):
        AgentBook([agent], ModelRecorder()).definition("other")
    assert by_name([agent]) == {"same": agent}


def test_a_warning_contains_no_control_characters(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2.3"""
    a_file(here / "agents" / "a.md")
    a_file(here / "agents" / "b.md", "", 'tools: ["\\e[2J"]')
    load_agents("agents")
    (warning,) = caplog.messages
    assert "No tool named '\ufffd[2J'. Choose from: bash, read_file" in warning


def test_a_warning_is_logged_once(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2.3"""
    a_file(here / "agents" / "a.md")
    a_file(here / "agents" / "b.md", "", "tools: [")
    load_agents("agents")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
