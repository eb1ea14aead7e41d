"""Projections: what a wire makes of the events of a run, and the id of each event that it sends."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_events import RunEvent, Thread
from everstep.wires.run_log import LoggedEvent, Start

WireEvent: TypeAlias = dict[str, Any]
"""An event of a protocol, as JSON."""


class Projection(Protocol):
    """The events of one protocol, for one reader."""

    history: Thread
    """The conversation before the execution; it is set before an event that needs it."""

    def needs_history(self, event: RunEvent) -> bool:
        """Whether the event restates the conversation."""
        ...

    def encode(self, event: RunEvent) -> list[WireEvent]:
        """The protocol's events for one event; those of a counted event depend on the log alone."""
        ...

    def fail(self, message: str, code: str) -> list[WireEvent]:
        """The last events of a stream that ends before the execution does."""
        ...

    @property
    def last_frame(self) -> bytes:
        """What the protocol sends at the end of a complete stream."""
        ...


class Numbering:
    """Gives each event of a wire the cursor after it, and leaves out those that a reader has received."""

    def __init__(self, projection: Projection, start: Start) -> None:
        self._projection = projection
        self._received = start.part if isinstance(start, RunCursor) else 0

    def encode(self, taken: LoggedEvent) -> Sequence[tuple[WireEvent, RunCursor]]:
        """The wire's events for one event."""
        events = self._projection.encode(taken.event)
        cursors = [taken.before.with_part(part) for part in range(1, len(events))] + [taken.after]
        received = 0
        if len(events) > self._received:
            # A smaller number of events is none of which the reader has a part: text may come before it.
            received, self._received = self._received, 0
        return [*zip(events, cursors, strict=False)][received:]
