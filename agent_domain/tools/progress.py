"""The progress of a tool call, which the tool reports while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import escape_unstorable, require_map, truncate

MAX_TEXT: Final = 200
"""Characters of the text; a longer one is cut."""

PROGRESS_SECONDS: Final = 1.0
"""The shortest time between two reports of a call that viewers receive."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call is.

    Raises:
        InvalidInput: The text is no text, or the fraction is not between 0 and 1.
    """

    text: str = ""
    fraction: float | None = None
    """The part that is done, from 0 to 1; None if the tool does not know."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without types
            raise InvalidInput(f"the progress is {self.text!r}; pass a text, and a fraction if it is known")
        object.__setattr__(self, "text", truncate(escape_unstorable(self.text), MAX_TEXT))
        part = self.fraction
        if part is None:
            return
        is_number = isinstance(part, int | float) and not isinstance(part, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or not 0 <= part <= 1:
            raise InvalidInput(f"the fraction is {part!r}; pass a number from 0 to 1")
        object.__setattr__(self, "fraction", float(part))

    @property
    def detail(self) -> str:
        """The progress for people, on one line."""
        percent = "" if self.fraction is None else f"{int(self.fraction * 100)} %"
        return ": ".join(part for part in (percent, " ".join(self.text.split())) if part)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {"text": self.text, "fraction": self.fraction}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        """Read the JSON form."""
        require_map(data, "the progress")
        return cls(str(data.get("text") or ""), data.get("fraction"))


ReportProgress: TypeAlias = Callable[[Progress], object]
"""Receives the progress of a call, from any thread, and returns at once."""


def ignore_progress(_progress: Progress) -> None:
    """A `ReportProgress` for contexts that a program makes itself."""
