"""Events as the store keeps them: drafts without a number, and envelopes with one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.values import FrozenDict


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An envelope to be stored: `key` is unique within the execution and gives it its id."""

    key: str
    type: str
    payload: Mapping[str, Any]
    announces: Announcement | None = None
    """The message that a session stores beside it."""


def nothing_to_tell(_known: object) -> tuple[EventRecord, ...]:
    """Where viewers are told nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class StoredEnvelope:
    """An envelope in its place."""

    stream_id: UUID
    seq: int
    id: UUID
    type: str
    execution_id: UUID
    payload: FrozenDict
    created_at: datetime
