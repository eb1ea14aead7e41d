"""Runs processors and `after_step` hooks on completed steps; the result is recorded once."""

from dataclasses import replace
from time import monotonic
from typing import Any

from pydantic import TypeAdapter
from temporalio import activity

from everstep.activities import execution_events
from everstep.activities.agents import AgentProvider, find_agent
from everstep.activities.call_records import DEFAULT_DISCLOSURE
from everstep.activities.contracts import ProcessInput, ProcessOutput
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.inner_calls import RecordedInquiry
from everstep.activities.state_loading import load_state_within
from everstep.activities.store_retry import write_with_retry
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.processors import additions_between
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides, StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import BeginStep, RecordProcessing, RecordReply
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.steps.hooks import process_step
from everstep.steps.toolsets import available_tool_names

_OUTPUT = TypeAdapter(ProcessOutput)


class ProcessorRunner:
    """Runs processors."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        strike: Strike,
        disclosure: Disclosure = DEFAULT_DISCLOSURE,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.strike = strike

    async def run(self, request: ProcessInput) -> ProcessOutput:
        """Run the processors on a step, or return the result that an earlier attempt recorded."""
        definition = find_agent(self.agents, request.agent)
        recorded = await self.store.processing(request.ref, request.number)
        if recorded is None:
            record = await self._process(request, definition)
            recorded = await write_with_retry(lambda: self.store.record_processing(record))
            self.strike(Failpoint.PROCESS_AFTER_RECORD)
        if error := recorded.get("raised"):
            await self._record_failure(
                request, definition, StepError.from_dict(error), recorded["facts"]["seconds"]
            )
        return _OUTPUT.validate_python(recorded["facts"])

    async def _process(self, request: ProcessInput, definition: AgentDefinition) -> RecordProcessing:
        material = await self.store.material(request.ref)
        state = await load_state_within(self.store, request.ref, request.number, material)
        state = state.with_resources(self.agents.resources)
        initial = state.with_facts(replace(state.facts, usage=request.usage, marks=request.marks))
        key = f"processing/{request.number}"
        ask = RecordedInquiry(self.store, self.agents, request, key, plan=definition.base_plan)
        self.strike(Failpoint.PROCESS_BEFORE)
        since, failure = monotonic(), None
        try:
            state = await process_step(definition, initial, ask)
            added = additions_between(initial, state)
        except Exception as error:  # noqa: BLE001 -- the error policy handles it, in the workflow
            error_key = f"step/{request.number + 1}"
            failure = self.disclosure.of(StepError.of(error), request.ref.execution_id, error_key)
            activity.logger.warning(
                "the processors of step %s failed (ref %s)", request.number, failure.ref, exc_info=error
            )
            state, added = initial, additions_between(initial, initial)
        facts = ProcessOutput(
            round(monotonic() - since, 6),
            Besides(ask.usage, wishes=Wishes.between(initial, state)),
            failure and replace(failure, message=""),
        )
        return RecordProcessing(request.ref, request.number, _record_form(facts, failure), added)

    async def _record_failure(
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
            events=execution_events.failed_step_events(
                number, material, available_tool_names(definition, material.spec)
            ),
        )
        await write_with_retry(lambda: self.store.record_reply(reply))


def _record_form(facts: ProcessOutput, failure: StepError | None) -> FrozenDict:
    data: dict[str, Any] = {"facts": _OUTPUT.dump_python(facts, mode="json")}
    return frozen_map(data | ({"raised": failure.to_dict()} if failure else {}))
