"""Attempts of models and commands to leave the base directory, or to block the worker."""

import os
import random
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.capabilities.files import (
    ListDirTool,
    ReadFileTool,
    SearchFilesTool,
    UseFileTools,
    WriteFileTool,
    openat2,
)
from everstep.capabilities.files.enclosure import MAX_LINKS
from tests.everstep.capabilities.files.ground import (
    CONTEXT,
    OUTSIDE,
    SECRET,
    FileTree,
    drop_privileges,
    open_public_directory,
    swap_names_in_loop,
)
from tests.node import do_without

ROOM_KIB = 64 * 1024
"""The permitted growth of the worker's memory, for any path."""

BINARY = "Error: This file is binary, only text can be read"
TOO_LARGE = "It is larger than 8388608 bytes, the most that can be edited"
NUL = "Error: Path contains a NUL character"
NO_TEXT = "Error: path holds characters that UTF-8 cannot express"
WRITES = "Wrote {path}: 3 bytes, 1 lines"
A_TXT = "     1\tone\n     2\ttwo"
B_TXT = "     1\tinside"
NOT_REGULAR = "Error: '{path}' is no regular file but a pipe, a socket, a device or a broken link"
TANGLED = "Error: '{path}' leads in circles, or through too many links or directories"
DIRECTORY = "Error: '{path}' names a directory, list_dir shows what is in it"
NONE = "Error: No file at '{path}'"
NO_WAY = "Error: No file can be made at '{path}', something on the way there is no directory"
TOO_LONG = "Error: '{path}' cannot be used: File name too long"


def make_nothing(ground: FileTree) -> None:
    """Nothing: the path needs no file."""
    del ground


@dataclass(frozen=True)
class HostilePath:
    """A path, its setup, and the results of reading it and of writing it."""

    name: str
    path: str
    reading: str
    writing: str
    make: Callable[[FileTree], object] = make_nothing

    @property
    def editing(self) -> str:
        """The result of editing it: that the path is wrong, or that reading failed."""
        if self.reading in {OUTSIDE, NUL, NO_TEXT}:
            return self.reading
        detail = TOO_LARGE if self.reading == BINARY else self.reading
        return f"Error: Reading the file failed: {detail.removeprefix('Error: ')}"


def link_to(target: str, path: str = "link") -> Callable[[FileTree], object]:
    """Create a link; `{base}` and `{outside}` in its target are the two directories."""
    return lambda ground: ground.link(path, target.format(**vars(ground)))


def chain(ground: FileTree, length: int, end: str) -> None:
    """Links to links, the last to a file."""
    for number in range(length):
        ground.link(f"l{number}", end if number == length - 1 else f"l{number + 1}")


