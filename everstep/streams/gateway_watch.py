"""The running gateways and the epoch of the journal, read from the directory again and again."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import UUID

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.stream.gateways import GATEWAY_EXPIRY_SECONDS, GatewayDirectory

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""Seconds between two lookups of the running gateways."""

OnGateways = Callable[[str, Sequence[tuple[UUID, str]]], None]
"""Takes the epoch, and the ids and URLs of all gateways."""


class GatewayWatch:
    """Reports the running gateways, between `start` and `aclose`."""

    def __init__(
        self, gateways: GatewayDirectory, on_gateways: OnGateways, refresh: float = REFRESH_SECONDS
    ) -> None:
        self._gateways = gateways
        self._on_gateways = on_gateways
        self._refresh = refresh
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False

    def start(self) -> None:
        """Start looking for gateways."""
        self._task = asyncio.create_task(
            keep_running(
                "the search for gateways", self._search, sleep=asyncio.sleep, clock=monotonic, log=logger
            )
        )

    async def aclose(self) -> None:
        """Stop."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _search(self) -> None:
        while True:
            try:
                self._on_gateways(*await self._gateways.active_gateways(GATEWAY_EXPIRY_SECONDS))
                self._is_lost = False
            except Exception as error:  # noqa: BLE001 -- the known gateways keep working
                if not self._is_lost:
                    logger.warning("looking up the gateways failed; the known ones are kept: %s", error)
                self._is_lost = True
            await asyncio.sleep(self._refresh)
