"""Executions in PostgreSQL.

Every method is one transaction. A writer locks the execution's row first, or only the row of the call that it
changes. The stream's row is locked last, because other executions of the session wait for it.
A repeated call finds its earlier writes under the same keys.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from psycopg.errors import NotNullViolation
from sqlalchemy import Row, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, question_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message, tool_message
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall, Reservation
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.executions import ExecutionEnded, ExecutionRow, NewExecution, Settlement
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.steps import BeginStep, BegunStep, RecordProcessing, RecordReply, RetryWait
from everstep.agent_domain.stream.bus import NOBODY, EnvelopeBus
from everstep.agent_domain.stream.records import EventRecord, nothing_to_tell
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.values import FrozenDict
from everstep.store import bodies, parameters, rows, statements, transcripts
from everstep.store.bodies import TERMINAL, News, encode
from everstep.store.errors import StoreError, translated
from everstep.store.parameters import whose
from everstep.store.reading import PostgresReader, found_execution
from everstep.store.tables import steps, tool_calls
from everstep.store.transaction import Answer, Asked, Transaction, transaction
from everstep.store.transcripts import Line

LOGGER = logging.getLogger(__name__)


class PostgresStore(PostgresReader):
    """The execution store of an installation, on an engine from `create_engine`.

    Committed envelopes are also pushed to the bus.
    """

    def __init__(self, engine: AsyncEngine, bus: EnvelopeBus = NOBODY) -> None:
        super().__init__(engine)
        self.bus = bus

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; a repeated id returns the stored one."""
        async with self._transaction() as connection:
            row, _ = await self._accept(connection, new)
            return rows.execution_row(row)

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """Return the result of `begin_step` without steering messages; nothing is written."""
        async with self._transaction() as connection:
            # Read the conversation first: it then cannot contain an answer that the step row does not show
            # yet.
            said, found, seen = await connection.together(
                (statements.TRANSCRIPT, whose(ref)),
                (statements.PREVIEW_STEP, whose(ref) | {"number": number}),
                (statements.EXECUTION, whose(ref)),
                last=True,
            )
            return _begun(ref, seen, found, said)

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Complete the previous step and mark this one as started; a recorded step is returned unchanged."""
        ref = begin.ref
        async with self._transaction() as connection:
            locked, found, said = await connection.together(
                (statements.LOCK_EXECUTION, whose(ref)),
                (statements.BEGIN_STEP, whose(ref) | parameters.begun(begin)),
                (statements.TRANSCRIPT, whose(ref)),
            )
            begun = _begun(ref, locked, found, said)
            if begun.recorded:
                return begun
            stream_id: UUID = locked.one().stream_id
            news = bodies.session_news(ref.execution_id, begin.events(begun))
            head = (statements.HEAD, whose(ref) | {"stream_id": stream_id})
            heads = await self._publish(connection, ref, stream_id, news, head, last=True)
            return replace(begun, after_seq=heads[0].scalar() if heads else None)

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
    ) -> bool:
        """Store the text so far for late subscribers; return False if the attempt is no longer current."""
        values = {
            "number": number,
            "attempt": attempt,
            "text": text,
            "next_index": next_index,
            "after_seq": after_seq,
        }
        return bool(await self._all(statements.NOTE_PARTIAL, whose(ref) | values))

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a failed model call of this step; return the number of failures, this one included."""
        values = whose(ref) | {"number": number, "attempt": attempt}
        found = await self._all(statements.NOTE_FAILURE, values)
        if not found:
            raise NotFound("step", number)
        return found[0].failures

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Record that a step waits for its next attempt, unless that attempt or a reply is recorded."""
        values = {"number": number, "attempt": wait.attempt, "wait": bodies.wait_written(wait)}
        news = bodies.session_news(ref.execution_id, events)
        async with self._transaction() as connection:
            found = (await connection.execute(statements.NOTE_WAIT, whose(ref) | values)).first()
            if found is not None:
                await self._publish(connection, ref, found.stream_id, news)

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record the model's reply; a reply that an earlier attempt recorded wins."""
        ref, begins = reply.ref, reply.begins
        asked = [(statements.LOCK_EXECUTION, whose(ref))]
        if begins:
            begun = parameters.begun(begins, seconds_ago=reply.facts.seconds)
            asked.append((statements.BEGIN_STEP, whose(ref) | begun))
        news = bodies.session_news(ref.execution_id, reply.events)
        told = parameters.told(news)
        asked.append((statements.RECORD_REPLY, whose(ref) | parameters.reply(reply) | told))
        async with self._transaction() as connection:
            try:
                locked, *_, recorded = await self._telling(connection, ref, *asked, last=True)
            except IntegrityError as error:
                if not _is_taken_call_id(error):
                    raise
                raise bodies.taken_call_id(reply) from None
            execution, known = _existing(ref, locked.first()), recorded.first()
            if execution.status in TERMINAL:
                return await self._recorded_in_time(connection, reply, execution)
            self._placed(connection, ref, news, recorded)
            return reply.facts if known.facts is None else bodies.facts_read(known.facts)

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that was approved; a repeated call changes nothing."""
        identity = question_id(ref.execution_id, call_id)
        values = {"call_id": call_id, "request_id": identity, "request": encode(request, "the request")}
        await self._all(statements.ASK, whose(ref) | values)

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """Return the result of `reserve_call`; nothing is written."""
        async with self._transaction() as connection:
            values = whose(ref) | {"call_id": call_id}
            found, notes = await connection.together(
                (statements.PREVIEW_CALL, values), (statements.NOTES_BEFORE_CALL, values), last=True
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
                (statements.RESERVE_CALL, values), (statements.NOTES_BEFORE_CALL, values)
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
        result = (statements.RECORD_CALL, whose(ref) | parameters.result(record) | parameters.told(news))
        async with self._transaction() as connection:
            (done,) = await self._telling(connection, ref, result, last=True)
            if done.first() is None:
                return await self._recorded_before(connection, ref, record.record.call_id)
            self._placed(connection, ref, news, done)
            return record.record

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record the result of a step's processors; a result that an earlier attempt recorded wins."""
        ref = record.ref
        values = whose(ref) | parameters.processing(record)
        async with self._transaction() as connection:
            locked, recorded = await connection.together(
                (statements.LOCK_EXECUTION, whose(ref)), (statements.RECORD_PROCESSING, values), last=True
            )
            known = recorded.first()
            if known is None:
                raise NotFound("step", record.number)
            if known.processed is not None:
                return bodies.document(known.processed, "what processors said")
            _refuse_ended(ref, _existing(ref, locked.first()))
            return record.outcome

    async def record_inner_reply(self, ref: ExecutionRef, reply: InnerReply, usage: Usage) -> InnerReply:
        """Record the reply to an inner model call and its usage; a reply of an earlier attempt wins."""
        values = whose(ref) | parameters.inner_reply(reply, usage)
        async with self._transaction() as connection:
            locked, recorded = await connection.together(
                (statements.LOCK_EXECUTION, whose(ref)),
                (statements.RECORD_INNER_REPLY, values),
                last=True,
            )
            known = recorded.first()
            if known and known.digest == reply.digest:
                return rows.inner_reply(known)
            _refuse_ended(ref, _existing(ref, locked.first()))
            return reply

    async def record_listed(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; an earlier record wins."""
        values = whose(ref) | {"listed": encode(tools, "the tools that were listed")}
        found = await self._all(statements.RECORD_LISTED, values)
        if not found:
            raise NotFound("execution", ref.execution_id)
        return bodies.document(found[0].listed, "the tools that were listed")

    async def settle(self, settlement: Settlement) -> bool:
        """Change the execution's status; return False if the key was used or the execution has ended."""
        ref, is_kept = settlement.ref, settlement.snapshot is not None
        concerns_session = is_kept or settlement.status in TERMINAL
        session = [(statements.LOCK_ITS_SESSION, whose(ref))] if concerns_session else []
        async with self._transaction() as connection:
            *_, locked, first = await connection.together(
                *session,
                (statements.LOCK_EXECUTION, whose(ref)),
                (statements.SETTLE_ONCE, whose(ref) | parameters.settles_once(settlement)),
            )
            execution = _existing(ref, locked.first())
            if first.first() is None:
                return False
            snapshot_id = bodies.snapshot_id(ref.execution_id, settlement.key) if is_kept else None
            closed, *_, standing = await connection.together(
                *_settling(settlement, execution.metadata, snapshot_id)
            )
            said = _saying(ref, _ended_calls(settlement, closed.all()))
            kept = _keeping(settlement, execution, snapshot_id, standing.one())
            news = bodies.session_news(ref.execution_id, settlement.events)
            told = whose(ref) | parameters.told(news) | {"stream_id": execution.stream_id}
            append = (statements.APPEND, told)
            *_, placed = await self._telling(connection, ref, *said, *kept, append, last=True)
            self._placed(connection, ref, news, placed)
            return True

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Store the full state after a step for debugging; return False if this step has a snapshot."""
        async with self._transaction() as connection:
            _, locked = await connection.together(
                (statements.LOCK_ITS_SESSION, whose(ref)), (statements.LOCK_EXECUTION, whose(ref))
            )
            execution = _existing(ref, locked.first())
            _refuse_ended(ref, execution)
            snapshot_id = bodies.snapshot_id(ref.execution_id, f"step/{number}")
            values = parameters.snapshot(execution, snapshot_id, number, state, is_debug=True)
            (kept,) = await connection.together((statements.KEEP_SNAPSHOT, whose(ref) | values), last=True)
            return kept.first() is not None

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Store a message for the next step boundary; see `ExecutionStore.steer`."""
        async with self._transaction() as connection:
            return await self._steer(connection, ref, key, message, announces)

    async def _steer(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        key: str,
        message: Message,
        announces: Announcement | None,
    ) -> bool:
        (line,) = transcripts.lines((message,))
        values = {"key": key, "role": line.role, "content": line.content, "metadata": line.metadata}
        found = (await connection.execute(statements.STEER, whose(ref) | values)).first()
        if found is None:
            raise NotFound("execution", ref.execution_id)
        if found.is_kept and announces:
            said = bodies.announced(ref.execution_id, f"steered/{key}", announces)
            await self._publish(connection, ref, found.stream_id, [said])
        if not found.is_known:
            _refuse_ended(ref, found)
        return found.is_kept

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """Return the state of a steering message with this key."""
        found = await self._all(statements.STEERING, whose(ref) | {"key": key})
        return rows.steering(found[0], ref.tenant_id, key) if found else None

    async def command(self, ref: ExecutionRef, key: str, kind: CommandKind) -> tuple[Command, bool]:
        """Store a command for the workflow; see `ExecutionStore.command`."""
        values = whose(ref) | {"key": key, "kind": str(kind)}
        async with self._transaction() as connection:
            locked, made, known = await connection.together(
                (statements.LOCK_EXECUTION, whose(ref)),
                (statements.KEEP_COMMAND, values),
                (statements.KNOWN_COMMAND, values),
            )
            execution, found = _existing(ref, locked.first()), known.first()
            if found is None:
                _refuse_ended(ref, execution)
            return rows.command(known.one()), made.first() is not None

    async def undelivered(self, ref: ExecutionRef) -> Sequence[Command]:
        """Return the commands that the workflow may not know, in order of arrival."""
        return tuple(map(rows.command, await self._all(statements.UNDELIVERED_OF, whose(ref))))

    async def mark_delivered(self, command: Command) -> None:
        """Record that a command was delivered."""
        await self._all(statements.MARK_DELIVERED, whose(command.ref) | {"key": command.key})

    async def withdraw(self, command: Command) -> None:
        """Delete a command that the workflow refused."""
        await self._all(statements.WITHDRAW, whose(command.ref) | {"key": command.key})

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Resolve a request; see `ExecutionStore.resolve`."""
        values = {
            "request_id": request_id,
            "resolution": bodies.resolution_written(resolution),
            "is_denied": resolution.is_denied,
        }
        async with self._transaction() as connection:
            found = (await connection.execute(statements.RESOLVE, whose(ref) | values)).first()
            if found is None:
                raise NotFound("request", request_id)
            if found.is_answered:
                await self._append(connection, ref, found.stream_id, events)
            return found.is_answered

    # Helpers of the methods above.

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        with translated(self.engine.url):
            async with transaction(self.engine) as connection:
                yield connection

    async def _locked(self, connection: Transaction, ref: ExecutionRef) -> Row[Any]:
        """Return the execution, locked until this transaction ends."""
        return _existing(ref, (await connection.execute(statements.LOCK_EXECUTION, whose(ref))).first())

    async def _append(
        self, connection: Transaction, ref: ExecutionRef, stream_id: UUID, events: Iterable[EventRecord]
    ) -> None:
        """Append events to the stream as the last write: its lock is held until the commit."""
        news = bodies.session_news(ref.execution_id, events)
        await self._publish(connection, ref, stream_id, news, last=True)

    async def _publish(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        stream_id: UUID,
        news: Sequence[News],
        *then: Asked,
        last: bool = False,
    ) -> Sequence[Answer]:
        """Append envelopes to the stream, and return the answers to the statements sent along."""
        if not news:
            return ()
        values = whose(ref) | parameters.told(news) | {"stream_id": stream_id}
        placed, *answers = await self._telling(connection, ref, (statements.APPEND, values), *then, last=last)
        self._placed(connection, ref, news, placed)
        return answers

    async def _telling(
        self, connection: Transaction, ref: ExecutionRef, *asked: Asked, last: bool = False
    ) -> list[Answer]:
        """Execute statements of which one appends to the stream."""
        try:
            return await connection.together(*asked, last=last)
        except IntegrityError as error:
            if not isinstance(error.orig, NotNullViolation):
                raise
            raise StoreError(
                f"the stream of execution {ref.execution_id} is gone; its session was deleted while it ran"
            ) from None

    def _placed(
        self, connection: Transaction, ref: ExecutionRef, news: Sequence[News], placed: Answer
    ) -> None:
        """Push the envelopes that were placed, after the commit; a repeated envelope has no place."""
        found = [row for row in placed.rows if row.seq is not None]
        if found:
            connection.once_kept(partial(self._push, ref.execution_id, news, found))

    def _push(self, execution_id: UUID, news: Sequence[News], placed: Sequence[Any]) -> None:
        """Push committed envelopes; a failure to push does not affect the committed data."""
        stream_id = placed[0].stream_id
        try:
            if self.bus.wants(stream_id):
                told = [rows.placed_envelope(row, news, execution_id) for row in placed]
                self.bus.publish(stream_id, told)
        except Exception:
            LOGGER.exception("cannot push the stored envelopes of stream %s", stream_id)

    async def _say(
        self, connection: Transaction, ref: ExecutionRef, said: Sequence[tuple[int, Line]]
    ) -> None:
        """Append transcript lines of several steps."""
        if said:
            await connection.together(*_saying(ref, said))

    # Accepting executions.

    async def _accept(self, connection: Transaction, new: NewExecution) -> tuple[Row[Any], bool]:
        """Return the execution, and whether it is new."""
        ref = new.ref
        if new.continues == ref.execution_id:
            raise InvalidInput("an execution cannot continue itself; give the new one a different id")
        continued = await self._named(connection, ref, new.continues)
        parent = await self._named(connection, ref, new.parent_execution_id)
        values = whose(ref) | parameters.accepted(new, continued, parent)
        # The session is locked because the execution becomes its last one, unless it is a subagent's.
        lock = [] if parent or not ref.session_id else [(statements.LOCK_NAMED_SESSION, values)]
        *_, accepted, owned = await connection.together(
            *lock, (statements.ACCEPT, values), (statements.OWNS_STREAM, values)
        )
        made = accepted.first()
        if made is None:
            return await self._accepted_before(connection, ref), False
        if owned.first() is None:
            raise NotFound("session", ref.stream_id)
        return made, True

    async def _named(
        self, connection: Transaction, ref: ExecutionRef, execution_id: UUID | None
    ) -> Row[Any] | None:
        """Return an execution of the same tenant that the new one refers to."""
        if execution_id is None:
            return None
        found = await found_execution(connection, replace(ref, execution_id=execution_id))
        if found is None:
            raise NotFound("execution", execution_id)
        return found

    async def _accepted_before(self, connection: Transaction, ref: ExecutionRef) -> Row[Any]:
        found = await found_execution(connection, ref)
        if found is None:
            raise InvalidInput(f"the execution id {ref.execution_id} is taken; choose another one")
        return found

    # Records of earlier attempts.

    async def _recorded_in_time(
        self, connection: Transaction, reply: RecordReply, execution: Row[Any]
    ) -> StepFacts:
        """Return the step if it was recorded before the execution ended, and otherwise refuse the reply."""
        ref = reply.ref
        wanted = select(steps.c.facts).where(
            steps.c.execution_id == ref.execution_id, steps.c.number == reply.number
        )
        facts = (await connection.execute(wanted)).scalar()
        if facts is None:
            _refuse_ended(ref, execution)
        return bodies.facts_read(facts)

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


def _existing(ref: ExecutionRef, row: Row[Any] | None) -> Row[Any]:
    if row is None:
        raise NotFound("execution", ref.execution_id)
    return row


def _refuse_ended(ref: ExecutionRef, row: Row[Any]) -> None:
    status = ExecutionStatus(row.status)
    if status in TERMINAL:
        raise ExecutionEnded(ref.execution_id, status)


def _begun(ref: ExecutionRef, found: Answer, known: Answer, said: Answer) -> BegunStep:
    """Return a step that begins, or its record."""
    execution, step = _existing(ref, found.first()), known.one()
    _refuse_ended(ref, execution)
    material = rows.material(execution, said.all(), step)
    recorded = None if step.facts is None else bodies.facts_read(step.facts)
    return BegunStep(
        material, recorded, step.attempt, bool(step.was_silent), wait=bodies.wait_read(step.wait)
    )


def _reservation(ref: ExecutionRef, call_id: str, call: Row[Any] | None, notes: Answer) -> Reservation:
    """Return a call that may run, or its record."""
    if call is None:
        raise NotFound("call", call_id)
    _, metadata = transcripts.told(notes.all())
    reservation = rows.reservation(call, metadata)
    if reservation.recorded is None:
        _refuse_ended(ref, call)
    return reservation


def _settling(settlement: Settlement, notes: dict[str, Any], snapshot_id: UUID | None) -> list[Asked]:
    """Return the writes of a settlement: calls first, the execution last."""
    ref = settlement.ref
    changes = [(statements.CLOSE_CALLS, parameters.closes(settlement))]
    if settlement.step:
        changes.append((statements.RECORD_STEP, parameters.failed(settlement, settlement.step)))
    if settlement.outcome is not None or settlement.status in TERMINAL:
        changes.append((statements.COMPLETE_STEPS, parameters.judged(settlement)))
    changes.append((statements.SETTLE_EXECUTION, parameters.settled(settlement, notes, snapshot_id)))
    return [(statement, whose(ref) | values) for statement, values in changes]


def _keeping(
    settlement: Settlement, execution: Row[Any], snapshot_id: UUID | None, standing: Row[Any]
) -> list[Asked]:
    """Return the writes of the snapshot and of the session's totals."""
    ref, asked = settlement.ref, list[Asked]()
    if snapshot_id and settlement.snapshot is not None:
        values = parameters.snapshot(
            execution,
            snapshot_id,
            standing.step_count,
            settlement.snapshot,
            is_final=settlement.is_final,
            is_debug=settlement.is_debug,
        )
        asked.append((statements.SNAPSHOT, whose(ref) | values))
    ends = settlement.status in TERMINAL
    if (ends or snapshot_id) and execution.session_id and not execution.parent_execution_id:
        values = {
            "session_id": execution.session_id,
            "snapshot_id": snapshot_id,
            "worked_seconds": standing.worked_seconds if ends else 0.0,
        }
        asked.append((statements.SETTLE_SESSION, whose(ref) | values))
    return asked


def _saying(ref: ExecutionRef, said: Sequence[tuple[int, Line]]) -> list[Asked]:
    """Return the statement that appends transcript lines, if there are any."""
    if not said:
        return []
    return [(statements.SAY, whose(ref) | parameters.said_in_steps(*said))]


def _ended_calls(settlement: Settlement, closed: Sequence[Row[Any]]) -> list[tuple[int, Line]]:
    """Return result messages for calls without a result, so that the conversation has no open calls."""
    told = {call_id: messages for call_id, _, messages in settlement.cancelled_calls}
    return [
        (call.step, line)
        for call in closed
        for line in transcripts.result_lines(told.get(call.call_id) or _cancelled(call), call.idx)
    ]


def _cancelled(call: Row[Any]) -> tuple[Message, ...]:
    return (tool_message(CANCELLED_CALL, call.call_id, call.name),)


def _is_taken_call_id(error: IntegrityError) -> bool:
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return constraint == tool_calls.primary_key.name
