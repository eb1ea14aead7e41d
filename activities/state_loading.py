"""Builds the full state of an execution from the rows of its steps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from everstep.activities.call_records import now
from everstep.activities.step_state import bare_state
from everstep.agent_domain.ids import ExecutionRef, call_id, step_id
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse, StepExecution
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import StepInput, StepRow
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.agent_domain.values import EMPTY, frozen_map

BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)


async def load_state_before(
    store: ExecutionStore, ref: ExecutionRef, number: int, material: StepInput
) -> AgentState:
    """Load the state in which a step starts, with all steps before it."""
    rows = [row for row in await store.steps(ref, with_responses=True) if row.number < number and row.facts]
    state = recorded_state(ref, material, rows)
    return replace(state, facts=state.facts.step_started(now()))


async def load_state_within(
    store: ExecutionStore, ref: ExecutionRef, number: int, material: StepInput
) -> AgentState:
    """Load the state during a step; the messages of the step join with its last result."""
    rows = await store.steps(ref, with_responses=True)
    current = next(row for row in rows if row.number == number)
    state = state_in_progress(
        ref, material, [row for row in rows if row.number < number and row.facts], current
    )
    return replace(state, facts=state.facts.step_started(current.started_at))


def state_in_progress(
    ref: ExecutionRef, material: StepInput, before: Sequence[StepRow], current: StepRow
) -> AgentState:
    """Build the state with these steps recorded and one more in progress or not yet evaluated."""
    state = recorded_state(ref, material.before_reply(current.number), before)
    state = state.with_current_step(step_from(ref, current))
    added = current.messages[len(current.messages) - current.processed :]
    return state.heard(*added) if added else state


def recorded_state(ref: ExecutionRef, material: StepInput, rows: Sequence[StepRow]) -> AgentState:
    """Build the state after these steps; `material` already contains their messages."""
    state = bare_state(ref, material).entered(rows[0].started_at if rows else now())
    for row in rows:
        outcome = ContinuationOutcome.from_dict(row.outcome) if row.outcome else None
        completed_at = row.completed_at or now()
        signal = outcome.stop_signal if outcome else None
        record = StepExecution(row.number, step_from(ref, row), outcome, row.started_at, completed_at, signal)
        state = state.with_step_recorded(record)
        state = state.with_facts(state.facts.spent(record.step.inner_usage))
    return state.at(now())


def step_from(ref: ExecutionRef, row: StepRow) -> AgentStep:
    """Build a step from its row, without its input messages.

    The conversation has them, and copies in every step would grow quadratically.
    """
    facts = row.facts or StepFacts(row.number)
    response = InferenceResponse.from_dict(row.response or EMPTY)
    counted = Usage() if facts.is_failure else response.usage
    failures = () if facts.own_errors else tuple(_reply_failures(ref, row, response))
    records = [call.record for call in row.calls if call.record]
    step = AgentStep(
        id=step_id(ref.execution_id, row.number),
        created_at=row.started_at,
        inference_response=None if facts.is_failure else response,
        tool_executions=failures,
        own_errors=row.errors if facts.own_errors else (),
        own_type=facts.own_type,
        own_usage=None if facts.usage == counted else facts.usage,
        is_failure=facts.is_failure,
        runs_tools=not facts.calls or bool(row.calls or failures),
        seconds=facts.seconds + _work_seconds(records) + row.processing_seconds,
        needs=frozen_map({call.id: call.need for call in facts.calls}),
        inner_usage=row.inner_usage,
    )
    if not facts.is_failure:
        step = step.observed(_execution_from(call, call.record) for call in row.calls if call.record)
    return replace(step, output_messages=_driver_messages(row)) if step.is_complete else step


def _driver_messages(row: StepRow) -> Messages:
    """The driver's output messages, without the messages read before it and those that processors added."""
    return row.messages[row.heard : len(row.messages) - row.processed]


def _reply_failures(ref: ExecutionRef, row: StepRow, response: InferenceResponse) -> Iterable[ToolExecution]:
    """Yield the failures recorded with the model's reply, such as a decision that cannot be parsed."""
    facts, calls = row.facts or StepFacts(row.number), {call.id: call for call in response.tool_calls}
    first_id = call_id(ref.execution_id, row.number, 0)
    unmade = [ToolCall(first_id, error.tool_name or "") for error in facts.pseudo_errors]
    failed = [calls[call.id] for call in facts.calls if call.error and call.id in calls]
    # In the order in which `state_with_reply` puts them.
    for call, error in zip([*unmade, *failed], row.errors, strict=False):
        yield ToolExecution(call, error=error)


def _execution_from(row: CallRow, record: CallRecord) -> ToolExecution:
    execution = ToolExecution(
        row.call,
        record.result,
        record.error,
        record.started_at,
        record.completed_at,
        attachments=record.attachments,
    )
    if row.decision:
        execution = replace(execution, decision=frozen_map(row.decision.to_dict()))
    if record.note is None:
        return _with_derived_texts(execution, record.text)
    if record.own_text is None:
        # It was closed without a result.
        return replace(execution, result=record.text)
    return replace(execution, note=record.note, told=record.own_text)


def _with_derived_texts(execution: ToolExecution, text: str) -> ToolExecution:
    """Derive the parts of a text that release 0.1 recorded as a whole; that is not always possible."""
    if text.endswith(execution.text):
        return replace(execution, note=text.removesuffix(execution.text))
    return replace(execution, **{"result" if execution.result is None else "told": text})


def _work_seconds(records: Iterable[CallRecord]) -> float:
    """Seconds of work; concurrent calls count once."""
    seconds, until = 0.0, BEGINNING_OF_TIME
    for record in sorted(records, key=attrgetter("started_at")):
        ended_at = record.started_at + timedelta(seconds=record.seconds)
        seconds += max(0.0, (ended_at - max(record.started_at, until)).total_seconds())
        until = max(until, ended_at)
    return seconds
