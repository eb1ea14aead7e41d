"""The state of an installation for its operators: workers and queues in Temporal, gateways, and settings.

Temporal lists workers with their slots if they and the server are recent enough. What lists of pollers say is
known to every server: who asked for work in the last minutes, and with which version.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from time import monotonic
from typing import Final, Generic, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerSlotsInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    GetClusterInfoRequest,
    ListWorkersRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.gateways import GATEWAY_EXPIRY_SECONDS
from everstep.http_api.schemas.system_responses import (
    ChecksResponse,
    FindingResponse,
    GatewayProcess,
    OpenExecutions,
    QueueResponse,
    RetentionResponse,
    SlotsResponse,
    SystemResponse,
    WorkerProcess,
)
from everstep.runtime.doctor import check_installation
from everstep.runtime.installation import Installation
from everstep.runtime.settings import Settings
from everstep.store.system_state import PostgresSystemState, SystemState

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE: Final = 3.0
"""Seconds after which a part that does not answer is left out."""
FRESH: Final = 1.0
"""Seconds for which the state is shared by all readers."""
FRESH_CHECKS: Final = 30.0
"""Seconds for which the results of checks are: they ask providers, and describe executions."""
MOST_WORKERS: Final = 1000

SILENCE: Final = timedelta(seconds=80)
"""An idle worker asks for work again after a minute; other versions may report as rarely."""

WORKFLOW: Final = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ACTIVITY: Final = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
_RETENTION: Final = ("sessions", "executions", "envelopes", "answers", "uploads")


class SystemReport:
    """Reads the state of an installation. Readers at the same time share one result."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._state = _Shared(self._read, FRESH)
        self._checks = _Shared(self._check, FRESH_CHECKS)

    async def read(self) -> SystemResponse:
        """Return what the parts of the installation report now."""
        return await self._state.get()

    async def checks(self) -> ChecksResponse:
        """Return what is wrong and how to fix it."""
        return await self._checks.get()

    async def _read(self) -> SystemResponse:
        temporal, settings = self.installation.temporal, self.installation.settings
        silent: list[str] = []
        store = PostgresSystemState(self.installation.store.engine)
        state, server, workers, workflows, activities = await asyncio.gather(
            _within(store.read(), "the database", silent),
            _within(_server_version(temporal), "Temporal", silent),
            _within(_heartbeats(temporal, settings.task_queue), "the list of workers", silent),
            _within(_describe(temporal, settings.task_queue, WORKFLOW), "the queue of workflows", silent),
            _within(_describe(temporal, settings.task_queue, ACTIVITY), "the queue of activities", silent),
        )
        described = {"workflow": workflows, "activity": activities}
        now = datetime.now(UTC)
        state = state or SystemState((), (), 0)
        reconciler = self.installation.reconciler
        return SystemResponse(
            version=version("everstep"),
            temporal_version=server,
            namespace=temporal.namespace,
            task_queue=settings.task_queue,
            read_at=now,
            workers=list(merge_workers(workers or (), described, now)),
            gateways=[
                GatewayProcess(
                    id=each.id,
                    url=each.url,
                    seen_at=each.seen_at,
                    is_lost=each.silent_seconds > GATEWAY_EXPIRY_SECONDS,
                )
                for each in state.gateways
            ],
            queues=[_queue(kind, queue) for kind, queue in described.items() if queue is not None],
            executions=[
                OpenExecutions(status=each.status, count=each.count, oldest_at=each.oldest_at)
                for each in state.executions
            ],
            undelivered=state.undelivered,
            repairs=vars(reconciler.total),
            repaired_at=reconciler.last_pass_at,
            retention=_retention(settings),
            unavailable=silent,
        )

    async def _check(self) -> ChecksResponse:
        findings = [
            FindingResponse(ok=each.is_good, text=each.text)
            async for each in check_installation(self.installation)
        ]
        return ChecksResponse(checked_at=datetime.now(UTC), findings=findings)


class _Shared(Generic[T]):
    """A result that is read once for all who ask within some seconds."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float) -> None:
        self.read = read
        self.seconds = seconds
        self._lock = asyncio.Lock()
        self._held: T | None = None
        self._read_at = float("-inf")

    async def get(self) -> T:
        async with self._lock:
            if self._held is None or monotonic() - self._read_at >= self.seconds:
                self._held = await self.read()
                self._read_at = monotonic()
            return self._held


async def _within(reading: Awaitable[T], what: str, silent: list[str]) -> T | None:
    """Return what a part says; None if it does not answer, which is noted."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await reading
    except (RPCError, StoreUnavailable, TimeoutError):
        logger.warning("%s does not answer", what, exc_info=True)
        silent.append(what)
        return None


