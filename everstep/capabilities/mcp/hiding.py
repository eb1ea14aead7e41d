"""Hides secret values in texts for logs and errors."""

from collections.abc import Iterable

HIDDEN = "[hidden]"
MIN_CHARACTERS = 6
"""Shorter values are no secrets, and hiding them would make every text unreadable."""


class Secrets:
    """Secret values that a server was given. It may repeat them in texts that reach errors and logs."""

    def __init__(self, values: Iterable[str]) -> None:
        # Of `Bearer abc` also `abc`.
        parts = {part for value in values for part in (value, value.rpartition(" ")[2])}
        self._values = sorted((each for each in parts if len(each) >= MIN_CHARACTERS), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def redact(self, text: str) -> str:
        """The text with secret values replaced."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text