def a_socket(ground: FileTree) -> None:
    """Bound through a short path, because socket names are limited in length."""
    directory = os.open(ground.base, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{directory}/sock")
    os.close(directory)


def a_linked_pipe(ground: FileTree) -> None:
    """A link to a pipe."""
    os.mkfifo(ground.base / "p")
    ground.link("link", "p")


def another_name_of_a_pipe(ground: FileTree) -> None:
    """A hard link to a pipe."""
    os.mkfifo(ground.base / "p")
    os.link(ground.base / "p", ground.base / "other")


def a_sparse_file(ground: FileTree) -> None:
    """A terabyte that uses no disk space."""
    (ground.base / "huge").touch()
    os.truncate(ground.base / "huge", 2**40)


def leading_outside(name: str, path: str, make: Callable[[FileTree], object] = make_nothing) -> HostilePath:
    """A link that leads outside."""
    return HostilePath(name, path, OUTSIDE, OUTSIDE, make)


def harmless_name(name: str, path: str) -> HostilePath:
    """A name that resembles a path to the outside, and does not exist."""
    return HostilePath(name, path, NONE, WRITES)


HOSTILE = [
    # Literal paths.
    leading_outside("up", "../outside/secret.txt"),
    leading_outside("down and further up", "sub/../../outside/secret.txt"),
    leading_outside("up from nothing", "gone/../../outside/secret.txt"),
    leading_outside("far up", "../" * 300 + "etc/passwd"),
    leading_outside("absolute", "/etc/passwd"),
    leading_outside("absolute with two slashes", "//etc/passwd"),
    leading_outside("absolute, beside", "{outside}/secret.txt"),
    leading_outside("a name that begins like the base's", "{base}-too/secret.txt"),
    leading_outside("absolute and up", "{base}/../outside/secret.txt"),
    leading_outside("the directory above", ".."),
    leading_outside("the root", "/"),
    leading_outside("another process", "/proc/self/environ"),
    leading_outside("another process's memory", "/proc/1/mem"),
    leading_outside("the worker's directory, through /proc", "/proc/self/cwd/../outside/secret.txt"),
    leading_outside("a device", "/dev/zero"),
    leading_outside("what the worker has open", "/dev/fd/0"),
    harmless_name("three dots", ".../x"),
    harmless_name("backslashes", "..\\outside\\secret.txt"),
    harmless_name("encoded dots", "%2e%2e/outside/secret.txt"),
    harmless_name("encoded twice", "%252e%252e%252fsecret"),
    harmless_name("home", "~/secret"),
    harmless_name("a variable", "$HOME/secret"),
    harmless_name("an address", "file:///etc/passwd"),
    harmless_name("a slash that is none", "..\u2215outside\u2215secret.txt"),
    harmless_name("wide dots", "\uff0e\uff0e/outside/secret.txt"),
    harmless_name("a command", "$(cat /etc/passwd)/x"),
    harmless_name("a pattern", "*.txt"),
    harmless_name("a flag", "--help"),
    harmless_name("another case", "A.TXT"),
    harmless_name("space at the end", "a.txt "),
    harmless_name("two lines", "a\nb"),
    harmless_name("control characters", "\x1b[2J\x07"),
    HostilePath("the same, spelled oddly", "./sub/.././/a.txt", A_TXT, WRITES),
    HostilePath("absolute, inside", "{base}/a.txt", A_TXT, WRITES),
    # Invalid paths.
    HostilePath("NUL", "a.txt\x00.png", NUL, NUL),
    HostilePath("NUL that leads out", "../outside\x00", NUL, NUL),
    HostilePath("bytes that are no UTF-8", "b\udcff", NO_TEXT, NO_TEXT),
    HostilePath("half a character", "b\ud800", NO_TEXT, NO_TEXT),
    HostilePath("a long name", "n" * 300, TOO_LONG, TOO_LONG),
    HostilePath("a long path", "n/" * 3000 + "x", TOO_LONG, TOO_LONG),
    HostilePath("10,000 levels", "d/" * 10_000 + "x", TOO_LONG, TOO_LONG),
    HostilePath("nothing", "", DIRECTORY, DIRECTORY),
    HostilePath("the base", ".", DIRECTORY, DIRECTORY),
    # Links.
    leading_outside("a link to a file outside", "link", link_to("{outside}/secret.txt")),
    leading_outside("a relative link outside", "link", link_to("../outside/secret.txt")),
    leading_outside("a link to a directory outside", "link/secret.txt", link_to("{outside}")),
    leading_outside(
        "a link to a directory outside, to make something in", "link/new/x", link_to("../outside")
    ),
    leading_outside("a link to nothing outside", "link", link_to("{outside}/new.txt")),
    leading_outside("a link to the root", "link/etc/passwd", link_to("/")),
    leading_outside("a link far up", "link", link_to("../" * 60 + "etc/passwd")),
    leading_outside("a chain of links outside", "l0", lambda g: chain(g, 9, "../outside/secret.txt")),
    leading_outside("a link to the memory of a process", "link", link_to("/proc/self/mem")),
    leading_outside("a magic link", "link/etc/passwd", link_to("/proc/self/root")),
    leading_outside("a magic link to what is open", "link", link_to("/proc/self/fd/0")),
    leading_outside("a link to a device", "link", link_to("/dev/zero")),
    HostilePath("a link out and in again", "link", A_TXT, WRITES, link_to("../outside/../base/a.txt")),
    HostilePath("a link within", "link", B_TXT, WRITES, link_to("sub/b.txt")),
    HostilePath("an absolute link within", "link", B_TXT, WRITES, link_to("{base}/sub/b.txt")),
    HostilePath("a link to a directory within", "link/b.txt", B_TXT, WRITES, link_to("./sub/../sub/")),
    HostilePath("a link to nothing within", "link", NONE, WRITES, link_to("sub/new.txt")),
    HostilePath("a link to itself", "link", TANGLED, TANGLED, link_to("link")),
    HostilePath("links in a circle", "l0/x", TANGLED, TANGLED, lambda g: chain(g, 3, "l0")),
    HostilePath("many links", "l0", A_TXT, WRITES, lambda g: chain(g, MAX_LINKS, "a.txt")),
    HostilePath("too many links", "l0", TANGLED, TANGLED, lambda g: chain(g, MAX_LINKS + 1, "a.txt")),
    HostilePath("a link that goes up and down", "link", A_TXT, WRITES, link_to("sub/../" * 580 + "a.txt")),
    # Special files.
    HostilePath("a pipe", "pipe", NOT_REGULAR, NOT_REGULAR, lambda g: os.mkfifo(g.base / "pipe")),
    HostilePath("a link to a pipe", "link", NOT_REGULAR, NOT_REGULAR, a_linked_pipe),
    HostilePath("a socket", "sock", NOT_REGULAR, NOT_REGULAR, a_socket),
    HostilePath("a hard link to a pipe", "other", NOT_REGULAR, NOT_REGULAR, another_name_of_a_pipe),
    HostilePath("a directory", "sub", DIRECTORY, DIRECTORY),
    HostilePath("a directory with a slash", "sub/", DIRECTORY, DIRECTORY),
    HostilePath("a link to a directory", "link", DIRECTORY, DIRECTORY, link_to("sub")),
    HostilePath("a file as a directory", "a.txt/b", NONE, NO_WAY),
    HostilePath("a file as a directory, and up", "a.txt/b/../../sub/b.txt", B_TXT, WRITES),
    # Kinds of regular files.
    HostilePath("a huge file", "huge", BINARY, WRITES, a_sparse_file),
]  # fmt: skip


def test_the_table_is_long() -> None:
    assert len(HOSTILE) >= 35
    assert len({each.name for each in HOSTILE}) == len(HOSTILE)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_a_hostile_path_is_contained_and_the_model_is_informed(
    ground: FileTree, hostile: HostilePath
) -> None:
    """9.2.1: by every tool, and no file outside is read or changed."""
    hostile.make(ground)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = hostile.path.replace("{base}", str(ground.base)).replace("{outside}", str(ground.outside))
    around = ground.files_outside()

    def expected_text(text: str) -> str:
        return text.replace("{path}", path)

    assert ground.read(path) == expected_text(hostile.reading)
    if hostile.reading.startswith("Error: "):
        assert ground.edit(path, "one", "three") == expected_text(hostile.editing)
    listed, found = ground.call("list_dir", path=path), ground.call("search_files", pattern=path)
    for text in (listed, found):
        assert not {"secret.txt", "etc", "root:", SECRET} & set(text.replace(path, "").split())
    assert ground.write(path) == expected_text(hostile.writing)
    if hostile.writing == WRITES:
        assert ground.read(path) == "     1\tnew"
    assert ground.files_outside() == around
    assert not [name for name in ground.names() if "everstep" in name]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM_KIB


WRONG_KINDS: tuple[Any, ...] = (5, 1.5, True, [], [1], {}, {"a": 1}, [[]])


@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_dir", "search_files"])
def test_arguments_of_a_wrong_kind_are_problems_not_failures(tmp_path: Path, tool: str) -> None:
    """9.2.1: problems are returned as successful results."""
    ground = FileTree(tmp_path)
    for value in WRONG_KINDS:
        told = ground.call(tool, **dict.fromkeys(ground.tools()[tool].schema["properties"], value))

        if tool == "search_files" and value == []:
            assert told == "Error: pattern is required"
        else:
            assert told.startswith("Error: The arguments do not fit: "), value


def test_numbers_of_any_size_are_read_or_refused(tmp_path: Path) -> None:
    """9.2.2: for any argument of a model."""
    ground = FileTree(tmp_path)
    for number in (10**400, 1e300, -(10**400), float("nan"), float("inf"), "x", "-7", "0x10"):
        assert ground.read("a.txt", offset=number, limit=number)


DEVICES = ["zero", "null", "full", "random", "tty", "fd/0", "stdin", "ptmx"]


@pytest.mark.parametrize("name", DEVICES)
def test_the_content_of_a_device_is_never_read(way: str, name: str) -> None:
    """9.2.1: a policy that allows /dev gives access to no endless file."""
    del way
    told = ReadFileTool("/dev").call({"path": name}, CONTEXT)
    assert told in {NOT_REGULAR.format(path=name), OUTSIDE, NONE.format(path=name)}
    assert (told == NOT_REGULAR.format(path=name)) >= (name in DEVICES[:4])


@pytest.mark.parametrize("path", ["self/root/etc/passwd", "self/cwd", "self/exe", "self/fd/0"])
def test_a_magic_link_is_not_followed(way: str, path: str) -> None:
    """9.2.1: a policy that allows /proc does not allow all open files."""
    del way
    assert ReadFileTool("/proc").call({"path": path}, CONTEXT) == OUTSIDE


def test_a_policy_that_allows_everything_gives_access_to_everything(ground: FileTree) -> None:
    """9.2.1"""
    told = ReadFileTool("/").call({"path": f"{ground.outside}/secret.txt"}, CONTEXT)
    assert told == f"     1\t{SECRET}"


NAMES = ("a", "b", "c")
STEPS = (*NAMES, *NAMES, "..", ".", "")


def a_maze(root: Path, dice: random.Random) -> None:
    """Directories, files that contain their location, and random links, in and around the base."""
    targets = (*(f"{root}/base/{name}" for name in ("", *NAMES)), f"{root}/outside", "/etc", "/")
    places = [root / "base", root / "outside"]
    for place in places[:]:
        places += [place / name for name in NAMES[:2]]
    for place in places:
        place.mkdir(exist_ok=True)
    (root / "base" / "e").write_text("base")
    for place in places:
        for name in (*NAMES, "d", "e"):
            if (place / name).exists():
                continue
            if dice.random() < 0.4:
                (place / name).write_text(str(place.relative_to(root)))
            elif dice.random() < 0.3:
                (place / name).symlink_to(dice.choice(targets))
            else:
                (place / name).symlink_to("/".join(dice.choices(STEPS, k=dice.randint(1, 5))) or ".")


@pytest.mark.parametrize("seed", range(12))
def test_both_implementations_resolve_to_the_same_file_and_never_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """9.2.1: in any maze of links, to the file that the system itself resolves."""
    if not openat2.is_available():
        do_without("this kernel has no openat2, or a sandbox forbids it")
    dice = random.Random(seed)  # noqa: S311 -- a maze is no secret
    a_maze(tmp_path, dice)
    tool, found = ReadFileTool(tmp_path / "base"), list[str]()
    paths = ["/".join(dice.choices((*NAMES, "d", "e", "..", "."), k=dice.randint(1, 5))) for _ in range(100)]
    for path in ("e", *paths):
        told = set[str]()
        for is_there in (True, False):
            monkeypatch.setattr(openat2, "is_available", lambda answer=is_there: answer)
            told.add(tool.call({"path": path}, CONTEXT))
        assert len(told) == 1
        (text,) = told
        if not text.startswith("Error: "):
            found.append(path)
            real = (tmp_path / os.path.normpath(f"base/{path}")).resolve()
            assert text == f"     1\t{real.parent.relative_to(tmp_path)}"
            assert real.is_relative_to(tmp_path / "base")
    assert found


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("seed", range(5))
def test_nothing_outside_a_maze_is_written(tmp_path: Path, way: str, seed: int) -> None:
    """9.2.1, 9.2.3: nor created."""
    del way
    dice = random.Random(seed)  # noqa: S311 -- a maze is no secret
    a_maze(tmp_path, dice)
    tool = WriteFileTool(tmp_path / "base")

    def outside() -> dict[str, str | None]:
        found = sorted((tmp_path / "outside").rglob("*"))
        return {
            str(path): path.read_text() if path.is_file() and not path.is_symlink() else None
            for path in found
        }

    before, written = outside(), 0
    for _ in range(100):
        path = "/".join(dice.choices((*NAMES, "d", "new", "..", "."), k=dice.randint(1, 5)))
        written += tool.call({"path": path, "content": "new"}, CONTEXT).startswith("Wrote ")
    assert written
    assert outside() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "outside"]


