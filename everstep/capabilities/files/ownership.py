"""To whom belongs what is made.

A worker that runs as root makes files for others: commands of the same agent run without its rights. So what
it makes belongs to the owner of the directory that it is in. Others can only make things of their own.
"""

import os
from contextlib import suppress


def give(descriptor: int, to: os.stat_result) -> None:
    """Let root give what it made to the owner of something else."""
    if os.geteuid() == 0:
        os.fchown(descriptor, to.st_uid, to.st_gid)


def make_directory(name: str, parent: int) -> None:
    """Make a directory, unless somebody else just did."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        # By its descriptor: by its name it may be another one by now.
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            give(opened, os.stat(".", dir_fd=parent))
        finally:
            os.close(opened)
