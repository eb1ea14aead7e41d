"""Harmless files that occupy a name while a command runs, so that a mount can cover it.

A mount needs a mount point. If a name does not exist, an empty directory takes it while a command runs: git
ignores it, and no other program reads it. For files it is a file without effect. All commands that need it
hold a lock on it, and the last one removes it. A crashed worker's placeholder is recognised by its mode or
its text, and the next worker removes it.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

MODE: Final = 0o1500
"""The mode of such directories, which no other program uses."""

_UNLOCKABLE: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NOT_OURS: Final = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.EROFS}
_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A name that is occupied until `release`."""

    path: str
    descriptor: int
    text: str | None = None
    """The text of a file; None for a directory."""

    def release(self) -> None:
        """Remove it if no other command needs it, unless another file has taken its place."""
        try:
            with suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(self.path, self.descriptor) and _is_placeholder(self.descriptor, self.text):
                    # A directory that is no longer empty is kept.
                    (os.rmdir if self.text is None else os.unlink)(self.path)
        finally:
            os.close(self.descriptor)


def is_placeholder(path: str) -> bool:
    """Whether a directory is only a placeholder."""
    try:
        return _is_ours(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == MODE


def _is_placeholder(descriptor: int, text: str | None) -> bool:
    status = os.fstat(descriptor)
    if text is None:
        return _is_ours(status)
    return stat.S_ISREG(status.st_mode) and os.pread(descriptor, len(text) + 1, 0) == text.encode()


def occupy(path: str, text: str | None = None) -> Placeholder | None:
    """Occupy a free name, or share the placeholder that has it.

    Returns:
        The placeholder, to be released. None if another file has the name by now, or if this user, and so the
            command, cannot write to the directory.
    """
    for _ in range(_TRIES):
        _make(path, text)
        try:
            flags = (
                os.O_RDONLY
                | os.O_NONBLOCK
                | os.O_NOFOLLOW
                | os.O_CLOEXEC
                | (os.O_DIRECTORY if text is None else 0)
            )
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno == errno.ENOENT and _can_make(path):
                continue
            if error.errno not in _NOT_OURS:
                raise
            return None
        placeholder: Placeholder | None = None
        try:
            if _lock(descriptor) and _is_named(path, descriptor):
                if _is_placeholder(descriptor, text):
                    placeholder = Placeholder(path, descriptor, text)
                return placeholder
        finally:
            if placeholder is None:
                os.close(descriptor)
    return None


def _make(path: str, text: str | None) -> None:
    with suppress(OSError):
        if text is None:
            os.mkdir(path, MODE)
            os.chmod(path, MODE)
        else:
            # Linked when it is complete: another process may read it at any time.
            new = f"{path}.{os.getpid()}"
            with open(new, "x", encoding="utf-8") as file:
                file.write(text)
            try:
                os.link(new, path)
            finally:
                os.unlink(new)


def _can_make(path: str) -> bool:
    return os.access(os.path.dirname(path), os.W_OK | os.X_OK)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Another command is about to remove it.
        return False
    except OSError as error:
        if error.errno not in _UNLOCKABLE:
            raise
    return True


def _is_named(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
