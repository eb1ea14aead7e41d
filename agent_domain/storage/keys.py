"""API keys and idempotency keys: their values, and the port that stores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key of a service; the secret itself is not stored."""

    id: UUID
    tenant_id: str
    name: str
    user_id: str | None
    scopes: tuple[str, ...]
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to the first request with an idempotency key, for replay."""

    status: int
    body: Any
    digest: str
    session_id: UUID | None = None
    """The session in the response; the response is erased with it."""
    execution_id: UUID | None = None
    attachment_id: UUID | None = None
    """The execution in the response; the response is erased with it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The lock on an idempotency key while its request is processed."""

    digest: str
    """The digest of the request."""
    is_mine: bool
    """Whether the caller holds the lock, and not another process."""


class KeyStore(Protocol):
    """Stores idempotency keys and API keys."""

    async def claim(
        self, tenant_id: str, user_id: str, key: str, owner: UUID, *, digest: str, seconds: float
    ) -> Claim | StoredResponse:
        """Lock an idempotency key, unless another process holds it or a response is stored.

        The lock of a crashed process expires. Then only a request with the same digest can take it over.

        Args:
            tenant_id: The tenant.
            user_id: The user; keys are unique per user.
            key: The idempotency key.
            owner: Identifies the caller's lock.
            digest: The digest of the request.
            seconds: How long the lock lasts without `renew`.

        Returns:
            The stored response, or the lock, which belongs to the caller or to another process.
        """
        ...

    async def renew(self, tenant_id: str, user_id: str, key: str, owner: UUID, *, seconds: float) -> None:
        """Extend the lock of an idempotency key."""
        ...

    async def release_claim(
        self, tenant_id: str, user_id: str, key: str, owner: UUID, *, forget: bool
    ) -> None:
        """Release the lock of an idempotency key.

        Args:
            tenant_id: The tenant.
            user_id: The user.
            key: The idempotency key.
            owner: Identifies the caller's lock.
            forget: Whether to delete the key. Otherwise only a request with the same digest can use it.
        """
        ...

    async def find_response(self, tenant_id: str, user_id: str, key: str) -> StoredResponse | None:
        """The stored response for an idempotency key, if there is one."""
        ...

    async def remember(
        self, tenant_id: str, user_id: str, key: str, answer: StoredResponse
    ) -> StoredResponse:
        """Store a response and release the lock; the first response wins and is returned.

        A response about a session or execution that has since been deleted is not stored.
        """
        ...

    async def create_key(self, key: ApiKey, digest: str) -> None:
        """Store an API key under the digest of its secret."""
        ...

    async def key(self, digest: str) -> ApiKey | None:
        """The API key with this digest, even if it is revoked; records the minute of its use."""
        ...

    async def is_good_key(self, key_id: UUID) -> bool:
        """Whether the API key exists and is not revoked."""
        ...

    async def keys(self, tenant_id: str) -> Sequence[ApiKey]:
        """All API keys of a tenant, newest first."""
        ...

    async def revoke_key(self, tenant_id: str, key_id: UUID) -> bool:
        """Revoke an API key; False if it does not exist."""
        ...
