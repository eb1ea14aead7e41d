"""Watches the memory, files and sockets of all processes of a command; kernel limits count per process.

The kernel's limit for a single process is lower, so that the process gets the error itself. The limit for all
together is a quarter higher. A thread polls every few milliseconds, because reading the state of many
processes takes longer than the worker's event loop may block.

The kernel's memory for pipes and open files is not visible here; the limit on their number bounds it. If the
machine still runs out of memory, the kernel kills the command before other processes.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from everstep.capabilities.bash.profile import SCRATCH

POLL_SECONDS: Final = 0.02
"""Seconds between two polls. Memory taken in between is not seen: some 100 MiB on usual machines."""
SHARE_SECONDS: Final = 0.2
"""Seconds of CPU time to find out which pages processes share; after that, all pages count for each process.
"""
MAX_SCRATCH_FILES: Final = 100_000
"""The limit for files in the scratch directories; even an empty file takes memory."""
MAX_SOCKETS: Final = 256
"""Data in a socket's buffers is memory that belongs to no process: up to 400 KiB each. TCP sockets may hold
some MiB, which are counted separately.
"""
MAX_LOCKS: Final = 10_000
"""Locks on parts of files; each takes kernel memory, and no limit counts them."""

_FIELD: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_OWN: Final = ("RssAnon", "RssShmem", "VmPTE", "VmSwap")
_OF_ITSELF: Final = ("VmData", "VmStk", "VmExe", "VmLib")
_SHARE: Final = ("Pss_Anon", "Pss_Shmem", "SwapPss")
_NAMELESS: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) ..\Ss \S+ \S+ (\d+)\s+/dev/zero \(deleted\)$", re.MULTILINE
)
_QUEUES: Final = re.compile(r"^\s*\d+: \S+ \S+ \S+ ([0-9A-F]{8}):([0-9A-F]{8}) ", re.MULTILINE)
_USED: Final = re.compile(r"^sockets: used (\d+)", re.MULTILINE)
_TCP_IN_USE: Final = re.compile(r"^TCP6?: inuse (\d+)", re.MULTILINE)
_TCP_TABLES: Final = (("sockstat", "tcp"), ("sockstat6", "tcp6"))


def find_excess(first: int, memory_bytes: int) -> str | None:
    """The limit that the command exceeds, as text, or None.

    Args:
        first: The process id of the sandbox's first process, as seen outside.
        memory_bytes: The policy's memory limit.
    """
    try:
        return next(_excesses(first, memory_bytes), None)
    except (FileNotFoundError, ProcessLookupError):
        # The command ended during the poll.
        return None


def too_much_memory(memory_bytes: int) -> str:
    """The reason for stopping a command that takes too much memory."""
    return f"all its processes together took more than {memory_bytes // 2**20} MiB of memory"


def _excesses(first: int, memory_bytes: int) -> Iterator[str]:
    root = f"/proc/{first}/root"
    if os.stat(f"{root}/proc").st_dev == os.stat("/proc").st_dev:
        # Bubblewrap is not done yet: these are the processes of the machine.
        return
    if _exceeds(root, memory_bytes + memory_bytes // 4):
        yield too_much_memory(memory_bytes)
    if _holds_more_locks_than(MAX_LOCKS, root):
        yield f"it holds more than {MAX_LOCKS} locks on files"
    if any(_file_count(f"{root}{path}") > MAX_SCRATCH_FILES for path in SCRATCH):
        yield f"it made more than {MAX_SCRATCH_FILES} files in {', '.join(SCRATCH)}"
    if _queued_bytes(first) > memory_bytes:
        yield f"the data in its sockets takes more than {memory_bytes // 2**20} MiB of memory"
    if _socket_count(first) > MAX_SOCKETS:
        yield f"it opened more than {MAX_SOCKETS} sockets"


def _exceeds(root: str, most: int) -> bool:
    own, elsewhere = dict[str, int](), dict[str, int]()
    for name in filter(str.isdigit, os.listdir(f"{root}/proc")):
        process = f"{root}/proc/{name}"
        fields = _fields(f"{process}/status")
        own[process] = _sum(fields, _OWN)
        elsewhere[process] = _sum(fields, ["VmSize"]) - _sum(fields, _OF_ITSELF)
    # Shared pages count for each process, until that makes a difference.
    if sum(own.values()) > most and _total_bytes(own) > most:
        return True
    return sum(elsewhere.values()) > most and _nameless_bytes(elsewhere) > most


def _total_bytes(own: Mapping[str, int]) -> int:
    """The total, with shared pages counted once as far as time permits."""
    until, total = time.thread_time() + SHARE_SECONDS, 0
    for process, size in own.items():
        total += _share(process, size) if time.thread_time() < until else size
    return total


def _share(process: str, own: int) -> int:
    """The process's share of its pages, which takes the kernel longer to compute."""
    try:
        share = _sum(_fields(f"{process}/smaps_rollup"), _SHARE)
    except PermissionError:
        # The process has made itself unreadable, so all its pages count.
        return own
    return share + _sum(_fields(f"{process}/status"), ["VmPTE"])


