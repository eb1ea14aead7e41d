"""Projections: what a wire makes of the events of a run, and the id of each event that it sends."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

from everstep.agent_domain.values import json_text
from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_events import RunEvent, Thread
from everstep.wires.run_log import LoggedEvent, Start

WireEvent: TypeAlias = dict[str, Any]
"""An event of a protocol, as JSON."""


class Projection(ABC):
    """The events of one protocol, for one reader."""

    history: Thread = ()
    """The conversation before the execution; it is set before an event that needs it."""
    last_frame: bytes = b""
    """What the protocol sends at the end of a complete stream."""
    is_complete: bool = False
    """Whether the reader has everything that it reads of the execution."""

    def needs_history(self, event: RunEvent) -> bool:
        """Whether the event restates the conversation."""
        del event
        return False

    @abstractmethod
    def encode(self, event: RunEvent) -> list[WireEvent]:
        """The protocol's events for one event; those of a counted event depend on the log alone."""

    @abstractmethod
    def fail(self, message: str, code: str) -> list[WireEvent]:
        """The last events of a stream that ends before the execution does."""

    def frame(self, event: WireEvent, cursor: RunCursor | None = None) -> bytes:
        """An event as one of server-sent events; its id is the cursor after it."""
        at = "" if cursor is None else f"id: {cursor}\n"
        return f"{at}data: {json_text(event)}\n\n".encode()


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
