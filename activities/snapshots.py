"""Builds snapshots of executions from stored rows: slim ones, and full ones in debug mode."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from everstep.activities.call_records import now
from everstep.activities.contracts import InferInput, SettleInput
from everstep.activities.state_loading import recorded_state, state_in_progress
from everstep.activities.step_state import evaluation, facts_with_results, failures, step_state
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.messages import Messages, tool_message
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, slim_step_facts
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import StepInput, StepRow
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

    async def store_before(self, request: InferInput, material: StepInput) -> None:
        """Store the state after the previous step, in debug mode; a second attempt finds it stored."""
        number = request.number - 1
        if not material.is_debug or number == 0:
            return
        rows = await self.store.steps(request.ref, with_responses=True)
        await self.store.keep_snapshot(
            request.ref, number, _full_snapshot(state_after_step(request, material, rows))
        )

    async def build_for_settlement(
        self, request: SettleInput, material: StepInput, rows: Sequence[StepRow]
    ) -> FrozenDict | None:
        """Build the snapshot of a settlement from the last steps; None unless it ends or pauses."""
        if not has_snapshot(request):
            return None
        if material.is_debug:
            rows = await self.store.steps(request.ref, with_responses=True)
            return _full_snapshot(state_after_settlement(request, material, rows))
        return _slim_snapshot(request, material, [row for row in rows if row.facts])


def _full_snapshot(state: AgentState) -> FrozenDict:
    return frozen_document(state.to_dict(), "the snapshot")


def _with_clocks(state: AgentState, info: StateInfo, marks: FrozenDict) -> AgentState:
    """Set the execution's clocks and marks, which cannot be derived from rows alone."""
    return state.with_facts(replace(state.facts, state_info=replace(info, id=state.agent_id), marks=marks))


def _slim_snapshot(request: SettleInput, material: StepInput, rows: Sequence[StepRow]) -> FrozenDict:
    if request.stop_reason is not None:
        cancellations = [message for row in rows for message in _cancellation_messages(row)]
        material = replace(material, messages=(*material.messages, *cancellations))
        rows = _with_failure(request, [_close_calls(row) for row in rows])
    steps, current = list[Mapping[str, Any]](), None
    for row in rows:
        facts = facts_with_results(row, row.facts or StepFacts(row.number))
        if facts.is_complete:
            completed_at = row.completed_at or now()
            duration = replace(row, completed_at=completed_at).duration_ms
            steps.append(_with_decisions(row, slim_step_facts(facts, duration)))
        else:
            current = _with_decisions(row, slim_step_facts(facts, None))
    state = step_state(request.ref, request.step_count + 1, material)
    info = request.info.add_execution_time(request.seconds_under_way)
    facts = replace(state.facts, status=request.agent_status, usage=request.usage)
    state = _with_clocks(state.with_facts(facts), info, request.marks)
    return frozen_map(SlimAgentStateSerializer().serialize(state, steps[-SLIM_STEPS:], current))


def _with_decisions(row: StepRow, step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what people decided about the calls of a step."""
    decisions = {call.call.id: call.decision.to_dict() for call in row.calls if call.decision}
    calls = [{**call, **decisions.get(call["id"], {})} for call in step["tool_calls"]]
    return {**step, "tool_calls": calls} if decisions else step


# Full states.


def state_after_step(request: InferInput, material: StepInput, rows: Sequence[StepRow]) -> AgentState:
    """Build the state before a starting step, which may have read messages already."""
    done = [row for row in rows if row.number < request.number]
    before = material.before_step(request.number)
    state = recorded_state(request.ref, before, _with_evaluation(done, request.outcome))
    return _with_clocks(state, request.info, request.marks) if request.info else state


def state_after_settlement(request: SettleInput, material: StepInput, rows: Sequence[StepRow]) -> AgentState:
    """Build the state that a settlement leaves, before the settlement is stored."""
    shown = [row for row in rows if row.facts]
    is_final = request.stop_reason is not None
    state = _final_state(request, material, shown) if is_final else _paused_state(request, material, shown)
    state = replace(state, facts=replace(state.facts, status=request.agent_status))
    return _with_clocks(state, request.info, request.marks)


def _paused_state(request: SettleInput, material: StepInput, rows: Sequence[StepRow]) -> AgentState:
    """The last step may be incomplete; its messages join the conversation once it is complete."""
    current = rows[-1] if rows and rows[-1].outcome is None else None
    if current is None:
        state, open_calls = recorded_state(request.ref, material, rows), []
    else:
        state, open_calls = state_in_progress(request.ref, material, rows[:-1], current), _open_calls(current)
    # Otherwise it waits for people, itself or through its children.
    is_requested = not request.waiting and not any(call.attempts for call in open_calls)
    return state.paused() if is_requested else state


def _final_state(request: SettleInput, material: StepInput, rows: Sequence[StepRow]) -> AgentState:
    """Close every open call, and add the failure that ended the execution as its last step."""
    cancellations = [message for row in rows for message in _cancellation_messages(row)]
    material = replace(material, messages=(*material.messages, *cancellations))
    closed = _with_failure(request, [_close_calls(row) for row in rows])
    state = recorded_state(request.ref, material, _with_evaluation(closed, request.outcome))
    state = replace(state, execution=replace(state.execution, completed_at=now()))
    outcome = evaluation(request.outcome)
    return state.with_continuation_outcome(ContinuationOutcome.from_dict(outcome)) if outcome else state


def _with_failure(request: SettleInput, rows: Sequence[StepRow]) -> Sequence[StepRow]:
    """Add the failure that only the workflow knows: to the current step, or as one more step."""
    failure, at = request.step, now()
    if failure is None:
        return rows
    before = _with_evaluation([row for row in rows if row.number < failure.number], request.outcome)
    fresh = StepRow(failure.number, 1, None, (), None, "", at, at)
    failed = next((row for row in rows if row.number == failure.number), fresh)
    return [*before, replace(failed, facts=failure, errors=tuple(failures(request)))]


def _open_calls(row: StepRow) -> list[CallRow]:
    return [call for call in row.calls if call.record is None]


def _close_calls(row: StepRow) -> StepRow:
    """Add a cancelled result to every open call of the step."""
    at = now()

    def close_call(call: CallRow) -> CallRow:
        record = CallRecord(call.call.id, None, None, CANCELLED_CALL, at, at, 0.0, success=False, note="")
        return replace(call, record=call.record or record)

    return replace(
        row, calls=tuple(map(close_call, row.calls)), messages=(*row.messages, *_cancellation_messages(row))
    )


def _cancellation_messages(row: StepRow) -> Messages:
    """Build the messages of calls that will not be answered any more."""
    calls = (call.call for call in _open_calls(row))
    return tuple(tool_message(CANCELLED_CALL, call.id, call.name) for call in calls)


def _with_evaluation(rows: Sequence[StepRow], outcome: FrozenDict | None) -> Sequence[StepRow]:
    """Add the evaluation after the last step, which the store may not have yet."""
    if not rows:
        return ()
    last, evaluated = rows[-1], rows[-1].outcome or evaluation(outcome)
    return [*rows[:-1], replace(last, outcome=evaluated, completed_at=last.completed_at or now())]
