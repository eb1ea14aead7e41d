"""The ports of the gateway: the table of envelopes, and the authorization of viewers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.stream.channels import Channel
from everstep.agent_domain.stream.reader import Place
from everstep.broadcast_gateway.frames import RelayedEntry


@dataclass(frozen=True, slots=True)
class JournalPage:
    """The rows of a stream after a seq."""

    epoch: str
    """The epoch of the history."""
    head: int
    """The seq of the last stored envelope; 0 for none."""
    oldest: int
    """The seq of the first envelope still stored; that of the next one, if none is."""
    entries: Sequence[RelayedEntry] = ()


@dataclass(frozen=True, slots=True)
class RecordedText:
    """The text of a running attempt when it was last recorded."""

    at: Place
    content: str
    after_seq: int
    timestamp: datetime


class Journal(Protocol):
    """The stored envelopes. Every method is one query and raises `StoreUnavailable` if it fails."""

    async def read_page(self, stream_id: UUID, after: int | None, limit: int) -> JournalPage | None:
        """Return the next envelopes after a seq, in order, or None for an unknown stream.

        Without `after` the page has no envelopes.
        """
        ...

    async def read_heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        """Return the epoch, and the last seq of each of these streams that exists."""
        ...

    async def read_texts(self, stream_id: UUID) -> Mapping[str, RecordedText | None]:
        """Return the executions of a stream that have not ended.

        Each has the text of its current step, or None if there is no such step.
        """
        ...


@dataclass(frozen=True, slots=True)
class Guest:
    """An authenticated viewer."""

    tenant_id: str
    user_id: str | None
    """The user whose sessions may be watched; None for all sessions of the tenant."""
    expires_at: float | None = None
    """Seconds since 1970; None for no expiry."""


class NotAdmitted(EverstepError):
    """Authentication failed or has expired; the message is for the viewer."""


class ViewerAuthorization(Protocol):
    """Authorizes viewers. Raises `StoreUnavailable` if that is impossible now."""

    async def authenticate_viewer(self, token: str) -> Guest:
        """Authenticate a token.

        Raises:
            NotAdmitted: The token is unknown or has expired.
        """
        ...

    async def is_good_key(self, key_id: UUID) -> bool:
        """Whether an API key is still valid."""
        ...

    async def find_stream(self, channel: Channel, guest: Guest | None) -> UUID | None:
        """Return the stream of a channel; None if it does not exist or the guest may not watch it.

        Without a guest the channel was authorized, and signed, by the application's server.
        """
        ...
