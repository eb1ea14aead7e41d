"""Runs processors and `after_step` hooks on completed steps; the result is recorded once."""

from dataclasses import replace
from time import monotonic
from typing import Any

from pydantic import TypeAdapter
from temporalio import activity

from everstep.activities import execution_events
from everstep.activities.agents import Agents, known
from everstep.activities.call_records import USUAL
from everstep.activities.contracts import Processed, ProcessInput
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.hooks import after_step, beside_the_loop, hooks_of, in_time
from everstep.activities.inner_calls import Inquiry
from everstep.activities.state_loading import state_within
from everstep.activities.store_retry import until_written
from everstep.activities.toolsets import offered
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.processors import added_between, processed
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides, StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import BeginStep, RecordProcessing, RecordReply
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

_PROCESSED = TypeAdapter(Processed)


class Processing:
    """Runs processors."""

    def __init__(
        self, store: ExecutionStore, agents: Agents, strike: Strike, disclosure: Disclosure = USUAL
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.strike = strike

    async def processed(self, request: ProcessInput) -> Processed:
        """Run the processors on a step, or return the result that an earlier attempt recorded."""
        definition = known(self.agents, request.agent)
        recorded = await self.store.processing(request.ref, request.number)
        if recorded is None:
            record = await self._record(request, definition)
            recorded = await until_written(lambda: self.store.record_processing(record))
            self.strike(Failpoint.PROCESS_AFTER_RECORD)
        if error := recorded.get("raised"):
            await self._fail(request, definition, StepError.from_dict(error), recorded["facts"]["seconds"])
        return _PROCESSED.validate_python(recorded["facts"])

    async def _record(self, request: ProcessInput, definition: AgentDefinition) -> RecordProcessing:
        material = await self.store.material(request.ref)
        state = await state_within(self.store, request.ref, request.number, material)
        began = replace(state, facts=replace(state.facts, usage=request.usage))
        key = f"processing/{request.number}"
        ask = Inquiry(self.store, self.agents, request, key, plan=definition.base_plan)
        self.strike(Failpoint.PROCESS_BEFORE)
        since, raised = monotonic(), None
        try:
            async with in_time("processors and hooks"):
                state = await self._seen(definition, began, ask)
            added = added_between(began, state)
        except Exception as error:  # noqa: BLE001 -- the error policy handles it, in the workflow
            failed = f"step/{request.number + 1}"
            raised = self.disclosure.of(StepError.of(error), request.ref.execution_id, failed)
            activity.logger.warning(
                "the processors of step %s failed (ref %s)", request.number, raised.ref, exc_info=error
            )
            state, added = began, added_between(began, began)
        facts = Processed(
            round(monotonic() - since, 6),
            Besides(ask.usage, wishes=Wishes.between(began, state)),
            state.critique,
            raised and replace(raised, message=""),
        )
        return RecordProcessing(request.ref, request.number, _written(facts, raised), added)

    async def _seen(self, definition: AgentDefinition, state: AgentState, ask: Inquiry) -> AgentState:
        for processor in definition.processors:
            state = await processed(beside_the_loop(processor), state, ask)
        return await after_step(hooks_of(definition, "after_step"), state)

    async def _fail(
        self, request: ProcessInput, definition: AgentDefinition, error: StepError, seconds: float
    ) -> None:
        """Record the error of a processor as a failed step after the step that was processed."""
        number = request.number + 1
        facts = StepFacts.failure(number, error, seconds)
        material = await self.store.material(request.ref)
        begin = BeginStep(request.ref, number, activity.info().attempt, outcome=None)
        reply = RecordReply(
            request.ref,
            number,
            begin.attempt,
            facts,
            (error,),
            EMPTY,
            (),
            begins=begin,
            events=execution_events.failure_begins(number, material, offered(definition, material.spec)),
        )
        await until_written(lambda: self.store.record_reply(reply))


def _written(facts: Processed, raised: StepError | None) -> FrozenDict:
    written: dict[str, Any] = {"facts": _PROCESSED.dump_python(facts, mode="json")}
    return frozen_map(written | ({"raised": raised.to_dict()} if raised else {}))
