"""Tool calls in PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row, select

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, question_id
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall, Reservation
from everstep.agent_domain.stream.records import EventRecord, nothing_to_tell
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    call_statements,
    execution_statements,
    parameters,
    rows,
    transcript_statements,
    transcripts,
)
from everstep.store.bodies import encode
from everstep.store.parameters import whose
from everstep.store.postgres_writing import PostgresWriter, existing_execution, require_active
from everstep.store.tables import tool_calls
from everstep.store.transaction import Answer, Transaction


class PostgresCalls(PostgresWriter):
    """Tool calls, and the model calls within a step."""

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that was approved; a repeated call changes nothing."""
        identity = question_id(ref.execution_id, call_id)
        values = {"call_id": call_id, "request_id": identity, "request": encode(request, "the request")}
        await self._all(call_statements.ASK, whose(ref) | values)

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """Return the result of `reserve_call`; nothing is written."""
        async with self._transaction() as connection:
            values = whose(ref) | {"call_id": call_id}
            found, notes = await connection.together(
                (call_statements.PREVIEW_CALL, values),
                (transcript_statements.NOTES_BEFORE_CALL, values),
                last=True,
            )
            return _reservation(ref, call_id, found.first(), notes)

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = nothing_to_tell,
    ) -> Reservation:
        """Reserve a call before it has any effect."""
        async with self._transaction() as connection:
            values = whose(ref) | {"call_id": call_id, "attempt": attempt}
            found, notes = await connection.together(
                (call_statements.RESERVE_CALL, values), (transcript_statements.NOTES_BEFORE_CALL, values)
            )
            call = found.first()
            reservation = _reservation(ref, call_id, call, notes)
            if reservation.recorded is None:
                await self._append(connection, ref, call.stream_id, events(reservation))
            return reservation

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; a result that an earlier attempt recorded wins."""
        ref = record.ref
        news = bodies.session_news(ref.execution_id, record.events)
        result = (call_statements.RECORD_CALL, whose(ref) | parameters.result(record) | parameters.told(news))
        async with self._transaction() as connection:
            (done,) = await self._telling(connection, ref, result, last=True)
            if done.first() is None:
                return await self._recorded_before(connection, ref, record.record.call_id)
            self._placed(connection, ref, news, done)
            return record.record

    async def record_inner_reply(self, ref: ExecutionRef, reply: InnerReply, usage: Usage) -> InnerReply:
        """Record the reply to an inner model call and its usage; a reply of an earlier attempt wins."""
        values = whose(ref) | parameters.inner_reply(reply, usage)
        async with self._transaction() as connection:
            locked, recorded = await connection.together(
                (execution_statements.LOCK_EXECUTION, whose(ref)),
                (call_statements.RECORD_INNER_REPLY, values),
                last=True,
            )
            known = recorded.first()
            if known and known.digest == reply.digest:
                return rows.inner_reply(known)
            require_active(ref, existing_execution(ref, locked.first()))
            return reply

    async def _recorded_before(self, connection: Transaction, ref: ExecutionRef, call_id: str) -> CallRecord:
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


def _reservation(ref: ExecutionRef, call_id: str, call: Row[Any] | None, notes: Answer) -> Reservation:
    """Return a call that may run, or its record."""
    if call is None:
        raise NotFound("call", call_id)
    _, metadata = transcripts.told(notes.all())
    reservation = rows.reservation(call, metadata)
    if reservation.recorded is None:
        require_active(ref, call)
    return reservation
