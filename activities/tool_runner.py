"""Runs tool calls: reserved first where they may run only once, and recorded once."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from uuid import UUID

from temporalio import activity

from everstep.activities import call_records, execution_events
from everstep.activities.agents import AgentProvider, find_agent
from everstep.activities.call_records import DEFAULT_DISCLOSURE, now
from everstep.activities.contracts import InferInput, ToolInput, ToolOutput, step_with_outputs
from everstep.activities.deferred_start import DeferredStart
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.inner_calls import RecordedInquiry
from everstep.activities.next_inputs import NextInputs
from everstep.activities.progress_reports import progress_reports
from everstep.activities.state_loading import load_state_within
from everstep.activities.store_retry import write_with_retry
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import PlannedTool
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.marks import changed_marks
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import Besides, CallFacts, CallNeed, StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.calls import Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import StepInput
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.artifacts import NO_FILES
from everstep.agent_domain.tools.tools import Effect, ToolExecution, options_of
from everstep.agent_domain.tools.toolsets import Asker
from everstep.agent_domain.values import FrozenDict
from everstep.steps.attachments import Attachments
from everstep.steps.hooks import ToolHooks, find_hooks
from everstep.steps.tool_runs import ToolRun, run_tool
from everstep.steps.toolsets import ask_toolsets
from everstep.telemetry import genai

EFFECT_UNKNOWN = "The worker was lost while this tool ran: its effect is unknown, and it was not run again"

MAX_CACHED = 200
"""The number of calls cached for the activities that run them; others are read from the store."""


class ToolRunner:
    """Runs calls, with the effect guarantee that each tool declares."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        strike: Strike,
        start_delay: float,
        *,
        disclosure: Disclosure = DEFAULT_DISCLOSURE,
        attachments: Attachments | None = None,
    ) -> None:
        self.attachments = attachments
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.strike = strike
        self.start_delay = start_delay
        self.tool_lists = ToolListCache(store)
        self.next_inputs = NextInputs()
        self._cached_calls: dict[tuple[UUID, str], Reservation] = {}
        """Calls that this process recorded and has not run; usually it runs them a moment later."""

    async def run_call(self, request: ToolInput, reservation: Reservation | None = None) -> ToolOutput:
        """Run a call and record its result, or return the recorded result.

        A call that may run twice needs no reservation before it runs: an attempt that finds no result runs
        it.

        Args:
            request: Names the call.
            reservation: The call, if this attempt has just received it from the model.
        """
        attempt = 1 if reservation else activity.info().attempt
        if attempt == 1:
            reservation = reservation or self._cached_calls.pop(
                (request.ref.execution_id, request.call_id), None
            )
        reserve = partial(
            self.store.reserve_call, request.ref, request.call_id, attempt, execution_events.call_start_events
        )
        own = find_agent(self.agents, request.agent)
        definition = await self.tool_lists.load_definition(request.ref, own)
        if own.toolsets:
            reservation = reservation or await self.store.preview_call(request.ref, request.call_id)
            request = _with_listed_effect(request, reservation.call.name, own, definition)
        is_reserved = request.effect is not Effect.IDEMPOTENT
        if is_reserved:
            reserved = await reserve()
        else:
            reserved = reservation or await self.store.preview_call(request.ref, request.call_id)
        if reserved.recorded:
            return call_records.output_from(reserved.call, reserved.recorded)
        async with DeferredStart(reserve, self.start_delay, is_written=is_reserved) as start:
            self.strike(Failpoint.TOOL_AFTER_RESERVE)
            run = await self._execute(request, definition, reserved, attempt)
        self.strike(Failpoint.TOOL_AFTER_EFFECT)
        run = await self._with_stored_files(request.ref, reserved, run)
        start_events = () if start.is_due else execution_events.call_start_events(reserved)
        record = await call_records.record_run(
            self.store,
            self.agents.driver(request.agent, None),
            call_records.CallPlace(request.ref, request.number, reserved.index),
            replace(run, is_denied=reserved.is_denied),
            made=reserved.call,
            start_events=[*start_events, *await self._load_default_events(request, run)],
            attempt=attempt,
            disclosure=self.disclosure,
            on_recorded=self.next_inputs.add_result,
        )
        if run.exception:
            call_records.log_exception(record, run.exception)
        self.strike(Failpoint.TOOL_BEFORE_REPORT)
        return call_records.output_from(reserved.call, record)

    async def _execute(
        self, request: ToolInput, definition: AgentDefinition, reserved: Reservation, attempt: int
    ) -> ToolRun:
        key = f"call/{reserved.call.id}"
        ask = RecordedInquiry(self.store, self.agents, request, key, plan=definition.base_plan)
        if reserved.is_uncertain and request.effect is Effect.AT_MOST_ONCE:
            error = StepError(EFFECT_UNKNOWN, ErrorType.UNKNOWN, reserved.call.name)
            unknown = ToolExecution(reserved.call, None, error, now(), now())
            return ToolRun(unknown, besides=Besides(await ask.load_crashed_usage()))
        early_result = call_records.result_of_decision(definition, reserved)
        if early_result:
            return ToolRun(early_result)
        call, note, _ = call_records.apply_decision(reserved.call, reserved.resolution)
        limits = self.attachments.limits if self.attachments else NO_FILES
        context = call_records.build_context(
            request.ref, replace(reserved, call=call), ask, self.agents.resources, attempt, limits=limits
        )
        async with progress_reports(self.store, request, call, attempt) as report:
            hooks = await self._load_hooks(request, definition)
            with genai.open_tool(call) as span:
                run = await run_tool(
                    definition.tools.get(call.name),
                    call,
                    replace(context, report=report),
                    ask=ask,
                    hooks=hooks,
                    redaction=self.disclosure.redaction,
                    now=now,
                    note=note,
                )
                error = run.execution.error
                kind = error and (error.exception or str(error.type or ErrorType.TOOL))
                genai.finish_tool(span, kind, lambda: run.execution.text)
        return replace(run, is_default=request.need is CallNeed.INPUT and run.execution.error is None)

    async def _with_stored_files(self, ref: ExecutionRef, reserved: Reservation, run: ToolRun) -> ToolRun:
        """Store the files that the call returned; the result has their references."""
        files, attachments = run.execution.attachments, self.attachments
        if not files or attachments is None:
            return run
        kept = await write_with_retry(
            lambda: attachments.keep_artifacts(ref, reserved.call.id, reserved.run.user_id, files)
        )
        return replace(run, execution=replace(run.execution, attachments=kept))

    async def _load_default_events(self, request: ToolInput, run: ToolRun) -> Sequence[EventRecord]:
        """Return the events of a question that was answered by its default."""
        if not run.is_default:
            return ()
        requests = await self.store.open_requests(request.ref)
        questions = [row for row in requests if row.call_id == request.call_id and row.kind is CallNeed.INPUT]
        return [execution_events.default_answer_event(row) for row in questions]

    async def _load_hooks(self, request: ToolInput, definition: AgentDefinition) -> ToolHooks | None:
        """Load the hooks of the call and the state they need; None without hooks, which saves the read."""
        hooks = find_hooks(definition, "before_tool", "after_tool")
        if not hooks:
            return None
        material = await self.store.material(request.ref)
        state = await load_state_within(self.store, request.ref, request.number, material)
        state = state.with_resources(self.agents.resources)
        return ToolHooks(hooks, state.with_facts(replace(state.facts, marks=request.marks)))

    async def run_quick_calls(
        self,
        request: InferInput,
        material: StepInput,
        facts: StepFacts,
        reservations: Mapping[str, Reservation],
    ) -> StepFacts:
        """Run the quick calls of a step here, as an activity for each would cost too much.

        Calls that wait for people or for another call are left to the workflow. `made` holds the calls as
        this attempt received them.
        """

        async def run_one(call: CallFacts) -> ToolOutput:
            tool = planned[call.name]
            needed = ToolInput(
                request.ref,
                material.spec.agent,
                request.number,
                call.id,
                tool.effect,
                tool.need,
                changed_marks(request.marks, facts.besides.wishes.marks),
            )
            return await self.run_call(needed, reservations.get(call.id))

        names = {call.name for call in facts.pending}
        tools = (tool for tool in material.plan.get("tools", ()) if tool["name"] in names)
        planned = {tool["name"]: PlannedTool.model_validate(tool) for tool in tools}
        is_parallel = material.plan.get("parallel_tools", True)
        for calls_at_once in group_quick_calls(facts.pending, planned, is_parallel=is_parallel):
            outputs = await asyncio.gather(*map(run_one, calls_at_once))
            facts = step_with_outputs(facts, outputs)
        self._cache_calls(request.ref, facts, reservations)
        return facts

    def _cache_calls(
        self, ref: ExecutionRef, facts: StepFacts, reservations: Mapping[str, Reservation]
    ) -> None:
        """Cache the calls that are left to activities; the oldest are evicted."""
        for call in facts.pending:
            if call.id in reservations:
                self._cached_calls[ref.execution_id, call.id] = reservations[call.id]
        while len(self._cached_calls) > MAX_CACHED:
            del self._cached_calls[next(iter(self._cached_calls))]


