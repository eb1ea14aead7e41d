"""Replays a record with the agents of this process, and compares what happens with what happened."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from pydantic import TypeAdapter
from temporalio import activity
from temporalio.client import Client as TemporalClient
from temporalio.exceptions import ApplicationError

from everstep.activities.agent import AgentActivities
from everstep.activities.approval_expiry import expire_approvals
from everstep.activities.budget_failure import exhausted_failure
from everstep.activities.contracts import (
    CLOSE,
    EXPIRE,
    INFER,
    INFER_BRIEFLY,
    PROCESS,
    REPORT,
    REQUEST_CANCEL,
    RUN_TOOL,
    SETTLE,
    SPAWN,
    CloseInput,
    ExpiryInput,
    ExpiryOutput,
    InferInput,
)
from everstep.activities.error_redaction import redact_errors
from everstep.activities.subagents import SubagentActivities
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.agents.spawning import split_agent_name
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import Budget, ExhaustedBudget
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.response_format import as_response_format
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.storage.run_record import RunRecord
from everstep.agent_domain.tools.resources import NO_RESOURCES, Resources
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.client.client import Client
from everstep.client.run_records import load_replay
from everstep.runtime.replay.differences import ReplayComparison, compare
from everstep.runtime.replay.host import TemporalHost
from everstep.runtime.replay.host_client import HostClient
from everstep.runtime.replay.instances import TASK_QUEUE
from everstep.runtime.replay.people import RecordedPeople
from everstep.runtime.replay.recorded import Findings, Recorded
from everstep.runtime.replay.recorded_agents import AgentNotFound, RecordedAgents
from everstep.runtime.replay.recorded_store import RecordedStore
from everstep.runtime.temporal import data_converter
from everstep.workflows.contracts import ExecutionInput, workflow_id

_BUDGET = TypeAdapter(Budget)


class RunDiffers(EverstepError, AssertionError):
    """A recorded run is different from its record; the message shows both."""

    def __init__(self, replay: "Replay") -> None:
        self.replay = replay
        super().__init__(replay.comparison.text)


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed run."""

    recorded: RunRecord
    replayed: RunRecord
    comparison: ReplayComparison
    ends: tuple[str, ...] = ()
    """Why the replay could not go on to an end, if it could not."""
    decisions: tuple[str, ...] = field(default=())
    """What was decided after each step, in words."""
    calls: tuple[str, ...] = field(default=())
    """The tool calls, in order."""

    @property
    def differences(self) -> tuple[str, ...]:
        """What is different, one line each; empty if nothing is."""
        return self.comparison.differences

    def require_same(self) -> "Replay":
        """Return this replay.

        Raises:
            RunDiffers: Something is different.
        """
        if self.differences:
            raise RunDiffers(self)
        return self


class _Activities(AgentActivities):
    """The activities of a worker; provider failures are not repeated, and time is that of the record."""

    clock: Callable[[], datetime]
    find_exhausted: Callable[[InferInput], ExhaustedBudget | None]
    cancel_workflow: Callable[[str], None]

    @activity.defn(name=INFER)
    @redact_errors
    async def infer(self, request: InferInput) -> StepFacts:
        """Run one model call: a recorded failure is the last of its attempts."""
        if exhausted := self.find_exhausted(request):
            raise exhausted_failure(exhausted)
        return await self.inference.infer(replace(request, model_attempts=1))

    @activity.defn(name=INFER_BRIEFLY)
    @redact_errors
    async def infer_briefly(self, request: InferInput) -> StepFacts | None:
        """Run one model call; recorded ones are all short."""
        return await self.infer(request)

    @activity.defn(name=EXPIRE)
    @redact_errors
    async def expire(self, request: ExpiryInput) -> ExpiryOutput:
        """Deny the calls about which no one decided in time."""
        return await expire_approvals(self.store, request, self.clock)

    @activity.defn(name=REQUEST_CANCEL)
    @redact_errors
    async def request_cancel(self, ref: ExecutionRef) -> None:
        """Request the cancel of the workflow that runs this activity."""
        del ref
        self.cancel_workflow(activity.info().workflow_id or "")


