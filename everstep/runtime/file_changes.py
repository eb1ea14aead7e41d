"""Changes of a project's files: what a running `everstep up --reload` waits for.

Files are compared by polling. That needs no library, and works on file systems of containers and networks,
which send no notifications. It makes no difference whether an editor writes in place or renames another file.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

POLL_SECONDS: Final = 0.3
"""Seconds between two looks. A change counts once a look finds nothing new: editors write several files."""

SUFFIXES: Final = (".py", ".yaml", ".yml")
"""The files of a project that are watched, beside `everstep.toml` and the folders of agents."""

SETTINGS: Final = "everstep.toml"

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Snapshot: TypeAlias = Mapping[Path, tuple[int, int, int]]
"""The time of the last change, the size and the inode of each file."""


def watched_files(project: Path, sources: Sequence[str]) -> Snapshot:
    """Return the state of the files that a project's agents may be made of.

    Args:
        project: The project's folder. Hidden folders and virtual environments in it are skipped.
        sources: The locations of its agents: folders, files, `module:attribute`.
    """
    found: dict[Path, tuple[int, int, int]] = {}
    for entry in _files(project):
        if entry.name.endswith(SUFFIXES) or entry.name == SETTINGS:
            _add(found, entry)
    for source in sources:
        path = project / source
        if path.is_dir():
            # All files: agents may name skills and scripts in their folder.
            for entry in _files(path):
                _add(found, entry)
        elif path.is_file():
            _add(found, path)
        else:
            for entry in _files_of_package(source):
                _add(found, entry)
    return found


def changed_files(before: Snapshot, after: Snapshot) -> tuple[Path, ...]:
    """Return the files that differ: changed, new or removed."""
    return tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))


async def file_changes(
    look: Callable[[], Snapshot],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncGenerator[tuple[Path, ...]]:
    """Yield the changed files whenever some have changed, and are left alone since one look.

    Changes between two steps of the caller are not lost: what is compared is the state at the last yield.
    """
    known = await asyncio.to_thread(look)
    while True:
        await sleep(POLL_SECONDS)
        last, now = known, await asyncio.to_thread(look)
        while now != last:
            await sleep(POLL_SECONDS)
            last, now = now, await asyncio.to_thread(look)
        if changed := changed_files(known, now):
            known = now
            yield changed


def _files_of_package(source: str) -> Iterator["os.DirEntry[str]"]:
    """Yield the modules of the package of `module:attribute`, which may be outside of the project."""
    package = source.partition(":")[0].partition(".")[0]
    spec = find_spec(package) if package.isidentifier() else None
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from (entry for entry in _files(Path(folder)) if entry.name.endswith(SUFFIXES))


def _files(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """Yield the files below a folder; links to folders are not followed, as they may form loops."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                inside = list(entries)
        except OSError:
            # It was removed after it was found, or may not be read; imports fail on it, too.
            continue
        if any(entry.name == "pyvenv.cfg" for entry in inside):
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    pending.append(Path(entry.path))
            else:
                yield entry


def _add(found: dict[Path, tuple[int, int, int]], file: "os.PathLike[str]") -> None:
    try:
        status = os.stat(file)
    except OSError:
        # It was removed after it was listed, or is a link that leads nowhere: as if it were not there.
        return
    found[Path(file)] = (status.st_mtime_ns, status.st_size, status.st_ino)
