"""Executions on a real Temporal server and a real worker in this process, with scripted models.

Nothing here sleeps: changes of the store are announced (`WatchedStore.until`), and state that only the server
has is polled until a deadline (`eventually`).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle
from typing import Any, cast
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client as TemporalClient, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker, WorkflowRunner

from everstep.activities.agent import AgentActivities
from everstep.activities.deferred_start import START_DELAY
from everstep.activities.failpoints import Strike, inert
from everstep.activities.subagents import SubagentActivities
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model, OnText, ToolCallingDriver
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.testing import ScriptedModel, says
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import Tool
from everstep.client.client import Client, Execution
from everstep.client.temporal_entry import TemporalEntry
from everstep.runtime.agents import AgentBook
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import HEARTBEAT_THROTTLE, STICKY, connect
from everstep.runtime.worker import make_worker
from everstep.store.memory import MemoryStore
from everstep.store.postgres import PostgresStore
from everstep.streams.memory_bus import MemoryBus
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionInput, ExecutionProgress, ExecutionResult, workflow_id
from everstep.workflows.workflow_closing import ClosingRunner, carried_result
from tests.databases import Databases
from tests.engines import give_back_engine, take_engine
from tests.repeating import require_repeatable
from tests.services import Servers

DEADLINE = 60.0
"""Far longer than any operation takes; a wait of this length is a wait for something that never happens."""

POLL_SECONDS = (0.02, 0.1)
"""Seconds between two polls: at first, and after some time. With a hundredth of a second all the time, most
requests to the HTTP API were polls, which kept from running what they waited for.
"""


SETTINGS = Settings(graceful_shutdown_seconds=0.2)
"""Of all tests: to read them again takes 2 ms of CPU time."""


class NoModels:
    """For agents that bring their own model."""

    def model(self, choice: ModelChoice = None) -> Model:
        raise LookupError(f"these tests have no presets, also not {choice}")


def an_agent(
    *script: InferenceResponse | str | Exception, tools: Sequence[Tool] = (), model: Model | None = None
) -> DefinitionBuilder:
    """An agent with a scripted model."""
    driver = ToolCallingDriver(model or ScriptedModel(*script))
    return DefinitionBuilder.new().with_name("agent").with_driver(driver).with_tools(tools)


class HeldModel:
    """Starts to write and continues when released; reports whether the caller disconnected."""

    def __init__(self, *script: InferenceResponse | str, holds: int = 1) -> None:
        self.script = script or ("Done",)
        self.holds = holds
        """The number of the held request; the others get their reply at once."""
        self.asked = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.was_closed = False
        self.requests: list[InferenceRequest] = []

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        self.asked += 1
        self.requests.append(request)
        entry = self.script[min(self.asked, len(self.script)) - 1]
        on_text("Well, ")
        if self.asked == self.holds:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.was_closed = True
                raise
        return says(entry) if isinstance(entry, str) else entry


class Storage:
    """The stores of a test: in memory, or in PostgreSQL, each in its own database."""

    def __init__(self) -> None:
        self.databases: Databases | None = None
        self._opened: list[tuple[str, AsyncEngine]] = []
        self._made: list[ExecutionStore] = []

    def store(self, bus: MemoryBus) -> ExecutionStore:
        if self.databases is None:
            self._made.append(MemoryStore(bus=bus))
            return self._made[-1]
        url = self.databases.take()
        engine = take_engine(url)
        self._opened.append((url, engine))
        self._made.append(PostgresStore(engine, bus))
        return self._made[-1]

    async def close(self) -> None:
        """Close the stores; every decision in them has to be repeatable from its record."""
        made, self._made = self._made, []
        try:
            for store in made:
                await require_repeatable(store)
        finally:
            await self._close_engines()

    async def _close_engines(self) -> None:
        for url, engine in self._opened:
            await give_back_engine(url, engine)
            if self.databases:
                self.databases.give_back(url)
        self._opened.clear()


STORAGE = Storage()
"""The running test's storage, set by `conftest.py`."""


