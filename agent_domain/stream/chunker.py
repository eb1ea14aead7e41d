"""Cuts the text of one attempt into chunks, once for all who read it."""

from dataclasses import dataclass
from math import inf

GAP_SECONDS = 0.02
"""So long text gathers before it is sent, unless there is much of it."""

MOST_CHARACTERS = 1024
"""So much is sent at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the text, with its place among the pieces and in the text; the last one is empty."""

    index: int
    offset: int
    content: str


class Cutter:
    """Takes text as it is written, and gives pieces as they are due; whoever asks says what time it is."""

    def __init__(self) -> None:
        self._text = ""
        self._index = self._offset = 0
        self._next = -inf

    def heard(self, text: str) -> None:
        """Some more text."""
        self._text += text

    @property
    def due_at(self) -> float | None:
        """When there will be another piece, if nothing more is heard."""
        return self._next if self._text else None

    def due(self, now: float) -> list[Piece]:
        """The pieces to be sent now: the first text at once, a full one at once, and what has gathered."""
        text, start, pieces = self._text, 0, list[Piece]()
        while len(text) - start >= MOST_CHARACTERS or (start < len(text) and now >= self._next):
            pieces.append(self._piece(text[start : start + MOST_CHARACTERS]))
            start += MOST_CHARACTERS
            self._next = now + GAP_SECONDS
        self._text = text[start:]
        return pieces

    def ended(self) -> list[Piece]:
        """What is left, and the piece that closes the text; nothing if there never was any."""
        rest = self.due(inf)
        return [*rest, self._piece("")] if self._index else []

    def _piece(self, content: str) -> Piece:
        piece = Piece(self._index, self._offset, content)
        self._index += 1
        self._offset += len(content)
        return piece
