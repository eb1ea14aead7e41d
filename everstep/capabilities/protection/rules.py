"""The names and paths that agents cannot read or write, although their tools work there.

Names count below the directory that the agent was given, so a base directory `~/.claude/work` is allowed. A
path in the policy is intended, so its own name does not count. Data folders are hidden even then.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from everstep.capabilities.protection import repositories

READ_ONLY_NAMES: Final = frozenset({"everstep.toml", ".everstep", ".claude"})
"""Read-only: settings, definitions of agents, and instructions for other agents."""

ENVIRONMENT: Final = ".env"
"""The prefix of files with secrets."""
GIT: Final = ".git"

_DATA: Final = ("api-secret", "postgres", "temporal.db", "services.json", "database-password")
"""Files by which the data folder of an installation is recognised at any place."""


def is_secret_name(name: str) -> bool:
    """Whether files with this name cannot be read."""
    return name.casefold().startswith(ENVIRONMENT)


def is_read_only_name(name: str) -> bool:
    """Whether files with this name are read-only."""
    return name.casefold() in READ_ONLY_NAMES


def is_git_name(name: str) -> bool:
    """Whether this is the name of git's directory."""
    return name.casefold() == GIT


def holds_data(folder: str) -> bool:
    """Whether this is the data folder of an installation."""
    return any(os.path.lexists(f"{folder}/{name}") for name in _DATA)


def lies_in(path: str, folder: str) -> bool:
    """Whether the path is the folder or below it; both are normalised and absolute."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def innermost(path: str, folders: Iterable[str]) -> str | None:
    """The deepest of the folders that contains the path, or None."""
    return max((each for each in folders if lies_in(path, each)), key=len, default=None)


@dataclass(frozen=True, slots=True)
class Protection:
    """Real paths that are closed to agents, in addition to the names above."""

    hidden: tuple[str, ...] = ()
    """Neither read nor written."""
    read_only: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    """The same paths with links not resolved; a link on the way could be replaced."""
    start_folder: str = ""
    """The folder in which the installation is started; files there are read at the next start."""

    def hides(self, path: str) -> bool:
        """Whether the real path is in a hidden folder."""
        return any(lies_in(path, each) for each in self.hidden)

    def forbids(self, path: str, roots: Sequence[str], *, write: bool) -> bool:
        """Whether file tools must not touch a path.

        Args:
            path: A real path; the file may not exist.
            roots: The real paths that the agent was given.
            write: Whether the file would be written.
        """
        if self.hides(path):
            return True
        root = innermost(path, roots)
        if root is None:
            return False
        names = path[len(root) :].strip("/").split("/") if path != root else []
        if any(map(is_secret_name, names)) or _in_data(root, names):
            return True
        return write and (
            any(is_read_only_name(name) or is_git_name(name) for name in names)
            or any(lies_in(path, each) and not lies_in(root, each) for each in self.read_only)
            or _in_repository(root, names)
            or any(
                lies_in(path, led.path) and not lies_in(root, led.path)
                for led in _referenced_paths(path, root)
            )
        )


def _in_data(root: str, names: Sequence[str]) -> bool:
    folders = (place for place, name in enumerate(names, 1) if name.casefold() == ".everstep")
    return any(holds_data("/".join([root, *names[:place]])) for place in folders)


def _referenced_paths(path: str, root: str) -> Iterator[repositories.ReferencedPath]:
    """The hooks and configuration of the repositories above the path."""
    folder = os.path.dirname(path) if path != root else root
    while lies_in(folder, root) and folder != root:
        if os.path.lexists(f"{folder}/{GIT}"):
            yield from repositories.paths_referenced_from(folder)
        folder = os.path.dirname(folder)
    yield from repositories.paths_referenced_from(root)


def _in_repository(root: str, names: Sequence[str]) -> bool:
    """Whether a folder on the way is a git directory, or would become one."""
    folder = root
    for name in names:
        # The base directory itself may be a bare repository; the parts that run code stay closed.
        is_closed = folder != root or repositories.is_code(name)
        if is_closed and repositories.is_git_directory(folder):
            return True
        if repositories.would_complete(folder, name):
            return True
        folder = f"{folder}/{name}"
    return False


_CONFIGURED: list[Protection] = [Protection()]


def protect(hidden: Iterable[str | Path] = (), read_only: Iterable[str | Path] = ()) -> None:
    """Set the paths that the agents of this process cannot touch; replaces an earlier call.

    Args:
        hidden: Folders that agents neither read nor write, such as the installation's data.
        read_only: Files and folders that agents cannot write, such as those that agents are loaded from.
    """
    _CONFIGURED[0] = Protection(tuple(map(str, hidden)), tuple(map(str, read_only)))


def current() -> Protection:
    """The protected paths, resolved now."""
    state, home = os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", "")
    return _resolve(_CONFIGURED[0], _here(), sys.prefix, state, home)


@lru_cache(maxsize=16)
def _resolve(configured: Protection, here: str, prefix: str, state: str, home: str) -> Protection:
    del home  # The path below depends on it.
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
        states = [str(folder / "everstep")]
    except RuntimeError:
        states = []
    hidden = [os.path.join(here, path) for path in (*configured.hidden, *states)]
    read_only = [os.path.join(here, path) for path in (*configured.read_only, prefix)]
    return Protection(
        tuple(dict.fromkeys(map(os.path.realpath, hidden))),
        tuple(dict.fromkeys(map(os.path.realpath, read_only))),
        tuple(dict.fromkeys(map(os.path.normpath, (*hidden, *read_only)))),
        os.path.realpath(here) if here else "",
    )


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
