"""Runs tool calls: reserved first where they may run only once, and recorded once."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from uuid import UUID

from temporalio import activity

from everstep.activities import call_records, execution_events
from everstep.activities.agents import Agents, known
from everstep.activities.call_records import USUAL, Came, now
from everstep.activities.contracts import InferInput, ToolInput, ToolOutput, settled
from everstep.activities.deferred_start import begun
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.hooks import AroundCall, hooks_of
from everstep.activities.inner_calls import Inquiry
from everstep.activities.state_loading import state_within
from everstep.activities.tool_calls import outcome
from everstep.activities.toolsets import asked
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import PlannedTool
from everstep.agent_domain.errors import HookFailed
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import Besides, CallFacts, CallNeed, StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.calls import Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.metadata_changes import Notes
from everstep.agent_domain.storage.steps import Material
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.tools import Effect, ToolExecution, options_of
from everstep.agent_domain.tools.toolsets import Asker
from everstep.agent_domain.values import FrozenDict

EFFECT_UNKNOWN = "The worker was lost while this tool ran: its effect is unknown, and it was not run again"

MOST_HEARD = 200
"""The number of calls cached for the activities that run them; others are read from the store."""


class Running:
    """Runs calls, with the effect guarantee that each tool declares."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: Agents,
        strike: Strike,
        moment: float,
        disclosure: Disclosure = USUAL,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.strike = strike
        self.start_delay = moment
        self.tool_lists = Listed(store)
        self._cached_calls: dict[tuple[UUID, str], Reservation] = {}
        """Calls that this process recorded and has not run; usually it runs them a moment later."""

    async def ran(self, request: ToolInput, made: Reservation | None = None) -> ToolOutput:
        """Run a call and record its result, or return the recorded result.

        A call that may run twice needs no reservation before it runs: an attempt that finds no result runs
        it.

        Args:
            request: Names the call.
            made: The call, if this attempt has just received it from the model.
        """
        attempt = 1 if made else activity.info().attempt
        if attempt == 1:
            made = made or self._cached_calls.pop((request.ref.execution_id, request.call_id), None)
        reserve = partial(
            self.store.reserve_call, request.ref, request.call_id, attempt, execution_events.call_begins
        )
        own = known(self.agents, request.agent)
        definition = await self.tool_lists.definition(request.ref, own)
        if own.toolsets:
            made = made or await self.store.preview_call(request.ref, request.call_id)
            request = _as_listed(request, made.call.name, own, definition)
        is_reserved = request.effect is not Effect.IDEMPOTENT
        if is_reserved:
            reserved = await reserve()
        else:
            reserved = made or await self.store.preview_call(request.ref, request.call_id)
        if reserved.recorded:
            return call_records.output(reserved.call, reserved.recorded)
        async with begun(reserve, self.start_delay, is_written=is_reserved) as is_begun:
            self.strike(Failpoint.TOOL_AFTER_RESERVE)
            came = await self._executed(request, definition, reserved)
        self.strike(Failpoint.TOOL_AFTER_EFFECT)
        began = () if is_begun.is_set() else execution_events.call_begins(reserved)
        record = await call_records.record(
            self.store,
            self.agents.driver(request.agent, None),
            call_records.Place(request.ref, request.number, reserved.index),
            replace(came, is_denied=call_records.is_denied(reserved.resolution)),
            began=[*began, *await self._by_default(request, came)],
            attempt=attempt,
            disclosure=self.disclosure,
        )
        if came.raised:
            call_records.log_raised(record, came.raised)
        self.strike(Failpoint.TOOL_BEFORE_REPORT)
        return call_records.output(reserved.call, record)

    async def _executed(self, request: ToolInput, definition: AgentDefinition, reserved: Reservation) -> Came:
        started, key = now(), f"call/{reserved.call.id}"
        ask = Inquiry(self.store, self.agents, request, key, plan=definition.base_plan)
        if reserved.is_uncertain and request.effect is Effect.AT_MOST_ONCE:
            error = StepError(EFFECT_UNKNOWN, ErrorType.UNKNOWN, reserved.call.name)
            unknown = ToolExecution(reserved.call, None, error, started, now())
            return Came(unknown, besides=Besides(await ask.spent_before()))
        settled = call_records.without_running(definition, reserved, started)
        if settled:
            return Came(settled)
        call, note, _ = call_records.by_people(reserved.call, reserved.resolution)
        context = call_records.context(request.ref, replace(reserved, call=call), ask)
        around = await self._around(request, definition, call.name)
        try:
            if around:
                await around.before(call)
            told = await outcome(definition.tools.get(call.name), call, context)
            execution = ToolExecution(call, told.result, told.error, started, now(), note, told.told)
            if around:
                await around.after(execution)
        except HookFailed as error:
            failed = replace(StepError.of(error, call.name), type=StepError.of(error.__cause__ or error).type)
            broken = ToolExecution(call, None, failed, started, now(), note)
            return Came(broken, besides=Besides(ask.usage), raised=error)
        notes, is_default = Notes(told.metadata), request.need is CallNeed.INPUT and told.error is None
        if around is None:
            return Came(execution, notes, Besides(ask.usage), is_default=is_default, raised=told.raised)
        besides = Besides(ask.usage, wishes=around.wishes)
        notes = around.notes.and_then(notes)
        return Came(execution, notes, besides, is_default=is_default, raised=told.raised)

    async def _by_default(self, request: ToolInput, came: Came) -> Sequence[EventRecord]:
        """Return the events of a question that was answered by its default."""
        if not came.is_default:
            return ()
        requests = await self.store.open_requests(request.ref)
        asked = [row for row in requests if row.call_id == request.call_id and row.kind is CallNeed.INPUT]
        return [execution_events.answered_by_default(row) for row in asked]

    async def _around(self, request: ToolInput, definition: AgentDefinition, tool: str) -> AroundCall | None:
        """Load the hooks of the call and the state they need; None without hooks, which saves the read."""
        hooks = hooks_of(definition, "before_tool", "after_tool")
        if not hooks:
            return None
        material = await self.store.material(request.ref)
        state = await state_within(self.store, request.ref, request.number, material)
        is_quick = options_of(definition.tools.get(tool)).quick
        return AroundCall(hooks, state, state, is_quick)

    async def with_quick(
        self,
        request: InferInput,
        material: Material,
        facts: StepFacts,
        made: Mapping[str, Reservation],
    ) -> StepFacts:
        """Run the quick calls of a step here, as an activity for each would cost too much.

        Calls that wait for people or for another call are left to the workflow. `made` holds the calls as
        this attempt received them.
        """

        async def ran(call: CallFacts) -> ToolOutput:
            tool = planned[call.name]
            needed = ToolInput(
                request.ref, material.spec.agent, request.number, call.id, tool.effect, tool.need
            )
            return await self.ran(needed, made.get(call.id))

        planned = {tool["name"]: PlannedTool.model_validate(tool) for tool in material.plan.get("tools", ())}
        is_parallel = material.plan.get("parallel_tools", True)
        for calls_at_once in quick_calls(facts.pending, planned, is_parallel=is_parallel):
            outputs = await asyncio.gather(*map(ran, calls_at_once))
            facts = settled(facts, outputs)
        self._hear(request.ref, facts, made)
        return facts

    def _hear(self, ref: ExecutionRef, facts: StepFacts, made: Mapping[str, Reservation]) -> None:
        """Cache the calls that are left to activities; the oldest are evicted."""
        for call in facts.pending:
            if call.id in made:
                self._cached_calls[ref.execution_id, call.id] = made[call.id]
        while len(self._cached_calls) > MOST_HEARD:
            del self._cached_calls[next(iter(self._cached_calls))]