def _nameless_bytes(elsewhere: Mapping[str, int]) -> int:
    """Bytes of shared mappings without a name. They exist even if no process has them in its page tables.

    A mapping that a process has partly released counts with what is left of it.
    """
    largest = dict[str, int]()
    for process, size in elsewhere.items():
        for number, shared in _shared(process, size).items():
            largest[number] = max(shared, largest.get(number, 0))
    return sum(largest.values())


def _shared(process: str, elsewhere: int) -> dict[str, int]:
    """The nameless bytes of a process, by inode."""
    sizes = dict[str, int]()
    try:
        maps = _text(f"{process}/maps")
    except PermissionError:
        # As above: everything that is neither private nor from its programs.
        return {process: elsewhere}
    for start, end, number in _NAMELESS.findall(maps):
        sizes[number] = sizes.get(number, 0) + int(end, 16) - int(start, 16)
    return sizes


def _holds_more_locks_than(most: int, root: str) -> bool:
    """Locks of its own processes, and those of any process that belong to an open file."""
    with open(f"{root}/proc/locks", "rb", buffering=256 * 1024) as file:
        return sum(1 for _ in islice(file, most + 1)) > most


def _socket_count(first: int) -> int:
    """Only in its own network namespace: the owners of sockets are unknown in a shared one."""
    if os.path.samefile(f"/proc/{first}/ns/net", "/proc/self/ns/net"):
        return 0
    used = _USED.search(_text(f"/proc/{first}/net/sockstat"))
    return int(used[1]) if used else 0


def _queued_bytes(first: int) -> int:
    """Bytes in the queues of TCP sockets, which the kernel enlarges by itself.

    To list them, the kernel searches the table of all the machine's sockets, which takes milliseconds even if
    the command has none. Those that hold data are counted as in use, also after their process has ended.
    """
    folder = f"/proc/{first}/net"
    tables = [table for count, table in _TCP_TABLES if _has_tcp_sockets(f"{folder}/{count}")]
    queues = (each for name in tables for each in _QUEUES.findall(_text(f"{folder}/{name}")))
    return sum(int(sent, 16) + int(received, 16) for sent, received in queues)


def _has_tcp_sockets(counts: str) -> bool:
    in_use = _TCP_IN_USE.search(_text(counts))
    return in_use is None or in_use[1] != "0"


def _sum(fields: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(fields.get(name, 0) for name in names)


def _fields(path: str) -> dict[str, int]:
    """In bytes; empty for a process that has ended."""
    return {name: int(kib) * 1024 for name, kib in _FIELD.findall(_text(path))}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _file_count(path: str) -> int:
    status = os.statvfs(path)
    return status.f_files - status.f_ffree
