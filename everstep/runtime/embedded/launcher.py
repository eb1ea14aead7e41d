"""Becomes a server that does not outlive the process that started it. A script, run once for each server.

    launcher.py PARENT SIGNAL UID:GID|- exec|supervise COMMAND ...

It is a separate program because every alternative has a race: code between fork and exec may deadlock in a
process with threads, and a parent that dies before the kernel watches it leaves an orphan.

`exec`, on Linux: drops to the user, asks the kernel to send SIGNAL when the parent dies, checks that the
parent has not died before, and becomes the command. `supervise`, elsewhere: stays, and watches the parent.
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Final, NoReturn

PR_SET_PDEATHSIG: Final = 1

INTERVAL: Final = 0.1

# Secrets are kept out, and so are variables that would reconfigure libpq or the Temporal CLI.
INHERITED: Final = ("LD_LIBRARY_PATH", "PATH", "TMPDIR")
ENVIRONMENT: Final = {
    **{name: os.environ[name] for name in INHERITED if name in os.environ},
    # PostgreSQL's messages are compared and displayed; the Temporal CLI reads its configuration from home.
    "LC_ALL": "C",
    "HOME": "/nonexistent",
}


def drop_to(user: int, group: int) -> None:
    """Become that user irrevocably."""
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)


def restore_signals() -> None:
    """Give the command the default action of each signal.

    Signals that a shell ignores for background jobs, or the interpreter for itself, stay ignored across
    `exec`.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become(parent: int, orphaned: int, command: list[str]) -> NoReturn:
    """Turn into the command, which gets the signal `orphaned` when the parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    # After the change of user, which would reset it.
    if libc.prctl(PR_SET_PDEATHSIG, orphaned) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent process has ended")
    os.execve(command[0], command, ENVIRONMENT)  # noqa: S606 -- no shell on purpose


def supervise(parent: int, orphaned: int, command: list[str]) -> NoReturn:
    """Run the command and exit with its code; it gets the parent's signals, and `orphaned` if that dies."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, receive)
    child = subprocess.Popen(command, env=ENVIRONMENT)  # noqa: S603 -- fixed arguments, no shell
    while True:
        try:
            code = child.wait(INTERVAL)
            break
        except subprocess.TimeoutExpired:
            while received:
                child.send_signal(received.pop(0))
            if os.getppid() != parent:
                child.send_signal(orphaned)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main(parent: str, orphaned: str, user: str, how: str, *command: str) -> NoReturn:
    """Parse the command line."""
    restore_signals()
    # Files of a server are private to its owner.
    os.umask(0o077)
    if user != "-":
        uid, gid = user.split(":")
        drop_to(int(uid), int(gid))
    run = become if how == "exec" else supervise
    run(int(parent), int(orphaned), list(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
