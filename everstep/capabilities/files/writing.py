"""Atomic replacement of files: readers see the old content or the new, also after a crash."""

import os
import secrets
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from everstep.capabilities.files import ownership
from everstep.capabilities.files.enclosure import DIRECTORY, PathProblem, closing
from everstep.capabilities.files.regular_files import kind_problem

MAX_WRITE: Final = 8 * 1024 * 1024
"""Maximum size of a file that is written or edited."""

_LOCKS: Final = tuple(threading.Lock() for _ in range(64))


@contextmanager
def file_lock(directory: int, name: str) -> Generator[None]:
    """Let one call of this process at a time change a file: the calls of a step run in parallel."""
    where = os.stat(".", dir_fd=directory)
    with _LOCKS[hash((where.st_dev, where.st_ino, name)) % len(_LOCKS)]:
        yield


def stat_entry(directory: int, name: str) -> os.stat_result | None:
    """The status of a name, links not followed; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def replace(directory: int, name: str, content: bytes, path: str) -> None:
    """Write the content of a file, whether it exists or not; `path` is its name in error texts.

    The new content is written to a temporary file, which is renamed once it is on the disk. The file keeps
    its mode, and if root does this, its owner; other names of the old file (hard links) keep the old content.
    """
    old = stat_entry(directory, name)
    if old is not None:
        _require_writable(old, directory, name, path)
    temporary = f".everstep-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o666, dir_fd=directory)
    try:
        with closing(file):
            _fill(file, content)
            ownership.give_to_owner_of(file, old or os.stat(".", dir_fd=directory))
            if old is not None:
                os.fchmod(file, stat.S_IMODE(old.st_mode) & 0o777)
            os.fsync(file)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    _sync_directory(directory)


def _require_writable(old: os.stat_result, directory: int, name: str, path: str) -> None:
    if problem := kind_problem(old, path):
        raise PathProblem(problem)
    # A rename needs rights on the directory only, but a user who may not write a file must not replace it.
    if not os.access(name, os.W_OK, dir_fd=directory, effective_ids=True):
        raise PermissionError(13, os.strerror(13))


def _fill(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_directory(directory: int) -> None:
    """Sync the new name to the disk as well."""
    # A directory that may be written but not read cannot be opened for this, and the file is written already.
    with (
        suppress(PermissionError),
        closing(os.open(".", DIRECTORY | os.O_CLOEXEC, dir_fd=directory)) as opened,
    ):
        os.fsync(opened)
