"""Readiness of an installation, as queried often by load balancers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from everstep.http_api.dependencies import Check
from everstep.store.errors import SchemaTooNew
from everstep.store.measured_pool import is_exhausted
from everstep.store.migrate import pending
from everstep.telemetry.bus_state import bus_state

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds after which an unanswered check counts as failed."""
FRESH = 1.0
"""Seconds for which a result is cached: any client may ask."""


class Readiness:
    """Checks the database with its tables, Temporal, and a worker."""

    def __init__(self, engine: AsyncEngine, temporal: Client, task_queue: str) -> None:
        self.engine = engine
        self.temporal = temporal
        self.task_queue = task_queue
        self._lock = asyncio.Lock()
        self._known: Sequence[Check] = ()
        self._asked_at = float("-inf")

    async def __call__(self) -> Sequence[Check]:
        """Return the state of each part."""
        async with self._lock:
            if monotonic() - self._asked_at >= FRESH:
                database, temporal = await asyncio.gather(self._database(), self._temporal())
                bus = bus_state()
                self._known = (*database, *temporal, *([] if bus is None else [Check("bus", True, bus)]))
                self._asked_at = monotonic()
            return self._known

    async def _database(self) -> Sequence[Check]:
        missing = await _within(self._pending)
        if missing is None:
            return [Check("database", False, "it cannot be reached; the log says why")]
        is_up_to_date = not missing
        told = "" if is_up_to_date else "the tables are out of date: run `everstep db upgrade`"
        return [Check("database", True), Check("tables", is_up_to_date, told)]

    async def _pending(self) -> Sequence[str]:
        try:
            return await pending(self._database_or_url())
        except SchemaTooNew:
            # A newer release is being rolled out, and this one still works with its tables.
            return ()

    def _database_or_url(self) -> AsyncEngine | str:
        """Return the pool, which can work although the server accepts no further connection.

        A process whose connections are all in use is busy and not unready: the check opens one of its own.
        """
        if is_exhausted(self.engine):
            return self.engine.url.render_as_string(hide_password=False)
        return self.engine

    async def _temporal(self) -> Sequence[Check]:
        polled = await _within(self._is_polled)
        if polled is None:
            return [Check("temporal", False, "it cannot be reached; the log says why")]
        told = "" if polled else "no worker listens: start one with `everstep worker`"
        return [Check("temporal", True), Check("worker", polled, told)]

    async def _is_polled(self) -> bool:
        request = DescribeTaskQueueRequest(
            namespace=self.temporal.namespace,
            task_queue=TaskQueue(name=self.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        response = await self.temporal.workflow_service.describe_task_queue(request)
        return bool(response.pollers)


async def _within(ask: Callable[[], Awaitable[T]]) -> T | None:
    try:
        async with asyncio.timeout(PATIENCE):
            return await ask()
    except Exception:
        logger.warning("not ready", exc_info=True)
        return None
