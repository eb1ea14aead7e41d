"""By how much a command lets the disk grow.

The kernel bounds single files, and a quota would count for the worker's user. So the free space of the file
systems that a command can write to is looked at as often as its memory. Once that has shrunk by what the
command may take, its files are looked at: others may have taken it. That is done in a thread, as there may be
many. Space cannot be had without writing (`fallocate` fails), so what is taken in between is what a disk's
cache takes within a moment.
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

FILES: Final = 200_000
"""That one command may make; each takes space in tables that cannot grow on many file systems."""
DEPTH: Final = 128
"""Folders in folders that are measured: each level holds one of the worker's descriptors."""
_CLOCK: Final = 50_000_000
"""Nanoseconds by which the times of files may lag behind."""
_BLOCK: Final = 512

_DELETED: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)\s+(/.*) \(deleted\)$", re.MULTILINE
)


@dataclass(slots=True)
class _FileSystem:
    """One of those that a command can write to."""

    path: str
    free: int
    free_files: int

    @classmethod
    def of(cls, path: str) -> "_FileSystem":
        found = os.statvfs(path)
        return cls(path, found.f_bfree * found.f_frsize, found.f_ffree)

    def shrunk(self) -> tuple[int, int]:
        """By how many bytes and files since then."""
        now = _FileSystem.of(self.path)
        return self.free - now.free, self.free_files - now.free_files


class Disk:
    """What the disk was like when a command began."""

    def __init__(self, places: Sequence[str], most: int) -> None:
        self._places = places
        self._most = most
        self._started = time.time_ns() - _CLOCK
        devices = {os.stat(place).st_dev: place for place in places}
        self._systems = [_FileSystem.of(place) for place in devices.values()]
        self._alarm = (most, FILES)
        self._measured: tuple[int, int] | None = None
        self._measuring: threading.Thread | None = None
        self._is_over = threading.Event()

    def overdrawn(self, first: int) -> str | None:
        """What the command took too much of; `first` is the sandbox's first process."""
        if self._measuring is not None:
            if self._measuring.is_alive():
                return None
            self._measuring = None
            return self.judged()
        shrunk = [each.shrunk() for each in self._systems]
        taken = max(size for size, _ in shrunk), max(files for _, files in shrunk)
        if taken[0] > self._alarm[0] or taken[1] > self._alarm[1]:
            self._alarm = taken
            self._measuring = threading.Thread(
                target=self._measure, args=(first,), name="everstep disk", daemon=True
            )
            self._measuring.start()
        return None

    def end(self) -> None:
        """Nothing is looked at any more."""
        self._is_over.set()

    def judged(self) -> str | None:
        """What the measured files say; where others took the space, the next look is later."""
        if self._measured is None:
            return "what it takes of the disk cannot be measured"
        size, files = self._measured
        if size > self._most:
            return f"it let the disk grow by more than {self._most / 2**20:.15g} MiB"
        if files > FILES:
            return f"it made more than {FILES} files"
        # Others took it; it may still take what is left of its own.
        self._alarm = self._alarm[0] + self._most - size, self._alarm[1] + FILES - files
        return None

    def _measure(self, first: int) -> None:
        self._measured = None
        with suppress(OSError):
            size = files = 0
            seen = set[tuple[int, int]]()
            for found in (*self._nameless(first), *self._changed()):
                if self._is_over.is_set():
                    return
                if found.st_nlink != 1:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                size += found.st_blocks * _BLOCK
                files += 1
            self._measured = size + _mapped(first), files

    def _changed(self) -> Iterator[os.stat_result]:
        """Everything in the directories that has changed since then."""
        for place in self._places:
            if not os.path.isdir(place):
                yield from self._recent([os.lstat(place)])
                continue
            for path, folders, names, here in os.fwalk(place, onerror=_raise_unless_gone):
                if self._is_over.is_set():
                    return
                if path.count("/") - place.count("/") > DEPTH:
                    raise OSError(errno.ELOOP, "the folders are nested too deeply to be measured")
                yield from self._recent(_stats([*folders, *names], here))

    def _recent(self, found: Iterable[os.stat_result]) -> Iterator[os.stat_result]:
        return (each for each in found if each.st_ctime_ns >= self._started)

    def _nameless(self, first: int) -> Iterator[os.stat_result]:
        """Files that were removed, and are still open."""
        elsewhere = _scratch_devices(first)
        for process in _processes(first):
            with suppress(FileNotFoundError, ProcessLookupError):
                for descriptor in os.listdir(f"{process}/fd"):
                    with suppress(FileNotFoundError, ProcessLookupError):
                        found = os.stat(f"{process}/fd/{descriptor}")
                        is_file = stat.S_ISREG(found.st_mode) and not found.st_nlink
                        if is_file and found.st_dev not in elsewhere:
                            yield found


def _mapped(first: int) -> int:
    """Bytes of removed files that are mapped, which need no descriptor; each counts with its largest part."""
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


def _raise_unless_gone(error: OSError) -> None:
    """What cannot be looked at is as much as anybody likes."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
