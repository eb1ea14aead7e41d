"""Discovery of gateways: each announces its address periodically, and writers query the addresses.

So no gateway needs an address that is configured elsewhere, and one that stops is dropped.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

ANNOUNCE_SECONDS = 5.0
"""The interval of a gateway's announcements."""
GATEWAY_EXPIRY_SECONDS = 20.0
"""A gateway without an announcement for this long counts as gone."""


class GatewayDirectory(Protocol):
    """The registry of gateways. Every method is one query, and raises `StoreUnavailable` on failure."""

    async def announce(self, gateway_id: UUID, url: str) -> None:
        """Announce a gateway that accepts links at this URL."""
        ...

    async def withdraw(self, gateway_id: UUID) -> None:
        """Remove a gateway."""
        ...

    async def active_gateways(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        """The journal's epoch, and the id and URL of every gateway announced within this many seconds."""
        ...
