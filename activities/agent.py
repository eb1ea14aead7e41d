"""The three activities of an agent execution.

Each writes what it did in one transaction, under a key, and returns facts. An attempt that finds the
work recorded returns what is recorded: the model is not asked again, the tool not run again.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import news
from activities.contracts import (
    INFER,
    RUN_TOOL,
    SETTLE,
    InferInput,
    SettleInput,
    ToolInput,
    ToolOutput,
)
from activities.discretion import discreet
from activities.failpoints import Failpoint, Strike, inert
from activities.partial_text import PartialText
from activities.persistence import until_written
from activities.pulse import pulse
from activities.tool_calls import outcome
from agent_domain.cached_context import CachedContext
from agent_domain.capabilities.approvals import args_digest
from agent_domain.continuation import expanded
from agent_domain.definition import AgentDefinition
from agent_domain.drivers import StepDriver, replied
from agent_domain.errors import RETRYABLE, UnknownName
from agent_domain.facts import ExecutionFacts, StateInfo
from agent_domain.messages import Messages
from agent_domain.ports import (
    BeginStep,
    CallRecord,
    CallToRecord,
    EventRecord,
    ExecutionRef,
    ExecutionStore,
    Material,
    RecordCall,
    RecordReply,
    Reservation,
    Settlement,
    StepRow,
)
from agent_domain.snapshots import SlimAgentStateSerializer, slim
from agent_domain.state import AgentState, ExecutionData, final_response
from agent_domain.status import AgentStatus, ExecutionStatus
from agent_domain.step_error import ErrorType, StepError
from agent_domain.step_facts import CallFacts, CallNeed, StepFacts
from agent_domain.steps import AgentStep, InferenceResponse
from agent_domain.tools import (
    Effect,
    ToolCall,
    ToolContext,
    ToolExecution,
)
from agent_domain.values import FrozenDict, frozen_map, json_text

SNAPSHOT_STEPS = 20
"""As many steps as a slim snapshot tells of."""

NOT_ALLOWED = "This call needs an approval, and nobody gave one"
EFFECT_UNKNOWN = "The worker was lost while this tool ran: its effect is unknown, and it was not run again"


class Agents(Protocol):
    """The agents that a worker can run."""

    def definition(self, name: str) -> AgentDefinition:
        """The agent of that name; `UnknownName` if this worker has none."""
        ...

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """How steps of that agent talk to a model: the preset's, or the agent's default."""
        ...


class AgentActivities:
    """Asks models, runs tools, writes down where an execution stands."""

    def __init__(self, store: ExecutionStore, agents: Agents, strike: Strike = inert) -> None:
        self.store = store
        self.agents = agents
        self.strike = strike

    # Asking the model.

    @activity.defn(name=INFER)
    @discreet
    async def infer(self, request: InferInput) -> StepFacts:
        """One step's answer: recorded once, and paid for once."""
        async with pulse():
            return await self._inferred(request)

    async def _inferred(self, request: InferInput) -> StepFacts:
        definition = self._definition(request.agent)
        begun = await self.store.begin_step(
            BeginStep(
                request.ref,
                request.number,
                activity.info().attempt,
                outcome=request.outcome and frozen_map(expanded(request.outcome).to_dict()),
                hears=request.hears,
                events=news.step_begins(request, definition.tools.names),
            )
        )
        if begun.recorded:
            return begun.recorded
        self.strike(Failpoint.INFER_BEFORE_MODEL)
        driver = self.agents.driver(request.agent, begun.material.spec.llm_preset)
        state = step_state(request.ref, request.number, begun.material)
        state = await self._asked(request, driver, definition, state)
        self.strike(Failpoint.INFER_AFTER_RESPONSE)
        facts = await self._record_reply(request, driver, state)
        self.strike(Failpoint.INFER_BEFORE_REPORT)
        return facts

    async def _asked(
        self, request: InferInput, driver: StepDriver, definition: AgentDefinition, state: AgentState
    ) -> AgentState:
        """The state after the model answered, or after it failed for good."""
        text, began = PartialText(self.store, request, self.strike), monotonic()
        try:
            async with text.kept():
                reply = await driver.infer(state, text.heard)
            return replied(driver, state, reply, _since(began), definition.need_of)
        except RETRYABLE as error:
            await self._again_unless_exhausted(request, error)
            return state.failed(StepError.of(error), _now(), _since(began))
        except Exception as error:  # noqa: BLE001 -- the error policy decides about it, in the workflow
            return state.failed(StepError.of(error), _now(), _since(began))

    async def _again_unless_exhausted(self, request: InferInput, error: Exception) -> None:
        """Leave the next try to Temporal, not before the provider wants it; crashes do not count."""
        attempt = activity.info().attempt
        failures = await self.store.note_failure(request.ref, request.number, attempt)
        if failures >= request.model_attempts:
            return
        wait = getattr(error, "retry_after", None)
        # The message may quote the prompt, and this one would stand in workflow history.
        raise ApplicationError(
            f"the model call failed ({failures} of {request.model_attempts} attempts)",
            type=type(error).__name__,
            next_retry_delay=timedelta(seconds=wait) if wait else None,
        ) from None

    async def _record_reply(self, request: InferInput, driver: StepDriver, state: AgentState) -> StepFacts:
        step = _current(state)
        facts = step.facts(request.number)
        response = step.inference_response or InferenceResponse()
        reply = RecordReply(
            request.ref,
            request.number,
            activity.info().attempt,
            facts,
            step.errors,
            frozen_map(response.to_dict()),
            () if step.is_failure else driver.said(step),
            [_to_record(call, CallNeed(step.needs[call.id])) for call in step.tool_calls],
        )
        return await until_written(lambda: self.store.record_reply(reply))

    # Running tools.

    @activity.defn(name=RUN_TOOL)
    @discreet
    async def run_tool(self, request: ToolInput) -> ToolOutput:
        """One call's result: reserved before it runs, recorded once."""
        async with pulse():
            return await self._ran(request)

    async def _ran(self, request: ToolInput) -> ToolOutput:
        definition = self._definition(request.agent)
        reserved = await self.store.reserve_call(
            request.ref, request.call_id, activity.info().attempt, news.call_begins
        )
        if reserved.recorded is None:
            self.strike(Failpoint.TOOL_AFTER_RESERVE)
            execution = await self._executed(request, definition, reserved)
            self.strike(Failpoint.TOOL_AFTER_EFFECT)
            record = await self._record_call(request, reserved, execution)
            self.strike(Failpoint.TOOL_BEFORE_REPORT)
        else:
            record = reserved.recorded
        call = CallFacts(request.call_id, reserved.call.name, is_settled=True, error=_fact(record, reserved))
        return ToolOutput(call, record.seconds)

    def _context(self, request: ToolInput, reserved: Reservation) -> ToolContext:
        return ToolContext(request.ref.execution_id, request.call_id, request.number, reserved.metadata)

    async def _executed(
        self, request: ToolInput, definition: AgentDefinition, reserved: Reservation
    ) -> ToolExecution:
        started = _now()
        if reserved.is_uncertain and request.effect is Effect.AT_MOST_ONCE:
            error = StepError(EFFECT_UNKNOWN, ErrorType.UNKNOWN, reserved.call.name)
            return ToolExecution(reserved.call, None, error, started, _now())
        call, note, answer = by_people(reserved)
        if answer is not None:
            return ToolExecution(call, answer, None, started, _now())
        refusal = definition.tools.refusal(call)
        if refusal is not None:
            error = StepError(refusal, tool_name=call.name)
            return ToolExecution(call, None, error, started, _now())
        if reserved.resolution is None and definition.needs_approval(call):
            # Whoever told the workflow otherwise: the store knows of no decision.
            error = StepError(NOT_ALLOWED, tool_name=call.name)
            return ToolExecution(call, None, error, started, _now())
        tool = definition.tools.get(call.name)
        result, error = await outcome(tool, call, self._context(request, reserved))
        return ToolExecution(call, result, error, started, _now(), note)

    async def _record_call(
        self, request: ToolInput, reserved: Reservation, execution: ToolExecution
    ) -> CallRecord:
        record = CallRecord(
            request.call_id,
            execution.result,
            execution.error,
            execution.text,
            execution.started_at or _now(),
            execution.completed_at or _now(),
            execution.seconds,
            success=execution.error is None and not _is_denied(reserved),
        )
        driver = self.agents.driver(request.agent, None)
        written = RecordCall(
            request.ref,
            request.number,
            reserved.index,
            record,
            driver.answered(execution),
            events=[news.call_ended(request.number, reserved.call, record)],
        )
        return await until_written(lambda: self.store.record_call(written))

    # Writing down.

    @activity.defn(name=SETTLE)
    @discreet
    async def settle(self, request: SettleInput) -> None:
        """Where the execution stands, with all that its readers are told; a key settles once."""
        material = await self.store.material(request.ref)
        answer = final_response(material.messages, calls_of(material.messages))
        error = await self._error_message(request)
        self.strike(Failpoint.SETTLE_BEFORE_COMMIT)
        await self.store.settle(
            Settlement(
                request.ref,
                request.key,
                request.status,
                step=request.step,
                errors=_failures(request),
                outcome=request.outcome and frozen_map(expanded(request.outcome).to_dict()),
                stop_reason=request.stop_reason,
                step_count=request.step_count,
                usage=request.usage,
                error_message=error,
                output=_output(request, answer),
                snapshot=await self._snapshot(request, material),
                is_final=request.stop_reason is not None,
                events=await self._news(request, answer, error),
            )
        )
        self.strike(Failpoint.SETTLE_BEFORE_REPORT)

    async def _error_message(self, request: SettleInput) -> str | None:
        """What went wrong, for people, once the execution has failed."""
        if request.agent_status is not AgentStatus.FAILED:
            return None
        steps = await self.store.steps(request.ref, last=1)
        errors = [error.message for step in steps for error in errors_of(step)]
        return request.failure or "\n".join(errors) or f"stopped: {request.stop_reason}"

    async def _snapshot(self, request: SettleInput, material: Material) -> FrozenDict | None:
        """The final snapshot, and one of each pause."""
        if request.stop_reason is None and request.status is not ExecutionStatus.PAUSED:
            return None
        state = step_state(request.ref, request.step_count + 1, material)
        facts = replace(state.facts, status=request.agent_status, usage=request.usage)
        rows = await self.store.steps(request.ref, last=SNAPSHOT_STEPS)
        steps = [slim(answered(row, row.facts), row.duration_ms) for row in rows if row.facts]
        return frozen_map(SlimAgentStateSerializer().serialize(replace(state, facts=facts), steps))

    async def _news(
        self, request: SettleInput, answer: str | None, error: str | None
    ) -> Sequence[EventRecord]:
        requests = await self.store.open_requests(request.ref) if request.waiting else ()
        return news.settled(request, [r for r in requests if r.call_id in request.waiting], answer, error)

    def _definition(self, agent: str) -> AgentDefinition:
        try:
            return self.agents.definition(agent)
        except UnknownName as error:
            # Another worker, or the next deploy, may know it: the execution waits, visibly.
            raise ApplicationError(str(error), type="UnknownAgent") from None


