"""Names that stay free while a command runs, taken by something harmless that is mounted over.

A mount needs something that it is put on. So a name that is missing is taken for as long as a command runs by
an empty directory, which git does not see and which nothing else reads, or by a file whose text changes
nothing. All commands that need it hold a lock on it; the last one removes it. What a lost worker left behind
is known by its mode or its text, and removed by the next.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

MODE: Final = 0o1500
"""Of such directories: nobody else makes one like it."""

_UNLOCKABLE: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NOT_OURS: Final = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.EROFS}
_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A name that is taken until it is released."""

    path: str
    descriptor: int
    text: str | None = None
    """Of a file; None for a directory."""

    def release(self) -> None:
        """Remove it if no other command needs it; what has become something else stays."""
        try:
            with suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(self.path, self.descriptor) and _is_placeholder(self.descriptor, self.text):
                    # A directory in which there is something by now stays.
                    (os.rmdir if self.text is None else os.unlink)(self.path)
        finally:
            os.close(self.descriptor)


def is_placeholder(path: str) -> bool:
    """Whether a directory is there as a placeholder only."""
    try:
        return _is_ours(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == MODE


def _is_placeholder(descriptor: int, text: str | None) -> bool:
    found = os.fstat(descriptor)
    if text is None:
        return _is_ours(found)
    return stat.S_ISREG(found.st_mode) and os.pread(descriptor, len(text) + 1, 0) == text.encode()


def take(path: str, text: str | None = None) -> Placeholder | None:
    """Take a name that is free, or share the placeholder that has it.

    Returns:
        What has to be released; None if something else has the name by now, or if the directory cannot be
        written by this user, and so by no command either.
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
        taken: Placeholder | None = None
        try:
            if _lock(descriptor) and _is_named(path, descriptor):
                if _is_placeholder(descriptor, text):
                    taken = Placeholder(path, descriptor, text)
                return taken
        finally:
            if taken is None:
                os.close(descriptor)
    return None


def _make(path: str, text: str | None) -> None:
    with suppress(OSError):
        if text is None:
            os.mkdir(path, MODE)
            os.chmod(path, MODE)
        else:
            # Complete from the first moment: somebody may read it.
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
