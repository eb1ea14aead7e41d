"""Resolves the paths of a policy, and checks that the mounted files are the ones that were resolved.

Commands may replace a directory that the policy names by a link, if they can write to its parent, while other
commands are about to start. So links in such directories may not lead out of them, and a resolved path is
identified by its inode: the path may name another file a moment later.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from everstep.capabilities.bash.words import Unusable

MAX_LINKS: Final = 40
"""Linux's limit for links in one path."""

_LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A file or directory as it was resolved."""

    path: str
    """Without symbolic links."""
    writable: bool
    device: int
    inode: int
    of_root: bool
    is_directory: bool

    @classmethod
    def at(cls, path: str, writable: bool) -> "ResolvedPath":
        """Look a path up.

        Raises:
            Unusable: The path was replaced by a link, or removed.
        """
        try:
            status = _stat_path(path)
        except (FileNotFoundError, NotADirectoryError):
            raise Unusable(replaced_text(path)) from None
        if stat.S_ISLNK(status.st_mode):
            raise Unusable(replaced_text(path))
        return cls(
            path, writable, status.st_dev, status.st_ino, status.st_uid == 0, stat.S_ISDIR(status.st_mode)
        )

    def is_same_file(self, status: os.stat_result) -> bool:
        """Whether this is the same file."""
        return (status.st_dev, status.st_ino) == (self.device, self.inode)

    def exists_under(self, root: str) -> bool:
        """Whether the same path under this root is the same file."""
        try:
            return self.is_same_file(os.lstat(f"{root}{self.path}"))
        except (FileNotFoundError, NotADirectoryError):
            return False


def replacement_problem(places: Iterable[ResolvedPath], root: str) -> str | None:
    """An error text if another file is under the root in place of one of these, or None."""
    return next((replaced_text(place.path) for place in places if not place.exists_under(root)), None)


def real_path(path: str, commands_write: Iterable[str]) -> str:
    """Resolve a path. A link in a directory that commands can write to may not lead out of that directory."""
    here, todo, links_left = "/", deque(os.path.join(os.getcwd(), path).split("/")), MAX_LINKS
    passed = set[str]()
    while todo:
        name = todo.popleft()
        if name == "..":
            here = os.path.dirname(here)
        if name in {"", ".", ".."}:
            continue
        target = _link_target(os.path.join(here, name))
        if target is None:
            here = os.path.join(here, name)
            continue
        passed.update(directory for directory in commands_write if _lies_in(here, directory))
        links_left -= 1
        if links_left < 0:
            raise Unusable(f"{path} leads in circles, or through too many links; name the directory itself")
        here = "/" if target.startswith("/") else here
        todo.extendleft(reversed(target.split("/")))
    for directory in passed:
        if not _lies_in(here, directory):
            raise Unusable(
                f"{path} is a link that leads out of {directory}, where commands can write; "
                "name the directory itself that is meant"
            )
    return here


def _lies_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _link_target(path: str) -> str | None:
    """The target of a link; None for other files, and for missing ones."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
            return None
        raise


def _stat_path(path: str) -> os.stat_result:
    """Look a path up one directory at a time, without following links."""
    here = os.open("/", _LOOK)
    try:
        for name in filter(None, path.split("/")):
            outer = here
            here = os.open(name, _LOOK | os.O_NOFOLLOW, dir_fd=outer)
            os.close(outer)
        return os.fstat(here)
    finally:
        os.close(here)


def replaced_text(path: str) -> str:
    """The error text for a path that no longer names the same file."""
    return f"{path} was replaced by something else in this moment; look at what is there, and try again"
