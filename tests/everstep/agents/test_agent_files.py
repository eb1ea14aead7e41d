"""Agent definitions in files."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput
from everstep.agents.agent_files import MAX_BYTES, AgentRegistry, SkippedFile
from everstep.plain_yaml import load_yaml


def an_agent(path: Path, name: str | None = None, description: str = "Helps") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"name": name or path.stem, "description": description}
    if path.suffix.lower() == ".json":
        path.write_text(json.dumps(fields | {"systemPrompt": "You help."}))
    else:
        path.write_text(f"---\n{json.dumps(fields)}\n---\nYou help.\n")
    return path


def files_with_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The names of the files for which a warning was logged."""
    given = [record.args for record in caplog.records if record.levelno == logging.WARNING]
    return [
        arg.path.name
        for args in given
        if isinstance(args, tuple)
        for arg in args
        if isinstance(arg, SkippedFile)
    ]


@pytest.mark.parametrize("name", ["helper.md", "helper.json", "HELPER.MD"])
def test_an_agent_is_loaded_from_a_file(tmp_path: Path, name: str) -> None:
    """10.1.2, 10.2.1."""
    registry = AgentRegistry()
    loaded = registry.load_from_file(an_agent(tmp_path / name, "helper"))
    assert loaded == AgentSpec("helper", "Helps", "You help.")
    assert registry.all() == [loaded]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """10.1.2."""
    path = tmp_path / "a.json"
    path.write_text('{"name": "a", "description": "é", "prompt": "x"}', "utf-8-sig")
    assert AgentRegistry().load_from_file(str(path)).description == "é"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.md", b"You help.", "The text has no front matter"),
        ("a.md", b"---\nname: [\n---\nx", "The front matter is not valid YAML"),
        ("a.md", b"---\nname: a\n---\nx", "The agent needs a 'description'"),
        ("a.json", b"{", "the agent is not valid JSON"),
        ("a.json", b'{"name": ' + b"1" * 5000 + b"}", "the agent is not valid JSON: Exceeds the limit"),
        ("a.md", b"\xff\xfe", "'utf-8' codec can't decode"),
        ("a.md", b"x" * (MAX_BYTES + 1), f"it is larger than {MAX_BYTES} bytes; shorten it"),
        ("a.txt", b"x", "an agent is defined in a file that ends in .md or .json"),
    ],
)
def test_an_invalid_file_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    """10.2.1: `load_from_file` raises."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        AgentRegistry().load_from_file(path)
    assert str(refused.value).startswith(f"{path}: {reason}")


def test_an_error_has_its_line_number(tmp_path: Path) -> None:
    """10.1.2: counted as in an editor."""
    path = tmp_path / "a.md"
    path.write_text("---\nname: a\ndescription: b\nname: c\n---\nx")
    with pytest.raises(InvalidInput, match=r"the key 'name' is there twice(?s:.*)line 4"):
        AgentRegistry().load_from_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """10.2.1."""
    with pytest.raises(InvalidInput, match=r"gone\.md: No such file or directory$"):
        AgentRegistry().load_from_file(tmp_path / "gone.md")


def test_a_file_that_is_not_regular_is_not_read(tmp_path: Path) -> None:
    """10.2.1: reading from a pipe would block."""
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "folder.md").mkdir()
    for name in ("pipe.md", "folder.md"):
        with pytest.raises(InvalidInput, match="it is not a regular file"):
            AgentRegistry().load_from_file(tmp_path / name)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    """10.2.1."""
    path = an_agent(tmp_path / "a.md")
    path.write_bytes(path.read_bytes().ljust(MAX_BYTES, b"x"))
    assert AgentRegistry().load_from_file(path).name == "a"


def test_a_missing_directory_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2.1."""
    registry = AgentRegistry()
    registry.load_from_directory(tmp_path / "gone")
    registry.load_from_directory(tmp_path / "gone", recursive=True)
    assert registry.count() == len(caplog.records) == 0


def test_a_path_that_is_not_a_directory_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """10.2.1."""
    registry = AgentRegistry()
    registry.load_from_directory(an_agent(tmp_path / "a.md"))
    assert registry.count() == 0
    assert files_with_warnings(caplog) == ["a.md"]


