"""Events in the store: records to be stored, and stored envelopes with a number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.values import FrozenDict


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event to store: `key` is unique within the execution, and determines the envelope's id."""

    key: str
    type: str
    payload: Mapping[str, Any]
    announces: Announcement | None = None
    """The session message to store in the same transaction."""


def no_event_records(_known: object) -> tuple[EventRecord, ...]:
    """No records: the default of callbacks that build them."""
    return ()


@dataclass(frozen=True, slots=True)
class StoredEnvelope:
    """A stored envelope with its number in the stream."""

    stream_id: UUID
    seq: int
    id: UUID
    type: str
    execution_id: UUID
    payload: FrozenDict
    created_at: datetime
    payload_json: str | None = field(default=None, compare=False, repr=False)
    """The payload as its writer encoded it, for sending; None if it has to be encoded."""
