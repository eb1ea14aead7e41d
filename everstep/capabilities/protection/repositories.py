"""What of a git directory runs code when its owner uses git: its configuration, hooks and attributes.

A git directory is known by what is in it, as git itself does, so its name is of no matter. One of a linked
worktree or a submodule has a `.git` file that leads to it.
"""

import errno
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAIN: Final = frozenset({"HEAD", "objects", "refs"})
LINKED: Final = frozenset({"HEAD", "commondir"})
NESTED: Final = ("modules", "worktrees")
"""Where a git directory keeps those of its submodules and of its linked worktrees."""

HERE: Final = ".\n"
"""A `commondir` that says this leaves everything as it is without one."""
NOTHING: Final = "\n"
"""The same for configuration and attributes."""

MAX_CONFIG: Final = 1024 * 1024

_CODE: Final = frozenset({"hooks", "info", "commondir", "gitdir", *NESTED})
_LEADS_ON: Final = re.compile(
    r'(?:^|\])\s*(hookspath|path)\s*=\s*"?([^"\n;#]+)', re.IGNORECASE | re.MULTILINE
)


def is_code(name: str) -> bool:
    """Whether an entry of a git directory decides which code git runs."""
    folded = name.casefold()
    return folded in _CODE or folded.startswith("config")


def looks_like_git(names: Collection[str]) -> bool:
    """Whether a directory with these entries is a git directory."""
    return "HEAD" in names and ("commondir" in names or ("objects" in names and "refs" in names))


def is_git_directory(folder: str) -> bool:
    """The same for a directory as it is."""
    return os.path.lexists(f"{folder}/HEAD") and (
        os.path.lexists(f"{folder}/commondir")
        or (os.path.lexists(f"{folder}/objects") and os.path.lexists(f"{folder}/refs"))
    )


def would_complete(folder: str, name: str) -> bool:
    """Whether a directory becomes a git directory as soon as it has an entry of this name."""
    if os.path.lexists(f"{folder}/{name}"):
        return False
    return any(
        name in whole and all(os.path.lexists(f"{folder}/{other}") for other in whole - {name})
        for whole in (MAIN, LINKED)
    )


def is_linked(folder: str) -> bool:
    """Whether configuration and hooks are those of another git directory."""
    try:
        return Path(folder, "commondir").read_text("utf-8", "replace") != HERE
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Parts:
    """What of one git directory has to be closed, so that the rest can be written."""

    read_only: tuple[str, ...]
    missing_folders: tuple[str, ...]
    """Names that are free and must stay so."""
    missing_files: Mapping[str, str]
    """The same, with a text that changes nothing."""
    nested: tuple[str, ...]
    """Git directories inside, each with parts of its own."""


def parts_of(folder: str) -> Parts:
    """Look at a git directory.

    Raises:
        OSError: It cannot be looked at, or a link has the place of a part.
    """
    names = os.listdir(folder)
    linked = is_linked(folder)
    present = [name for name in names if is_code(name) and name != "info" and not name.endswith(".lock")]
    if not linked and "commondir" in present:
        present.remove("commondir")
    if links := [name for name in (*present, "info") if os.path.islink(f"{folder}/{name}")]:
        raise OSError(errno.ELOOP, "a link, which could be replaced", links[0])
    files = ["config.worktree"] if linked else ["config", "config.worktree"]
    folders = [] if linked else ["hooks", "info"]
    missing = {f"{folder}/{name}": NOTHING for name in files if name not in names}
    attributes = f"{folder}/info/attributes"
    if not linked:
        missing[f"{folder}/commondir"] = HERE
        if "info" in names and not os.path.lexists(attributes):
            missing[attributes] = NOTHING
    return Parts(
        (*(f"{folder}/{name}" for name in present), attributes),
        tuple(f"{folder}/{name}" for name in folders if name not in names),
        missing,
        tuple(inner for name in NESTED for inner in _inside(f"{folder}/{name}")),
    )


def _inside(folder: str, depth: int = 4) -> Iterator[str]:
    """Submodules may have names with slashes."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        inner = f"{folder}/{name}"
        if os.path.islink(inner) or not os.path.isdir(inner):
            continue
        if is_git_directory(inner):
            yield inner
        elif depth:
            yield from _inside(inner, depth - 1)


def _config(folder: str) -> str:
    try:
        with open(f"{folder}/config", "rb") as file:
            return file.read(MAX_CONFIG).decode(errors="replace")
    except OSError:
        return ""


def leads_on(folder: str) -> Iterator[str]:
    """Hooks and configuration that are elsewhere, such as among the files of the project."""
    for name in ("hooks", "config"):
        if os.path.islink(f"{folder}/{name}"):
            yield os.path.realpath(f"{folder}/{name}")
    for key, value in _LEADS_ON.findall(_config(folder)):
        start = os.path.dirname(folder) if key.casefold() == "hookspath" else folder
        yield os.path.realpath(os.path.join(start, os.path.expanduser(value.strip())))


def common_directory(folder: str) -> str:
    """The git directory that has the configuration of this one."""
    try:
        told = Path(folder, "commondir").read_text("utf-8", "replace").strip()
    except OSError:
        return folder
    return os.path.realpath(os.path.join(folder, told))


def linked_from(base_dir: str) -> str | None:
    """The git directory outside of a base directory that its `.git` file leads to, and that knows of it.

    It has to name the base directory as well: the file may have been put there by somebody who wants another
    directory to be opened.
    """
    link = f"{base_dir}/.git"
    try:
        told = Path(link).read_text("utf-8", "replace") if os.path.isfile(link) else ""
    except OSError:
        return None
    if os.path.islink(link) or not told.startswith("gitdir:"):
        return None
    folder = os.path.realpath(os.path.join(base_dir, told.removeprefix("gitdir:").strip()))
    if not is_git_directory(folder) or not _knows(folder, base_dir):
        return None
    return common_directory(folder)


def _knows(folder: str, base_dir: str) -> bool:
    try:
        back = Path(folder, "gitdir").read_text("utf-8", "replace").strip()
    except OSError:
        found = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", _config(folder), re.MULTILINE)
        return bool(found) and os.path.realpath(os.path.join(folder, found[1])) == base_dir
    return os.path.realpath(os.path.join(folder, back)) == f"{base_dir}/.git"
