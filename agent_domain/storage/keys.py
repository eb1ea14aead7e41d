"""API keys and idempotency keys: their values, and the port that stores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A service's key; the secret itself is stored nowhere."""

    id: UUID
    tenant_id: str
    name: str
    user_id: str | None
    scopes: tuple[str, ...]
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The first answer to a request with this key, to be given again."""

    status: int
    body: Any
    digest: str
    session_id: UUID | None = None
    """The session that it tells of, and is erased with."""
    execution_id: UUID | None = None
    """The execution that it tells of, and is erased with."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who works on a request."""

    digest: str
    """Of the request."""
    is_mine: bool


class KeyStore(Protocol):
    """Keeps what the HTTP API needs beside sessions."""

    async def claim(
        self, tenant_id: str, user_id: str, key: str, owner: UUID, *, digest: str, seconds: float
    ) -> Claim | Answered:
        """Take a request in hand for so many seconds, unless another process has, or it was answered.

        The claim of a process that was lost expires; then the same request may be taken over, and under its
        key no other one.
        """
        ...

    async def renew(self, tenant_id: str, user_id: str, key: str, owner: UUID, *, seconds: float) -> None:
        """Go on working on a request."""
        ...

    async def unclaim(self, tenant_id: str, user_id: str, key: str, owner: UUID, *, forget: bool) -> None:
        """Work no longer on a request: forget it, or let only the same one be taken over."""
        ...

    async def answered(self, tenant_id: str, user_id: str, key: str) -> Answered | None:
        """The answer to a request with this key."""
        ...

    async def remember(self, tenant_id: str, user_id: str, key: str, answer: Answered) -> Answered:
        """Keep an answer; the first one wins and is returned. None is kept of what was deleted meanwhile.

        The claim ends with it.
        """
        ...

    async def create_key(self, key: ApiKey, digest: str) -> None:
        """Keep a service's key under the digest of its secret."""
        ...

    async def key(self, digest: str) -> ApiKey | None:
        """The key with this digest, revoked ones too; notes, to the minute, that it was used."""
        ...

    async def is_good_key(self, key_id: UUID) -> bool:
        """Whether there is such a key that is not revoked."""
        ...

    async def keys(self, tenant_id: str) -> Sequence[ApiKey]:
        """All keys of a tenant, newest first."""
        ...

    async def revoke_key(self, tenant_id: str, key_id: UUID) -> bool:
        """Let a key open nothing any more; False if there is none."""
        ...
