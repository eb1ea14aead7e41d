"""Builds snapshots of executions from stored rows: slim ones, and full ones in debug mode."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from everstep.activities.call_records import now
from everstep.activities.contracts import InferInput, SettleInput
from everstep.activities.state_loading import recorded_state, under_way, without_last
from everstep.activities.step_state import answered, evaluation, failures, step_state
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.messages import Messages, tool_message
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, slim
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import Material, StepRow
from everstep.agent_domain.values import FrozenDict, frozen_document, frozen_map

SLIM_STEPS = 20
"""The number of steps in a slim snapshot."""


STEPS_OF_SNAPSHOT = SLIM_STEPS + 1
"""One step more than a snapshot shows, as the last one may be incomplete."""


def has_snapshot(request: SettleInput) -> bool:
    """Whether a settlement has a snapshot."""
    return request.stop_reason is not None or request.status is ExecutionStatus.PAUSED


class Snapshots:
    """Builds slim snapshots, and full ones in debug mode."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store

    async def keep_before(self, request: InferInput, material: Material) -> None:
        """Store the state after the previous step, in debug mode; a second attempt finds it stored."""
        number = request.number - 1
        if not material.is_debug or number == 0:
            return
        rows = await self.store.steps(request.ref, with_responses=True)
        await self.store.keep_snapshot(request.ref, number, _written(after_step(request, material, rows)))

    async def settled(
        self, request: SettleInput, material: Material, rows: Sequence[StepRow]
    ) -> FrozenDict | None:
        """Build the snapshot of a settlement from the last steps; None unless it ends or pauses."""
        if not has_snapshot(request):
            return None
        if material.is_debug:
            rows = await self.store.steps(request.ref, with_responses=True)
            return _written(after_settlement(request, material, rows))
        return _slim(request, material, [row for row in rows if row.facts])


def _written(state: AgentState) -> FrozenDict:
    return frozen_document(state.to_dict(), "the snapshot")


def _clocked(state: AgentState, info: StateInfo) -> AgentState:
    """Set the execution's clocks, which cannot be derived from rows alone."""
    return replace(state, facts=replace(state.facts, state_info=replace(info, id=state.agent_id)))


def _slim(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> FrozenDict:
    if request.stop_reason is not None:
        said = [message for row in rows for message in _cancelled(row)]
        material = replace(material, messages=(*material.messages, *said))
        rows = _with_failure(request, [_closed(row) for row in rows])
    steps, current = list[Mapping[str, Any]](), None
    for row in rows:
        facts = answered(row, row.facts or StepFacts(row.number))
        if facts.is_complete:
            completed_at = row.completed_at or now()
            steps.append(slim(facts, replace(row, completed_at=completed_at).duration_ms))
        else:
            current = slim(facts, None)
    state = step_state(request.ref, request.step_count + 1, material)
    info = request.info.add_execution_time(request.seconds_under_way)
    facts = replace(state.facts, status=request.agent_status, usage=request.usage)
    state = _clocked(replace(state, facts=facts), info)
    return frozen_map(SlimAgentStateSerializer().serialize(state, steps[-SLIM_STEPS:], current))


# Full states.


def after_step(request: InferInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """Build the state before a starting step, which may have read messages already."""
    done = [row for row in rows if row.number < request.number]
    heard = sum(row.heard for row in rows if row.number == request.number)
    state = recorded_state(request.ref, without_last(material, heard), _judged(done, request.outcome))
    return _clocked(state, request.info) if request.info else state


def after_settlement(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """Build the state that a settlement leaves, before the settlement is stored."""
    shown = [row for row in rows if row.facts]
    ended = request.stop_reason is not None
    state = _ended(request, material, shown) if ended else _paused(request, material, shown)
    state = replace(state, facts=replace(state.facts, status=request.agent_status))
    return _clocked(state, request.info)


def _paused(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """The last step may be incomplete; its messages join the conversation once it is complete."""
    current = rows[-1] if rows and rows[-1].outcome is None else None
    if current is None:
        state, unanswered = recorded_state(request.ref, material, rows), []
    else:
        state, unanswered = under_way(request.ref, material, rows[:-1], current), _unanswered(current)
    # Otherwise it waits for people, or for people whom its children wait for.
    by_somebody = not request.waiting and not any(call.attempts for call in unanswered)
    return state.paused() if by_somebody else state


def _ended(request: SettleInput, material: Material, rows: Sequence[StepRow]) -> AgentState:
    """Close every open call, and add the failure that ended the execution as its last step."""
    said = [message for row in rows for message in _cancelled(row)]
    material = replace(material, messages=(*material.messages, *said))
    closed = _with_failure(request, [_closed(row) for row in rows])
    state = recorded_state(request.ref, material, _judged(closed, request.outcome))
    state = replace(state, execution=replace(state.execution, completed_at=now()))
    outcome = evaluation(request.outcome)
    return state.with_continuation_outcome(ContinuationOutcome.from_dict(outcome)) if outcome else state


def _with_failure(request: SettleInput, rows: Sequence[StepRow]) -> Sequence[StepRow]:
    """Add the failure that only the workflow knows: to the current step, or as one more step."""
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
    """Add a cancelled result to every open call of the step."""
    at = now()

    def ended(call: CallRow) -> CallRow:
        told = CallRecord(call.call.id, None, None, CANCELLED_CALL, at, at, 0.0, success=False)
        return replace(call, record=call.record or told)

    return replace(row, calls=tuple(map(ended, row.calls)), messages=(*row.messages, *_cancelled(row)))


def _cancelled(row: StepRow) -> Messages:
    """Build the messages of calls that will not be answered any more."""
    unanswered = (call.call for call in _unanswered(row))
    return tuple(tool_message(CANCELLED_CALL, call.id, call.name) for call in unanswered)


def _judged(rows: Sequence[StepRow], outcome: FrozenDict | None) -> Sequence[StepRow]:
    """Add the evaluation after the last step, which the store may not have yet."""
    if not rows:
        return ()
    last, judged = rows[-1], rows[-1].outcome or evaluation(outcome)
    return [*rows[:-1], replace(last, outcome=judged, completed_at=last.completed_at or now())]
