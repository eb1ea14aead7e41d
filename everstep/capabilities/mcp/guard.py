"""Runs a server that never outlives the process that started it, even if that is killed.

A separate program: `python -I -S guard.py LIFE COMMAND ARG...`. `LIFE` is the reading end of a pipe that no
process writes to. Once its other end is closed, explicitly or because its holder has died, the guard ends the
server's whole process group. The server's standard streams are the guard's, passed on untouched.

`PR_SET_PDEATHSIG` alone is not enough, because it reaches the first process only: behind `npx` or `uvx` the
server is another one. A guard also asks nothing of the process that starts it, which has threads and must not
run Python between fork and exec.

Processes that the server starts may leave its group, as daemons do. On Linux the guard is a subreaper: it
inherits processes whose parent has ended, so it finds these, too.
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
"""Time between SIGTERM and SIGKILL."""
ORPHANS_SECONDS = 2.0
"""The limit for killing the processes that are left, as one may start new ones faster than they die."""
CANNOT_RUN = 127
"""The exit code that shells use as well if a command does not exist."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(life: int, command: list[str]) -> int:
    """Run the command until it or `life` ends.

    Returns:
        The exit code; 128 and more for a signal.
    """
    wakened, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, _on_child_signal)
    signal.set_wakeup_fd(wake)
    # Before the fork.
    libc = _libc()
    guard = os.getpid()
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        os.set_inheritable(life, False)
        _exec_command(command, guard, libc)
    # Close the streams: a pipe's reader waits as long as any process holds the other end.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    code = _wait(child, [wakened, life], None)
    if code is None:
        _kill(child, signal.SIGTERM)
        code = _wait(child, [wakened], time.monotonic() + PATIENCE_SECONDS)
    # Its group, with the processes that it left behind.
    _kill(child, signal.SIGKILL)
    if code is None:
        code = _code(os.waitpid(child, 0)[1])
    _end_orphans()
    return code


def _libc() -> ctypes.CDLL | None:
    """The C library on systems with `prctl`."""
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _on_child_signal(_signal: int, _frame: object) -> None:
    """The handler does nothing; the wakeup descriptor reports the signal."""


def _exec_command(command: list[str], guard: int, libc: ctypes.CDLL | None) -> NoReturn:
    os.setsid()
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(CANNOT_RUN)
    # Signals that are ignored, by a shell for background jobs or by the interpreter, stay ignored across
    # `exec`.
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.execvp(command[0], command)  # noqa: S606 -- the configured server, without a shell
    os._exit(CANNOT_RUN)


def _wait(child: int, ends: list[int], until: float | None) -> int | None:
    """The child's exit code; None if another descriptor is ready first, or the time is up."""
    while True:
        while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            if reaped[0] == child:
                return _code(reaped[1])
        remaining = None if until is None else until - time.monotonic()
        if remaining is not None and remaining <= 0:
            return None
        ready = select.select(ends, [], [], remaining)[0]
        if ends[0] in ready:
            os.read(ends[0], 512)
        elif ready:
            return None


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    """Kill inherited processes. When one ends, the guard inherits its children in turn."""
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
    """The guard's child processes, on systems with /proc."""
    guard, pids = str(os.getpid()).encode(), list[int]()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # The name of a program, in parentheses, may contain any character.
                if stat.read().rpartition(b")")[2].split()[1] == guard:
                    pids.append(int(name))
    return pids


def _kill(group: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sign)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
