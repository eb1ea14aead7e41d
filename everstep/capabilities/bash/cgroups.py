"""Kernel limits for all processes of a command together, if a cgroup is delegated to the worker.

Without a cgroup the watcher bounds memory, by polling every few milliseconds. The kernel's own tables (memory
maps, epoll) then have no bound except that a command is killed first when memory runs out. With a cgroup (v2)
that has the memory and pids controllers the kernel counts all of it immediately.

The worker may use a cgroup that systemd delegates (`Delegate=yes`), or the configured one. Processes and
controllers cannot be in the same cgroup, so the worker first moves into a leaf of it.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash.profile import PROCESSES

REQUIRED: Final = frozenset({"memory", "pids"})
USEFUL: Final = ("memory", "pids", "io")
LEAF: Final = "everstep-worker"
_PREFIX: Final = "everstep-command-"
_MARKS: Final = ("user.delegate", "trusted.delegate")
"""The marks by which systemd shows that it delegates a cgroup."""
_IO_WEIGHT: Final = 50
"""Half of the default weight, for a busy disk."""
_TRIES: Final = 50

_NUMBERS: Final = itertools.count()


class NoCgroup(Exception):
    """No cgroup can be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class CgroupBound:
    """The cgroup in which commands get their own; without a folder, the reason why they get none."""

    folder: Path | None
    reason: str = ""

    def __str__(self) -> str:
        if self.folder is None:
            return f"memory and processes are bounded by limits and by watching ({self.reason})"
        return f"memory and processes are bounded by the kernel, in cgroups below {self.folder}"


_CONFIGURED: list[Path | None] = [None]
_DETECTED: list[CgroupBound] = []


def set_cgroup(folder: Path | None) -> None:
    """Set the cgroup in which commands get their own; None for the one that systemd delegates."""
    if _CONFIGURED[0] != folder:
        _CONFIGURED[0] = folder
        _DETECTED.clear()


def detect_bound() -> CgroupBound:
    """The bound for the commands of this process; detected once."""
    if not _DETECTED:
        try:
            _DETECTED.append(CgroupBound(_prepare(_CONFIGURED[0] or _find_delegated())))
        except NoCgroup as error:
            _DETECTED.append(CgroupBound(None, str(error)))
        except OSError as error:
            _DETECTED.append(CgroupBound(None, f"the cgroup cannot be used: {error}"))
    return _DETECTED[0]


def _find_delegated() -> Path:
    own = _own_cgroup()
    for folder in (own, own.parent):
        for mark in _MARKS:
            with suppress(OSError):
                if os.getxattr(folder, mark) == b"1":
                    return folder
    _require_controllers(own)
    raise NoCgroup("no cgroup is delegated to this worker; with systemd: Delegate=yes")


def _own_cgroup() -> Path:
    """The cgroup of this process in the v2 hierarchy."""
    lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        raise NoCgroup("this machine has no cgroups of version 2")
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
        place, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2":
            root, folder = place.split()[3:5]
            inside = os.path.relpath(path, root) if root != "/" else path.lstrip("/")
            if not inside.startswith(".."):
                return Path(folder, inside)
    raise NoCgroup("the cgroups of version 2 are not mounted")


def _prepare(folder: Path) -> Path:
    """Enable the controllers for the cgroups inside."""
    available = _require_controllers(folder)
    controllers = [name for name in USEFUL if name in available]
    enabled = _words(folder / "cgroup.subtree_control")
    if not set(controllers) <= enabled:
        _vacate(folder)
        _write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
    _remove_old(folder)
    return folder


def _require_controllers(folder: Path) -> set[str]:
    if not (folder / "cgroup.controllers").is_file():
        raise NoCgroup(f"{folder} is not a cgroup of version 2")
    available = _words(folder / "cgroup.controllers")
    if missing := sorted(REQUIRED - available):
        raise NoCgroup(f"the cgroup {folder} has no controller for {' and '.join(missing)}")
    return available


def _vacate(folder: Path) -> None:
    """Move the processes in the cgroup, including the worker, into a leaf."""
    numbers = sorted(_words(folder / "cgroup.procs"))
    if not numbers:
        return
    leaf = folder / LEAF
    leaf.mkdir(exist_ok=True)
    for number in numbers:
        with suppress(ProcessLookupError):
            _write(leaf / "cgroup.procs", number)


def _remove_old(folder: Path) -> None:
    """Remove the cgroups of crashed workers. The kernel refuses to remove one that has processes."""
    for old in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            old.rmdir()


def _words(path: Path) -> set[str]:
    return set(path.read_text("ascii").split())


def _write(path: Path, value: str) -> None:
    # Without O_CREAT: a name that the kernel does not have is a bug.
    with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "w", encoding="ascii") as file:
        file.write(value)


class Cgroup:
    """The cgroup of one command."""

    def __init__(self, folder: Path, limits: Mapping[str, str]) -> None:
        self.folder = folder / f"{_PREFIX}{os.getpid()}-{next(_NUMBERS)}"
        self.folder.mkdir()
        try:
            for name, value in limits.items():
                if os.path.exists(self.folder / name):
                    _write(self.folder / name, value)
        except BaseException:
            self.remove()
            raise

    def add(self, process: int) -> None:
        """Move a process into the cgroup; its later children are in it, too."""
        _write(self.folder / "cgroup.procs", str(process))

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of it for lack of memory."""
        try:
            text = (self.folder / "memory.events").read_text("ascii")
        except OSError:
            return False
        return any(int(value) for name, value in _pairs(text) if name in {"oom_kill", "oom_group_kill"})

    def remove(self) -> None:
        """Remove the cgroup, once its processes have ended.

        One that cannot be removed yet is left to the next worker.
        """
        for _ in range(_TRIES):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                # The kernel takes a moment to forget them.
                os.sched_yield()
            else:
                return


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        yield name, value


def cgroup_limits(policy: ExecutionPolicy) -> dict[str, str]:
    """The limits: above the watcher's, plus the scratch file systems, which are memory, too."""
    return {
        "memory.max": str(2 * policy.memory_bytes + policy.memory_bytes // 4),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(PROCESSES),
        "io.weight": f"default {_IO_WEIGHT}",
    }


def cgroup_for(policy: ExecutionPolicy) -> Cgroup | None:
    """A cgroup for a command, or None if the worker has none."""
    folder = detect_bound().folder
    return None if folder is None else Cgroup(folder, cgroup_limits(policy))
