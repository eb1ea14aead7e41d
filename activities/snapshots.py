"""The state of an execution, made of what the store holds: in a few words, or in full for debugging."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from activities.calls import now
from activities.contracts import InferInput, SettleInput
from activities.material import answered, bare_state, evaluation, failures, step_state
from agent_domain.continuation import ContinuationOutcome
from agent_domain.ids import call_id, step_id
from agent_domain.messages import Messages, tool_message
from agent_domain.ports import CallRecord, CallRow, ExecutionRef, ExecutionStore, Material, StepRow
from agent_domain.snapshots import SlimAgentStateSerializer, slim
from agent_domain.state import CANCELLED_CALL, AgentState
from agent_domain.status import ExecutionStatus
from agent_domain.step_facts import StepFacts
from agent_domain.steps import AgentStep, InferenceResponse, StepExecution
from agent_domain.tools import ToolCall, ToolExecution
from agent_domain.values import EMPTY, FrozenDict, frozen_document, frozen_map

SLIM_STEPS = 20
"""As many steps as a slim snapshot tells of."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Snapshots:
    """Makes the snapshots of executions: slim ones, and full ones in debug mode."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store

    async def keep_before(self, request: InferInput, material: Material) -> None:
        """In debug mode, keep the state after the step before; a second attempt finds it kept."""
        number = request.number - 1
        if not material.is_debug or number == 0:
            return
        rows = await self.store.steps(request.ref, with_responses=True)
        await self.store.keep_snapshot(request.ref, number, _written(after_step(request, material, rows)))

    async def settled(self, request: SettleInput, material: Material) -> FrozenDict | None:
        """The final snapshot, and one of each pause."""
        if request.stop_reason is None and request.status is not ExecutionStatus.PAUSED:
            return None
        if material.is_debug:
            rows = await self.store.steps(request.ref, with_responses=True)
            return _written(after_settlement(request, material, rows))
        rows = await self.store.steps(request.ref, last=SLIM_STEPS)
        state = step_state(request.ref, request.step_count + 1, material)
        facts = replace(state.facts, status=request.agent_status, usage=request.usage)
        steps = [slim(answered(row, row.facts), row.duration_ms) for row in rows if row.facts]
        return frozen_map(SlimAgentStateSerializer().serialize(replace(state, facts=facts), steps))


def _written(state: AgentState) -> FrozenDict:
    return frozen_document(state.to_dict(), "the snapshot")


# The full state at a moment.


def after_step(request: InferInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """The state between the step before and the one that begins, which may have heard somebody already."""
    done = [row for row in rows if row.number < request.number]
    heard = sum(row.heard for row in rows if row.number == request.number)
    return _recorded(request.ref, _without_last(material, heard), _judged(done, request.outcome))


def after_settlement(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """The state as a settlement leaves it, made before that is written."""
    shown = [row for row in rows if row.facts]
    ended = request.stop_reason is not None
    state = _ended(request, material, shown) if ended else _paused(request, material, shown)
    return replace(state, facts=replace(state.facts, status=request.agent_status))


def _paused(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """The last step may still be under way; what it says joins the conversation once it is complete."""
    current = rows[-1] if rows and rows[-1].outcome is None else None
    if current is None:
        state, unanswered = _recorded(request.ref, material, rows), []
    else:
        before = _without_last(material, len(current.messages) - current.heard)
        state = _recorded(request.ref, before, rows[:-1]).with_current_step(_step(request.ref, current))
        unanswered = _unanswered(current)
    # Otherwise it waits: for people who are asked, or for those that its children ask.
    by_somebody = not request.waiting and not any(call.attempts for call in unanswered)
    return state.paused() if by_somebody else state


def _ended(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """No call is left unanswered, and whatever ended the execution is its last step."""
    said = [message for row in rows for message in _cancelled(row)]
    material = replace(material, messages=(*material.messages, *said))
    closed = _with_failure(request, [_closed(row) for row in rows])
    state = _recorded(request.ref, material, _judged(closed, request.outcome))
    state = replace(state, execution=replace(state.execution, completed_at=now()))
    outcome = evaluation(request.outcome)
    return state.with_continuation_outcome(ContinuationOutcome.from_dict(outcome)) if outcome else state


def _with_failure(request: SettleInput, rows: Sequence[StepRow]) -> Sequence[StepRow]:
    """The steps with the failure that only the workflow knows: the step under way, or one more."""
    failure, at = request.step, now()
    if failure is None:
        return rows
    before = _judged([row for row in rows if row.number < failure.number], request.outcome)
    fresh = StepRow(failure.number, 1, None, (), None, "", at, at)
    failed = next((row for row in rows if row.number == failure.number), fresh)
    return [*before, replace(failed, facts=failure, errors=tuple(failures(request)))]


def _unanswered(row: StepRow) -> list[CallRow]:
    return [call for call in row.calls if call.record is None]


def _closed(row: StepRow) -> StepRow:
    """The step with every call answered, as the end of an execution leaves it."""
    at = now()

    def ended(call: CallRow) -> CallRow:
        told = CallRecord(call.call.id, None, None, CANCELLED_CALL, at, at, 0.0, success=False)
        return replace(call, record=call.record or told)

    return replace(row, calls=tuple(map(ended, row.calls)), messages=(*row.messages, *_cancelled(row)))


def _cancelled(row: StepRow) -> Messages:
    """What the conversation says of calls that nobody answers any more."""
    unanswered = (call.call for call in _unanswered(row))
    return tuple(tool_message(CANCELLED_CALL, call.id, call.name) for call in unanswered)


def _judged(rows: Sequence[StepRow], outcome: FrozenDict | None) -> Sequence[StepRow]:
    """The steps with what was decided after the last one, where the store does not have that yet."""
    if not rows:
        return ()
    last, judged = rows[-1], rows[-1].outcome or evaluation(outcome)
    return [*rows[:-1], replace(last, outcome=judged, completed_at=last.completed_at or now())]


def _without_last(material: Material, count: int) -> Material:
    return replace(material, messages=material.messages[: len(material.messages) - count])


# Rows as the steps that they keep.


def _recorded(ref: ExecutionRef, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """The state in which these steps are over. They count anew; the conversation has what they said."""
    state = bare_state(ref, material).entered(rows[0].started_at if rows else now())
    for row in rows:
        outcome = ContinuationOutcome.from_dict(row.outcome) if row.outcome else None
        completed_at = row.completed_at or now()
        record = StepExecution(row.number, _step(ref, row), outcome, row.started_at, completed_at)
        state = state.with_step_recorded(record)
    return state.at(now())


def _step(ref: ExecutionRef, row: StepRow) -> AgentStep:
    """The step, but for what it was asked: the conversation holds that, and copies grow with its square."""
    facts = row.facts or StepFacts(row.number)
    response = InferenceResponse.from_dict(row.response or EMPTY)
    told = () if facts.own_errors else tuple(_told(ref, row, response))
    records = [call.record for call in row.calls if call.record]
    step = AgentStep(
        id=step_id(ref.execution_id, row.number),
        created_at=row.started_at,
        inference_response=None if facts.is_failure else response,
        tool_executions=told,
        own_errors=row.errors if facts.own_errors else (),
        own_type=facts.own_type,
        own_usage=None if facts.usage == response.usage else facts.usage,
        is_failure=facts.is_failure,
        runs_tools=not facts.calls or bool(row.calls or told),
        seconds=facts.seconds + _worked(records),
        needs=frozen_map({call.id: call.need for call in facts.calls}),
    )
    if not facts.is_failure:
        step = step.observed(_execution(call.call, call.record) for call in row.calls if call.record)
    return replace(step, output_messages=row.messages[row.heard :]) if step.is_complete else step


def _told(ref: ExecutionRef, row: StepRow, response: InferenceResponse) -> Iterable[ToolExecution]:
    """What had failed when the model had answered, such as a decision that cannot be used."""
    ran = {call.call.id for call in row.calls}
    made = {call.name: call for call in response.tool_calls if call.id not in ran}
    for error in row.errors:
        name = error.tool_name or ""
        unmade = ToolCall(call_id(ref.execution_id, row.number, 0), name)
        yield ToolExecution(made.get(name, unmade), error=error)


def _execution(call: ToolCall, record: CallRecord) -> ToolExecution:
    execution = ToolExecution(call, record.result, record.error, record.started_at, record.completed_at)
    if not record.text.endswith(execution.text):
        # Cut short: all there is, is what the model was told.
        return replace(execution, result=record.text)
    return replace(execution, note=record.text.removesuffix(execution.text))


def _worked(records: Iterable[CallRecord]) -> float:
    """Seconds of work; where calls ran at the same time, it counts once."""
    seconds, until = 0.0, LONG_AGO
    for record in sorted(records, key=attrgetter("started_at")):
        ended_at = record.started_at + timedelta(seconds=record.seconds)
        seconds += max(0.0, (ended_at - max(record.started_at, until)).total_seconds())
        until = max(until, ended_at)
    return seconds
