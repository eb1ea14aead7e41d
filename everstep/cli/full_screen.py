"""The alternate screen of a terminal, for pages that change; it leaves the terminal as it was."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text


class FullScreen:
    """Draws pages on the alternate screen, and reads single keys.

    Ctrl-Z gives the terminal back while the command is stopped.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._input = sys.stdin.fileno()
        self._modes: list[Any] = termios.tcgetattr(self._input)
        self._live = self._new_live()

    def _new_live(self) -> Live:
        return Live(
            Text(),
            console=self._console,
            screen=True,
            auto_refresh=False,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def draw(self, page: RenderableType) -> None:
        """Replace what the screen shows."""
        self._live.update(page, refresh=True)

    async def key(self, seconds: float) -> str | None:
        """Wait for a key, in lower case; None if none is pressed in these seconds."""
        try:
            async with asyncio.timeout(seconds):
                return (await self._keys.get()).lower()
        except TimeoutError:
            return None

    def open(self) -> None:
        """Switch to the alternate screen, where keys are not shown."""
        tty.setcbreak(self._input)
        self._live = self._new_live()
        self._live.start()

    def close(self) -> None:
        """Switch back."""
        self._live.stop()
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._modes)

    def on_input(self) -> None:
        """Read the keys that were pressed."""
        for char in os.read(self._input, 64).decode("utf-8", "replace"):
            self._keys.put_nowait(char)

    def suspend(self) -> None:
        """Stop this process until it is continued."""
        self.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.open()


@asynccontextmanager
async def open_screen(console: Console) -> AsyncGenerator[FullScreen]:
    """Open the alternate screen; SIGTERM ends the current task, as Ctrl-C does."""
    screen, loop, task = FullScreen(console), asyncio.get_running_loop(), asyncio.current_task()
    screen.open()
    try:
        loop.add_reader(sys.stdin.fileno(), screen.on_input)
        loop.add_signal_handler(signal.SIGTSTP, screen.suspend)
        if task is not None:
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        yield screen
    finally:
        loop.remove_reader(sys.stdin.fileno())
        loop.remove_signal_handler(signal.SIGTSTP)
        loop.remove_signal_handler(signal.SIGTERM)
        screen.close()
