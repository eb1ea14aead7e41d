"""The page of metrics of a process: its own instruments, what waits in the database, and Temporal's SDK.

A scrape never fails because a part cannot be read: the page then lacks that part, and counts it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, asynccontextmanager
from http.client import HTTPConnection, HTTPException
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.overview import Backlog, BacklogReader
from everstep.runtime.temporal_threads import sdk_metrics_port
from everstep.telemetry import exposition, metrics
from everstep.telemetry.event_loop import measured_event_loop
from everstep.telemetry.instruments import OTHER

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 5.0
"""How long what was read from the database is used: any number of servers may scrape."""
PATIENCE_SECONDS: Final = 2.0
"""How long a scrape waits for the database, and for Temporal's SDK."""
KINDS: Final = ("approval", "budget", "input")
"""The kinds of requests to people."""


class MetricsPage:
    """The page of this process."""

    def __init__(self, backlog: BacklogReader, most_tenants: int) -> None:
        """Prepare a page.

        Args:
            backlog: Reads what waits in the database.
            most_tenants: How many tenants have a label of their own; the others are `other`.
        """
        self._reader = backlog
        self._most_tenants = most_tenants
        self._backlog = Backlog({}, {})
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._tenants: dict[str, None] = {DEFAULT_TENANT: None} if most_tenants else {}

    @asynccontextmanager
    async def open_sources(self) -> AsyncGenerator[None]:
        """Measure what is measured while a process serves a page."""
        with ExitStack() as sources:
            for gauge, read in (
                (metrics.OPEN_REQUESTS, self._open_requests),
                (metrics.OPEN_REQUESTS_AGE, self._ages),
                (metrics.QUEUE_DEPTH, self._queue_depth),
            ):
                sources.enter_context(gauge.source(read))
            async with measured_event_loop():
                yield

    async def render(self, *registries: CollectorRegistry) -> bytes:
        """Return the page, with the metrics of these parts of the process."""
        _, sdk = await asyncio.gather(self._read_backlog(), read_sdk_metrics())
        return exposition.render(*registries) + sdk

    async def _read_backlog(self) -> None:
        async with self._reading:
            if monotonic() - self._read_at < FRESH_SECONDS:
                return
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    self._backlog = await self._reader.read()
                    self._read_at = monotonic()
            except (StoreUnavailable, TimeoutError) as error:
                metrics.SCRAPE_FAILURES.add("database")
                log.debug("metrics lack what waits in the database: %s", error)
                self._backlog = Backlog({}, {})

    @property
    def _is_known(self) -> bool:
        return monotonic() - self._read_at < 2 * FRESH_SECONDS

    def _open_requests(self) -> Mapping[tuple[str, ...], float]:
        found = self._backlog.open_requests
        return {(kind,): found.get(kind, (0, 0.0))[0] for kind in KINDS} if self._is_known else {}

    def _ages(self) -> Mapping[tuple[str, ...], float]:
        found = self._backlog.open_requests
        return {(kind,): found.get(kind, (0, 0.0))[1] for kind in KINDS} if self._is_known else {}

    def _queue_depth(self) -> Mapping[tuple[str, ...], float]:
        if not self._is_known:
            return {}
        for tenant in self._backlog.pending:
            # A tenant stays, so that its queue is seen to become empty.
            if len(self._tenants) < self._most_tenants:
                self._tenants.setdefault(tenant)
        depths = dict.fromkeys(self._tenants or (OTHER,), 0)
        for tenant, count in self._backlog.pending.items():
            name = tenant if tenant in self._tenants else OTHER
            depths[name] = depths.get(name, 0) + count
        return {(tenant,): count for tenant, count in depths.items()}


async def read_sdk_metrics() -> bytes:
    """Return the metrics of Temporal's SDK; nothing if this process does not export them."""
    port = sdk_metrics_port()
    if port is None:
        return b""
    try:
        return await asyncio.to_thread(_read_page, port)
    except (OSError, HTTPException) as error:
        metrics.SCRAPE_FAILURES.add("temporal_sdk")
        log.debug("metrics lack those of Temporal's SDK: %s", error)
        return b""


def _read_page(port: int) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    finally:
        connection.close()
