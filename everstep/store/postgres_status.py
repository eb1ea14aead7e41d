"""Status changes and snapshots in PostgreSQL."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.messages.messages import Message, tool_message
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.executions import CancelComesFirst, Settlement
from everstep.agent_domain.storage.sessions import Settled
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    budget_statements,
    budget_values,
    command_statements,
    execution_statements,
    parameters,
    status_statements,
    stream_statements,
    transcripts,
)
from everstep.store.parameters import execution_key
from everstep.store.postgres_writing import (
    PostgresWriter,
    require_active,
    require_execution,
    transcript_writes,
)
from everstep.store.session_rows import launch_row
from everstep.store.transaction import BoundStatement, QueryResult, Transaction
from everstep.store.transcripts import TranscriptLine


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
                return None
            snapshot_id = bodies.snapshot_id(ref.execution_id, settlement.key) if is_kept else None
            changes = _settlement_writes(settlement, execution.metadata, snapshot_id)
            reads = self._queue_reads(execution) if settlement.status.is_terminal else []
            answers = await connection.together(*changes, *reads)
            closed, standing, queue = answers[0], answers[len(changes) - 1], answers[len(changes) :]
            release = await self._release_next(connection, ref, queue) if queue else []
            said = transcript_writes(ref, _cancellation_lines(settlement, closed.all()))
            kept = _snapshot_writes(settlement, execution, snapshot_id, standing.one())
            news = bodies.session_envelopes_from(ref.execution_id, settlement.events)
            told = execution_key(ref) | parameters.envelope_values(news) | {"stream_id": execution.stream_id}
            append = (stream_statements.APPEND, told)
            asked = (*said, *kept, *release, append)
            budgets = _budget_writes(settlement, execution)
            answers = await self._execute_with_append(connection, ref, *asked, *budgets, last=True)
            *others, placed = answers[: len(asked)]
            self._push_after_commit(connection, ref, news, placed)
            launch = others[-1].first() if release else None
            return Settled(bool(reads), launch_row(launch) if launch else None)

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
) -> list[BoundStatement]:
    """Return the writes of a settlement: calls first, the execution last."""
    ref = settlement.ref
    changes = [(status_statements.CLOSE_CALLS, parameters.closing_values(settlement))]
    if settlement.step:
        changes.append(
            (status_statements.RECORD_STEP, parameters.failed_step_values(settlement, settlement.step))
        )
    if settlement.outcome is not None or settlement.status.is_terminal:
        changes.append((status_statements.COMPLETE_STEPS, parameters.outcome_values(settlement)))
    if settlement.status.is_terminal:
        changes.append((command_statements.MARK_ALL_DELIVERED, {}))
    changes.append(
        (status_statements.SETTLE_EXECUTION, parameters.status_values(settlement, notes, snapshot_id))
    )
    return [(statement, execution_key(ref) | values) for statement, values in changes]


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
