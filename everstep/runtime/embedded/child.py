"""A child process that ends with this process, however this one ends.

The kernel sends the parent-death signal when the *thread* that started the child ends. So the event loop that
starts children has to run in a thread that lives as long as they should, such as the main thread.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import IO, Final, Self

from everstep.runtime.embedded.folder import private_opener
from everstep.runtime.embedded.permissions import User

LAUNCHER: Final = Path(__file__).with_name("launcher.py")

TAIL_BYTES: Final = 4096
TAIL_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The unexpected end of a service."""

    service: str
    pid: int
    code: int
    """The exit code as in `subprocess`: the number of a signal that killed it is negated."""
    log: Path
    log_tail: str

    def __str__(self) -> str:
        said = f"the end of {self.log}:\n{self.log_tail}" if self.log_tail else f"{self.log} is empty"
        return f"{self.service} (process {self.pid}) {exit_text(self.code)}; {said}"


class Child:
    """A child process whose output is written to a log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    async def launch(
        cls,
        command: Sequence[str | Path],
        *,
        log: Path,
        directory: Path,
        user: User | None = None,
        orphaned: Signals = signal.SIGKILL,
        standard_input: bytes | None = None,
    ) -> Self:
        """Start a command.

        Args:
            command: The program and its arguments.
            log: The file for its output.
            directory: Its working directory.
            user: The user to run as.
            orphaned: The signal that it gets when this process dies.
            standard_input: The whole content of its standard input.
        """
        with _open_log(log) as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Without the user's environment and site-packages: faster, and the same on every machine.
                *("-I", "-S", LAUNCHER),
                str(os.getpid()),
                str(int(orphaned)),
                f"{user.uid}:{user.gid}" if user else "-",
                "exec" if sys.platform == "linux" else "supervise",
                *command,
                stdin=asyncio.subprocess.DEVNULL if standard_input is None else asyncio.subprocess.PIPE,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                cwd=directory,
                # Ctrl-C in the terminal is for this process, which then stops its children in order.
                start_new_session=True,
            )
        if process.stdin and standard_input is not None:
            process.stdin.write(standard_input)
            process.stdin.close()
        return cls(process, log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code as in `subprocess`, or None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the process to end, and return its exit code."""
        return await self._process.wait()

    async def stop(self, stop_signal: Signals, grace: float) -> int:
        """Ask the process to stop, and kill it after `grace` seconds."""
        with suppress(ProcessLookupError):
            self._process.send_signal(stop_signal)
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """Send SIGKILL and wait for the end."""
        if self.code is None:
            with suppress(ProcessLookupError):
                # The group, because on systems other than Linux a supervisor is the parent of the command.
                os.killpg(self.pid, signal.SIGKILL)
        return await self.wait()

    def log_tail(self) -> str:
        """Return the last lines of its output."""
        return log_tail(self.log)


def exit_text(code: int) -> str:
    """Describe an exit code in words."""
    return f"exited with code {code}" if code >= 0 else f"was killed by {Signals(-code).name}"


def log_tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
    except FileNotFoundError:
        return ""


def _open_log(log: Path) -> IO[bytes]:
    """Open an empty log, and keep that of the previous start."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    return open(log, "wb", opener=private_opener)
