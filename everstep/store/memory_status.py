"""Status changes and snapshots in the memory store."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Messages, tool_message
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.calls import CallRecord
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import CancelComesFirst, Settlement
from everstep.agent_domain.storage.sessions import Settled
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.store import bodies, ledger_entries, transcripts
from everstep.store.bodies import encode
from everstep.store.ledger_entries import settlement_texts
from everstep.store.memory_budgets import MemoryBudgets
from everstep.store.memory_ledger import end_digest
from everstep.store.memory_records import (
    MemoryCall,
    MemoryExecution,
    MemoryStep,
    as_stored_document,
    close_request,
)
from everstep.store.transcripts import TranscriptLine


class MemoryStatus(MemoryBudgets):
    """Status changes and snapshots."""

    async def settle(self, settlement: Settlement) -> Settled | None:
        """Change the execution's status; see `ExecutionStore.settle`."""
        execution = self._require_execution(settlement.ref)
        if not _may_settle(execution, settlement):
            return _repeat_pause(execution, settlement)
        bodies_of = _settlement_bodies(settlement)
        closing = _calls_to_close(execution, settlement)
        news = bodies.envelopes_from(settlement.ref.execution_id, settlement.events)

        now, ends = self._now(), settlement.status.is_terminal
        execution.settlements.add(settlement.key)
        if settlement.step:
            step = execution.steps.setdefault(settlement.step.number, MemoryStep(now))
            step.facts, step.errors, step.partial_text = bodies_of.facts, bodies_of.errors, ""
            step.next_index = step.after_seq = None
        for call, text, lines in closing:
            call.state, call.started_at = "done", call.started_at or now
            call.record = CallRecord(
                call.call.id, None, None, text, call.started_at, now, 0.0, success=False, note=""
            )
            execution.add_lines(call.step, lines)
            close_request(execution, call)
        if settlement.outcome is not None or ends:
            _complete_steps(execution, settlement, bodies_of.outcome, now)
        execution.status = settlement.status
        if settlement.status is ExecutionStatus.RUNNING:
            execution.started_at = execution.started_at or now
        execution.completed_at = now if ends else None
        if settlement.step_count is not None:
            execution.step_count = settlement.step_count
        if settlement.usage is not None:
            _raise_usage(execution, settlement.usage)
        if settlement.stop_reason:
            execution.stop_reason = settlement.stop_reason
            execution.metadata = execution.metadata.merged({"stop_reason": settlement.stop_reason})
        execution.worked_seconds = settlement.worked_seconds or execution.worked_seconds
        execution.output = bodies_of.output or execution.output
        execution.error_message = settlement.error_message or execution.error_message
        execution.error_told = settlement.error_told or execution.error_told
        execution.outcome = bodies_of.outcome if ends else None
        if settlement.snapshot is not None:
            execution.last_snapshot_id = bodies.snapshot_id(execution.ref.execution_id, settlement.key)
        self._apply_to_budgets(execution, settlement)
        _confirm_all(execution, ends=ends)
        self._append_envelopes(execution, news)
        self._record_settlement(execution, settlement, closing)
        return Settled(frees_place=self._change_place(execution), has_ended=ends)

    def _record_settlement(
        self,
        execution: MemoryExecution,
        settlement: Settlement,
        closing: Sequence[tuple[MemoryCall, str, tuple[TranscriptLine, ...]]],
    ) -> None:
        """Append to the ledger: closed calls first, the status or the end last."""
        entries = [
            ledger_entries.call_end_entry(
                call.step, call.call.id, text, [(call.step, line) for line in lines]
            )
            for call, text, lines in sorted(closing, key=lambda each: (each[0].step, each[0].idx))
        ]
        shown = [number for number, step in execution.steps.items() if step.facts]
        judged = settlement.step.number if settlement.step else max(shown, default=None)
        entries += ledger_entries.status_entries(settlement, settlement_texts(settlement), judged)
        if settlement.status.is_terminal:
            reason = execution.stop_reason and str(execution.stop_reason)
            tokens = execution.usage.get("total", 0)
            end = ledger_entries.EndFacts(reason, execution.step_count, tokens, execution.cost_usd)
            entries.append(ledger_entries.end_entry(settlement, end, end_digest(execution)))
        execution.record(self._now(), *entries)

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Store the full state after a step for debugging; return False if this step has a snapshot."""
        execution = self._require_open(ref)
        as_stored_document(state, "the snapshot")
        identity = bodies.snapshot_id(ref.execution_id, f"step/{number}")
        if identity in execution.kept_snapshots:
            return False
        execution.kept_snapshots.add(identity)
        execution.last_snapshot_id = identity
        return True


@dataclass(frozen=True, slots=True)
class _SettlementBodies:
    facts: StepFacts | None
    errors: tuple[StepError, ...]
    outcome: FrozenDict | None
    output: FrozenDict | None


def _settlement_bodies(settlement: Settlement) -> _SettlementBodies:
    as_stored_document(settlement.snapshot, "the snapshot")
    encode(settlement.error_message, "the error message")
    step = settlement.step
    return _SettlementBodies(
        bodies.parse_facts(json.loads(bodies.dump_facts(step))) if step else None,
        bodies.parse_errors(json.loads(bodies.dump_errors(settlement.errors))),
        as_stored_document(settlement.outcome, "the outcome"),
        as_stored_document(settlement.output, "the output"),
    )


def _calls_to_close(
    execution: MemoryExecution, settlement: Settlement
) -> list[tuple[MemoryCall, str, tuple[TranscriptLine, ...]]]:
    """Return the calls that will get no result, with the text and messages that replace it."""
    messages_by_call = {call_id: messages for call_id, _, messages in settlement.cancelled_calls}
    ends, step = settlement.status.is_terminal, settlement.step
    closing = [
        call
        for call in execution.calls.values()
        if not call.record
        and (ends or call.call.id in messages_by_call or (step and step.number == call.step))
    ]
    return [(call, *_cancellation(call, messages_by_call.get(call.call.id, ()))) for call in closing]


def _raise_usage(execution: MemoryExecution, usage: Usage) -> None:
    """Set the usage unless it is lower: it never decreases, even if a step was abandoned."""
    before = execution.usage.get("total", 0)
    if usage.total > before:
        execution.cost_usd = usage.cost_usd
    if usage.total >= before:
        execution.usage = frozen_map(usage.to_breakdown())


def _confirm_all(execution: MemoryExecution, *, ends: bool) -> None:
    """Mark all commands at the end: no workflow is left to receive them."""
    for command in execution.commands.values():
        command.is_delivered = command.is_delivered or ends


def _may_settle(execution: MemoryExecution, settlement: Settlement) -> bool:
    if settlement.only_pending and execution.status is not ExecutionStatus.PENDING:
        return False
    if execution.status.is_terminal or settlement.key in execution.settlements:
        return False
    if settlement.yields_to_cancel and execution.is_cancel_stored:
        raise CancelComesFirst(settlement.ref.execution_id)
    return True


def _repeat_pause(execution: MemoryExecution, settlement: Settlement) -> None:
    """Have the answers delivered again to a workflow that waits for people, and whose pause is stored."""
    if settlement.status is not ExecutionStatus.PAUSED or execution.status.is_terminal:
        return
    last = None
    for command in execution.commands.values():
        if command.kind in (CommandKind.PAUSE, CommandKind.RESUME):
            last = command
    for command in execution.commands.values():
        if command.kind in (CommandKind.INPUT, CommandKind.APPROVAL, CommandKind.BUDGET) or (
            command is last and command.kind is CommandKind.RESUME
        ):
            command.is_delivered = False


def _cancellation(call: MemoryCall, messages: Messages) -> tuple[str, tuple[TranscriptLine, ...]]:
    said = messages or (tool_message(CANCELLED_CALL, call.call.id, call.call.name),)
    return said[-1].text, transcripts.result_lines(said, call.idx)


def _complete_steps(
    execution: MemoryExecution, settlement: Settlement, outcome: FrozenDict | None, now: datetime
) -> None:
    """Complete every step with facts, and give the outcome to the evaluated one."""
    shown = {number: step for number, step in execution.steps.items() if step.facts}
    for number, step in shown.items():
        step.completed_at = step.completed_at or now
        is_judged = number == (settlement.step.number if settlement.step else max(shown))
        if is_judged and (settlement.replaces_outcome or step.outcome is None):
            step.outcome, step.boundary = outcome, settlement.boundary