# --- Directories ---


def test_the_base_may_be_a_link_and_paths_may_use_either_name(ground: FileTree) -> None:
    """9.2.1: paths stay inside, under both names of the base."""
    alias = ground.base.parent / "alias"
    alias.symlink_to(ground.base)
    tool = ReadFileTool(alias)
    for path in ("a.txt", f"{alias}/a.txt", f"{ground.base}/a.txt", f"{ground.base}/sub/../a.txt"):
        assert tool.call({"path": path}, CONTEXT) == A_TXT
    ground.link("link", ground.base / "sub" / "b.txt")
    ground.link("up", "../alias/sub/b.txt")
    assert tool.call({"path": "link"}, CONTEXT) == B_TXT
    assert tool.call({"path": "up"}, CONTEXT) == B_TXT
    assert tool.call({"path": f"{ground.outside}/secret.txt"}, CONTEXT) == OUTSIDE


def test_a_missing_base_directory_is_the_operators_problem(ground: FileTree) -> None:
    """9.2.1: the model is asked to report it."""
    gone = ground.base / "gone"
    told = "Error: The directory for the file tools does not exist; report this to the operator of this agent"
    for tool in (*UseFileTools(gone).tools, SearchFilesTool(gone), ListDirTool(gone)):
        args = {"path": "x", "content": "x", "old_string": "a", "new_string": "b", "pattern": "x"}
        known = {name: args[name] for name in args if name in tool.schema["properties"]}
        assert tool.call(known, CONTEXT) == told
    assert not gone.exists()


