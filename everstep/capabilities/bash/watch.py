"""What all processes of a command take together: limits of the kernel count for each process alone.

One process alone is refused more by the kernel, and can say so; for all together a quarter is added, so
that this comes first. Looked at every few milliseconds, in a thread, as a look at many processes takes longer
than the worker's loop may stand still.

What the kernel takes for pipes is not seen here, nor for files that are open; their number bounds it. Where
the machine runs out of memory all the same, the kernel ends the command before anything else.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from everstep.capabilities.bash.profile import SCRATCH

EVERY: Final = 0.02
"""Seconds between two looks. What is taken in between is taken: some 100 MiB on usual machines."""
PATIENCE: Final = 0.2
"""Seconds of work to find out what processes have in common; what is not known by then counts for each."""
FILES: Final = 100_000
"""In the places for scratch; a file takes memory, too, however empty it is."""
SOCKETS: Final = 256
"""What waits in one is memory that belongs to no process: up to 400 KiB, and some MiB in one of TCP, which is
counted by itself."""
LOCKS: Final = 10_000
"""On parts of files; each takes memory of the kernel, and no limit counts them."""

_FIELD: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_OWN: Final = ("RssAnon", "RssShmem", "VmPTE", "VmSwap")
_OF_ITSELF: Final = ("VmData", "VmStk", "VmExe", "VmLib")
_SHARE: Final = ("Pss_Anon", "Pss_Shmem", "SwapPss")
_NAMELESS: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) ..\Ss \S+ \S+ (\d+)\s+/dev/zero \(deleted\)$", re.MULTILINE
)
_QUEUES: Final = re.compile(r"^\s*\d+: \S+ \S+ \S+ ([0-9A-F]{8}):([0-9A-F]{8}) ", re.MULTILINE)
_USED: Final = re.compile(r"^sockets: used (\d+)", re.MULTILINE)


def overdrawn(first: int, memory_bytes: int) -> str | None:
    """What the command took too much of; `first` is the sandbox's first process, as numbered outside."""
    try:
        return next(_excesses(first, memory_bytes), None)
    except (FileNotFoundError, ProcessLookupError):
        # It ended while it was looked at.
        return None


def too_much_memory(memory_bytes: int) -> str:
    """Why a command was stopped."""
    return f"all its processes together took more than {memory_bytes // 2**20} MiB of memory"


def _excesses(first: int, memory_bytes: int) -> Iterator[str]:
    root = f"/proc/{first}/root"
    if os.stat(f"{root}/proc").st_dev == os.stat("/proc").st_dev:
        # Bubblewrap is not done yet: these are the processes of the machine.
        return
    if _is_too_much(root, memory_bytes + memory_bytes // 4):
        yield too_much_memory(memory_bytes)
    if _holds_more_locks_than(LOCKS, root):
        yield f"it holds more than {LOCKS} locks on files"
    if any(_files(f"{root}{path}") > FILES for path in SCRATCH):
        yield f"it made more than {FILES} files in {', '.join(SCRATCH)}"
    if _waiting(first) > memory_bytes:
        yield f"what waits in its sockets takes more than {memory_bytes // 2**20} MiB of memory"
    if _sockets(first) > SOCKETS:
        yield f"it opened more than {SOCKETS} sockets"


def _is_too_much(root: str, most: int) -> bool:
    own, elsewhere = dict[str, int](), dict[str, int]()
    for name in filter(str.isdigit, os.listdir(f"{root}/proc")):
        process = f"{root}/proc/{name}"
        fields = _fields(f"{process}/status")
        own[process] = _sum(fields, _OWN)
        elsewhere[process] = _sum(fields, ["VmSize"]) - _sum(fields, _OF_ITSELF)
    # Pages that several processes have in common count for each of them, until that makes a difference.
    if sum(own.values()) > most and _together(own) > most:
        return True
    return sum(elsewhere.values()) > most and _nameless(elsewhere) > most


def _together(own: Mapping[str, int]) -> int:
    """Without counting twice what processes have in common, as far as that is told in time."""
    until, total = time.thread_time() + PATIENCE, 0
    for process, size in own.items():
        total += _share(process, size) if time.thread_time() < until else size
    return total


def _share(process: str, own: int) -> int:
    """The process's share of what it has in common with others, which takes the kernel longer to say."""
    try:
        share = _sum(_fields(f"{process}/smaps_rollup"), _SHARE)
    except PermissionError:
        # It has hidden itself, so it is not given the benefit of the doubt.
        return own
    return share + _sum(_fields(f"{process}/status"), ["VmPTE"])


def _nameless(elsewhere: Mapping[str, int]) -> int:
    """Bytes that processes share and that have no name: they are there while none has them in its tables.

    What a process has released in part is seen as what is left of it.
    """
    largest = dict[str, int]()
    for process, size in elsewhere.items():
        for number, shared in _shared(process, size).items():
            largest[number] = max(shared, largest.get(number, 0))
    return sum(largest.values())


def _shared(process: str, elsewhere: int) -> dict[str, int]:
    """The nameless bytes of a process, by the number of what they belong to."""
    sizes = dict[str, int]()
    try:
        maps = _text(f"{process}/maps")
    except PermissionError:
        # As above, all that is neither its own nor of its programs.
        return {process: elsewhere}
    for start, end, number in _NAMELESS.findall(maps):
        sizes[number] = sizes.get(number, 0) + int(end, 16) - int(start, 16)
    return sizes


def _holds_more_locks_than(most: int, root: str) -> bool:
    """Of its own processes, and of those anywhere that belong to no process but to an open file."""
    with open(f"{root}/proc/locks", "rb", buffering=256 * 1024) as file:
        return sum(1 for _ in islice(file, most + 1)) > most


def _sockets(first: int) -> int:
    """In a network of its own: in one that it shares with the worker, nobody can tell whose they are."""
    if os.path.samefile(f"/proc/{first}/ns/net", "/proc/self/ns/net"):
        return 0
    used = _USED.search(_text(f"/proc/{first}/net/sockstat"))
    return int(used[1]) if used else 0


def _waiting(first: int) -> int:
    """Bytes in the queues of TCP, which the kernel makes larger by itself."""
    queues = (
        each for name in ("tcp", "tcp6") for each in _QUEUES.findall(_text(f"/proc/{first}/net/{name}"))
    )
    return sum(int(sent, 16) + int(received, 16) for sent, received in queues)


def _sum(fields: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(fields.get(name, 0) for name in names)


def _fields(path: str) -> dict[str, int]:
    """In bytes; none for a process that ended."""
    return {name: int(kib) * 1024 for name, kib in _FIELD.findall(_text(path))}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _files(path: str) -> int:
    found = os.statvfs(path)
    return found.f_files - found.f_ffree
