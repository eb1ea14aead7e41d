"""Runs a server that never outlives whoever started it, also when that one is killed.

A program of its own: `python -I -S guard.py LIFE COMMAND ARG...`. `LIFE` is the reading end of a pipe that
nobody writes to. Once its other end is closed, by hand or because its holder is gone, the server's whole
process group is ended. The server's standard streams are the guard's own, passed on untouched.

A guard instead of `PR_SET_PDEATHSIG` alone, for that reaches the first process only: behind `npx` or `uvx`
the server is another one. It also asks nothing of the process that starts it, which has threads and must not
run Python between fork and exec.
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
CANNOT_RUN = 127
"""What shells say as well when there is no such command."""
_PR_SET_PDEATHSIG = 1


def main(life: int, command: list[str]) -> int:
    """Run it to its end, or to that of `life`; returns its exit code, 128 and more for a signal."""
    wakened, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, _noted)
    signal.set_wakeup_fd(wake)
    # Before there are two of us.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    guard = os.getpid()
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
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256 if code is None else code


def _noted(_signal: int, _frame: object) -> None:
    """That it came is read from the pipe."""


def _become(command: list[str], guard: int, libc: ctypes.CDLL | None) -> NoReturn:
    os.setsid()
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(CANNOT_RUN)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    with suppress(OSError):
        os.execvp(command[0], command)  # noqa: S606 -- the server that somebody configured, and no shell
    os._exit(CANNOT_RUN)


def _waited(child: int, ends: list[int], until: float | None) -> int | None:
    """The child's exit code; None when another end comes first, or the time is up."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return None
        ready = select.select(ends, [], [], left)[0]
        if ends[0] in ready:
            os.read(ends[0], 512)
        elif ready:
            return None


def _kill(group: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sign)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
