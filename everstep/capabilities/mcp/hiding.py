"""Keeping secret values out of texts that somebody reads later."""

from collections.abc import Iterable

HIDDEN = "[hidden]"
LEAST_CHARACTERS = 6
"""Shorter values are no secrets, and hiding them would make every text unreadable."""


class Secrets:
    """Values that a server was given. It may say them again, and what it says reaches errors and logs."""

    def __init__(self, values: Iterable[str]) -> None:
        # Of `Bearer abc` also `abc`.
        told = {part for value in values for part in (value, value.rpartition(" ")[2])}
        self._values = sorted((each for each in told if len(each) >= LEAST_CHARACTERS), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def hidden_in(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text
