"""A real pseudo-terminal, in which a command runs as under a person's hands."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.agent_domain.values import EMPTY
from tests.acceptance.harness import ROOT, until

CURSOR_SHOWN, CURSOR_HIDDEN = "\x1b[?25h", "\x1b[?25l"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class PseudoTerminal:
    """The person's end of a terminal in which a command runs."""

    process: Process
    ours: int
    theirs: int
    raw: str = ""
    """Everything that was written, with control sequences."""
    modes: list[Any] = field(default_factory=list[Any])
    """How the terminal was set before the command."""
    is_clean: bool = False
    """Whether the command has left the terminal as it was: with a cursor, and showing what is typed."""

    @property
    def text(self) -> str:
        """What was written, without control sequences and returns."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def read(self) -> None:
        """Take over what was written."""
        with suppress(OSError):
            self.raw += os.read(self.ours, 65536).decode("utf-8", "replace")

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self.ours, text.encode())

    async def wait_for(self, words: str, times: int = 1) -> None:
        """Wait until the terminal has shown this so many times."""
        await until(
            f"it shows {words!r}",
            lambda: self.text.count(words) >= times or self.process.returncode is not None,
        )
        assert self.text.count(words) >= times, self.text

    async def end(self) -> int:
        """Wait until the command has ended, and everything was read."""
        code = await self.process.wait()
        await asyncio.sleep(0)
        self.read_rest()
        shows_cursor = self.raw.rfind(CURSOR_SHOWN) >= self.raw.rfind(CURSOR_HIDDEN)
        self.is_clean = shows_cursor and termios.tcgetattr(self.theirs) == self.modes
        return code

    def read_rest(self) -> None:
        """Read what is left."""
        os.set_blocking(self.ours, False)
        with suppress(BlockingIOError, OSError):
            while more := os.read(self.ours, 65536):
                self.raw += more.decode("utf-8", "replace")


@asynccontextmanager
async def open_terminal(
    environment: Mapping[str, str],
    *arguments: object,
    columns: int = 80,
    rows: int = 40,
    told: Mapping[str, str] = EMPTY,
    everstep: Path | None = None,
) -> AsyncGenerator[PseudoTerminal]:
    """Run a command in a terminal of this size, which controls it.

    By default in an interpreter of its own, which the terminal can interrupt, and whose start reads all of
    the environment.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    modes = termios.tcgetattr(theirs)
    # A session of its own, so that Ctrl-C reaches the command and not the tests.
    program = (everstep,) if everstep else (sys.executable, "-m", "everstep.cli")
    command = ("setsid", "--ctty", "--wait", *program, *map(str, arguments))
    env = {**environment, "TERM": "xterm-256color", **told}
    env.pop("COLUMNS", None)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env
    )
    terminal = PseudoTerminal(process, ours, theirs, modes=modes)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, terminal.read)
    try:
        yield terminal
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
        os.close(theirs)
