"""The command `everstep`, for scripts and programs that tests start: each run of it is a fork.

`everstep` imports for a second or two before it does anything. Here a process that has already done so forks
for each run, in the folder, with the environment and on the standard streams of the caller. A test about the
start of the command calls the real one, which is beside `sys.executable`.

Nothing here may start a thread or an event loop: a fork would inherit half of it.
"""

import gc
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator
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
# Only modules that are part of the interpreter: others take longer to import than this takes to run.
import _signal, _socket, marshal, os, sys

own = _socket.socket(_socket.AF_UNIX)
own.connect({address!r})
os.umask(umask := os.umask(0))
numbers = {passed_on}
ignored = [number for number in numbers if _signal.getsignal(number) is _signal.SIG_IGN]
paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
order = marshal.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), umask, paths, ignored])
streams = b"".join(stream.to_bytes({length}, sys.byteorder) for stream in range(3))
own.sendmsg([len(order).to_bytes({length}, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
own.sendall(order)
for number in set(numbers) - set(ignored):
    _signal.signal(number, lambda number, _: own.send(bytes([number])))
answer = b""
while part := own.recv(100):
    answer += part
code = int(b"".join(answer.splitlines()[1:]) or -_signal.SIGKILL)
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL) if -code != _signal.SIGKILL else None
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


def start_programs(folder: Path, module: str = __name__, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start the process that forks; it ends when its input does."""
    return subprocess.Popen(  # noqa: S603 -- fixed arguments
        [sys.executable, "-m", module, folder, *arguments],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
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
    forks = Forks(main)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / SOCKET))
        listening.listen(64)
        _write_command(folder, name)
        while True:
            ready = set(select.select([sys.stdin, listening, *forks.files], [], [])[0])
            if sys.stdin in ready:
                forks.kill()
                return
            if listening in ready:
                forks.start(listening)
            forks.relay(ready)


class Forks:
    """The running commands: each has a caller, who sends signals and reads the exit code."""

    def __init__(self, main: Callable[[list[str]], object]) -> None:
        self._main = main
        self._running: dict[int, tuple[socket.socket, int]] = {}
        """The caller and the process id, by a descriptor of the process."""

    @property
    def files(self) -> list[socket.socket | int]:
        """What becomes readable when a caller sends a signal or ends, or when a command ends."""
        return [*self._running, *(caller for caller, _ in self._running.values())]

    def start(self, listening: socket.socket) -> None:
        """Fork for the next caller, who reads the id of the process."""
        caller, _ = listening.accept()
        order, streams = _receive(caller)
        child = os.fork() if order else None
        if child == 0:
            for other in (caller, listening, *self.files):
                os.close(other) if isinstance(other, int) else other.close()
            _become(self._main, streams, marshal.loads(order))  # noqa: S302 -- of the command above
        for stream in streams:
            os.close(stream)
        if child is None:
            caller.close()
            return
        self._running[os.pidfd_open(child)] = caller, child
        with suppress(OSError):
            caller.sendall(f"{child}\n".encode())

    def relay(self, ready: Collection[object]) -> None:
        """Pass signals on, kill the commands of killed callers, and report exit codes."""
        for descriptor, (caller, child) in list(self._running.items()):
            if caller in ready:
                with suppress(ConnectionError):
                    number = caller.recv(1)
                    os.kill(child, number[0] if number else signal.SIGKILL)
                    if number:
                        continue
                self._end(descriptor)
            elif descriptor in ready:
                self._end(descriptor)

    def kill(self) -> None:
        """Kill all that run."""
        for descriptor, (_, child) in list(self._running.items()):
            os.kill(child, signal.SIGKILL)
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        caller, child = self._running.pop(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(OSError):
            caller.sendall(f"{code}\n".encode())
        caller.close()
        os.close(descriptor)


def _receive(caller: socket.socket) -> tuple[bytes, list[int]]:
    """The order of a caller and its standard streams; nothing if it has already been killed."""
    start, streams, _, _ = socket.recv_fds(caller, LENGTH, 3)
    size, order = int.from_bytes(start, "big"), b""
    while len(order) < size:
        part = caller.recv(size - len(order))
        if not part:
            return b"", streams
        order += part
    return order, streams


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
