"""Bounds the disk space that a command takes.

The kernel bounds single files only, and a quota would count for the worker's user. So the free space of the
writable file systems is polled as often as the memory. Once it has shrunk by the command's limit, the
command's files are measured, as other processes may have taken the space. A thread does that, as there may be
many files. Space cannot be had without writing (`fallocate` fails), so a command overshoots by at most what a
disk's cache takes between two polls.
"""

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from everstep.capabilities.bash.profile import SCRATCH

MAX_FILES: Final = 200_000
"""The files that one command may make; each takes space in tables of fixed size on many file systems."""
DEPTH: Final = 128
"""The depth of folders that is measured: each level holds one of the worker's descriptors."""
_CLOCK: Final = 50_000_000
"""Nanoseconds by which the timestamps of files may lag behind."""
_BLOCK: Final = 512

_DELETED: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)\s+(/.*) \(deleted\)$", re.MULTILINE
)


@dataclass(slots=True)
class _FileSystem:
    """One of the file systems that a command can write to."""

    path: str
    free: int
    free_files: int

    @classmethod
    def of(cls, path: str) -> "_FileSystem":
        status = os.statvfs(path)
        return cls(path, status.f_bfree * status.f_frsize, status.f_ffree)

    def shrinkage(self) -> tuple[int, int]:
        """The bytes and files by which the free space has shrunk."""
        now = _FileSystem.of(self.path)
        return self.free - now.free, self.free_files - now.free_files


class DiskWatch:
    """The free space when a command began."""

    def __init__(self, places: Sequence[str], most: int) -> None:
        self._places = places
        self._most = most
        self._started = time.time_ns() - _CLOCK
        devices = {os.stat(place).st_dev: place for place in places}
        self._systems = [_FileSystem.of(place) for place in devices.values()]
        self._alarm = (most, MAX_FILES)
        self._measured: tuple[int, int] | None = None
        self._measuring: threading.Thread | None = None
        self._is_over = threading.Event()

    def find_excess(self, first: int) -> str | None:
        """The limit that the command exceeds, as text, or None.

        Args:
            first: The process id of the sandbox's first process.
        """
        if self._measuring is not None:
            if self._measuring.is_alive():
                return None
            self._measuring = None
            return self.limit_problem()
        shrunk = [each.shrinkage() for each in self._systems]
        growth = max(size for size, _ in shrunk), max(files for _, files in shrunk)
        if growth[0] > self._alarm[0] or growth[1] > self._alarm[1]:
            self._alarm = growth
            self._measuring = threading.Thread(
                target=self._measure, args=(first,), name="everstep disk", daemon=True
            )
            self._measuring.start()
        return None

    def end(self) -> None:
        """Stop measuring."""
        self._is_over.set()

    def limit_problem(self) -> str | None:
        """The limit that the measured files exceed, or None.

        If others took the space, the next measurement is later.
        """
        if self._measured is None:
            return "what it takes of the disk cannot be measured"
        size, files = self._measured
        if size > self._most:
            return f"it let the disk grow by more than {self._most / 2**20:.15g} MiB"
        if files > MAX_FILES:
            return f"it made more than {MAX_FILES} files"
        # Other processes took the space; the command may still take the rest of its limit.
        self._alarm = self._alarm[0] + self._most - size, self._alarm[1] + MAX_FILES - files
        return None

    def _measure(self, first: int) -> None:
        self._measured = None
        with suppress(OSError):
            size = files = 0
            seen = set[tuple[int, int]]()
            for status in (*self._unlinked_files(first), *self._changed_files()):
                if self._is_over.is_set():
                    return
                if status.st_nlink != 1:
                    if (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                size += status.st_blocks * _BLOCK
                files += 1
            self._measured = size + _mapped_bytes(first), files

    def _changed_files(self) -> Iterator[os.stat_result]:
        """Every file in the directories that has changed since the command began."""
        for place in self._places:
            if not os.path.isdir(place):
                yield from self._recent_files([os.lstat(place)])
                continue
            for path, folders, names, here in os.fwalk(place, onerror=_raise_unless_missing):
                if self._is_over.is_set():
                    return
                if path.count("/") - place.count("/") > DEPTH:
                    raise OSError(errno.ELOOP, "the folders are nested too deeply to be measured")
                yield from self._recent_files(_stats([*folders, *names], here))

    def _recent_files(self, files: Iterable[os.stat_result]) -> Iterator[os.stat_result]:
        return (each for each in files if each.st_ctime_ns >= self._started)

    def _unlinked_files(self, first: int) -> Iterator[os.stat_result]:
        """Files that were removed and are still open."""
        elsewhere = _scratch_devices(first)
        for process in _processes(first):
            with suppress(FileNotFoundError, ProcessLookupError):
                for descriptor in os.listdir(f"{process}/fd"):
                    with suppress(FileNotFoundError, ProcessLookupError):
                        status = os.stat(f"{process}/fd/{descriptor}")
                        is_file = stat.S_ISREG(status.st_mode) and not status.st_nlink
                        if is_file and status.st_dev not in elsewhere:
                            yield status


def _mapped_bytes(first: int) -> int:
    """Bytes of removed files that are mapped, without a descriptor; each counts with its largest mapping."""
    elsewhere = _scratch_devices(first)
    largest = dict[tuple[int, str], int]()
    for process in _processes(first):
        maps = ""
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"{process}/maps", encoding="utf-8", errors="replace") as file,
        ):
            maps = file.read()
        for start, end, major, minor, number, name in _DELETED.findall(maps):
            device = os.makedev(int(major, 16), int(minor, 16))
            if device not in elsewhere and name != "/dev/zero":
                size = int(end, 16) - int(start, 16)
                largest[device, number] = max(size, largest.get((device, number), 0))
    return sum(largest.values())


def _processes(first: int) -> list[str]:
    folder = f"/proc/{first}/root/proc"
    return [f"{folder}/{name}" for name in os.listdir(folder) if name.isdigit()]


def _scratch_devices(first: int) -> set[int]:
    return {os.stat(f"/proc/{first}/root{path}").st_dev for path in SCRATCH}


def _stats(names: Iterable[str], here: int) -> Iterator[os.stat_result]:
    for name in names:
        with suppress(FileNotFoundError):
            yield os.stat(name, dir_fd=here, follow_symlinks=False)


def _raise_unless_missing(error: OSError) -> None:
    """A folder that cannot be read could hold any amount, so the measurement fails."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
