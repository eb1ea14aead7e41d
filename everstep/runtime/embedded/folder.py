"""The data folder: private to its owner, and only for data."""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from everstep.runtime.embedded.errors import EmbeddedError

OURS: Final = frozenset(
    {
        "api-secret",
        "api-url",
        "database-password",
        "gateway-url",
        "lock",
        "logs",
        "postgres",
        "project.json",
        "run",
        "services.json",
        "temporal.db",
        "temporal.db-journal",
        "temporal.db-shm",
        "temporal.db-wal",
    }
)
"""The files of a data folder."""

DATABASES: Final = ("postgres/PG_VERSION", "temporal.db")

HOW: Final = "name another one with --data or EVERSTEP_DATA"


def has_data(folder: Path) -> bool:
    """Return whether an installation has stored data there."""
    return any(os.path.exists(folder / name) for name in DATABASES)


def prepare(folder: Path) -> None:
    """Create the folder if there is none, and close it to all other users.

    Raises:
        EmbeddedError: The folder cannot be created or written, belongs to another user, or contains other
            files.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(folder)
        for path in (folder, *_contents(folder)):
            _close_to_others(path)
    except FileExistsError:
        raise EmbeddedError(f"{folder} is a file and cannot be the data directory; {HOW}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EmbeddedError(f"{folder} cannot be the data directory: {reason}; {HOW}") from error


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read; readers never see a partial file."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
    new.replace(path)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open`; a new file is private to its owner."""
    return os.open(path, flags, 0o600)


def _check(folder: Path) -> None:
    for path in (folder, *_contents(folder)):
        if not path.is_symlink() and not os.access(path, os.W_OK):
            raise EmbeddedError(
                f"this user may not write to {path}; run as the user who started the services there earlier, "
                f"or {HOW}"
            )
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedError(
            f"{folder} belongs to {_name(owner)}, and a data folder must belong to its user: "
            f"run as {_name(owner)}, or {HOW}"
        )
    others = sorted(name for name in os.listdir(folder) if name.removesuffix(".new") not in OURS)
    if others and not has_data(folder) and not _is_for_agents(folder, others):
        raise EmbeddedError(
            f"{folder} contains other files ({', '.join(others[:3])}), and a data folder must hold only "
            f"data; {HOW}, such as {folder / 'everstep'}"
        )


def _is_for_agents(folder: Path, others: list[str]) -> bool:
    """Return whether the folder is the `.everstep/` of a project, which may also contain its agents."""
    return folder.name == ".everstep" and others == ["agents"]


def _contents(folder: Path) -> Iterator[Path]:
    """Yield Everstep's files in the folder; PostgreSQL manages its own."""
    for path in folder.iterdir():
        if path.name in OURS and path.name not in {"postgres", "run"}:
            yield path
            if path.name == "logs" and path.is_dir():
                yield from path.iterdir()


def _close_to_others(path: Path) -> None:
    # First, because the group bits of the mode are the list's mask. Python supports such lists on Linux only.
    with suppress(AttributeError, OSError):
        os.removexattr(path, "system.posix_acl_access", follow_symlinks=False)
    status = path.lstat()
    if status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode):
        path.chmod(stat.S_IMODE(status.st_mode) & 0o700)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
