"""Which names and paths an agent cannot read or write, although they lie where its tools work.

Names count below the directory that the agent was given: a base directory `~/.claude/work` is fine. A path
that a policy names itself is given on purpose, so its own name does not count. Data folders are hidden even
then.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from everstep.capabilities.protection import repositories

KEPT: Final = frozenset({"everstep.toml", ".everstep", ".claude"})
"""Read-only: settings, definitions of agents, and what other agents obey."""

ENVIRONMENT: Final = ".env"
"""What holds secrets begins with this."""
GIT: Final = ".git"

_DATA: Final = ("api-secret", "postgres", "temporal.db", "services.json", "database-password")
"""By which the data folder of an installation is known, wherever it lies."""


def is_secret(name: str) -> bool:
    """Whether what has this name cannot be read."""
    return name.casefold().startswith(ENVIRONMENT)


def is_kept(name: str) -> bool:
    """Whether what has this name is read-only."""
    return name.casefold() in KEPT


def is_git(name: str) -> bool:
    """Whether this is what git calls its directory."""
    return name.casefold() == GIT


def holds_data(folder: str) -> bool:
    """Whether this is the data folder of an installation."""
    return any(os.path.lexists(f"{folder}/{name}") for name in _DATA)


def lies_in(path: str, folder: str) -> bool:
    """Whether the path is the folder or lies below it; both are normal and absolute."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def innermost(path: str, folders: Iterable[str]) -> str | None:
    """The deepest of the folders that the path lies in."""
    return max((each for each in folders if lies_in(path, each)), key=len, default=None)


@dataclass(frozen=True, slots=True)
class Protection:
    """Real paths that are closed to agents, beside what has one of the names above."""

    hidden: tuple[str, ...] = ()
    """Neither read nor written."""
    read_only: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    """The same before links were followed; a link on the way could be replaced."""
    start: str = ""
    """The folder from which the installation is started; a file there is read at the next start."""

    def hides(self, path: str) -> bool:
        """Whether the real path lies in a hidden folder."""
        return any(lies_in(path, each) for each in self.hidden)

    def forbids(self, path: str, roots: Sequence[str], *, write: bool) -> bool:
        """Whether file tools must not touch a path.

        Args:
            path: A real path, of something that may not exist.
            roots: The real paths that the agent was given.
            write: Whether it is to be written.
        """
        if self.hides(path):
            return True
        root = innermost(path, roots)
        if root is None:
            return False
        names = path[len(root) :].strip("/").split("/") if path != root else []
        if any(map(is_secret, names)) or _in_data(root, names):
            return True
        return write and (
            any(is_kept(name) or is_git(name) for name in names)
            or any(lies_in(path, each) and not lies_in(root, each) for each in self.read_only)
            or _in_repository(root, names)
            or any(lies_in(path, led.path) and not lies_in(root, led.path) for led in _led(path, root))
        )


def _in_data(root: str, names: Sequence[str]) -> bool:
    folders = (place for place, name in enumerate(names, 1) if name.casefold() == ".everstep")
    return any(holds_data("/".join([root, *names[:place]])) for place in folders)


def _led(path: str, root: str) -> Iterator[repositories.Led]:
    """Where the repositories on the way have their hooks and further configuration."""
    folder = os.path.dirname(path) if path != root else root
    while lies_in(folder, root) and folder != root:
        if os.path.lexists(f"{folder}/{GIT}"):
            yield from repositories.led_from(folder)
        folder = os.path.dirname(folder)
    yield from repositories.led_from(root)


def _in_repository(root: str, names: Sequence[str]) -> bool:
    """Whether some folder on the way is a git directory, or becomes one by this."""
    folder = root
    for name in names:
        # The base directory itself may be a bare repository; what runs code in there stays closed.
        is_closed = folder != root or repositories.is_code(name)
        if is_closed and repositories.is_git_directory(folder):
            return True
        if repositories.would_complete(folder, name):
            return True
        folder = f"{folder}/{name}"
    return False


_GIVEN: list[Protection] = [Protection()]


def protect(hidden: Iterable[str | Path] = (), read_only: Iterable[str | Path] = ()) -> None:
    """Say what the agents of this process cannot touch; what was said before is replaced.

    Args:
        hidden: Folders that agents neither read nor write, such as the installation's data.
        read_only: Files and folders that agents cannot write, such as those that agents are loaded from.
    """
    _GIVEN[0] = Protection(tuple(map(str, hidden)), tuple(map(str, read_only)))


def current() -> Protection:
    """What is protected now, with the paths that these paths really are."""
    state, home = os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", "")
    return _resolved(_GIVEN[0], _here(), sys.prefix, state, home)


@lru_cache(maxsize=16)
def _resolved(given: Protection, here: str, prefix: str, state: str, home: str) -> Protection:
    del home  # which the path below follows from
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
        states = [str(folder / "everstep")]
    except RuntimeError:
        states = []
    hidden = [os.path.join(here, path) for path in (*given.hidden, *states)]
    read_only = [os.path.join(here, path) for path in (*given.read_only, prefix)]
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
