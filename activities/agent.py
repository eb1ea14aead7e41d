"""The three activities of an agent execution.

Each writes what it did in one transaction, under a key, and returns facts. An attempt that finds the
work recorded returns what is recorded: the model is not asked again, the tool not run again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import takewhile
from time import monotonic
from typing import Protocol, TypeAlias

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import calls, news
from activities.calls import now
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
from agent_domain.plan import PlannedTool
from agent_domain.ports import (
    BeginStep,
    CallToRecord,
    EventRecord,
    ExecutionRef,
    ExecutionStore,
    Material,
    RecordReply,
    Reservation,
    Settlement,
    StepRow,
    request_id,
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
from agent_domain.values import FrozenDict, frozen_map

SNAPSHOT_STEPS = 20
"""As many steps as a slim snapshot tells of."""

EFFECT_UNKNOWN = "The worker was lost while this tool ran: its effect is unknown, and it was not run again"


class Agents(Protocol):
    """The agents that a worker can run."""

    def definition(self, name: str) -> AgentDefinition:
        """The agent of that name; `UnknownName` if this worker has none."""
        ...

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """How steps of that agent talk to a model: the preset's, or the agent's default."""
        ...


Ended: TypeAlias = Callable[[ExecutionRef], Awaitable[object]]
"""Told of every execution that has ended."""


async def nobody_waits(_ended: ExecutionRef) -> None:
    """Where there are no sessions."""


class AgentActivities:
    """Asks models, runs tools, writes down where an execution stands."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: Agents,
        strike: Strike = inert,
        *,
        ended: Ended = nobody_waits,
    ) -> None:
        self.store = store
        self.agents = agents
        self.strike = strike
        self.ended = ended

    # Asking the model.

    @activity.defn(name=INFER)
    @discreet
    async def infer(self, request: InferInput) -> StepFacts:
        """One step's answer: recorded once, and paid for once."""
        async with pulse():
            return await self._inferred(request)

    async def _inferred(self, request: InferInput) -> StepFacts:
        begun = await self.store.begin_step(
            BeginStep(
                request.ref,
                request.number,
                activity.info().attempt,
                outcome=_told(request.outcome),
                hears=request.hears,
                events=lambda material: news.step_begins(
                    request, known(self.agents, material.spec.agent).tools.names, material
                ),
            )
        )
        definition = known(self.agents, begun.material.spec.agent)
        if begun.recorded:
            return await self._with_quick_calls(request, begun.material, begun.recorded, {})
        self.strike(Failpoint.INFER_BEFORE_MODEL)
        driver = self.agents.driver(begun.material.spec.agent, begun.material.spec.llm_preset)
        state = step_state(request.ref, request.number, begun.material)
        state = await self._asked(request, driver, definition, state)
        self.strike(Failpoint.INFER_AFTER_RESPONSE)
        facts = await self._record_reply(request, driver, state)
        made = {call.id: (index, call) for index, call in enumerate(_current(state).tool_calls)}
        facts = await self._with_quick_calls(request, begun.material, facts, made)
        self.strike(Failpoint.INFER_BEFORE_REPORT)
        return facts

    async def _with_quick_calls(
        self,
        request: InferInput,
        material: Material,
        facts: StepFacts,
        made: Mapping[str, tuple[int, ToolCall]],
    ) -> StepFacts:
        """The step with those calls answered whose tools return at once: for them an activity is too much.

        What has to wait, for people or for another call, is left to the workflow. `made` are the calls as
        this attempt heard of them: one that may run twice needs no reservation, as nobody else can have
        begun it, and whoever finds no result runs it again anyway.
        """

        async def ran(call: CallFacts) -> ToolOutput:
            tool = planned[call.name]
            needed = ToolInput(
                request.ref, material.spec.agent, request.number, call.id, tool.effect, tool.need
            )
            if call.id not in made or tool.effect is not Effect.IDEMPOTENT:
                return await self._ran(needed)
            index, called = made[call.id]
            unreserved = Reservation(called, request.number, index, material.metadata)
            return await self._ran_reserved(needed, unreserved, news.call_begins(unreserved))

        planned = {tool["name"]: PlannedTool.model_validate(tool) for tool in material.plan.get("tools", ())}
        is_parallel = material.plan.get("parallel_tools", True)
        for calls_at_once in quick_calls(facts.pending, planned, is_parallel=is_parallel):
            outputs = await asyncio.gather(*map(ran, calls_at_once))
            facts = facts.settled((output.call for output in outputs), max(o.seconds for o in outputs))
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
            return state.failed(StepError.of(error), now(), _since(began))
        except Exception as error:  # noqa: BLE001 -- the error policy decides about it, in the workflow
            return state.failed(StepError.of(error), now(), _since(began))

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
        reserved = await self.store.reserve_call(
            request.ref, request.call_id, activity.info().attempt, news.call_begins
        )
        if reserved.recorded:
            return calls.output(reserved.call, reserved.recorded)
        return await self._ran_reserved(request, reserved)

    async def _ran_reserved(
        self, request: ToolInput, reserved: Reservation, began: Sequence[EventRecord] = ()
    ) -> ToolOutput:
        """The call's result, recorded; `began` is what nobody was told of it yet."""
        definition = known(self.agents, request.agent)
        self.strike(Failpoint.TOOL_AFTER_RESERVE)
        execution = await self._executed(request, definition, reserved)
        self.strike(Failpoint.TOOL_AFTER_EFFECT)
        record = await calls.record(
            self.store,
            self.agents.driver(request.agent, None),
            calls.Place(request.ref, request.number, reserved.index),
            execution,
            success=execution.error is None and not calls.is_denied(reserved.resolution),
            began=began,
        )
        self.strike(Failpoint.TOOL_BEFORE_REPORT)
        return calls.output(reserved.call, record)

    async def _executed(
        self, request: ToolInput, definition: AgentDefinition, reserved: Reservation
    ) -> ToolExecution:
        started = now()
        if reserved.is_uncertain and request.effect is Effect.AT_MOST_ONCE:
            error = StepError(EFFECT_UNKNOWN, ErrorType.UNKNOWN, reserved.call.name)
            return ToolExecution(reserved.call, None, error, started, now())
        settled = calls.without_running(definition, reserved, started)
        if settled:
            return settled
        call, note, _ = calls.by_people(reserved.call, reserved.resolution)
        context = ToolContext(request.ref.execution_id, call.id, request.number, reserved.metadata)
        result, error = await outcome(definition.tools.get(call.name), call, context)
        return ToolExecution(call, result, error, started, now(), note)

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
                outcome=_told(request.outcome),
                stop_reason=request.stop_reason,
                step_count=request.step_count,
                usage=request.usage,
                error_message=error,
                output=_output(request, answer),
                snapshot=await self._snapshot(request, material),
                is_final=request.stop_reason is not None,
                events=await self._news(request, answer, error, material),
            )
        )
        if request.stop_reason is not None:
            await self.ended(request.ref)
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
        self, request: SettleInput, answer: str | None, error: str | None, material: Material
    ) -> Sequence[EventRecord]:
        if request.asks:
            await self._ask(request)
        requests = await self.store.open_requests(request.ref) if request.waiting else ()
        waiting = [row for row in requests if row.call_id in request.waiting]
        return news.settled(request, waiting, answer, error, material)

    async def _ask(self, request: SettleInput) -> None:
        """Open the questions of calls that people have just allowed; other questions are open already."""
        definition = known(self.agents, request.agent)
        for call_id in request.waiting:
            allowed = await self.store.request(request.ref, request_id(request.ref.execution_id, call_id))
            if allowed and allowed.kind is CallNeed.APPROVAL:
                asked = ToolCall(call_id, allowed.tool, allowed.args)
                edited, _, _ = calls.by_people(asked, allowed.resolution)
                asked = asked if definition.tools.refusal(edited) else edited
                await self.store.ask(request.ref, call_id, asked.args)