def test_an_invalid_file_does_not_affect_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2.1: a warning, and loading continues."""
    for name in ("a.md", "c.json", "z.md"):
        an_agent(tmp_path / name)
    (tmp_path / "b.md").write_text("no agent")
    (tmp_path / "d.md").write_bytes(b"\xff")
    (tmp_path / "e.json").write_bytes(b" " * (MAX_BYTES + 1))
    (tmp_path / "f.md").symlink_to(tmp_path / "gone.md")
    (tmp_path / "notes.txt").write_text("not ours")
    registry = AgentRegistry()
    registry.load_from_directory(str(tmp_path))
    assert registry.names() == ["a", "c", "z"]
    assert files_with_warnings(caplog) == ["b.md", "d.md", "e.json", "f.md"]
    assert caplog.messages[0].startswith(f"skipped an agent definition: {tmp_path / 'b.md'}: The text has no")


def test_folders_are_searched_only_on_request(tmp_path: Path) -> None:
    """10.2.1."""
    an_agent(tmp_path / "b.md")
    an_agent(tmp_path / "a" / "c.md")
    an_agent(tmp_path / "a" / "a.md")
    flat, deep = AgentRegistry(), AgentRegistry()
    flat.load_from_directory(tmp_path)
    deep.load_from_directory(tmp_path, recursive=True)
    assert flat.names() == ["b"]
    assert deep.names() == ["b", "a", "c"]


@pytest.fixture
def deep_folder(tmp_path: Path) -> Iterator[Path]:
    """Deeper than Python's recursion limit; removed by hand, because `rmtree` recurses too."""
    (tmp_path / "keep").touch()
    folder = tmp_path
    for _ in range(1200):
        folder /= "d"
        folder.mkdir()
    yield folder
    os.removedirs(folder)


def test_folders_are_searched_to_any_depth(tmp_path: Path, deep_folder: Path) -> None:
    """10.2.1."""
    file = an_agent(deep_folder / "deep.md")
    registry = AgentRegistry()
    try:
        registry.load_from_directory(tmp_path, recursive=True)
    finally:
        file.unlink()
    assert registry.names() == ["deep"]


def test_a_circular_link_is_not_followed(tmp_path: Path) -> None:
    """10.2.1."""
    an_agent(tmp_path / "a.md")
    (tmp_path / "again").symlink_to(tmp_path)
    registry = AgentRegistry()
    registry.load_from_directory(tmp_path, recursive=True)
    assert registry.names() == ["a"]


def test_of_equal_names_in_one_folder_the_last_file_wins(tmp_path: Path) -> None:
    """10.2.1."""
    an_agent(tmp_path / "2.md", "a", "second")
    an_agent(tmp_path / "1.md", "a", "first")
    registry = AgentRegistry()
    registry.load_from_directory(tmp_path)
    assert [spec.description for spec in registry.all()] == ["second"]


def test_discovery_prefers_the_project_to_the_home(tmp_path: Path) -> None:
    """10.2.2: of equal names the first location wins."""
    project, home = tmp_path / "project", tmp_path / "home"
    folders = [project / ".everstep", project / ".claude", home / ".everstep"]
    for number, folder in enumerate(folders):
        for name in "abc"[: number + 1]:
            an_agent(folder / "agents" / f"{name}.md", description=f"from {number}")
    an_agent(home / ".claude" / "agents" / "d.md")
    registry = AgentRegistry()
    registry.auto_discover(project, home)
    assert {spec.name: spec.description for spec in registry.all()} == {
        "a": "from 0",
        "b": "from 1",
        "c": "from 2",
    }


def test_discovery_starts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.2.2."""
    an_agent(tmp_path / "project" / ".claude" / "agents" / "a.md")
    an_agent(tmp_path / "home" / ".everstep" / "agents" / "b.md")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    registry = AgentRegistry()
    registry.auto_discover()
    assert sorted(registry.names()) == ["a", "b"]


WORDS = [
    "name: a",
    "description: b",
    "\n",
    " ",
    "---",
    "tools",
    "model",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "? ",
    "<<",
    "*a",
    "&a ",
]
TAGS = ["!!int ", "!!bool ", "!!timestamp ", "!!set ", "!!omap ", "!!binary ", "!!float "]
MARKDOWN = st.text() | st.lists(st.sampled_from([*WORDS, *TAGS])).map(
    lambda words: f"---\n{''.join(words)}\n---\nx"
)


@given(MARKDOWN)
def test_arbitrary_markdown_is_read_or_refused(text: str) -> None:
    """10.1.2."""
    with suppress(InvalidInput):
        assert AgentSpec.from_markdown(text, load_yaml).name


@pytest.mark.parametrize("path", [5, None, "a\0", "a\0.md"])
@pytest.mark.parametrize("method", ["load_from_file", "load_from_directory"])
def test_an_invalid_path_is_refused(method: str, path: Any) -> None:
    with pytest.raises(InvalidInput, match="a path "):
        getattr(AgentRegistry(), method)(path)
