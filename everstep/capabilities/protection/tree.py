"""Finds protected names below a directory.

It runs before each command, because people change their directories at any time. The result for a directory
is cached as long as its timestamps do not change, so most scans are one call per directory. Links are not
followed.
"""

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from everstep.agent_domain.errors import EverstepError
from everstep.capabilities.protection.repositories import git_directory, looks_like_git
from everstep.capabilities.protection.rules import Protection, is_git_name, is_read_only_name, is_secret_name

MAX_FOLDERS: Final = 200_000
SETTLE_NANOSECONDS: Final = 100_000_000
"""Nanoseconds after which another change is sure to give a directory a new timestamp."""
MAX_CACHED: Final = 8
"""How many roots are cached."""
MAX_PATH: Final = 4_096
FEW_FOLDERS: Final = 500
"""How many directories can be scanned within a few milliseconds."""


class TooLarge(EverstepError):
    """A directory has too many directories in it to be scanned."""


@dataclass(slots=True)
class ScanResult:
    """The paths to protect below a directory, as real paths."""

    hidden: list[str] = field(default_factory=list[str])
    read_only: list[str] = field(default_factory=list[str])
    repositories: list[str] = field(default_factory=list[str])
    """Git directories."""
    settings: list[str] = field(default_factory=list[str])
    """Settings and definitions of agents, under their own names."""
    closed: list[str] = field(default_factory=list[str])
    """Directories that could not be read."""
    folders: int = 0
    """How many directories were scanned."""


@dataclass(frozen=True, slots=True)
class _Folder:
    mark: tuple[int, ...]
    read_at: int
    """When it was read, in nanoseconds."""
    folders: tuple[str, ...]
    """The folders to scan."""
    names: tuple[tuple[str, int], ...]
    """The protected names, with their types."""
    is_git: bool
    is_closed: bool = False
    """Whether this process cannot read it; the command's user may be able to open it."""


_CACHE: "OrderedDict[str, dict[str, _Folder]]" = OrderedDict()
_LOCK = threading.Lock()


def scan(
    root: str, protection: Protection, at_most: int = MAX_FOLDERS, closed: Collection[str] | None = None
) -> ScanResult:
    """Scan everything below a real path.

    Args:
        root: The real path.
        protection: The paths that are closed to agents anyway.
        at_most: How many directories may be there.
        closed: Directories that may be unreadable. If it is given, others are opened to their owner.

    Raises:
        TooLarge: There are more directories.
    """
    with _LOCK:
        before = _CACHE.get(root, {})
    if len(before) > at_most:
        raise TooLarge(_too_large(root, at_most))
    result, now = ScanResult(), dict[str, _Folder]()
    for path, folder in _walk(root, protection, before, result, closed):
        now[path] = folder
        if len(now) > at_most:
            raise TooLarge(_too_large(root, at_most))
    result.folders = len(now)
    with _LOCK:
        _CACHE[root] = now
        _CACHE.move_to_end(root)
        while len(_CACHE) > MAX_CACHED:
            _CACHE.popitem(last=False)
    return result


def _too_large(root: str, most: int) -> str:
    return (
        f"{root} holds more than {most} directories, too many to look through; "
        "name one that holds nothing but the work"
    )


def _walk(
    root: str,
    protection: Protection,
    before: dict[str, _Folder],
    result: ScanResult,
    may_be_closed: Collection[str] | None,
) -> Iterator[tuple[str, _Folder]]:
    closed = {*protection.hidden, *protection.read_only} - {root}
    pending = [root]
    while pending:
        path = pending.pop()
        if path in closed:
            # It is protected as a whole, so there is no need to look inside.
            continue
        folder = _folder(path, before.get(path))
        if folder and folder.is_closed and may_be_closed is not None and path not in may_be_closed:
            open_to_owner(path)
            folder = _folder(path, None)
        if folder is None:
            continue
        yield path, folder
        _add_folder(path, folder, result, is_root=path == root)
        if not folder.is_git or path == root:
            pending.extend(f"{path}/{name}" for name in folder.folders)


def _folder(path: str, cached: _Folder | None) -> _Folder | None:
    """None if it is no directory any more."""
    if len(os.fsencode(path)) >= MAX_PATH:
        # Only commands make paths this deep, one directory at a time.
        return None
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    mark = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mtime_ns)
    if cached and cached.mark == mark and cached.read_at - status.st_ctime_ns > SETTLE_NANOSECONDS:
        return cached
    read_at = time.time_ns()
    try:
        with os.scandir(path) as entries:
            kinds = [(entry.name, _kind(entry)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return _Folder(mark, 0, (), (), is_git=False, is_closed=True)
    names = tuple(
        each
        for each in kinds
        if is_secret_name(each[0]) or is_read_only_name(each[0]) or is_git_name(each[0])
    )
    special = {name for name, _ in names}
    folders = tuple(
        name for name, kind in kinds if (kind == stat.S_IFDIR and name not in special) or is_secret_name(name)
    )
    return _Folder(mark, read_at, folders, names, looks_like_git({name for name, _ in kinds}))


def open_to_owner(path: str) -> None:
    """Give the owner of a directory access to it again; other users' directories are not changed."""
    with suppress(OSError):
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(path, flags)
        try:
            mode = stat.S_IMODE(os.fstat(opened).st_mode)
            os.chmod(f"/proc/self/fd/{opened}", mode | stat.S_IRWXU)
        finally:
            os.close(opened)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _add_folder(path: str, folder: _Folder, result: ScanResult, *, is_root: bool) -> None:
    if folder.is_closed:
        if not is_root:
            result.hidden.append(path)
            result.closed.append(path)
        return
    if folder.is_git:
        result.repositories.append(path)
        if not is_root:
            return
    for name, kind in folder.names:
        each = f"{path}/{name}"
        if is_read_only_name(name):
            result.settings.append(each)
        if kind == stat.S_IFLNK:
            # The target of a link is protected; a dangling link needs no protection.
            each = os.path.realpath(each)
        if kind != stat.S_IFLNK or os.path.exists(each):
            _add_special(path, name, each, result)


def _add_special(folder: str, name: str, path: str, result: ScanResult) -> None:
    if is_secret_name(name):
        result.hidden.append(path)
    elif is_git_name(name) and os.path.isdir(path):
        result.repositories.append(path)
    else:
        result.read_only.append(path)
        if is_git_name(name) and os.path.isdir(target := git_directory(folder)):
            result.repositories.append(target)
