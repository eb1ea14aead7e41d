"""The text of one answer, assembled from the pieces in which it arrives.

Streamed text and returned text must be the same, and every store must be able to hold it. PostgreSQL refuses
NUL, and UTF-8 cannot encode half of a surrogate pair; providers do send both (a pair may be split between two
pieces).
"""

_PARAGRAPH = "\n\n"


def storable(text: str) -> str:
    """The text without NUL characters. Halves of surrogate pairs are joined, or replaced as unreadable."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class AnswerText:
    """Collects the text of an answer."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._told = 0
        self._half = ""
        self._breaks = False

    def append(self, text: str) -> None:
        """Add a piece; half of a surrogate pair at its end waits for the other half."""
        text = self._half + text
        self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        text = storable(text.removesuffix(self._half))
        if not text:
            return
        if self._breaks and self._parts:
            self._parts.append(_PARAGRAPH)
        self._breaks = False
        self._parts.append(text)

    def begin_paragraph(self) -> None:
        """Begin a new paragraph with the next piece."""
        self._breaks = True

    def take_new(self) -> str:
        """The text added since the last call."""
        fresh = "".join(self._parts[self._told :])
        self._told = len(self._parts)
        return fresh

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._parts)
