"""Converts stored rows to states, steps and errors."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from everstep.activities.call_records import DEFAULT_DISCLOSURE, now
from everstep.activities.contracts import SettleInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.compact_outcomes import expand
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.repeated_calls import call_digest
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.messages.messages import DEFAULT_SECTION
from everstep.agent_domain.state.execution_data import ExecutionData
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.steps import StepInput, StepRow
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, parse_json


def step_state(ref: ExecutionRef, number: int, material: StepInput) -> AgentState:
    """Build the state in which a step starts, as drivers and processors receive it."""
    state = bare_state(ref, material)
    facts = replace(state.facts, recorded_steps=number - 1).step_started(now())
    return replace(state, facts=facts)


def bare_state(ref: ExecutionRef, material: StepInput) -> AgentState:
    """Build the state without its steps."""
    state = AgentState(
        agent_id=material.agent_id,
        parent_agent_id=material.parent_agent_id,
        facts=ExecutionFacts(state_info=replace(material.clocks, id=material.agent_id)),
        metadata=material.metadata,
        cached_context=material.spec.context,
        execution=ExecutionData(ref.execution_id, task=material.task, run=material.run),
    )
    store = state.message_store.with_section(DEFAULT_SECTION, material.messages)
    return state.with_message_store(store.with_compaction(material.compaction))


def errors_of(row: StepRow) -> tuple[StepError, ...]:
    """Return the step's own errors, or else those of its failed calls."""
    return row.errors or tuple(call.record.error for call in row.calls if call.record and call.record.error)


def facts_with_results(row: StepRow, facts: StepFacts) -> StepFacts:
    """Return the facts of the model's reply, with the results of its calls added."""
    results = ((call.call, call.record) for call in row.calls if call.record)
    return facts.settled(
        CallFacts(
            call.id,
            call.name,
            error=record.error,
            digest=call_digest(call.name, call.arguments, record.text),
        )
        for call, record in results
    )


def failures(request: SettleInput, disclosure: Disclosure = DEFAULT_DISCLOSURE) -> Sequence[StepError]:
    """Return the errors of a step that only the workflow knows, with their message."""
    if request.step is None or request.failure is None:
        return ()
    errors = (replace(error, message=request.failure) for error in request.step.own_errors)
    key = f"step/{request.step.number}"
    return [disclosure.of(error, request.ref.execution_id, key) for error in errors]


def evaluation(outcome: FrozenDict | None) -> FrozenDict | None:
    """Expand an evaluation from its compact form."""
    return None if outcome is None else _expanded(json_text(outcome))


# Nearly all steps have the same evaluation. By its text, as 1 and 1.0 are the same key.
@lru_cache(maxsize=128)
def _expanded(outcome: str) -> FrozenDict:
    return frozen_map(expand(parse_json(outcome)).to_record())