class Listed:
    """The tools that toolsets list: asked once per execution, then stored and cached."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store
        self._cache: dict[UUID, FrozenDict] = {}

    async def definition(self, ref: ExecutionRef, definition: AgentDefinition) -> AgentDefinition:
        """Return the agent with the tools that this execution may call."""
        if not definition.toolsets:
            return definition
        listed = self._cache.get(ref.execution_id) or await self.store.listed(ref)
        if listed is None:
            found = await asked(definition, Asker(ref.execution_id, ref.tenant_id))
            listed = await self.store.record_listed(ref, found)
        self._cache[ref.execution_id] = listed
        while len(self._cache) > MOST_HEARD:
            del self._cache[next(iter(self._cache))]
        return definition.with_listed(listed)


def _as_listed(request: ToolInput, name: str, own: AgentDefinition, definition: AgentDefinition) -> ToolInput:
    """The effect of a listed tool is not in the plan; take it from the definition."""
    if name in own.tools.names or name not in definition.tools.names:
        return request
    return replace(request, effect=options_of(definition.tools.get(name)).effect)


def quick_calls(
    pending: Sequence[CallFacts], planned: Mapping[str, PlannedTool], *, is_parallel: bool
) -> list[tuple[CallFacts, ...]]:
    """Return the calls that can be answered right away, in groups that run concurrently."""

    def is_quick(call: CallFacts) -> bool:
        return call.need is CallNeed.RUN and call.name in planned and planned[call.name].quick

    if is_parallel:
        quick = tuple(filter(is_quick, pending))
        return [quick] if quick else []
    return [(call,) for call in takewhile(is_quick, pending)]
