"""The file tools in normal use."""

import errno
import os
import stat
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.testing import ScriptedModel, calls, says
from everstep.agent_domain.tools.tools import Effect, options_of, tool_schema
from everstep.capabilities.files import (
    ListDirTool,
    SearchFilesTool,
    UseFileTools,
    editing,
    searching,
    writing,
)
from everstep.capabilities.files.regular_files import MAX_READ, MAX_WHOLE_BYTES
from everstep.runtime.builder import AgentBuilder
from tests.everstep.capabilities.files.ground import CONTEXT, NOBODY, SECRET, FileTree
from tests.node import do_without


def test_an_agent_reads_writes_and_edits(ground: FileTree) -> None:
    """9.2.1: as a capability, and the other two as tools."""
    model = ScriptedModel(
        calls(("write_file", {"path": "notes/plan.md", "content": "one\ntwo\n"})),
        calls(("edit_file", {"path": "notes/plan.md", "old_string": "two", "new_string": "three"})),
        calls(("read_file", {"path": "notes/plan.md", "offset": None, "limit": 1})),
        calls(("search_files", {"pattern": "*.md"})),
        calls(("list_dir", {"path": "notes"})),
        says("Done"),
    )
    builder = AgentBuilder.base().with_driver(ToolCallingDriver(model))
    builder.with_capability(UseFileTools(ground.base))
    state = builder.with_tools([SearchFilesTool(ground.base), ListDirTool(ground.base)]).build().run("Plan")

    assert state.final_response == "Done"
    assert [each.text for step in state.steps for each in step.tool_executions] == [
        "Wrote notes/plan.md: 8 bytes, 3 lines",
        "Edited notes/plan.md: 1 replacement(s)",
        "     1\tone",
        "No file matches *.md",
        "[file] plan.md",
    ]


def test_the_tools_declare_their_effects(tmp_path: Path) -> None:
    """9.2.1: reading and writing twice is the same as once, editing is not."""
    tools = {
        tool.name: options_of(tool)
        for tool in (*UseFileTools(tmp_path).tools, SearchFilesTool(tmp_path), ListDirTool(tmp_path))
    }
    assert {name for name, options in tools.items() if options.quick} == {"read_file", "list_dir"}
    once = {name for name, options in tools.items() if options.effect is Effect.AT_MOST_ONCE}
    assert once == {"edit_file"}


@pytest.mark.parametrize(
    ("tool", "required", "optional"),
    [
        ("read_file", ["path"], ["offset", "limit"]),
        ("write_file", ["path", "content"], []),
        ("edit_file", ["path", "old_string", "new_string"], ["replace_all"]),
        ("search_files", [], ["pattern", "patterns"]),
        ("list_dir", [], ["path"]),
    ],
)
def test_every_argument_is_described(
    ground: FileTree, tool: str, required: list[str], optional: list[str]
) -> None:
    """9.2.2 to 9.2.7: names and defaults."""
    parameters: Any = tool_schema(ground.tools()[tool])["function"]["parameters"]
    assert list(parameters["properties"]) == [*required, *optional]
    assert parameters.get("required", []) == required
    assert all(each["description"] for each in parameters["properties"].values())


# --- Reading ---


def test_the_texts_of_reading(ground: FileTree) -> None:
    """9.2.2"""
    (ground.base / "empty").touch()
    (ground.base / "binary").write_bytes(b"a\x00b")
    (ground.base / "latin").write_bytes("ä".encode("latin-1"))
    assert ground.read("a.txt", offset=1) == "     2\ttwo"
    assert ground.read("a.txt", offset=-9, limit=1) == "     1\tone"
    assert ground.read("a.txt", offset=2) == "Error: The file ends before this offset"
    assert ground.read("empty", offset=5) == "(empty file)"
    assert (
        ground.read("binary") == ground.read("latin") == "Error: This file is binary, only text can be read"
    )
    assert ground.read("./gone") == "Error: No file at './gone'"
    assert ground.read("sub") == "Error: 'sub' names a directory, list_dir shows what is in it"


