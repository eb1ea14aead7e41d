"""How far a reader of a run has come: the id of each event that a wire sends.

A cursor names the execution, the last envelope whose events were all sent, how many events of the next one
were sent, how many of a wire's events for the one after those, and how much text of running steps. So a
reader that was cut anywhere receives exactly what it lacks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.agent_domain.errors import InvalidInput

MAX_CURSOR = 2000
"""The maximum length of a cursor, in characters."""
MAX_TEXTS = 40
"""The maximum number of texts in a cursor: of subagents that write at the same time."""

_CURSOR = re.compile(
    r"(?P<execution>[0-9a-f-]{36})/(?P<seq>\d{1,18})\.(?P<done>\d{1,9})\.(?P<part>\d{1,9})"
    r"(?P<texts>(?:;[0-9a-f-]{36}\.\d{1,9}\.\d{1,9}\.\d{1,12}\.[0-9a-f]{1,8}\.[01])*)@(?P<epoch>[!-~]{1,100})"
)


@dataclass(frozen=True, slots=True)
class SentText:
    """The part of an attempt's text that was sent."""

    step_number: int
    attempt: int
    length: int
    checksum: int = 0
    """CRC-32 of that part: another text of the same length is noticed."""
    is_closed: bool = False
    """Whether the reader knows that the text is complete."""


@dataclass(frozen=True, slots=True)
class RunCursor:
    """How far a reader has come in a run."""

    execution_id: str
    seq: int = 0
    """The last envelope whose events were all sent."""
    done: int = 0
    """How many events of the next envelope with events were sent, without those of text."""
    part: int = 0
    """How many of the wire's own events were sent for the one after those."""
    texts: Mapping[str, SentText] = field(default_factory=dict[str, SentText])
    """The open texts, by execution."""
    epoch: str = ""

    def with_part(self, part: int) -> "RunCursor":
        """A copy in which so many of the wire's events for the next event were sent."""
        return replace(self, part=part)

    def __str__(self) -> str:
        texts = "".join(
            f";{of}.{text.step_number}.{text.attempt}.{text.length}.{text.checksum:x}.{text.is_closed:d}"
            for of, text in [*self.texts.items()][-MAX_TEXTS:]
        )
        return f"{self.execution_id}/{self.seq}.{self.done}.{self.part}{texts}@{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> "RunCursor":
        """Read a cursor that was sent as the id of an event.

        Raises:
            InvalidInput: It is none.
        """
        match = _CURSOR.fullmatch(text) if len(text) <= MAX_CURSOR else None
        if match is None:
            raise InvalidInput("it is not the id of an event of this stream; omit it to start over")
        texts = dict(_parse_text(entry) for entry in match["texts"].split(";")[1:])
        return cls(
            match["execution"],
            int(match["seq"]),
            int(match["done"]),
            int(match["part"]),
            texts,
            match["epoch"],
        )


def _parse_text(entry: str) -> tuple[str, SentText]:
    execution_id, step, attempt, length, checksum, closed = entry.split(".")
    return execution_id, SentText(int(step), int(attempt), int(length), int(checksum, 16), closed == "1")
