"""Running the calls of a step: reserved where they may run only once, recorded once."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from uuid import UUID

from temporalio import activity

from activities import calls, news
from activities.agents import Agents, known
from activities.beginnings import begun
from activities.calls import now
from activities.contracts import InferInput, ToolInput, ToolOutput
from activities.failpoints import Failpoint, Strike
from activities.tool_calls import outcome
from agent_domain.definition import AgentDefinition
from agent_domain.plan import PlannedTool
from agent_domain.ports import ExecutionRef, ExecutionStore, Material, Reservation
from agent_domain.step_error import ErrorType, StepError
from agent_domain.step_facts import CallFacts, CallNeed, StepFacts
from agent_domain.tools import Effect, ToolContext, ToolExecution

EFFECT_UNKNOWN = "The worker was lost while this tool ran: its effect is unknown, and it was not run again"

MOST_HEARD = 200
"""So many calls are kept for the activity that runs them. It reads from the store what is not here."""


class Running:
    """Runs calls, each as its tool allows."""

    def __init__(self, store: ExecutionStore, agents: Agents, strike: Strike, moment: float) -> None:
        self.store = store
        self.agents = agents
        self.strike = strike
        self.moment = moment
        self._heard: dict[tuple[UUID, str], Reservation] = {}
        """Calls that this process has recorded and not run: mostly it runs them a moment later."""

    async def ran(self, request: ToolInput, made: Reservation | None = None) -> ToolOutput:
        """The call's result, recorded; `made` is the call if this attempt has heard it from the model.

        One that may run twice needs no reservation before it runs: whoever finds no result runs it anyway.
        """
        attempt = 1 if made else activity.info().attempt
        if attempt == 1:
            made = made or self._heard.pop((request.ref.execution_id, request.call_id), None)
        reserve = partial(self.store.reserve_call, request.ref, request.call_id, attempt, news.call_begins)
        is_reserved = request.effect is not Effect.IDEMPOTENT
        if is_reserved:
            reserved = await reserve()
        else:
            reserved = made or await self.store.preview_call(request.ref, request.call_id)
        if reserved.recorded:
            return calls.output(reserved.call, reserved.recorded)
        definition = known(self.agents, request.agent)
        async with begun(reserve, self.moment, is_written=is_reserved) as is_begun:
            self.strike(Failpoint.TOOL_AFTER_RESERVE)
            execution = await self._executed(request, definition, reserved)
        self.strike(Failpoint.TOOL_AFTER_EFFECT)
        record = await calls.record(
            self.store,
            self.agents.driver(request.agent, None),
            calls.Place(request.ref, request.number, reserved.index),
            execution,
            success=execution.error is None and not calls.is_denied(reserved.resolution),
            began=() if is_begun.is_set() else news.call_begins(reserved),
            attempt=attempt,
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

    async def with_quick(
        self,
        request: InferInput,
        material: Material,
        facts: StepFacts,
        made: Mapping[str, Reservation],
    ) -> StepFacts:
        """The step with those calls answered whose tools return at once: for them an activity is too much.

        What has to wait, for people or for another call, is left to the workflow. `made` are the calls as
        this attempt heard of them.
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
            facts = facts.settled((output.call for output in outputs), max(o.seconds for o in outputs))
        self._hear(request.ref, facts, made)
        return facts

    def _hear(self, ref: ExecutionRef, facts: StepFacts, made: Mapping[str, Reservation]) -> None:
        """What is left to activities; the oldest give way."""
        for call in facts.pending:
            if call.id in made:
                self._heard[ref.execution_id, call.id] = made[call.id]
        while len(self._heard) > MOST_HEARD:
            del self._heard[next(iter(self._heard))]


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
