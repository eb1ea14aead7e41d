"""Tool calls in PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row, select

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, question_id
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.budget_ledger import BudgetSpending, BudgetTerms
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall, Reservation
from everstep.agent_domain.stream.records import EventRecord, no_event_records
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    budget_statements,
    budget_values,
    call_statements,
    execution_statements,
    ledger_entries,
    parameters,
    rows,
    transcript_statements,
    transcripts,
)
from everstep.store.bodies import encode
from everstep.store.parameters import execution_key
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.postgres_writing import PostgresWriter, require_active, require_execution
from everstep.store.tables import tool_calls
from everstep.store.transaction import QueryResult, Transaction


class PostgresCalls(PostgresWriter):
    """Tool calls, and the model calls within a step."""

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that was approved; a repeated call changes nothing."""
        identity = question_id(ref.execution_id, call_id)
        asked = encode(request, "the request")
        values = {"call_id": call_id, "request_id": identity, "request": asked}
        entry = ledger_entries.asked_entry(identity, call_id, CallNeed.INPUT, asked, None)
        async with self._transaction() as connection:
            await connection.together(
                (call_statements.ASK, execution_key(ref) | values),
                *ledger_writes(ref, [entry], request=identity),
                last=True,
            )

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """Return the result of `reserve_call`; nothing is written."""
        async with self._transaction() as connection:
            values = execution_key(ref) | {"call_id": call_id}
            found, notes = await connection.together(
                (call_statements.PREVIEW_CALL, values),
                (transcript_statements.NOTES_BEFORE_CALL, values),
                last=True,
            )
            return _reservation_from(ref, call_id, found.first(), notes)

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = no_event_records,
    ) -> Reservation:
        """Reserve a call before it has any effect."""
        async with self._transaction() as connection:
            values = execution_key(ref) | {"call_id": call_id, "attempt": attempt}
            found, notes = await connection.together(
                (call_statements.RESERVE_CALL, values), (transcript_statements.NOTES_BEFORE_CALL, values)
            )
            call = found.first()
            reservation = _reservation_from(ref, call_id, call, notes)
            if reservation.recorded is None:
                await self._append_events(connection, ref, call.stream_id, events(reservation))
            return reservation

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; a result that an earlier attempt recorded wins."""
        ref = record.ref
        news = bodies.session_envelopes_from(ref.execution_id, record.events)
        values = parameters.result_values(record)
        entry = ledger_entries.entry_values(ref, [ledger_entries.call_entry(record, values)])
        given = execution_key(ref) | values | parameters.envelope_values(news) | entry
        async with self._transaction() as connection:
            (done,) = await self._execute_with_append(
                connection, ref, (call_statements.RECORD_CALL, given), last=True
            )
            if done.first() is None:
                return await self._find_call_record(connection, ref, record.record.call_id)
            self._push_after_commit(connection, ref, news, done)
            return record.record

    async def preview_inner_call(self, ref: ExecutionRef, key: str) -> tuple[InnerReply | None, BudgetTerms]:
        """Return the recorded reply to an inner model call, and the budgets for it."""
        found = await self._fetch_all(budget_statements.INNER_REPLY, execution_key(ref) | {"key": key})
        if not found:
            raise NotFound("execution", ref.execution_id)
        reply = None if found[0].key is None else rows.inner_reply(found[0])
        return reply, budget_values.terms_row(found[0])

    async def record_inner_reply(
        self, ref: ExecutionRef, reply: InnerReply, usage: Usage, spending: BudgetSpending | None = None
    ) -> InnerReply:
        """Record the reply to an inner model call and its usage; a reply of an earlier attempt wins."""
        values = execution_key(ref) | parameters.inner_reply_values(reply, usage)
        async with self._transaction() as connection:
            locked, recorded, *_ = await connection.together(
                (execution_statements.LOCK_STATUS, execution_key(ref)),
                (call_statements.RECORD_INNER_REPLY, values),
                *budget_values.settling(ref, spending),
                *ledger_writes(ref, [ledger_entries.inner_reply_entry(reply, usage, values)]),
                last=True,
            )
            known = recorded.first()
            if known and known.digest == reply.digest:
                return rows.inner_reply(known)
            require_active(ref, require_execution(ref, locked.first()))
            return reply

    async def _find_call_record(self, connection: Transaction, ref: ExecutionRef, call_id: str) -> CallRecord:
        wanted = select(tool_calls).where(
            tool_calls.c.execution_id == ref.execution_id,
            tool_calls.c.tenant_id == ref.tenant_id,
            tool_calls.c.call_id == call_id,
        )
        found = (await connection.execute(wanted)).first()
        record = rows.call_record(found) if found else None
        if record is None:
            raise NotFound("call", call_id)
        return record


def _reservation_from(
    ref: ExecutionRef, call_id: str, call: Row[Any] | None, notes: QueryResult
) -> Reservation:
    """Return a call that may run, or its record."""
    if call is None:
        raise NotFound("call", call_id)
    _, metadata = transcripts.parse_transcript(notes.all())
    reservation = rows.reservation(ref, call, metadata)
    if reservation.recorded is None:
        require_active(ref, call)
    return reservation