def a_large_text(ground: FileTree, lines: int) -> list[str]:
    """So large that it is not read completely."""
    text = [f"line {number} with some ä in it, and words to make it longer" for number in range(1, lines + 1)]
    (ground.base / "large").write_text("\n".join(text))
    assert (ground.base / "large").stat().st_size > MAX_WHOLE_BYTES
    return text


def with_line_numbers(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


@pytest.mark.parametrize("offset", [0, 1, 15_000, 31_123, 38_001, 39_999])
def test_a_large_file_reads_like_a_small_one(ground: FileTree, offset: int) -> None:
    """9.2.2: at any boundary of its chunks."""
    lines = a_large_text(ground, 40_000)
    assert ground.read("large", offset=offset) == with_line_numbers(lines[offset : offset + 2000], offset + 1)
    assert ground.read("large", offset=offset, limit=3) == with_line_numbers(
        lines[offset : offset + 3], offset + 1
    )


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\nx", "x" * 9000 + "\n", "ä" * 5000])
def test_the_end_of_a_large_file_reads_like_that_of_a_small_one(ground: FileTree, end: str) -> None:
    """9.2.2: a trailing newline makes no extra line, long lines are cut."""
    (ground.base / "large").write_text("y\n" * MAX_WHOLE_BYTES + "z" + end)
    (ground.base / "small").write_text("z" + end)
    large, small = ground.read("large", offset=MAX_WHOLE_BYTES), ground.read("small")
    assert [line.partition("\t")[2] for line in large.split("\n")] == [
        line.partition("\t")[2] for line in small.split("\n")
    ]
    past = MAX_WHOLE_BYTES + len(small.split("\n"))
    assert ground.read("large", offset=past) == "Error: The file ends before this offset"


def test_a_line_of_any_length_is_cut_without_loading_it(ground: FileTree) -> None:
    """9.2.2: 2000 characters of it, of any width."""
    (ground.base / "long").write_text("\U0001f600" * MAX_WHOLE_BYTES + "\nnext")
    assert ground.read("long") == f"     1\t{chr(0x1F600) * 2000}...\n     2\tnext"


@pytest.mark.parametrize("junk", [b"\x00", b"\xff\n"])
def test_invalid_text_in_a_large_file_is_binary_where_it_is_read(ground: FileTree, junk: bytes) -> None:
    """9.2.2"""
    (ground.base / "large").write_bytes(junk + b"text\n" * MAX_WHOLE_BYTES)
    assert ground.read("large") == "Error: This file is binary, only text can be read"


def test_only_the_beginning_of_a_huge_file_is_read(ground: FileTree) -> None:
    """9.2.2, 9.2.8: and the result says so."""
    with (ground.base / "huge").open("wb") as file:
        for _ in range(MAX_READ // 2**20):
            file.write(b"some text\n" * (2**20 // 10) + b"end..\n")
        file.write(b"more\n")
    assert ground.read("huge", limit=1) == "     1\tsome text"
    lines = MAX_READ // 2**20 * (2**20 // 10 + 1)
    assert ground.read("huge", offset=lines - 1) == (
        f"{lines:>6}\tend..\n... the file goes on, and only its first {MAX_READ} bytes are read"
    )
    os.truncate(ground.base / "huge", MAX_READ)
    assert ground.read("huge", offset=lines - 1) == f"{lines:>6}\tend.."
    assert ground.read("huge", offset=lines) == "Error: The file ends before this offset"
    with (ground.base / "huge").open("ab") as file:
        file.write(b"more\n")
    told = f"Error: Only the first {MAX_READ} bytes of a file are read, and this offset lies behind them"
    assert ground.read("huge", offset=lines) == ground.read("huge", offset=10**30) == told


@pytest.mark.parametrize("part", [b"some text\n", b"one endless line "])
def test_a_huge_file_is_read_in_little_memory(ground: FileTree, part: bytes) -> None:
    """9.2.2, 9.2.8: with lines of any length."""
    with (ground.base / "huge").open("wb") as file:
        for _ in range(40):
            file.write(part * (2**20 // len(part)))
    tracemalloc.start()
    try:
        shown = ground.read("huge"), ground.read("huge", offset=10**7)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shown[0].startswith("     1\t" + part.decode().rstrip())
    assert shown[1] == "Error: The file ends before this offset"
    assert peak < 6 * 2**20


def test_a_line_of_a_terabyte_is_not_text(ground: FileTree) -> None:
    """9.2.2, 9.2.8: and is not searched either."""
    (ground.base / "sparse").write_text("x")
    os.truncate(ground.base / "sparse", 2**40)
    assert ground.read("sparse", offset=5) == "Error: This file is binary, only text can be read"


def test_a_file_may_change_while_it_is_read(ground: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.2.2: the content at the time is returned."""
    lines, read = a_large_text(ground, 40_000), os.read

    def read_truncated(file: int, size: int) -> bytes:
        os.truncate(ground.base / "large", MAX_WHOLE_BYTES)
        return read(file, size)

    monkeypatch.setattr(os, "read", read_truncated)
    assert ground.read("large", limit=5) == with_line_numbers(lines[:5], 1)


# --- Writing ---


def test_writing_creates_directories_and_overwrites(ground: FileTree) -> None:
    """9.2.3"""
    assert ground.write("new/deep/x.txt", "ä\n") == "Wrote new/deep/x.txt: 3 bytes, 2 lines"
    assert ground.write("new/deep/x.txt", "") == "Wrote new/deep/x.txt: 0 bytes, 1 lines"
    assert (ground.base / "new" / "deep" / "x.txt").read_bytes() == b""
    assert ground.write("new/../b.txt", "\r\n") == "Wrote new/../b.txt: 2 bytes, 2 lines"
    assert (ground.base / "b.txt").read_bytes() == b"\r\n"


@pytest.mark.parametrize("path", ["new/", "new/.", "sub/new/"])
def test_a_path_with_a_trailing_slash_is_not_a_file(ground: FileTree, path: str) -> None:
    """9.2.3"""
    assert ground.write(path) == f"Error: '{path}' names a directory, list_dir shows what is in it"
    assert ground.names() == ["a.txt", "sub/b.txt"]


def test_content_that_is_too_long_is_not_written(ground: FileTree) -> None:
    """9.2.3, 9.2.8: the result names the limit, and no directory is created."""
    size = writing.MAX_WRITE + 1
    assert ground.write("new/x", "x" * size) == (
        f"Error: The file would have {size} bytes, at most {size - 1} can be written. Split it into several"
    )
    assert not (ground.base / "new").exists()
    assert ground.write("x", "x" * (size - 1)).startswith("Wrote x: ")


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o4755])
def test_a_file_keeps_its_mode(ground: FileTree, mode: int) -> None:
    """9.2.3, 9.2.4, 9.2.9: but no set-user-id or set-group-id bit."""
    (ground.base / "a.txt").chmod(mode)
    ground.write("a.txt", "one")
    assert stat.S_IMODE((ground.base / "a.txt").stat().st_mode) == mode & 0o777
    ground.edit("a.txt", "one", "two")
    assert stat.S_IMODE((ground.base / "a.txt").stat().st_mode) == mode & 0o777


def test_new_files_have_the_usual_mode(ground: FileTree) -> None:
    """9.2.3: what the process's umask leaves."""
    before = os.umask(0o027)
    try:
        ground.write("new/x.txt")
    finally:
        os.umask(before)
    assert stat.S_IMODE((ground.base / "new" / "x.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((ground.base / "new").stat().st_mode) == 0o750


def test_a_file_created_by_root_belongs_to_the_owner_of_the_directory(ground: FileTree) -> None:
    """9.2.3: so that commands of the same agent, which do not run as root, can use it."""
    if os.geteuid() != 0:
        do_without("only root can give files away")
    os.chown(ground.base, NOBODY, NOBODY - 1)
    os.chown(ground.base / "a.txt", 12, 34)
    ground.write("new/deep/x.txt")
    ground.write("a.txt", "one")
    ground.edit("a.txt", "one", "two")

    def owner(path: str) -> tuple[int, int]:
        found = (ground.base / path).stat()
        return found.st_uid, found.st_gid

    assert {owner(path) for path in ("new", "new/deep", "new/deep/x.txt")} == {(NOBODY, NOBODY - 1)}
    assert owner("a.txt") == (12, 34)


@pytest.mark.parametrize("broken", ["write", "fsync", "rename", "fchmod"])
def test_a_failed_write_leaves_everything_unchanged(
    ground: FileTree, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """9.2.3, 9.2.4, 9.2.9: the old content, and no extra file."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, broken, fail)
    told = "Error: 'a.txt' cannot be used: No space left on device"
    assert ground.write("a.txt") == told
    assert ground.edit("a.txt", "one", "three") == told
    monkeypatch.undo()
    assert (ground.base / "a.txt").read_text() == "one\ntwo\n"
    assert ground.names() == ["a.txt", "sub/b.txt"]


def test_a_reader_sees_the_old_content_or_the_new(ground: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.2.3, 9.2.9: never a part of it."""
    monkeypatch.setattr(os, "fsync", str)
    contents = {letter * 100_000 for letter in "ab"}
    ground.write("x", "a" * 100_000)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            for content in contents:
                ground.write("x", content)

    thread = threading.Thread(target=write)
    thread.start()
    seen = set[str]()
    try:
        for number in range(20_000):
            seen.add((ground.base / "x").read_text())
            if number > 500 and seen >= contents:
                break
    finally:
        over.set()
        thread.join()
    assert seen == contents


# --- Editing ---


def test_the_texts_of_editing(ground: FileTree) -> None:
    """9.2.4: in this order."""
    failed = "Error: Reading the file failed: "
    assert ground.edit("../x", "", "") == "Error: Path is outside the allowed directory"
    assert ground.edit("gone", "", "") == "Error: new_string equals old_string, so nothing would change"
    assert ground.edit("gone", "", "x") == "Error: old_string must hold the text to replace"
    assert ground.edit("gone", "x", "y") == f"{failed}No file at 'gone'"
    assert ground.edit("gone/x", "x", "y") == f"{failed}No file at 'gone/x'"
    assert ground.edit("a.txt", "x", "y") == "Error: The file does not contain old_string"
    assert ground.edit("a.txt", "o", "y") == (
        "Error: old_string occurs 2 times. Set replace_all=true to change every one, "
        "or extend old_string until it occurs once"
    )
    assert (ground.base / "a.txt").read_text() == "one\ntwo\n"
    assert ground.edit("a.txt", "o", "ö", replace_all=True) == "Edited a.txt: 2 replacement(s)"
    assert ground.edit("./a.txt", "\ntwö", "") == "Edited ./a.txt: 1 replacement(s)"
    assert (ground.base / "a.txt").read_text() == "öne\n"
    (ground.base / "binary").write_bytes(b"a\xff")
    assert ground.edit("binary", "a", "b") == f"{failed}This file is binary, only text can be read"


def test_text_outside_of_the_edit_stays_byte_for_byte(ground: FileTree) -> None:
    """9.2.4: including line ends and byte order marks."""
    (ground.base / "dos").write_bytes(b"\xef\xbb\xbfa\r\nb\r\nc")
    ground.edit("dos", "b", "d")
    assert (ground.base / "dos").read_bytes() == b"\xef\xbb\xbfa\r\nd\r\nc"


def test_the_size_of_edited_files_is_limited(ground: FileTree) -> None:
    """9.2.4, 9.2.8: before and after; a result that would be too long is not even built."""
    ground.write("x", "a" * 1_000_000)
    size = 10**6 * 10**6
    assert ground.edit("x", "a", "b" * 10**6, replace_all=True) == (
        f"Error: The file would have {size} bytes, at most {writing.MAX_WRITE} can be written. "
        "Split it into several"
    )
    assert "occurs 1000000 times" in ground.edit("x", "a", "b" * 10**6)
    (ground.base / "large").write_text("x" * (writing.MAX_WRITE + 1))
    assert ground.edit("large", "x", "y") == (
        "Error: Reading the file failed: "
        f"It is larger than {writing.MAX_WRITE} bytes, the most that can be edited"
    )


def test_concurrent_edits_of_one_file_are_all_applied(ground: FileTree) -> None:
    """9.2.4, 9.2.9: the calls of one step run concurrently."""
    words = [f"<{number}>" for number in range(20)]
    ground.write("x", "".join(words))
    threads = [threading.Thread(target=ground.edit, args=("x", word, f"[{word[1:-1]}]")) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ground.base / "x").read_text() == "".join(f"[{number}]" for number in range(20))


def test_a_concurrent_write_of_another_process_is_not_lost(ground: FileTree) -> None:
    """9.2.4, 9.2.9: the edit is applied again, or not at all."""
    written = list[str]()

    def edit_after_change(text: str) -> editing.files.Edit | str:
        if len(written) < until:
            written.append(text)
            (ground.base / "a.txt").write_text(text + "+")
        return editing.replacement("one", "three", replace_all=False)(text)

    directory = os.open(ground.base, os.O_RDONLY)
    until = 2
    assert editing.edit(directory, "a.txt", "a.txt", edit_after_change) == "Edited a.txt: 1 replacement(s)"
    assert (ground.base / "a.txt").read_text() == "three\ntwo\n++"
    until = 1000
    told = editing.edit(
        directory, "a.txt", "a.txt", lambda text: edit_after_change(text.replace("three", "one"))
    )
    os.close(directory)
    assert told.startswith("Error: 'a.txt' was not edited, because other processes keep changing it")
    assert (ground.base / "a.txt").read_text().startswith("one\ntwo\n++")


# --- Searching ---


def a_tree(ground: FileTree, *paths: str) -> None:
    for path in paths:
        (ground.base / path).parent.mkdir(parents=True, exist_ok=True)
        (ground.base / path).touch()


def test_files_are_found_by_name_and_path(ground: FileTree) -> None:
    """9.2.5, 9.2.6: in the format of the rules."""
    a_tree(ground, "README.md", "src/app.py", "src/web/app.js", ".git/config", "x.md/y")
    assert ground.call("search_files", pattern="*.md") == "Files found: 1\n\n[*.md]\nREADME.md"
    assert ground.call("search_files", patterns=["app", "config", "*.rs"]) == (
        "Files found: 3\n\n[app]\nsrc/app.py\nsrc/web/app.js\n\n[config]\n.git/config"
    )
    assert ground.call("search_files", pattern="*.rs", patterns="*.go") == "No file matches *.rs, *.go"
    assert ground.call("search_files", pattern="") == "Error: pattern is required"
    assert ground.call("search_files") == "Error: pattern is required"
    assert ground.call("search_files", patterns=[str(n) for n in range(21)]).startswith("Error: at most 20")
    assert ground.call("search_files", pattern="{a,b}" * 20).startswith("Error: the braces of the pattern")


def test_the_number_of_results_can_be_set(ground: FileTree) -> None:
    """9.2.5: at most 10, or max_results."""
    a_tree(ground, *(f"f{number:02}.md" for number in range(12)))
    assert ground.call("search_files", pattern="*.md").startswith("Files found: 10\n")
    told = SearchFilesTool(ground.base, 2).call({"pattern": "*.md"}, CONTEXT)
    assert told == "Files found: 2\n\n[*.md]\nf00.md\nf01.md"


def test_links_count_if_they_lead_to_a_file_inside(ground: FileTree) -> None:
    """9.2.5: no link to another directory is followed."""
    ground.link("in.md", "sub/b.txt")
    ground.link("absolute.md", ground.base / "a.txt")
    ground.link("out.md", ground.outside / "secret.txt")
    ground.link("gone.md", "gone")
    ground.link("self.md", "self.md")
    ground.link("loop", ".")
    ground.link("elsewhere", ground.outside)
    os.mkfifo(ground.base / "pipe.md")
    assert ground.call("search_files", pattern="**/*.md") == (
        "Files found: 2\n\n[**/*.md]\nabsolute.md\nin.md"
    )
    assert ground.call("search_files", pattern="secret.txt") == "No file matches secret.txt"


def test_a_truncated_search_says_so(ground: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.2.6, 9.2.8: and a pattern with a directory is still found."""
    monkeypatch.setattr(searching, "MAX_SEEN", 20)
    a_tree(ground, *(f"many/{number:03}" for number in range(50)), "zoo/deep/tiger.txt")
    note = "... the search ended after 20 entries; begin the pattern with a directory to search there"
    assert ground.call("search_files", pattern="tiger.txt") == f"No file matches tiger.txt\n{note}"
    for pattern in ("zoo/deep/tiger.txt", "./zoo/**/*.txt", "zoo/*/tiger.txt"):
        assert ground.call("search_files", pattern=pattern).endswith("zoo/deep/tiger.txt")


def test_a_search_takes_bounded_time(ground: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.2.6, 9.2.8: for any pattern."""
    monkeypatch.setattr(searching, "MAX_SECONDS", -1.0)
    assert ground.call("search_files", pattern="a.txt").startswith(
        "No file matches a.txt\n... the search ended after 0"
    )


def test_a_deep_tree_is_searched_as_far_as_paths_reach(ground: FileTree) -> None:
    """9.2.6: deeper directories are reported as unread."""
    here = os.open(ground.base, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert ground.call("search_files", pattern="b.txt") == (
        "Files found: 1\n\n[b.txt]\nsub/b.txt\n... 1 directories could not be read"
    )


# --- Listing ---


def test_a_directory_is_listed(ground: FileTree) -> None:
    """9.2.7: directories first, links to files inside by their targets."""
    a_tree(ground, "Zoo/x", "b.txt", "B", "line\nbreak")
    ground.link("inner", "sub")
    ground.link("outer", ground.outside)
    ground.link("broken", "gone")
    assert ground.call("list_dir", path=".").split("\n") == [
        "[dir] inner",
        "[dir] sub",
        "[dir] Zoo",
        "[file] a.txt",
        "[file] B",
        "[file] b.txt",
        "[file] broken",
        "[file] line\ufffdbreak",
        "[file] outer",
    ]
    assert ground.call("list_dir", path="inner/") == "[file] b.txt"
    assert ground.call("list_dir") == ground.call("list_dir", path=str(ground.base))


def test_the_texts_of_listing(ground: FileTree) -> None:
    """9.2.7"""
    (ground.base / "none").mkdir()
    assert ground.call("list_dir", path="./none") == "'./none' has no entries"
    assert ground.call("list_dir", path="gone") == "Error: No directory at 'gone'"
    assert ground.call("list_dir", path="a.txt") == "Error: No directory at 'a.txt'"
    assert ground.call("list_dir", path="..") == "Error: Path is outside the allowed directory"
    assert ListDirTool(ground.base, 1).call({}, CONTEXT) == "[dir] none\n... 2 more not shown"


def test_a_directory_with_very_many_entries_is_listed_in_part(
    ground: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.2.7, 9.2.8: and the result says so."""
    monkeypatch.setattr(searching, "MAX_SEEN", 60)
    a_tree(ground, *(f"many/{number:03}" for number in range(61)))
    lines = ground.call("list_dir", path="many").split("\n")
    assert len(lines) == 52
    assert lines[-2:] == ["... 10 more not shown", "... only 60 entries were looked at, there are more"]


def test_names_that_are_not_utf_8_are_shown_with_replacements(ground: FileTree) -> None:
    """9.2.6, 9.2.7"""
    Path(os.fsdecode(bytes(ground.base) + b"/b\xff.txt")).write_text(SECRET)
    assert "[file] b\ufffd.txt" in ground.call("list_dir", path=".")
    assert ground.call("search_files", pattern="b*.txt") == "Files found: 1\n\n[b*.txt]\nb\ufffd.txt"
