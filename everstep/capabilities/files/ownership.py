"""The owners of new files.

A worker that runs as root makes files for others: commands of the same agent run without its rights. So a new
file belongs to the owner of its directory. Without root, files can only belong to the worker's user.
"""

import os
from contextlib import suppress


def give_to_owner_of(descriptor: int, to: os.stat_result) -> None:
    """As root, give a new file the owner of another file."""
    if os.geteuid() == 0:
        os.fchown(descriptor, to.st_uid, to.st_gid)


def make_directory(name: str, parent: int) -> None:
    """Make a directory, unless another process has just made it."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        # By its descriptor: the name may refer to another directory by now.
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            give_to_owner_of(opened, os.stat(".", dir_fd=parent))
        finally:
            os.close(opened)
