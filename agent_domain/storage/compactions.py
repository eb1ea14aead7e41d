"""Compactions in the store: each is a record of its own, before the step whose request it shortens."""

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.stream.records import EventRecord


@dataclass(frozen=True, slots=True)
class ContinuedInput:
    """The last request of the execution that another one continues, as its provider counted it."""

    usage: Usage
    """The usage of its step."""
    later_messages: int
    """How many messages of that execution came after the request."""


@dataclass(frozen=True, slots=True)
class RecordCompaction:
    """A compaction, which is recorded once."""

    ref: ExecutionRef
    ordinal: int
    """How many compactions were recorded before the same step."""
    compaction: Compaction
    events: Sequence[EventRecord] = ()