def errors_of(row: StepRow) -> tuple[StepError, ...]:
    """The step's own errors, or else those of its failing calls."""
    return row.errors or tuple(call.record.error for call in row.calls if call.record and call.record.error)


def answered(row: StepRow, facts: StepFacts) -> StepFacts:
    """The facts that the model's reply left, with what became of its calls since."""
    known = ((call.call, call.record) for call in row.calls if call.record)
    return facts.settled(CallFacts(call.id, call.name, error=record.error) for call, record in known)


def step_state(ref: ExecutionRef, number: int, material: Material) -> AgentState:
    """The state in which a step begins, as drivers and processors know it."""
    facts = ExecutionFacts(recorded_steps=number - 1, state_info=StateInfo(material.agent_id))
    return AgentState(
        agent_id=material.agent_id,
        parent_agent_id=material.parent_agent_id,
        facts=facts.step_started(_now()),
        metadata=material.metadata,
        cached_context=CachedContext.from_dict(material.spec.cached_context),
        execution=ExecutionData(ref.execution_id),
    ).with_messages(material.messages)


def by_people(reserved: Reservation) -> tuple[ToolCall, str, Any]:
    """The call as people left it, what the model is told first, and the result if no tool has to run."""
    call, resolution = reserved.call, reserved.resolution
    match resolution and resolution.kind:
        case "answer":
            return call, "", resolution and resolution.value
        case "deny":
            reason = ((resolution and resolution.reason) or "").strip()
            return call, "", f"Denied by user: {reason}" if reason else "Denied by user"
        case "edit":
            args = frozen_map(resolution and resolution.value)
            return (
                replace(call, args=args, malformed=None),
                f"[Arguments edited by user: {json_text(args)}]\n",
                None,
            )
        case _:
            return call, "", None