class _Subagents(SubagentActivities):
    """The activities for subagents of a worker; no operator resets a workflow of the host."""

    async def is_running(self, request: CloseInput) -> bool:
        """Whether the workflow of a child is running."""
        del request
        return False


def no_model(_agent: str, _preset: str | None) -> object:
    """Know nothing of an agent's model, where no presets are known."""
    return None


async def replay_record(
    record: RunRecord,
    agents: Mapping[str, AgentDefinition],
    *,
    model_of: Callable[[str, str | None], object] = no_model,
    resources: Resources = NO_RESOURCES,
) -> Replay:
    """Replay a run with these agents.

    Args:
        record: The run.
        agents: The agents by name.
        model_of: Finds the model of an agent, whose prices and window budgets need; it is never called.
        resources: The objects that hooks and processors need.

    Raises:
        AgentNotFound: The agent, or one of its subagents, is not among them.
        HostError: The run cannot be carried out in this process.
    """
    findings = Findings()
    recorded = Recorded(record, findings)
    book = RecordedAgents(agents, recorded, model_of, resources)
    definition = book.real(record.agent)
    host: TemporalHost | None = None

    def now() -> datetime:
        return record.started_at if host is None else host.now

    store = RecordedStore(recorded, now)
    people = RecordedPeople(record, recorded, store)
    own, children = _Activities(store, book), _Subagents(store, book)
    own.clock, own.find_exhausted = now, recorded.find_exhausted
    activities = {
        INFER: own.infer,
        INFER_BRIEFLY: own.infer_briefly,
        RUN_TOOL: own.run_tool,
        PROCESS: own.process,
        SETTLE: own.settle,
        EXPIRE: own.expire,
        REQUEST_CANCEL: own.request_cancel,
        SPAWN: children.spawn,
        REPORT: children.report,
        CLOSE: children.close,
    }
    host = TemporalHost(activities, people, data_converter(), record.started_at)
    people.host = host
    own.cancel_workflow = host.cancel_soon
    temporal = cast("TemporalClient", HostClient(host))
    client = people.client = Client(temporal, store, agents, TASK_QUEUE, record.ref.tenant_id)
    try:
        start = await _accept(record, definition, store, client)
        people.begin()
        await host.start(workflow_id(record.ref), start)
        await host.run(workflow_id(record.ref))
    except ApplicationError as error:
        raise AgentNotFound(str(error)) from error
    finally:
        await host.aclose()
    replayed = await load_replay(store, record.ref)
    comparison = compare(record, replayed, definition, findings)
    return Replay(record, replayed, comparison, tuple(findings.ends), comparison.decisions, comparison.calls)


async def _accept(
    record: RunRecord, definition: AgentDefinition, store: RecordedStore, client: Client
) -> ExecutionInput:
    """Store the execution as a client does; return the input of its workflow."""
    output = as_response_format(record.output_format) if record.output_format else None
    budgets = tuple(map(_budget_from, record.budgets))
    plan = client.plan_of(definition, None, output, debug=bool(record.plan.get("debug")))
    plan = plan.budgeted(budgets)
    spec = definition.spec(None, output).model_copy(
        update={"agent": record.agent, "llm_preset": record.spec.get("llm_preset")}
    )
    if split_agent_name(record.agent):
        plan = _as_subagent(plan, record)
    earlier = await store.seed(record)
    new = NewExecution(
        record.ref,
        spec,
        record.messages,
        user_id=record.user_id,
        continues=earlier,
        metadata=record.metadata,
        plan=frozen_map(plan.model_dump(mode="json")),
        request=record.request,
        task_queue=TASK_QUEUE,
    )
    await store.accept(new)
    run = RunContext.from_request(record.ref, record.user_id, record.request)
    return ExecutionInput(record.ref, plan, clocks=record.clocks, run=run.ids if plan.criteria else None)


def _as_subagent(plan: ExecutionPlan, record: RunRecord) -> ExecutionPlan:
    """The plan with the limits that the parent gave, which no definition has."""
    limits: dict[str, Any] = {
        name: record.plan.get(name) for name in ("max_steps", "max_tokens", "timeout_seconds")
    }
    return plan.model_copy(update={**limits, "agent": record.agent})


def _budget_from(data: FrozenDict) -> Budget:
    return _BUDGET.validate_python(data)