READS = {
    "envelopes",
    "execution",
    "executions",
    "executions_of",
    "material",
    "messages",
    "open_requests",
    "preview_call",
    "preview_step",
    "request",
    "session",
    "snapshots",
    "steps",
    "steps_after",
    "transcript",
}
"""Methods that only read."""


class WatchedStore:
    """A store that announces its changes, and that can be made to fail."""

    def __init__(self, store: ExecutionStore | None = None) -> None:
        self._store = store or MemoryStore()
        self._changed = asyncio.Condition()
        self._failures: dict[str, list[Exception]] = {}
        self._gates: dict[str, tuple[asyncio.Event, asyncio.Event]] = {}
        self._turns = cycle((0, 5, 1, 20, 2))

    def fail_next(self, method: str, *errors: Exception) -> None:
        """The next calls of this method raise these errors, without any effect."""
        self._failures.setdefault(method, []).extend(errors)

    @asynccontextmanager
    async def hold(self, method: str) -> AsyncGenerator[asyncio.Event]:
        """Hold calls of this method until the block ends; the event is set once one waits."""
        waits, open_ = self._gates[method] = asyncio.Event(), asyncio.Event()
        try:
            yield waits
        finally:
            del self._gates[method]
            open_.set()

    async def until(self, met: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(DEADLINE), self._changed:
            while not await met():
                await self._changed.wait()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if gate := self._gates.get(name):
                gate[0].set()
                await gate[1].wait()
            if failures := self._failures.get(name):
                raise failures.pop(0)
            # A database takes a varying time, in which other tasks run.
            for _ in range(next(self._turns)):
                await asyncio.sleep(0)
            try:
                return await getattr(self._store, name)(*args, **kwargs)
            finally:
                # The condition is checked again after a write, not after a read.
                if name not in READS:
                    asyncio.get_running_loop().create_task(self._announce())

        return call

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def eventually(asked: Callable[[], Awaitable[bool]], seconds: float = DEADLINE) -> None:
    """Poll until the condition holds, where no change is announced."""
    pause, longest = POLL_SECONDS
    async with asyncio.timeout(seconds):
        while not await asked():
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)