def quick_calls(
    pending: Sequence[CallFacts], planned: Mapping[str, PlannedTool], *, is_parallel: bool
) -> list[tuple[CallFacts, ...]]:
    """The calls that can be answered right away, in the groups in which they run at once."""

    def is_quick(call: CallFacts) -> bool:
        return call.need is CallNeed.RUN and call.name in planned and planned[call.name].quick

    if is_parallel:
        quick = tuple(filter(is_quick, pending))
        return [quick] if quick else []
    return [(call,) for call in takewhile(is_quick, pending)]


def known(agents: Agents, name: str) -> AgentDefinition:
    """The agent, if this worker has it."""
    try:
        return agents.definition(name)
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
        facts=facts.step_started(now()),
        metadata=material.metadata,
        cached_context=CachedContext.from_dict(material.spec.cached_context),
        execution=ExecutionData(ref.execution_id),
    ).with_messages(material.messages)


def calls_of(messages: Messages) -> list[ToolCall]:
    """The calls that a conversation tells of."""
    entries = [entry for message in messages for entry in message.calls]
    return [ToolCall.from_text(e["id"], e["function"]["name"], e["function"]["arguments"]) for e in entries]


def _to_record(call: ToolCall, need: CallNeed) -> CallToRecord:
    digest = args_digest(call.name, call.args)
    return CallToRecord(call, need, digest, call.args if need is CallNeed.INPUT else None)


def _failures(request: SettleInput) -> Sequence[StepError]:
    """The errors of a step that only the workflow knows, with their message."""
    if request.step is None or request.failure is None:
        return ()
    return [replace(error, message=request.failure) for error in request.step.own_errors]


def _told(outcome: FrozenDict | None) -> FrozenDict | None:
    """An evaluation, in full."""
    return None if outcome is None else frozen_map(expanded(outcome).to_dict())


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