async def _server_version(temporal: Client) -> str | None:
    info = await temporal.workflow_service.get_cluster_info(GetClusterInfoRequest())
    return info.server_version or None


async def _heartbeats(temporal: Client, queue: str) -> Sequence[WorkerHeartbeat]:
    """Return the reports of workers; none if the server does not collect them."""
    request = ListWorkersRequest(
        namespace=temporal.namespace, page_size=MOST_WORKERS, query=f"TaskQueue={queue!r}"
    )
    try:
        response = await temporal.workflow_service.list_workers(request)
    except RPCError as error:
        if error.status in {RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED}:
            return ()
        raise
    return [each.worker_heartbeat for each in response.workers_info]


async def _describe(temporal: Client, queue: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=temporal.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=kind,
        report_stats=True,
    )
    return await temporal.workflow_service.describe_task_queue(request)


def merge_workers(
    heartbeats: Sequence[WorkerHeartbeat],
    queues: Mapping[str, DescribeTaskQueueResponse | None],
    now: datetime,
) -> Sequence[WorkerProcess]:
    """Return each worker once: as it reported itself, else as the queues list it; silent ones last."""
    latest: dict[str, WorkerHeartbeat] = {}
    for each in sorted(heartbeats, key=lambda one: one.heartbeat_time.ToNanoseconds()):
        latest[each.worker_identity] = each
    pollers: dict[str, PollerInfo] = {}
    for queue in queues.values():
        for poller in queue.pollers if queue else ():
            before = pollers.get(poller.identity)
            if before is None or _moment(before.last_access_time) < _moment(poller.last_access_time):
                pollers[poller.identity] = poller
    found = [
        _reported(each, now) for each in latest.values() if each.status != WorkerStatus.WORKER_STATUS_SHUTDOWN
    ]
    found += [_polled(each, now) for name, each in pollers.items() if name not in latest]
    return sorted(found, key=lambda worker: (worker.is_lost, worker.identity))


def _reported(heartbeat: WorkerHeartbeat, now: datetime) -> WorkerProcess:
    seen_at = _moment(heartbeat.heartbeat_time)
    return WorkerProcess(
        identity=heartbeat.worker_identity,
        host=heartbeat.host_info.host_name or None,
        process_id=heartbeat.host_info.process_id or None,
        version=heartbeat.deployment_version.build_id or None,
        started_at=_moment(heartbeat.start_time),
        seen_at=seen_at,
        is_lost=now - seen_at > SILENCE,
        workflow_slots=_slots(heartbeat.workflow_task_slots_info),
        activity_slots=_slots(heartbeat.activity_task_slots_info),
        cached_workflows=heartbeat.current_sticky_cache_size,
    )


def _polled(poller: PollerInfo, now: datetime) -> WorkerProcess:
    seen_at = _moment(poller.last_access_time)
    build = poller.deployment_options.build_id or poller.worker_version_capabilities.build_id
    return WorkerProcess(
        identity=poller.identity,
        host=None,
        process_id=None,
        version=build or None,
        started_at=None,
        seen_at=seen_at,
        is_lost=now - seen_at > SILENCE,
        workflow_slots=None,
        activity_slots=None,
        cached_workflows=None,
    )


def _slots(info: WorkerSlotsInfo) -> SlotsResponse:
    used = info.current_used_slots
    return SlotsResponse(used=used, total=used + info.current_available_slots)


def _queue(kind: str, described: DescribeTaskQueueResponse) -> QueueResponse:
    stats = described.stats
    return QueueResponse(
        kind=kind,
        waiting=stats.approximate_backlog_count,
        oldest_seconds=stats.approximate_backlog_age.ToTimedelta().total_seconds(),
        added_per_second=round(stats.tasks_add_rate, 2),
        started_per_second=round(stats.tasks_dispatch_rate, 2),
    )


def _retention(settings: Settings) -> list[RetentionResponse]:
    names = [f"keep_{name}_days" for name in _RETENTION]
    return [RetentionResponse(setting=name, days=getattr(settings, name)) for name in names]


def _moment(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)
