"""Input and output of a terminal, or of a pipe: typed lines and shown text."""

import asyncio
import select
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import TextIO

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.printing import echo


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line of input, and a time before it was read: on a terminal, when it could be read."""

    text: str
    at: float


class _WakeUp:
    """Marks a wake-up in the queue of lines."""


class InputLines:
    """Standard input, read by a separate thread so that the event loop never blocks on it."""

    def __init__(self) -> None:
        stream: TextIO | None = sys.stdin
        self.is_terminal = stream is not None and stream.isatty()
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[InputLine | Exception | _WakeUp | None] = asyncio.Queue()
        self._is_woken = False
        # A daemon thread: it may still block on input when the process exits.
        Thread(target=self._read_lines, args=(stream,), daemon=True).start()

    async def next(self, seconds: float | None) -> InputLine | None:
        """Wait for the next line.

        Returns:
            The line, or None at the end of the input.

        Raises:
            TimeoutError: There is no line within these seconds, or `wake` was called.
            InvalidInput: The input cannot be read.
        """
        async with asyncio.timeout(seconds):
            item = await self._read.get()
        if isinstance(item, _WakeUp):
            self._is_woken = False
            raise TimeoutError
        if isinstance(item, Exception):
            raise InvalidInput(f"the input cannot be read: {item}")
        return item

    def wake(self) -> None:
        """Make `next` return early with a `TimeoutError`."""
        if not self._is_woken:
            self._is_woken = True
            self._read.put_nowait(_WakeUp())

    def _read_lines(self, stream: TextIO | None) -> None:
        try:
            while stream:
                if self.is_terminal:
                    # A time after the read could be later than a prompt that the line did not see.
                    select.select([stream], [], [])
                at = monotonic() if self.is_terminal else None
                text = stream.readline()
                if not text:
                    break
                self._put(InputLine(text.rstrip("\r\n"), monotonic() if at is None else at))
        except (OSError, ValueError) as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: InputLine | Exception | None) -> None:
        with suppress(RuntimeError):
            # The loop may be closed.
            self._loop.call_soon_threadsafe(self._read.put_nowait, item)


class Screen:
    """Shows lines, and on a terminal a prompt below them."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._prompts = is_terminal
        self._in_prompt = False
        self._in_text = False

    def say(self, text: str) -> None:
        """Show a text in full."""
        self._print_line(text)

    def note(self, text: str) -> None:
        """Show a dim line of secondary information."""
        self._print_line(f"  {' '.join(text.split())}", dim=True)

    def write(self, text: str, *, is_new: bool) -> None:
        """Show a part of a text.

        Args:
            text: The part.
            is_new: Whether it starts a new line.
        """
        if is_new or self._in_prompt:
            self.end()
        echo(text, nl=False)
        self._in_text = True

    def end(self) -> None:
        """End an unfinished line, or a prompt without an answer."""
        if self._in_prompt or self._in_text:
            self._in_prompt = self._in_text = False
            echo()

    def warn(self, text: str) -> None:
        """Show a line on standard error, so that it is not part of the output."""
        self._print_line(text, err=True)

    def close(self, text: str) -> None:
        """Show the closing line below a partly typed line."""
        if self._prompts:
            echo()
        self._in_prompt = self._in_text = False
        self.say(text)

    def prompt(self) -> None:
        """Show a prompt, on a terminal."""
        if self._prompts and not self._in_prompt:
            self.end()
            echo("> ", nl=False)
            self._in_prompt = True

    def on_line(self) -> None:
        """Note that the user ended the current line with Enter."""
        self._in_prompt = self._in_text = False

    def _print_line(self, text: str, *, err: bool = False, dim: bool = False) -> None:
        self.end()
        echo(text, err=err, dim=dim)
