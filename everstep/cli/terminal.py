"""Both sides of a terminal: lines that are typed, and what is shown. A pipe will do as well."""

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import TextIO

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.printing import echo


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and when it was read."""

    text: str
    at: float


class _Woken:
    """There is something else to look at."""


class Lines:
    """Standard input, read by a thread of its own, so that nothing else waits until somebody types."""

    def __init__(self) -> None:
        stream: TextIO | None = sys.stdin
        self.is_terminal = stream is not None and stream.isatty()
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[Line | Exception | _Woken | None] = asyncio.Queue()
        self._is_woken = False
        # A daemon: it may still wait for a line when everything else is over.
        Thread(target=self._follow, args=(stream,), daemon=True).start()

    async def next(self, seconds: float | None) -> Line | None:
        """The next line, or None after the last; `TimeoutError` if there is none yet, or one is woken."""
        async with asyncio.timeout(seconds):
            found = await self._read.get()
        if isinstance(found, _Woken):
            self._is_woken = False
            raise TimeoutError
        if isinstance(found, Exception):
            raise InvalidInput(f"the input cannot be read: {found}")
        return found

    def wake(self) -> None:
        """Whoever waits for a line should look around first."""
        if not self._is_woken:
            self._is_woken = True
            self._read.put_nowait(_Woken())

    def _follow(self, stream: TextIO | None) -> None:
        try:
            for text in iter(stream.readline, "") if stream else ():
                self._put(Line(text.rstrip("\r\n"), monotonic()))
        except (OSError, ValueError) as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, found: Line | Exception | None) -> None:
        with suppress(RuntimeError):
            # The loop may be over.
            self._loop.call_soon_threadsafe(self._read.put_nowait, found)


class Screen:
    """Shows lines, and a prompt below them where somebody sits."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._prompts = is_terminal
        self._in_prompt = False
        self._in_text = False

    def say(self, text: str) -> None:
        """Text in full."""
        self._line(text)

    def whisper(self, text: str) -> None:
        """One dim line about something beside the matter."""
        self._line(f"  {' '.join(text.split())}", dim=True)

    def write(self, text: str, *, is_new: bool) -> None:
        """Some text of a line that goes on; a new one begins below what is there."""
        if is_new or self._in_prompt:
            self.end()
        echo(text, nl=False)
        self._in_text = True

    def end(self) -> None:
        """The end of a line that went on, or of a prompt without an answer."""
        if self._in_prompt or self._in_text:
            self._in_prompt = self._in_text = False
            echo()

    def warn(self, text: str) -> None:
        """A line for whoever watches, and not for who reads the output."""
        self._line(text, err=True)

    def part(self, text: str) -> None:
        """The last words, below whatever was being typed."""
        if self._prompts:
            echo()
        self._in_prompt = self._in_text = False
        self.say(text)

    def prompt(self) -> None:
        """Ask for a line."""
        if self._prompts and not self._in_prompt:
            self.end()
            echo("> ", nl=False)
            self._in_prompt = True

    def typed(self) -> None:
        """A line was typed, behind the prompt or whatever else."""
        self._in_prompt = self._in_text = False

    def _line(self, text: str, *, err: bool = False, dim: bool = False) -> None:
        self.end()
        echo(text, err=err, dim=dim)
