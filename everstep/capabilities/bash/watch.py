"""What all processes of a command take together: limits of the kernel count for each process alone.

One process alone is refused more by the kernel, and can say so; for all together a quarter is added, so
that this comes first. Looked at every few milliseconds. What the kernel takes for sockets and pipes is not
seen here; the number of processes and of their open files bounds it.
"""

import os
import re
from typing import Final

from everstep.capabilities.bash.profile import SCRATCH

EVERY: Final = 0.02
"""Seconds between two looks. What is taken in between is taken: some 100 MiB on usual machines."""
FILES: Final = 100_000
"""In the places for scratch; a file takes memory, too, however empty it is."""

_OWN: Final = re.compile(r"^(?:RssAnon|RssShmem|VmPTE):\s+(\d+)", re.MULTILINE)
_TABLES: Final = re.compile(r"^VmPTE:\s+(\d+)", re.MULTILINE)
_SHARE: Final = re.compile(r"^(?:Pss_Anon|Pss_Shmem):\s+(\d+)", re.MULTILINE)


def overdrawn(first: int, memory_bytes: int) -> str | None:
    """What the command took too much of; `first` is the sandbox's first process, as numbered outside."""
    root = f"/proc/{first}/root"
    try:
        if os.stat(f"{root}/proc").st_dev == os.stat("/proc").st_dev:
            # Bubblewrap is not done yet: these are the processes of the machine.
            return None
        processes = [f"{root}/proc/{name}" for name in os.listdir(f"{root}/proc") if name.isdigit()]
        most = memory_bytes + memory_bytes // 4
        # Pages that several processes have in common count for each of them, until that makes a difference.
        if sum(map(_own, processes)) > most and sum(map(_shared, processes)) > most:
            return f"all its processes together took more than {memory_bytes // 2**20} MiB of memory"
        if any(_files(f"{root}{path}") > FILES for path in SCRATCH):
            return f"it made more than {FILES} files in {', '.join(SCRATCH)}"
    except (FileNotFoundError, ProcessLookupError):
        # It ended while it was looked at.
        return None
    return None


def _own(process: str) -> int:
    """Bytes; zero for a process that ended."""
    return _told(f"{process}/status", _OWN)


def _shared(process: str) -> int:
    """The process's share of what it has in common with others, which takes the kernel longer to say."""
    try:
        return _told(f"{process}/smaps_rollup", _SHARE) + _told(f"{process}/status", _TABLES)
    except PermissionError:
        # It has hidden itself, so it is not given the benefit of the doubt.
        return _own(process)


def _told(path: str, fields: re.Pattern[str]) -> int:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return sum(int(kib) * 1024 for kib in fields.findall(file.read()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _files(path: str) -> int:
    found = os.statvfs(path)
    return found.f_files - found.f_ffree
