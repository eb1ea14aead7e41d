"""The command `everstep`, for scripts and programs that tests start: each run of it is a fork.

`everstep` imports for a second or two before it does anything. Here a process that has already done so forks
for each run, in the folder, with the environment and on the standard streams of the caller. A test about the
start of the command calls the real one, which is beside `sys.executable`.

Nothing here may start a thread or an event loop: a fork would inherit half of it.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx2

from tests.certificates import share_certificates

ROOT: Final = Path(__file__).parents[1]
SOCKET: Final = "socket"
NAME: Final = "everstep"
LENGTH: Final = 4
DEADLINE: Final = 60.0

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that the command passes on to its fork. A killed command ends it, too."""

COMMAND: Final = """#!{python} -IS
import json, os, signal, socket, sys

own = socket.socket(socket.AF_UNIX)
own.connect({address!r})
os.umask(umask := os.umask(0))
numbers = {passed_on}
ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
order = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), umask, paths, ignored]).encode()
socket.send_fds(own, [len(order).to_bytes({length}, "big")], [0, 1, 2])
own.sendall(order)
for number in set(numbers) - set(ignored):
    signal.signal(number, lambda number, _: own.send(bytes([number])))
answers = own.makefile()
answers.readline()
code = int(answers.readline() or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def open_programs(folder: Path) -> Generator[Path]:
    """Yield a folder for PATH, with the command in it."""
    process = start_programs(folder)
    try:
        yield wait_for_programs(folder)
    finally:
        process.communicate()


def start_programs(folder: Path, module: str = __name__) -> "subprocess.Popen[bytes]":
    """Start the process that forks; it ends when its input does."""
    return subprocess.Popen(  # noqa: S603 -- fixed arguments
        [sys.executable, "-m", module, folder], stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )


def wait_for_programs(folder: Path, name: str = NAME) -> Path:
    """Wait until the command in this folder can be called."""
    deadline = time.monotonic() + DEADLINE
    while not (folder / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder / name} was not written")
        time.sleep(0.02)
    return folder


def serve_everstep(folder: Path) -> None:
    """Fork for each caller of `everstep` until the input ends."""
    # Only the processes that need these modules import them.
    from alembic import command  # noqa: PLC0415

    from everstep.cli import http  # noqa: PLC0415
    from everstep.cli.main import main  # noqa: PLC0415

    assert http, command
    share_certificates()
    # Before the first fork, so that all have them.
    httpx2.create_ssl_context()
    serve(folder, NAME, main)


def serve(folder: Path, name: str, main: Callable[[list[str]], object]) -> None:
    """Write a command, and fork for each caller of it until the input ends.

    Args:
        folder: The folder of the command and of its socket.
        name: The name of the command.
        main: Called in each fork, with the arguments of the command; it ends its process.
    """
    # A child's garbage collector would read, and thereby copy, all that was imported.
    gc.freeze()
    gc.enable()
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / SOCKET))
        listening.listen(64)
        _write_command(folder, name)
        while True:
            ready, _, _ = select.select([sys.stdin, listening], [], [], 1)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if sys.stdin in ready:
                return
            if listening not in ready:
                continue
            caller, _ = listening.accept()
            if not os.fork():
                listening.close()
                _run(caller, main)
            caller.close()


def _write_command(folder: Path, name: str) -> None:
    """All at once: who waits for it can call it."""
    text = COMMAND.format(
        python=sys.executable,
        address=str(folder / SOCKET),
        length=LENGTH,
        passed_on=[int(number) for number in PASSED_ON],
    )
    file = folder / f"{name}.new"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    file.rename(folder / name)


def _run(caller: socket.socket, main: Any) -> NoReturn:
    """Run the command in a child, and pass signals on to it; the caller reads its id, then its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start, streams, _, _ = socket.recv_fds(caller, LENGTH, 3)
    size, order = int.from_bytes(start, "big"), b""
    while len(order) < size:
        order += caller.recv(size - len(order)) or sys.exit(1)
    child = os.fork()
    if not child:
        caller.close()
        _become(main, streams, json.loads(order))
    for stream in streams:
        os.close(stream)
    caller.sendall(f"{child}\n".encode())
    ended = os.pidfd_open(child)
    while ended not in (ready := select.select([caller, ended], [], [])[0]):
        assert caller in ready
        number = caller.recv(1)
        os.kill(child, number[0] if number else signal.SIGKILL)
        if not number:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        caller.sendall(f"{code}\n".encode())
    os._exit(0)


def _become(main: Any, streams: list[int], order: list[Any]) -> NoReturn:
    """Replace this process with the command."""
    arguments, environment, folder, umask, paths, ignored = order
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    # Buffered as those of a new interpreter, which closes none of them.
    lines = 1 if environment.get("PYTHONUNBUFFERED") or os.isatty(1) else -1
    sys.stdin = sys.__stdin__ = os.fdopen(0)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=lines)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1)  # type: ignore[misc]
    # As for the real one: the folder that this process was started in is none of its import paths.
    sys.path.remove(str(ROOT))
    sys.path[:0] = paths
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.umask(umask)
    main(arguments)
    raise AssertionError("a command ends its process")


if __name__ == "__main__":
    # None of what is imported becomes garbage.
    gc.disable()
    serve_everstep(Path(sys.argv[1]))
