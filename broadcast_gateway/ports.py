"""What the gateway needs of others: the table, and whoever knows tokens and sessions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.stream.channels import Channel
from everstep.agent_domain.stream.reader import Place
from everstep.broadcast_gateway.frames import Entry


@dataclass(frozen=True, slots=True)
class Page:
    """What the table has of a stream after a seq."""

    epoch: str
    """Of which history."""
    head: int
    """The last envelope that is stored; 0 for none."""
    oldest: int
    """The first one that the table still has; the one to come, if it has none."""
    entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """What an attempt that is under way had written when it was last noted."""

    at: Place
    content: str
    after_seq: int
    timestamp: datetime


class Journal(Protocol):
    """What is stored. Every method is one query; `StoreUnavailable` if there is no answer."""

    async def page(self, stream_id: UUID, after: int | None, limit: int) -> Page | None:
        """The next envelopes after a seq, in order; after None, none. None if there is no such stream."""
        ...

    async def heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        """The epoch, and the last seq of each of these streams that exists."""
        ...

    async def texts(self, stream_id: UUID) -> Mapping[str, Text | None]:
        """Every execution of a stream that has not ended; with the text of its step, if one is under way."""
        ...


@dataclass(frozen=True, slots=True)
class Guest:
    """Who watches."""

    tenant_id: str
    user_id: str | None
    """Whose sessions may be watched; None for those of everybody in the tenant."""
    expires_at: float | None = None
    """Seconds since 1970; None for never."""


class NotAdmitted(EverstepError):
    """Who this is is not known, or no longer; the text is for them."""


class Doors(Protocol):
    """Who may watch what. `StoreUnavailable` if that cannot be found out now."""

    async def guest(self, token: str) -> Guest:
        """Whose token this is; `NotAdmitted` if nobody's."""
        ...

    async def is_good_key(self, key_id: UUID) -> bool:
        """Whether an API key still opens anything."""
        ...

    async def stream(self, channel: Channel, guest: Guest | None) -> UUID | None:
        """The stream that a channel means, if this guest may watch it; None if not, or if there is none.

        Without a guest somebody else has decided, and signed, that it may be watched.
        """
        ...
