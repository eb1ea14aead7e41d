"""Reads regular files only, in bounded memory."""

import codecs
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final

from everstep.agent_domain.capabilities import files
from everstep.capabilities.files.enclosure import PATH_ONLY, PathProblem, closing

MAX_WHOLE_BYTES: Final = 1024 * 1024
"""Up to this size a file is read whole, and any binary byte makes it binary; of a larger one, only what is
needed is read.
"""

MAX_READ: Final = 64 * 1024 * 1024
"""How much of a file is searched for the requested lines."""

_LINE: Final = 4 * (files.MAX_LINE_CHARS + 1)
"""Bytes of a line that affect its displayed part."""

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def open_regular_file(open_file: Callable[[int], int], path: str) -> Generator[int]:
    """Open a regular file by a function that takes the flags.

    The file is checked first, because opening a pipe, a terminal or a tape can have effects. If another file
    takes its place in between, it is opened without blocking, checked and closed.
    """
    with closing(open_file(PATH_ONLY)) as probe:
        _require_regular(os.fstat(probe), path)
    with closing(open_file(_READ)) as file:
        _require_regular(os.fstat(file), path)
        yield file


def _require_regular(status: os.stat_result, path: str) -> None:
    if problem := kind_problem(status, path):
        raise PathProblem(problem)


def kind_problem(status: os.stat_result, path: str) -> str | None:
    """The error text for anything but a regular file."""
    if stat.S_ISDIR(status.st_mode):
        return files.is_a_directory(path)
    return None if stat.S_ISREG(status.st_mode) else files.no_regular_file(path)


def read_at_most(file: int, size: int) -> bytes:
    """The beginning of a file, up to a size; a file may change while it is read."""
    parts, missing = list[bytes](), size
    while missing and (part := os.read(file, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_lines(file: int, offset: int, limit: int) -> str:
    """The requested lines as text for the model."""
    beginning = read_at_most(file, MAX_WHOLE_BYTES + 1)
    if len(beginning) <= MAX_WHOLE_BYTES:
        text = files.text_of(beginning)
        return files.BINARY if text is None else files.file_excerpt(text, offset, limit)
    has_more = os.fstat(file).st_size > MAX_READ
    return _read_large(_parts(file, beginning), offset, limit, has_more=has_more)


def _parts(file: int, beginning: bytes) -> Iterator[bytes]:
    size, part = 0, beginning
    while part:
        if b"\x00" in part:
            raise PathProblem(files.BINARY)
        yield part
        size += len(part)
        part = os.read(file, min(MAX_WHOLE_BYTES, MAX_READ - size))


def _read_large(parts: Iterator[bytes], offset: int, limit: int, *, has_more: bool) -> str:
    skip, size = files.window(offset, limit)
    window = _Window(skip, size)
    for part in parts:
        window.feed(part)
        if window.is_full:
            break
    else:
        window.end()
    goes_on = has_more and not window.is_full
    text = files.numbered_lines(window.lines, skip)
    if not window.lines:
        return files.offset_too_large(MAX_READ) if goes_on else files.PAST_THE_END
    return f"{text}\n{files.truncation_note(MAX_READ)}" if goes_on else text


class _Window:
    """Collects some lines of a text that comes in parts.

    Earlier lines are only counted, long ones are cut.
    """

    def __init__(self, skip: int, size: int) -> None:
        self.lines = list[str]()
        self._skip, self._size = skip, size
        self._line = bytearray()
        self._has_begun = False

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self._size

    def feed(self, part: bytes) -> None:
        start = self._skip_lines(part)
        while start < len(part) and not self.is_full:
            newline = part.find(b"\n", start)
            end = len(part) if newline < 0 else newline
            self._add(part, start, end)
            if newline >= 0:
                self._close()
            start = end + 1

    def end(self) -> None:
        """The text has ended: the rest after the last newline is a line, unless it is empty."""
        if self._has_begun and not self._skip and not self.is_full:
            self._close()

    def _skip_lines(self, part: bytes) -> int:
        """The position in this part at which the first requested line begins."""
        if not self._skip:
            return 0
        newlines = part.count(b"\n")
        if newlines < self._skip:
            self._skip -= newlines
            return len(part)
        start = 0
        for _ in range(self._skip):
            start = part.index(b"\n", start) + 1
        self._skip = 0
        return start

    def _add(self, part: bytes, start: int, end: int) -> None:
        self._has_begun = True
        self._line += part[start : min(end, start + _LINE - len(self._line))]

    def _close(self) -> None:
        # A line that was cut may end in the middle of a character.
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            self.lines.append(decoder.decode(bytes(self._line), final=len(self._line) < _LINE))
        except UnicodeDecodeError:
            raise PathProblem(files.BINARY) from None
        self._line.clear()
        self._has_begun = False
