"""Status changes and snapshots in PostgreSQL."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message, tool_message
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.executions import CancelComesFirst, Settlement
from everstep.agent_domain.storage.ledger import NewEntry
from everstep.agent_domain.storage.sessions import Settled
from everstep.agent_domain.storage.steps import RESULTS_FROM
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    budget_statements,
    budget_values,
    command_statements,
    execution_statements,
    ledger_entries,
    parameters,
    status_statements,
    stream_statements,
    transcripts,
)
from everstep.store.parameters import execution_key
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.postgres_writing import (
    PostgresWriter,
    require_active,
    require_execution,
    transcript_writes,
)
from everstep.store.session_rows import launch_row
from everstep.store.transaction import BoundStatement, QueryResult, Transaction
from everstep.store.transcripts import TranscriptLine
from everstep.telemetry.execution_ends import EndedExecution, record_end


class PostgresStatus(PostgresWriter):
    """Status changes and snapshots."""

    async def settle(self, settlement: Settlement) -> Settled | None:
        """Change the execution's status; see `ExecutionStore.settle`.

        The end of an execution releases the next one of its session in the same transaction.
        """
        ref, is_kept = settlement.ref, settlement.snapshot is not None
        concerns_session = is_kept or settlement.status.is_terminal
        session = [(execution_statements.LOCK_ITS_SESSION, execution_key(ref))] if concerns_session else []
        async with self._transaction() as connection:
            *_, locked, first = await connection.together(
                *session,
                (execution_statements.LOCK_EXECUTION, execution_key(ref)),
                (
                    status_statements.SETTLE_ONCE,
                    execution_key(ref) | parameters.settlement_values(settlement),
                ),
            )
            execution = require_execution(ref, locked.first())
            if first.first() is None:
                await _require_no_cancel(connection, settlement)
                if settlement.status is ExecutionStatus.PAUSED:
                    # The report of the pause was lost, or Temporal was restored and knows less.
                    await connection.together(
                        (command_statements.DELIVER_AGAIN, execution_key(ref)), last=True
                    )
                return None
            snapshot_id = bodies.snapshot_id(ref.execution_id, settlement.key) if is_kept else None
            changes = _settlement_writes(settlement, execution.metadata, snapshot_id)
            reads = self._queue_reads(execution) if settlement.status.is_terminal else []
            answers = await connection.together(*(statement for _, statement in changes), *reads)
            by_name = {name: answer for (name, _), answer in zip(changes, answers, strict=False)}
            closed, standing, queue = by_name["calls"], by_name["status"], answers[len(changes) :]
            release = await self._release_next(connection, ref, queue) if queue else []
            lines = _cancellation_lines(settlement, closed.all())
            said = transcript_writes(ref, lines)
            kept = _snapshot_writes(settlement, execution, snapshot_id, standing.one())
            news = bodies.session_envelopes_from(ref.execution_id, settlement.events)
            told = execution_key(ref) | parameters.envelope_values(news) | {"stream_id": execution.stream_id}
            append = (stream_statements.APPEND, told)
            asked = (*said, *kept, *release, append)
            budgets = _budget_writes(settlement, execution)
            entries = _settlement_entries(
                settlement, closed.all(), lines, by_name.get("steps"), standing.one()
            )
            others = (*budgets, *ledger_writes(ref, entries))
            answers = await self._execute_with_append(connection, ref, *asked, *others, last=True)
            *others, placed = answers[: len(asked)]
            self._push_after_commit(connection, ref, news, placed)
            launch = others[-1].first() if release else None
        if settlement.status.is_terminal:
            # Only now: the transaction is committed, and another settlement of the same end changes nothing.
            record_end(_ended_execution(settlement, execution, standing.one()))
        return Settled(
            bool(reads),
            launch_row(launch) if launch else None,
            frees_place=standing.one().frees_place,
            has_ended=settlement.status.is_terminal,
        )

    def _queue_reads(self, execution: Row[Any]) -> list[BoundStatement]:
        """Return the reads of the queue of the execution's session; nothing where there are no sessions."""
        del execution
        return []

    async def _release_next(
        self, connection: Transaction, ref: ExecutionRef, queue: Sequence[QueryResult]
    ) -> list[BoundStatement]:
        """Return the statements that release the next execution and read its launch, or none."""
        del connection, ref, queue
        return []

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Store the full state after a step for debugging; return False if this step has a snapshot."""
        async with self._transaction() as connection:
            _, locked = await connection.together(
                (execution_statements.LOCK_ITS_SESSION, execution_key(ref)),
                (execution_statements.LOCK_EXECUTION, execution_key(ref)),
            )
            execution = require_execution(ref, locked.first())
            require_active(ref, execution)
            snapshot_id = bodies.snapshot_id(ref.execution_id, f"step/{number}")
            values = parameters.snapshot_values(execution, snapshot_id, number, state, is_debug=True)
            (kept,) = await connection.together(
                (status_statements.KEEP_SNAPSHOT, execution_key(ref) | values), last=True
            )
            return kept.first() is not None


def _ended_execution(settlement: Settlement, execution: Row[Any], totals: Row[Any]) -> EndedExecution:
    return EndedExecution(
        settlement.ref,
        str(execution.plan.get("agent", "")),
        str(settlement.status),
        str(totals.stop_reason),
        steps=totals.step_count,
        tokens=totals.token_usage,
        worked_seconds=totals.worked_seconds,
    )


async def _require_no_cancel(connection: Transaction, settlement: Settlement) -> None:
    """Raise if a settlement that could not be stored yields to a stored cancel."""
    if not settlement.yields_to_cancel:
        return
    values = execution_key(settlement.ref) | {"key": settlement.key}
    (found,) = await connection.together((status_statements.CANCEL_COMES_FIRST, values), last=True)
    if found.first():
        raise CancelComesFirst(settlement.ref.execution_id)


def _settlement_writes(
    settlement: Settlement, notes: dict[str, Any], snapshot_id: UUID | None
) -> list[tuple[str, BoundStatement]]:
    """Return the writes of a settlement by what they change: calls first, the execution last."""
    ref = settlement.ref
    changes = [("calls", status_statements.CLOSE_CALLS, parameters.closing_values(settlement))]
    if settlement.step:
        values = parameters.failed_step_values(settlement, settlement.step)
        changes.append(("step", status_statements.RECORD_STEP, values))
    if settlement.outcome is not None or settlement.status.is_terminal:
        changes.append(("steps", status_statements.COMPLETE_STEPS, parameters.outcome_values(settlement)))
    if settlement.status.is_terminal:
        changes.append(("commands", command_statements.MARK_ALL_DELIVERED, {}))
    values = parameters.status_values(settlement, notes, snapshot_id)
    changes.append(("status", status_statements.SETTLE_EXECUTION, values))
    return [(name, (statement, execution_key(ref) | values)) for name, statement, values in changes]


def _settlement_entries(
    settlement: Settlement,
    closed: Sequence[Row[Any]],
    lines: Sequence[tuple[int, TranscriptLine]],
    steps: QueryResult | None,
    standing: Row[Any],
) -> list[NewEntry]:
    """Return the ledger's entries of a settlement: closed calls first, the status or the end last."""
    entries = [
        ledger_entries.call_end_entry(
            call.step,
            call.call_id,
            call.text,
            [
                (step, line)
                for step, line in lines
                if (step, line.idx // RESULTS_FROM - 1) == (call.step, call.idx)
            ],
        )
        for call in closed
    ]
    judged = steps.first() if steps else None
    values = ledger_entries.settlement_texts(settlement)
    entries += ledger_entries.status_entries(settlement, values, judged and judged.judged)
    if settlement.status.is_terminal:
        end = ledger_entries.EndFacts(
            standing.stop_reason, standing.step_count, standing.token_usage, standing.cost_usd
        )
        entries.append(ledger_entries.end_entry(settlement, end, standing.end_digest))
    return entries


def _budget_writes(settlement: Settlement, execution: Row[Any]) -> list[BoundStatement]:
    """Return the writes that open a request to raise a budget, or release what model calls reserved."""
    ref, ends = settlement.ref, settlement.status.is_terminal
    if settlement.budget_request:
        values = execution_key(ref) | budget_values.request_values(settlement.budget_request)
        return [(budget_statements.OPEN_REQUEST, values)]
    if not (execution.plan.get("budgets") or execution.operator_units) or not (ends or settlement.step):
        return []
    closing = [(budget_statements.CLOSE_REQUESTS, execution_key(ref))] if ends else []
    return [*budget_values.releasing(ref), *closing]


def _snapshot_writes(
    settlement: Settlement, execution: Row[Any], snapshot_id: UUID | None, totals: Row[Any]
) -> list[BoundStatement]:
    """Return the writes of the snapshot and of the session's totals."""
    ref, asked = settlement.ref, list[BoundStatement]()
    if snapshot_id and settlement.snapshot is not None:
        values = parameters.snapshot_values(
            execution,
            snapshot_id,
            totals.step_count,
            settlement.snapshot,
            is_final=settlement.is_final,
            is_debug=settlement.is_debug,
        )
        asked.append((status_statements.SNAPSHOT, execution_key(ref) | values))
    ends = settlement.status.is_terminal
    if (ends or snapshot_id) and execution.session_id and not execution.parent_execution_id:
        values = {
            "session_id": execution.session_id,
            "snapshot_id": snapshot_id,
            "worked_seconds": totals.worked_seconds if ends else 0.0,
        }
        asked.append((status_statements.SETTLE_SESSION, execution_key(ref) | values))
    return asked


def _cancellation_lines(
    settlement: Settlement, closed: Sequence[Row[Any]]
) -> list[tuple[int, TranscriptLine]]:
    """Return result messages for calls without a result, so that the conversation has no open calls."""
    messages_by_call = {call_id: messages for call_id, _, messages in settlement.cancelled_calls}
    return [
        (call.step, line)
        for call in closed
        for line in transcripts.result_lines(
            messages_by_call.get(call.call_id) or _cancellation_messages(call), call.idx
        )
    ]


def _cancellation_messages(call: Row[Any]) -> tuple[Message, ...]:
    return (tool_message(CANCELLED_CALL, call.call_id, call.name),)