def test_a_base_directory_that_was_removed_and_created_again_is_used(ground: FileTree) -> None:
    """9.2.1: between two calls, or as a replacement of a link that led elsewhere."""
    tools = ground.tools()
    assert tools["read_file"].call({"path": "a.txt"}, CONTEXT) == A_TXT
    ground.base.rename(ground.base.parent / "old")
    assert "does not exist" in tools["read_file"].call({"path": "a.txt"}, CONTEXT)
    ground.base.mkdir()
    assert tools["read_file"].call({"path": "a.txt"}, CONTEXT) == NONE.format(path="a.txt")
    assert tools["write_file"].call({"path": "a.txt", "content": "new"}, CONTEXT).startswith("Wrote")
    assert (ground.base.parent / "old" / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("base", ["", None, 5, b"/tmp", "a\x00b"])
def test_a_base_that_is_not_a_directory_is_refused_at_build_time(base: Any) -> None:
    """9.2.1"""
    with pytest.raises(InvalidInput, match="is not a directory; pass a path as text or as a Path"):
        UseFileTools(base)


def test_a_policy_allows_more_directories(ground: FileTree) -> None:
    """9.2.1: the policy's readable and writable paths."""
    policy = ExecutionPolicy.in_dir(ground.base).with_readable_paths(ground.outside)
    policy = policy.with_writable_paths(ground.beside)
    for place in (ground.outside, ground.beside):
        for spelled in (place, f"../{place.name}"):
            assert ground.call("read_file", policy, path=f"{spelled}/secret.txt") == f"     1\t{SECRET}"
            assert "[file] secret.txt" in ground.call("list_dir", policy, path=f"{spelled}")
    ground.link("link", "../outside/secret.txt")
    assert ground.call("read_file", policy, path="link") == f"     1\t{SECRET}"

    def write_into(place: Path) -> str:
        return ground.call("write_file", policy, path=f"{place}/new/x.txt", content="new")

    assert write_into(ground.outside) == OUTSIDE
    assert write_into(ground.beside) == f"Wrote {ground.beside}/new/x.txt: 3 bytes, 1 lines"
    assert (ground.beside / "new" / "x.txt").read_text() == "new"
    assert ground.call("read_file", policy, path="/etc/passwd") == OUTSIDE


@pytest.mark.parametrize("spelled", ["{base}/sub", "{base}/../alias/sub", "{alias}/sub"])
def test_a_policy_directory_that_becomes_a_link_leads_nowhere(ground: FileTree, spelled: str) -> None:
    """9.2.1: where commands may write, they may replace a directory that the policy names."""
    alias = ground.base.parent / "alias"
    alias.symlink_to(ground.base)
    path = spelled.format(base=ground.base, alias=alias)
    policy = ExecutionPolicy.in_dir(ground.base).with_readable_paths(path)
    tool = ground.tools(policy)["read_file"]
    assert tool.call({"path": "sub/b.txt"}, CONTEXT) == B_TXT
    (ground.base / "sub").rename(ground.base / "moved")
    ground.link("sub", ground.outside / "sub")
    for way_in in ("sub/b.txt", f"{path}/b.txt", f"{ground.base}/sub/b.txt"):
        assert tool.call({"path": way_in}, CONTEXT) == OUTSIDE


def test_the_base_may_be_in_a_directory_of_the_policy(ground: FileTree) -> None:
    """9.2.1: and relative paths still start in it."""
    policy = ExecutionPolicy.in_dir(ground.base).with_readable_paths(ground.base.parent)
    assert ground.call("read_file", policy, path="a.txt") == A_TXT
    assert ground.call("read_file", policy, path="../outside/secret.txt") == f"     1\t{SECRET}"
    assert ground.call("write_file", policy, path="../outside/secret.txt", content="x") == OUTSIDE


def test_a_readable_path_may_be_a_file(ground: FileTree) -> None:
    """9.2.1: and then only that file is readable."""
    policy = ExecutionPolicy.in_dir(ground.base).with_readable_paths(ground.outside / "secret.txt")
    path = str(ground.outside / "secret.txt")
    assert ground.call("read_file", policy, path=path) == f"     1\t{SECRET}"
    assert ground.call("read_file", policy, path=str(ground.outside / "sub" / "b.txt")) == OUTSIDE
    assert ground.call("write_file", policy, path=path, content="new") == OUTSIDE


# --- Rights ---


def permission_error(path: str) -> str:
    return f"Error: '{path}' cannot be used: Permission denied"


def test_missing_permissions_are_reported(ground: FileTree) -> None:
    """9.2.1: problems are returned as successful results."""
    (ground.base / "locked").mkdir()
    (ground.base / "locked" / "x").touch()
    with drop_privileges(ground):
        (ground.base / "a.txt").chmod(0)
        (ground.base / "sub" / "b.txt").chmod(0o444)
        (ground.base / "sub").chmod(0o555)
        (ground.base / "locked").chmod(0)
        try:
            assert ground.read("a.txt") == permission_error("a.txt")
            assert ground.edit("a.txt", "a", "b") == "Error: Reading the file failed: Permission denied"
            assert ground.read("locked/x") == permission_error("locked/x")
            assert ground.call("list_dir", path="locked") == permission_error("locked")
            assert ground.write("locked/x") == permission_error("locked/x")
            assert ground.write("sub/new.txt") == permission_error("sub/new.txt")
            assert ground.write("sub/new/x.txt") == permission_error("sub/new/x.txt")
            assert ground.edit("sub/b.txt", "inside", "changed") == permission_error("sub/b.txt")
            assert ground.call("search_files", pattern="zzz") == (
                "No file matches zzz\n... 1 directories could not be read"
            )
            (ground.base / "sub").chmod(0o755)
            assert ground.write("sub/b.txt") == permission_error("sub/b.txt")
        finally:
            (ground.base / "locked").chmod(0o755)
    assert (ground.base / "sub" / "b.txt").read_text() == "inside\n"
    assert ground.names() == ["a.txt", "locked/x", "sub/b.txt"]


# --- Races ---

# A check before opening lets one race in 25 through: this many find it, but for one run in 25,000.
CALLS = 80
AT_MOST = 50_000


def run_race(act: Callable[[], str], *both: str) -> None:
    """Many times, and until both outcomes of the race were seen.

    There are no other outcomes, except for an implementation that checks first and opens later.
    """
    seen = set[str]()
    for number in range(AT_MOST):
        seen.add(act())
        if number >= CALLS and seen >= set(both):
            break
    assert seen >= set(both)
    assert all(text in both or text.startswith("Error: ") for text in seen)


def test_a_file_that_becomes_a_link_leads_nowhere(ground: FileTree) -> None:
    """9.2.1: not even at the moment of opening."""
    around = ground.files_outside()
    ground.link("link", ground.outside / "secret.txt")
    with swap_names_in_loop(ground.base / "a.txt", ground.base / "link"):
        run_race(lambda: ground.read("a.txt"), A_TXT, OUTSIDE)
    assert ground.files_outside() == around


@pytest.mark.usefixtures("hasty")
def test_a_directory_that_becomes_a_link_leads_nowhere(ground: FileTree) -> None:
    """9.2.1: for no tool."""
    (ground.outside / "sub" / "outer.txt").touch()
    around = ground.files_outside()
    ground.link("link", ground.outside / "sub")
    with swap_names_in_loop(ground.base / "sub", ground.base / "link"):
        run_race(lambda: ground.read("sub/b.txt"), B_TXT, OUTSIDE)
        run_race(lambda: ground.call("list_dir", path="sub"), "[file] b.txt", OUTSIDE)
        run_race(lambda: ground.edit("sub/b.txt", "s", "s."), "Edited sub/b.txt: 1 replacement(s)", OUTSIDE)
        run_race(lambda: ground.write("sub/b.txt"), "Wrote sub/b.txt: 3 bytes, 1 lines", OUTSIDE)
        for _ in range(CALLS):
            assert "/outer.txt" not in ground.call("search_files", pattern="outer.txt")
    assert ground.files_outside() == around


def test_a_file_that_becomes_a_pipe_does_not_block(ground: FileTree) -> None:
    """9.2.1"""
    os.mkfifo(ground.base / "pipe")
    with swap_names_in_loop(ground.base / "a.txt", ground.base / "pipe"):
        run_race(lambda: ground.read("a.txt"), A_TXT, NOT_REGULAR.format(path="a.txt"))
        run_race(
            lambda: ground.edit("a.txt", "absent", "x"),
            "Error: The file does not contain old_string",
            f"Error: Reading the file failed: {NOT_REGULAR.format(path='a.txt').removeprefix('Error: ')}",
        )


def test_a_hard_link_is_read_and_its_other_names_keep_their_content(ground: FileTree) -> None:
    """9.2.1, 9.2.3: no file outside is written through it."""
    os.link(ground.outside / "secret.txt", ground.base / "hard.txt")
    assert ground.write("hard.txt").startswith("Wrote")
    assert (ground.outside / "secret.txt").read_text() == SECRET


def test_the_tools_need_no_rights_beyond_the_base(ground: FileTree) -> None:
    """9.2.1: the worker may have no permission for the directory above."""
    del ground
    with open_public_directory() as root:
        inner = FileTree(root)
        with drop_privileges(inner):
            assert (
                WriteFileTool(inner.base).call({"path": "n/x", "content": "new"}, CONTEXT).startswith("Wrote")
            )
