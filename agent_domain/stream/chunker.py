"""Splits the text of one attempt into chunks, once for all readers."""

from dataclasses import dataclass
from math import inf

CHUNK_INTERVAL_SECONDS = 0.02
"""How long text is buffered before it is sent, unless a chunk is full."""

MAX_CHUNK_CHARACTERS = 1024
"""The maximum length of a chunk."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of the text, with its position among the chunks and in the text; the last one is empty."""

    index: int
    offset: int
    content: str


class Chunker:
    """Buffers text and returns the chunks that are due; the caller passes the time."""

    def __init__(self) -> None:
        self._text = ""
        self._index = self._offset = 0
        self._next = -inf

    def feed(self, text: str) -> None:
        """Buffer more text."""
        self._text += text

    @property
    def due_at(self) -> float | None:
        """When the next chunk is due, if no more text arrives; None without buffered text."""
        return self._next if self._text else None

    def take_due(self, now: float) -> list[Piece]:
        """The chunks to send now: the first text and full chunks immediately, the rest after the interval."""
        text, start, pieces = self._text, 0, list[Piece]()
        while len(text) - start >= MAX_CHUNK_CHARACTERS or (start < len(text) and now >= self._next):
            pieces.append(self._piece(text[start : start + MAX_CHUNK_CHARACTERS]))
            start += MAX_CHUNK_CHARACTERS
            self._next = now + CHUNK_INTERVAL_SECONDS
        self._text = text[start:]
        return pieces

    def finish(self) -> list[Piece]:
        """The remaining text, and the chunk that closes it; nothing if there was no text at all."""
        rest = self.take_due(inf)
        return [*rest, self._piece("")] if self._index else []

    def _piece(self, content: str) -> Piece:
        piece = Piece(self._index, self._offset, content)
        self._index += 1
        self._offset += len(content)
        return piece