def _is_denied(reserved: Reservation) -> bool:
    return reserved.resolution is not None and reserved.resolution.kind == "deny"


def calls_of(messages: Messages) -> list[ToolCall]:
    """The calls that a conversation tells of."""
    entries = [entry for message in messages for entry in message.calls]
    return [ToolCall.from_text(e["id"], e["function"]["name"], e["function"]["arguments"]) for e in entries]


def _to_record(call: ToolCall, need: CallNeed) -> CallToRecord:
    digest = args_digest(call.name, call.args)
    return CallToRecord(call, need, digest, call.args if need is CallNeed.INPUT else None)


def _fact(record: CallRecord, reserved: Reservation) -> StepError | None:
    """A failed call, without what it said."""
    return record.error and replace(record.error, message="", tool_name=reserved.call.name)


def _failures(request: SettleInput) -> Sequence[StepError]:
    """The errors of a step that only the workflow knows, with their message."""
    if request.step is None or request.failure is None:
        return ()
    return [replace(error, message=request.failure) for error in request.step.own_errors]


def _output(request: SettleInput, answer: str | None) -> FrozenDict | None:
    if request.stop_reason is None:
        return None
    return frozen_map({"response": answer, "stop_reason": request.stop_reason})


def _current(state: AgentState) -> AgentStep:
    if state.current_step is None:
        raise ApplicationError("the driver returned no step", non_retryable=True)
    return state.current_step


def _since(began: float) -> float:
    return round(monotonic() - began, 6)


def _now() -> datetime:
    return datetime.now(UTC)
