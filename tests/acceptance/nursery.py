"""Starts `everstep` processes quickly: a process that has imported everything and forks.

An `everstep` process imports for two seconds before it does anything, and the tests start dozens. This
process has already done so. It reads one order per line (environment, arguments, folder, files of the
standard streams) and forks; the child runs the command. It answers with each child's id and, later, with its
exit code. When its standard input ends, because the tests are over or were killed, it ends all children.

Nothing here may start a thread or an event loop: a fork would inherit half of it.
"""

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from alembic import command

from everstep.cli import http
from everstep.cli.main import main

# Only the processes that need these modules import them.
assert http, command

children: set[int] = set()


def send(**news: Any) -> None:
    """Write one line to the process that sends the orders."""
    os.write(1, (json.dumps(news) + "\n").encode())


def reap(_number: int, _frame: FrameType | None) -> None:
    """Report the exit codes of children."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            children.discard(pid)
            send(ended=pid, code=os.waitstatus_to_exitcode(status))


def become(order: dict[str, Any]) -> NoReturn:
    """Replace this process with the ordered command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Its own process group: Ctrl-C in the terminal reaches only the tests, which then end everything.
    os.setsid()
    os.dup2(os.open(order["input"], os.O_RDONLY | os.O_NOCTTY), 0)
    os.dup2(os.open(order["log"], os.O_WRONLY | os.O_CREAT, 0o644), 1)
    errors = order["errors"]
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o644) if errors else 1, 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    os.umask(order["umask"])
    main(order["arguments"])


def serve() -> None:
    """Carry out orders until the input ends."""
    # A child's garbage collector would read, and thereby copy, all that was imported.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        # A child's exit code is reported after its id.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            become(json.loads(line))
        children.add(pid)
        send(began=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve()
