"""The worker process, which runs workflows and activities until it is stopped."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version
from random import random
from typing import TypedDict

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    PollerBehaviorSimpleMaximum,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerDeploymentConfig,
)

from everstep.activities.agent import AgentActivities
from everstep.activities.agents import AgentProvider, OnEnd, ignore_end
from everstep.activities.deferred_start import START_DELAY
from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.activities.subagents import SubagentActivities
from everstep.activities.worker_places import WAITING_PER_PLACE, WorkerPlaces, equal_places
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.client.schedule_entry import ScheduleEntry
from everstep.client.signal_entry import SignalEntry
from everstep.client.temporal_entry import TemporalEntry
from everstep.runtime.secrets import disclosure_of
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import workflow_spans
from everstep.runtime.temporal import HEARTBEAT_THROTTLE, STICKY
from everstep.runtime.worker_builds import DEPLOYMENT
from everstep.runtime.worker_telemetry import ActivityTelemetry
from everstep.runtime.workflow_guard import WorkflowGuard
from everstep.steps.attachments import Attachments
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.scheduled_message import ScheduledMessage
from everstep.workflows.workflow_closing import ClosingRunner

DECIDING_THREADS = 4
"""The threads that run workflows. They only compute, so more of them decide no faster: each takes its turns
from the event loop, which then streams late, and has memory of its own.
"""

FIRST_POLLS = 0.5
"""The share of the polls for decisions that ask for those of executions which are not in memory, as at their
start. With the SDK's fifth, one request at a time asked for all executions that start.
"""


def make_worker(  # noqa: PLR0913 -- the parts of a worker, passed by keyword
    client: Client,
    store: ExecutionStore,
    agents: AgentProvider,
    settings: Settings,
    strike: Strike = inert,
    *,
    front_door: TemporalEntry | None = None,
    schedules: ScheduleEntry | None = None,
    ended: OnEnd = ignore_end,
    bus: EnvelopeBus = NULL_BUS,
    moment: float = START_DELAY,
    attachments: Attachments | None = None,
    places: WorkerPlaces | None = None,
) -> Worker:
    """Return a worker that detects crashes and cancels quickly, and lets running model calls finish.

    Everstep's workflows import only pure, linted code, so they run outside of Temporal's sandbox, which costs
    a third of a worker's time; tests run them in the sandbox and under the replayer.
    """
    disclosure = disclosure_of(settings, os.environ)
    places = places or equal_places(settings.worker_activities)
    own = AgentActivities(
        store,
        agents,
        strike,
        on_end=ended,
        bus=bus,
        start_delay=moment,
        disclosure=disclosure,
        attachments=attachments,
        places=places,
    )
    children = SubagentActivities(store, agents, strike, disclosure=disclosure)
    activities = [
        own.infer,
        own.infer_briefly,
        own.run_tool,
        own.process,
        own.settle,
        own.expire,
        own.request_cancel,
        children.spawn,
        children.report,
        children.close,
    ]
    answered = (
        [
            front_door.start,
            front_door.act,
            SignalEntry(front_door.client, may_approve=front_door.may_approve).receive,
        ]
        if front_door
        else []
    )
    scheduled = [schedules.send, schedules.has_ended, schedules.cancel] if schedules else []
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentExecution, ScheduledMessage],
        activities=[*activities, *answered, *scheduled],
        workflow_runner=ClosingRunner(UnsandboxedWorkflowRunner()),
        interceptors=[WorkflowGuard(), *workflow_spans(), ActivityTelemetry()],
        **_version(settings),
        # An activity waits for its tenant's place in a slot.
        max_concurrent_activities=settings.worker_activities * (1 + WAITING_PER_PLACE),
        max_concurrent_workflow_tasks=settings.worker_workflow_tasks,
        workflow_task_executor=ThreadPoolExecutor(DECIDING_THREADS, thread_name_prefix="workflows"),
        max_cached_workflows=settings.worker_cached_executions,
        activity_task_poller_behavior=PollerBehaviorSimpleMaximum(settings.worker_activity_polls),
        workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(settings.worker_workflow_polls),
        nonsticky_to_sticky_poll_ratio=FIRST_POLLS,
        sticky_queue_schedule_to_start_timeout=STICKY,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=timedelta(seconds=settings.graceful_shutdown_seconds),
    )


class _Version(TypedDict, total=False):
    """The worker options that declare its code version."""

    build_id: str
    deployment_config: WorkerDeploymentConfig


def _version(settings: Settings) -> _Version:
    """Return the version options: with a build id, executions stay on the version that they began with."""
    if settings.build_id is None:
        # Without a build id, every start would read and hash the code of all modules, for a second of CPU
        # time.
        return _Version(build_id=version("everstep"))
    deployed = WorkerDeploymentVersion(DEPLOYMENT, settings.build_id)
    config = WorkerDeploymentConfig(
        deployed, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )
    return _Version(deployment_config=config)


def build_failpoint(spec: str | None) -> Strike:
    """Return a failpoint from `point` or `point:flag-file`, which kills the process once it is reached.

    With a flag file it dies only while the file exists, and removes it first, so that the process that takes
    over survives.
    """
    if not spec:
        return inert
    name, _, flag = spec.partition(":")
    try:
        armed_point = Failpoint(name)
    except ValueError:
        known = f"{', '.join(Failpoint)}{did_you_mean(name, Failpoint)}"
        raise InvalidInput(f"there is no failpoint '{name}'; use one of: {known}") from None

    def strike(point: Failpoint) -> None:
        if point is armed_point and _take_flag(flag):
            os.kill(os.getpid(), signal.SIGKILL)

    return strike


def build_frame_loss(spec: str | None) -> Callable[[], bool]:
    """Return a function that decides whether a frame is lost, from `link.before_send:probability`."""
    name, _, probability = (spec or "").partition(":")
    if name != Failpoint.LINK_BEFORE_SEND:
        return lambda: False
    try:
        limit = float(probability)
    except ValueError:
        raise InvalidInput(f"'{spec}' has no probability; write it like {name}:0.05") from None
    return lambda: random() < limit  # noqa: S311 -- not a secret


def _take_flag(flag: str) -> bool:
    if not flag:
        return True
    try:
        os.unlink(flag)
    except FileNotFoundError:
        return False
    return True
