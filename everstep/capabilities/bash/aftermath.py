"""Disables code and settings that a command leaves behind for the next process that comes there.

Mounts protect what exists when a command begins. Git directories and settings that the command makes itself
are checked after it has ended: those that would run code are renamed, and the command's output reports it.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from everstep.capabilities.protection.placeholders import is_placeholder
from everstep.capabilities.protection.repositories import (
    NOTHING,
    common_directory,
    parts_of,
    text_of,
)
from everstep.capabilities.protection.rules import lies_in
from everstep.capabilities.protection.tree import open_to_owner

REFUSED_SUFFIX: Final = ".refused"

_MAX_CONFIG: Final = 64 * 1024
_SECTION: Final = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"(?:[^"\\]|\\.)*")?\s*\]\s*')
_ENTRY: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*?))?\s*")
_HARMLESS: Final = {
    "core": "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks "
    "worktree",
    "remote": "url pushurl fetch tagopt promisor partialclonefilter",
    "branch": "remote merge rebase",
    "user": "name email",
    "init": "defaultbranch",
    "submodule": "url active",
    "extensions": "objectformat partialclone refstorage",
}


def rename_forbidden(paths: Iterable[str]) -> Iterator[str]:
    """Rename files that a command was not allowed to make; yield a sentence for each."""
    for path in paths:
        if os.path.lexists(path):
            with suppress(OSError):
                os.rename(path, _free_name(path))
                name = os.path.basename(path)
                yield f"{path} cannot be made by a command, and is {name}{REFUSED_SUFFIX} now"


def disarm(found: Collection[str], before: Collection[str], roots: Iterable[str]) -> Iterator[str]:
    """Disable git directories that would run code, by renaming HEAD: git ignores a directory without it.

    Args:
        found: The git directories that exist now.
        before: Those that existed before the command.
        roots: The directories in which commands can write. Others are not touched, even if a link leads
            there.

    Yields:
        A sentence for each disabled directory.
    """
    allowed = tuple(roots)
    for folder in sorted({*found}.difference(before)):
        if is_placeholder(folder) or not _is_within(folder, allowed):
            continue
        open_to_owner(folder)
        for each in _git_directories_in(folder):
            if os.path.lexists(f"{each}/HEAD") and (why := _runs_code(each, allowed, before, found)):
                with suppress(OSError):
                    open_to_owner(each)
                    os.rename(f"{each}/HEAD", _free_name(f"{each}/HEAD"))
                    yield f"{each} is put out of use, as {why}; its HEAD is HEAD{REFUSED_SUFFIX} now"


def _free_name(path: str) -> str:
    """A free name to rename a file to. An earlier renamed file is replaced, unless it is a directory."""
    target, number = f"{path}{REFUSED_SUFFIX}", 1
    while os.path.isdir(target) and not os.path.islink(target):
        target, number = f"{path}{REFUSED_SUFFIX}.{number}", number + 1
    return target


def _git_directories_in(folder: str) -> Iterator[str]:
    yield folder
    with suppress(OSError):
        for inner in parts_of(folder).nested:
            yield from _git_directories_in(inner)


def _runs_code(
    folder: str, roots: tuple[str, ...], before: Collection[str], now: Collection[str]
) -> str | None:
    """The reason why git would run the command's code there, or None.

    An unreadable directory counts as one.
    """
    common = common_directory(folder)
    if why := _has_code(folder, roots):
        return why
    if common == os.path.realpath(folder):
        return None
    if common not in now:
        # The next command could change it: nothing protects it.
        return "its commondir leads to no repository here"
    why = None if common in before else _has_code(common, roots)
    return f"its commondir leads to {common}, and {why} there" if why else None


def _has_code(folder: str, roots: tuple[str, ...]) -> str | None:
    try:
        hooks = os.listdir(f"{folder}/hooks") if os.path.lexists(f"{folder}/hooks") else []
        if any(not name.endswith(".sample") for name in hooks):
            return "it has hooks"
        for name in ("config", "config.worktree"):
            if reason := _config_problem(folder, _text(f"{folder}/{name}"), roots):
                return f"its {name} {reason}"
        if _text(f"{folder}/info/attributes").strip():
            return "it has attributes"
        if os.path.lexists(f"{folder}/commondir") and text_of(f"{folder}/commondir") is None:
            return "its commondir cannot be read"
    except OSError:
        return "it cannot be read"
    return None


def _text(path: str) -> str:
    if not os.path.lexists(path):
        return NOTHING
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError
        content = file.read(_MAX_CONFIG + 1)
    if len(content) > _MAX_CONFIG:
        raise OSError
    return content.decode(errors="replace")


def _config_problem(folder: str, text: str, roots: tuple[str, ...]) -> str | None:
    section = ""
    for line in text.splitlines():
        rest = line
        if opened := _SECTION.match(rest):
            section, rest = opened[1].lower(), rest[opened.end() :]
        if not rest.strip() or rest.lstrip().startswith(("#", ";")):
            continue
        entry = _ENTRY.fullmatch(rest)
        key = entry[1].lower() if entry else ""
        value = (entry and entry[2]) or ""
        if key not in _HARMLESS.get(section, "").split() or value.endswith("\\"):
            return f"sets {section}.{key}" if entry else "cannot be understood"
        if key in {"url", "pushurl"} and "::" in value:
            return "names a program as its remote"
        if key == "worktree" and any(each in value.strip('"') for each in '"\\'):
            return "cannot be understood"
        if key == "worktree" and not _is_within(os.path.join(folder, value.strip('"')), roots):
            return "works on another directory"
    return None


def _is_within(path: str, roots: tuple[str, ...]) -> bool:
    real = os.path.realpath(path)
    return any(lies_in(real, root) for root in roots)
