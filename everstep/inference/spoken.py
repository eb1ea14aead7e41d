"""The text of one answer, put together from the pieces in which it arrives.

What is heard and what is returned must be the same text, and one that every store can hold:
PostgreSQL refuses NUL, UTF-8 half of a surrogate pair, and providers do send both (a pair may be
cut in two by the border between two pieces).
"""

_PARAGRAPH = "\n\n"


def storable(text: str) -> str:
    """The text without NUL characters; halves of surrogate pairs meet, or are marked as unreadable."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Spoken:
    """Collects what a model says."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._told = 0
        self._half = ""
        self._breaks = False

    def say(self, text: str) -> None:
        """Add a piece; half of a pair at its end waits for the other half."""
        text = self._half + text
        self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        text = storable(text.removesuffix(self._half))
        if not text:
            return
        if self._breaks and self._parts:
            self._parts.append(_PARAGRAPH)
        self._breaks = False
        self._parts.append(text)

    def paragraph(self) -> None:
        """What is said next stands apart from what was said so far."""
        self._breaks = True

    def news(self) -> str:
        """What was added since this was asked last."""
        fresh = "".join(self._parts[self._told :])
        self._told = len(self._parts)
        return fresh

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._parts)