@dataclass
class Office:
    """A client and a store; workers start and stop."""

    temporal: TemporalClient
    store: WatchedStore
    settings: Settings
    agents: tuple[AgentDefinition, ...]
    search_attributes: bool = False
    bus: MemoryBus = field(default_factory=MemoryBus)
    pauses: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """The number of pauses of each execution when a test last saw it wait."""

    @property
    def port(self) -> ExecutionStore:
        """The store as the product sees it."""
        return cast("ExecutionStore", self.store)

    @property
    def client(self) -> Client:
        """A client as a service uses it."""
        known = {agent.descriptor.name: agent for agent in self.agents}
        return Client(
            self.temporal,
            self.port,
            known,
            self.settings.task_queue,
            search_attributes=self.search_attributes,
        )

    def worker(self, *agents: AgentDefinition, strike: Strike = inert, moment: float = START_DELAY) -> Worker:
        """A worker with these agents: by default all that can be started."""
        book = AgentBook(agents or self.agents, NoModels())
        return make_worker(
            self.temporal,
            self.port,
            book,
            self.settings,
            strike,
            front_door=TemporalEntry(self.client, may_approve=self.settings.approve_by_signal == "on"),
            bus=self.bus,
            moment=moment,
        )

    def worker_with(self, runner: WorkflowRunner, *, cached: int = 1000) -> Worker:
        """A worker with another workflow runner, which keeps so many workflows in memory."""
        book = AgentBook(self.agents, NoModels())
        own, children = AgentActivities(self.port, book), SubagentActivities(self.port, book)
        return Worker(
            self.temporal,
            task_queue=self.settings.task_queue,
            workflows=[AgentExecution],
            activities=[
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
            ],
            workflow_runner=ClosingRunner(runner),
            max_cached_workflows=cached,
            sticky_queue_schedule_to_start_timeout=STICKY,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        )

    async def start(self, message: Any = "Go", agent: str | None = None, **given: Any) -> Execution:
        """Start an execution of the first agent, or of the named one."""
        return await self.client.start(agent or self.agents[0].descriptor.name, message, **given)

    async def start_directly(self, plan: ExecutionPlan | None = None) -> Execution:
        """Start it like a service that knows only Temporal and the contracts.

        While a local activity runs, the workflow gets no signals until most of its task's time is over, so
        this task timeout is shorter.
        """
        ref = ExecutionRef(uuid4())
        await self.store.accept(NewExecution(ref, self.agents[0].spec(), (user("Go"),)))
        await self.temporal.start_workflow(
            AgentExecution.run,
            ExecutionInput(ref, plan or self.agents[0].plan()),
            id=workflow_id(ref),
            task_queue=self.settings.task_queue,
            task_timeout=timedelta(seconds=1),
        )
        return Execution(self.client, ref)

    async def run(self, message: Any = "Go", **given: Any) -> tuple[Execution, ExecutionResult]:
        execution = await self.start(message, **given)
        return execution, await final_result(execution)

    async def until_status(self, execution: Execution, status: ExecutionStatus) -> None:
        """Wait until it has this status."""

        async def has_status() -> bool:
            return (await execution.get()).status is status

        await self.store.until(has_status)

    async def until_waiting(self, execution: Execution) -> None:
        """Wait until it waits for people."""
        await self.until_status(execution, ExecutionStatus.PAUSED)
        self.pauses[execution.id] = (await self.statuses(execution)).count("paused")

    async def until_running_again(self, execution: Execution) -> None:
        """Wait until it has resumed after the pause that `until_asked` saw, also if it waits again by now."""

        async def has_resumed() -> bool:
            left = self.pauses.get(execution.id, 1)
            for status in await self.statuses(execution):
                if left == 0:
                    return True
                left -= status == "paused"
            return False

        await self.store.until(has_resumed)

    async def until_envelope(self, execution: Execution, kind: str) -> None:
        """Wait until this envelope is stored."""

        async def is_stored() -> bool:
            return kind in await self.envelope_types(execution)

        await self.store.until(is_stored)

    async def envelope_types(self, execution: Execution) -> list[str]:
        """The types of the stored envelopes, in order."""
        ref = execution.ref
        return [e.type for e in await self.store.envelopes(ref.tenant_id, ref.stream_id)]

    async def conversation(self, execution: Execution) -> list[str]:
        """The conversation as text."""
        return [message.text for message in await self.store.transcript(execution.ref)]

    async def statuses(self, execution: Execution) -> list[str]:
        """The statuses that viewers received, in order."""
        ref = execution.ref
        envelopes = await self.store.envelopes(ref.tenant_id, ref.stream_id)
        return [e.payload["status"] for e in envelopes if e.type == "agent.status"]


async def connect_temporal(services: Servers) -> TemporalClient:
    """A client with the settings of our processes."""
    return await connect(SETTINGS.model_copy(update={"temporal_address": services.temporal_address}))


def an_office(temporal: TemporalClient, *agents: DefinitionBuilder | AgentDefinition) -> Office:
    """An office with its own task queue and without a worker."""
    definitions = tuple(a.definition() if isinstance(a, DefinitionBuilder) else a for a in agents)
    settings = SETTINGS.model_copy(update={"task_queue": f"test-{uuid4().hex}"})
    bus = MemoryBus()
    return Office(temporal, WatchedStore(STORAGE.store(bus)), settings, definitions, bus=bus)


@asynccontextmanager
async def at_work(
    temporal: TemporalClient,
    *agents: DefinitionBuilder | AgentDefinition,
    strike: Strike = inert,
    moment: float = START_DELAY,
) -> AsyncGenerator[Office]:
    office = an_office(temporal, *agents)
    async with office.worker(strike=strike, moment=moment):
        yield office


async def reset_execution(execution: Execution) -> None:
    """Reset its workflow, as `temporal workflow reset --type FirstWorkflowTask` does."""
    temporal = execution.client.temporal
    task = of_type(await events_of(execution), "WORKFLOW_TASK_COMPLETED")[0]
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=execution.workflow.id),
            reason="an operator",
            request_id=str(uuid4()),
            workflow_task_finish_event_id=task.event_id,
        )
    )