class ToolListCache:
    """The tools that toolsets list: asked once per execution, then stored and cached."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store
        self._cache: dict[UUID, FrozenDict] = {}

    async def load_definition(self, ref: ExecutionRef, definition: AgentDefinition) -> AgentDefinition:
        """Return the agent with the tools that this execution may call."""
        if not definition.toolsets:
            return definition
        listed = self._cache.get(ref.execution_id) or await self.store.recorded_tools(ref)
        if listed is None:
            tools = await ask_toolsets(definition, Asker(ref.execution_id, ref.tenant_id))
            listed = await self.store.record_tools(ref, tools)
        self._cache[ref.execution_id] = listed
        while len(self._cache) > MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        return definition.with_listed(listed)


def _with_listed_effect(
    request: ToolInput, name: str, own: AgentDefinition, definition: AgentDefinition
) -> ToolInput:
    """The effect of a listed tool is not in the plan; take it from the definition."""
    if name in own.tools.names or name not in definition.tools.names:
        return request
    return replace(request, effect=options_of(definition.tools.get(name)).effect)


def group_quick_calls(
    pending: Sequence[CallFacts], planned: Mapping[str, PlannedTool], *, is_parallel: bool
) -> list[tuple[CallFacts, ...]]:
    """Return the calls that can be answered right away, in groups that run concurrently."""

    def is_quick(call: CallFacts) -> bool:
        return call.need is CallNeed.RUN and call.name in planned and planned[call.name].quick

    if is_parallel:
        quick = tuple(filter(is_quick, pending))
        return [quick] if quick else []
    return [(call,) for call in takewhile(is_quick, pending)]
