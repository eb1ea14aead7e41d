"""Where the gateways are: each says so again and again, and whoever writes asks.

So a gateway needs no address that others know beforehand, and one that is gone is forgotten.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

ANNOUNCE_SECONDS = 5.0
"""So often a gateway says that it is there."""
PRESENT_SECONDS = 20.0
"""Who was silent for so long is not looked for any more."""


class Gateways(Protocol):
    """Who is there. Every method is one query; `StoreUnavailable` if there is no answer."""

    async def announce(self, gateway_id: UUID, url: str) -> None:
        """A gateway is there, and takes links at this URL."""
        ...

    async def withdraw(self, gateway_id: UUID) -> None:
        """It leaves."""
        ...

    async def present(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        """The journal's epoch, and the id and URL of every gateway that was announced within so long."""
        ...