async def fail_activity(execution: Execution, activity_id: str) -> None:
    """Fail one of its activities, as `temporal activity fail` does."""
    temporal, id_ = execution.client.temporal, execution.workflow.id
    activity = temporal.get_async_activity_handle(workflow_id=id_, run_id=None, activity_id=activity_id)
    await activity.fail(ApplicationError("boo", non_retryable=True))


async def failure_of_pending(execution: Execution) -> str:
    """The type of the failure of the last attempt of a pending activity; empty without one."""
    pending = (await execution.workflow.describe()).raw_description.pending_activities
    return next((each.last_failure.application_failure_info.type for each in pending), "")


async def final_result(execution: Execution) -> ExecutionResult:
    """The final result of its workflow, also if that closed as failed or cancelled."""
    async with asyncio.timeout(DEADLINE):
        try:
            return await execution.workflow.result()
        except WorkflowFailureError as error:
            if result := carried_result(error.cause):
                return result
            raise


async def progress(execution: Execution) -> ExecutionProgress:
    """The result of the workflow's progress query, also after its end."""
    return await execution.workflow.query(AgentExecution.state)


# Histories.


async def events_of(execution: Execution) -> list[HistoryEvent]:
    return [*(await execution.workflow.fetch_history()).events]


async def runs_of(execution: Execution) -> list[list[HistoryEvent]]:
    runs, run_id = list[list[HistoryEvent]](), (await execution.workflow.describe()).run_id
    while run_id:
        handle = execution.client.temporal.get_workflow_handle(execution.workflow.id, run_id=run_id)
        runs.insert(0, [*(await handle.fetch_history()).events])
        run_id = runs[0][0].workflow_execution_started_event_attributes.continued_execution_run_id
    return runs


def of_type(events: Sequence[HistoryEvent], name: str) -> list[HistoryEvent]:
    return [event for event in events if event.event_type == EventType.Value(f"EVENT_TYPE_{name}")]


def json_of(payload: Payload) -> Any:
    """The JSON of a payload in history."""
    return json.loads(payload.data)


def scheduled_activities(events: Sequence[HistoryEvent], activity: str) -> list[tuple[HistoryEvent, Any]]:
    """When activities of a name were scheduled, and with which input."""
    found = [
        (e, e.activity_task_scheduled_event_attributes) for e in of_type(events, "ACTIVITY_TASK_SCHEDULED")
    ]
    return [(e, json_of(a.input.payloads[0])) for e, a in found if a.activity_type.name == activity]


def executed_commands(events: Sequence[HistoryEvent]) -> list[str]:
    """The commands of a finished history, in the words of the table, without the decider."""
    done: list[str] = []
    names: dict[str, str] = {}
    batch = -1
    for event in events:
        match EventType.Name(event.event_type).removeprefix("EVENT_TYPE_"):
            case "ACTIVITY_TASK_SCHEDULED":
                asked = event.activity_task_scheduled_event_attributes
                given = json_of(asked.input.payloads[0])
                if asked.activity_type.name == "infer":
                    done.append(f"infer {given['number']}")
                elif batch == asked.workflow_task_completed_event_id:
                    done[-1] += f" {names[given['call_id']]}"
                else:
                    batch = asked.workflow_task_completed_event_id
                    done.append(f"RunTools {names[given['call_id']]}")
            case "ACTIVITY_TASK_COMPLETED":
                result = json_of(event.activity_task_completed_event_attributes.result.payloads[0])
                names |= {call["id"]: call["name"] for call in result.get("calls", ())}
            case "WORKFLOW_EXECUTION_COMPLETED":
                result = event.workflow_execution_completed_event_attributes.result
                done.append(f"stop {json_of(result.payloads[0])['stop_reason']}")
            case "WORKFLOW_EXECUTION_FAILED":
                failure = event.workflow_execution_failed_event_attributes.failure
                result = failure.application_failure_info.details
                done.append(f"stop {json_of(result.payloads[0])['stop_reason']}")
            case _:
                pass
    return done


def seconds_between(earlier: HistoryEvent, later: HistoryEvent) -> float:
    """The time between two events, by the server's clock."""
    return (later.event_time.ToDatetime() - earlier.event_time.ToDatetime()).total_seconds()
