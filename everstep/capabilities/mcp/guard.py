"""Runs a server that never outlives whoever started it, also when that one is killed.

A program of its own: `python -I -S guard.py LIFE COMMAND ARG...`. `LIFE` is the reading end of a pipe that
nobody writes to. Once its other end is closed, by hand or because its holder is gone, the server's whole
process group is ended. The server's standard streams are the guard's own, passed on untouched.

A guard instead of `PR_SET_PDEATHSIG` alone, for that reaches the first process only: behind `npx` or `uvx`
the server is another one. It also asks nothing of the process that starts it, which has threads and must not
run Python between fork and exec.

What a server starts may leave its group, as daemons do. On Linux the guard is the one that inherits processes
whose parent has ended, so it finds these, too.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

PATIENCE_SECONDS = 1.0
"""Between asking the server to end and ending it."""
ORPHANS_SECONDS = 2.0
"""For ending what it left behind, unless that starts processes faster than they can be ended."""
CANNOT_RUN = 127
"""What shells say as well when there is no such command."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(life: int, command: list[str]) -> int:
    """Run it to its end, or to that of `life`; returns its exit code, 128 and more for a signal."""
    wakened, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, _noted)
    signal.set_wakeup_fd(wake)
    # Before there are two of us.
    libc = _libc()
    guard = os.getpid()
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        os.set_inheritable(life, False)
        _become(command, guard, libc)
    # Whoever else holds a pipe's end keeps its reader waiting.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    code = _waited(child, [wakened, life], None)
    if code is None:
        _kill(child, signal.SIGTERM)
        code = _waited(child, [wakened], time.monotonic() + PATIENCE_SECONDS)
    # What it started and left behind as well.
    _kill(child, signal.SIGKILL)
    if code is None:
        code = _code(os.waitpid(child, 0)[1])
    _end_orphans()
    return code


def _libc() -> ctypes.CDLL | None:
    """Where there is a `prctl`."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _noted(_signal: int, _frame: object) -> None:
    """That it came is read from the pipe."""


def _become(command: list[str], guard: int, libc: ctypes.CDLL | None) -> NoReturn:
    os.setsid()
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(CANNOT_RUN)
    # What a shell ignores for background jobs, and the interpreter for itself, stays ignored across `exec`.
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.execvp(command[0], command)  # noqa: S606 -- the server that somebody configured, and no shell
    os._exit(CANNOT_RUN)


def _waited(child: int, ends: list[int], until: float | None) -> int | None:
    """The child's exit code; None when another end comes first, or the time is up."""
    while True:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return _code(ended[1])
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return None
        ready = select.select(ends, [], [], left)[0]
        if ends[0] in ready:
            os.read(ends[0], 512)
        elif ready:
            return None


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    """Whoever is our child now was inherited. Of each that ends we inherit the children in turn."""
    until = time.monotonic() + ORPHANS_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            for pid in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)


def _children() -> list[int]:
    """Ours, where there is a /proc that tells."""
    guard, found = str(os.getpid()).encode(), list[int]()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # The name of a program, in parentheses, may hold anything.
                if stat.read().rpartition(b")")[2].split()[1] == guard:
                    found.append(int(name))
    return found


def _kill(group: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sign)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
