"""The message queue of a session in PostgreSQL.

`_advance_queue` changes a session's queue under the session's lock: `choose_route` of
`everstep.agent_domain.storage.sessions` decides where a message is placed, and the first queued execution is
released if none is running.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import Row, select

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope, follow_up_id
from everstep.agent_domain.loop.run_context import RunContext, request_data
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import export
from everstep.agent_domain.storage.commands import CommandKind, cancel_command_key
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.storage.forced_end import closing_settlement
from everstep.agent_domain.storage.sessions import (
    AnswerHasFiles,
    CompleteMessage,
    ExecutionLaunch,
    MessageOutcome,
    NewMessage,
    NewSession,
    QuestionClosed,
    Route,
    SessionNotActive,
    SessionStatus,
    as_it_is,
    choose_route,
)
from everstep.agent_domain.stream import session_messages as announcements
from everstep.agent_domain.stream.session_messages import Announcement, Context
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    command_statements,
    execution_statements,
    ledger_entries,
    parameters,
    rows,
    session_statements,
    transcripts,
)
from everstep.store.attachments import require_used, use_statements
from everstep.store.bodies import encode, encode_optional
from everstep.store.parameters import execution_key
from everstep.store.postgres import PostgresStore
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.session_rows import launch_row, message_row, session_row
from everstep.store.tables import requests, steered
from everstep.store.transaction import BoundStatement, QueryResult, Transaction

INTERRUPT_RANK = 0
"""The queue rank of a message that cancels the running execution: before all others."""


class SessionQueue(PostgresStore):
    """Messages to a session, and the queue of the executions that they begin."""

    async def post(self, message: NewMessage, complete: CompleteMessage = as_it_is) -> MessageOutcome:
        """Accept a user message; see `SessionStore.post`."""
        scope, session_id = message.scope, message.session_id
        values = session_scope(scope, session_id) | {
            "message_id": message.id,
            "request_id": message.request_id,
        }
        new = message.session
        if (
            new
            and _can_open_session(message, new)
            and (posted := await self._post_to_new_session(message, new))
        ):
            return posted
        async with self._transaction() as connection:
            *_, locked, said, asked, unheard, under_way = await connection.together(
                *([(session_statements.CREATE_SESSION, session_values(new))] if new else []),
                (session_statements.LOCK_SESSION, values),
                (session_statements.MESSAGE, values),
                (session_statements.OPEN_QUESTION, values),
                (session_statements.MISSED_MESSAGES, values),
                (session_statements.UNDER_WAY, values),
            )
            session, known, question = require_session(session_id, locked), said.first(), asked.first()
            if known and known.session_id == session_id:
                return await self._find_posted_message(connection, message, known)
            if session.status != SessionStatus.ACTIVE:
                raise SessionNotActive(SessionStatus(session.status))
            if question is None and message.request_id is not None:
                is_closed = (await connection.execute(session_statements.IS_QUESTION, values)).first()
                raise QuestionClosed if is_closed else NotFound("open question", message.request_id)
            queue = await self._release_first(connection, scope.tenant_id, session_id, unheard, under_way)
            taken = choose_route(
                is_busy=bool(queue), has_question=question is not None, on_busy=message.on_busy
            )
            current = queue[0] if queue else None
            if question and taken is Route.ANSWER:
                if message.attachments:
                    raise AnswerHasFiles
                asking = _ref(message, question.execution_id)
                return MessageOutcome(None, taken, asking, question=question.id)
            if current and taken is Route.STEER:
                return await self._steer_execution(connection, message, _ref(message, current.id))
            message = complete(message, session_row(session))
            posted = await self._begin_execution(connection, message, taken, session_row(session).context)
            posted = replace(posted, was_untitled=session.title is None)
            if current is None or taken is not Route.INTERRUPT:
                is_behind = current is not None and current.status != ExecutionStatus.PENDING
                return replace(posted, is_behind_running=is_behind)
            cancels = _ref(message, current.id)
            sender = encode_optional(message.sent_by and message.sent_by.to_dict(), "the sender")
            key, kind = cancel_command_key(str(message.id)), str(CommandKind.CANCEL)
            kept = {"key": key, "kind": kind, "sent_by": sender}
            entry = ledger_entries.command_entry(key, kind, message.sent_by, sender)
            await connection.together(
                (command_statements.KEEP_COMMAND, execution_key(cancels) | kept),
                *ledger_writes(cancels, [entry]),
            )
            return replace(posted, cancels=cancels)

    async def launch(self, ref: ExecutionRef) -> ExecutionLaunch | None:
        """Return the launch of this execution if it is pending and released."""
        found = await self._fetch_all(session_statements.LAUNCH, execution_key(ref))
        return launch_row(found[0]) if found else None

    async def release(self, tenant_id: str, session_id: UUID) -> ExecutionRef | None:
        """Release the next queued execution if none is running, and return the released one."""
        async with self._transaction() as connection:
            await self._lock_session(connection, Scope(tenant_id), session_id)
            queue = await self._advance_queue(connection, tenant_id, session_id)
            return ExecutionRef(queue[0].id, tenant_id, session_id) if queue else None

    def _queue_reads(self, execution: Row[Any]) -> list[BoundStatement]:
        """Return the reads of the queue, which is locked; a subagent's end does not advance it."""
        if execution.session_id is None or execution.parent_execution_id is not None:
            return []
        values = {"session_id": execution.session_id}
        return [(session_statements.MISSED_MESSAGES, values), (session_statements.UNDER_WAY, values)]

    async def _release_next(
        self, connection: Transaction, ref: ExecutionRef, queue: Sequence[QueryResult]
    ) -> list[BoundStatement]:
        """Queue undelivered messages; return the statements that release the first queued execution."""
        if ref.session_id is None:
            return []
        unheard, under_way = queue
        waiting = await self._queue_rows(connection, ref.tenant_id, ref.session_id, unheard, under_way)
        if not waiting or waiting[0].is_released:
            return []
        following = ExecutionRef(waiting[0].id, ref.tenant_id, ref.session_id)
        values = execution_key(following) | {"session_id": ref.session_id}
        return [(session_statements.RELEASE, values), (session_statements.LAUNCH, values)]

    async def cancel_pending(self, ref: ExecutionRef) -> bool:
        """Cancel an execution that has not begun; return False if it has begun or ended."""
        if await self.execution(ref) is None:
            raise NotFound("execution", ref.execution_id)
        settled = await self.settle(
            replace(closing_settlement(ref, ExecutionStatus.CANCELLED), only_pending=True)
        )
        return settled is not None

    async def _lock_session(self, connection: Transaction, scope: Scope, session_id: UUID) -> Row[Any]:
        """Return the session, whose queue is locked until this transaction ends."""
        locked = await connection.execute(session_statements.LOCK_SESSION, session_scope(scope, session_id))
        return require_session(session_id, locked)

    async def _advance_queue(
        self, connection: Transaction, tenant_id: str, session_id: UUID
    ) -> Sequence[Row[Any]]:
        """Return the unfinished executions of the session: the released one, then the queue in order."""
        values = {"session_id": session_id}
        unheard, under_way = await connection.together(
            (session_statements.MISSED_MESSAGES, values), (session_statements.UNDER_WAY, values)
        )
        return await self._release_first(connection, tenant_id, session_id, unheard, under_way)

    async def _release_first(
        self,
        connection: Transaction,
        tenant_id: str,
        session_id: UUID,
        missed: QueryResult,
        under_way: QueryResult,
    ) -> Sequence[Row[Any]]:
        """Queue undelivered messages, release the first execution, and return the unfinished ones."""
        queue = await self._queue_rows(connection, tenant_id, session_id, missed, under_way)
        if queue and not queue[0].is_released:
            values = {"session_id": session_id, "execution_id": queue[0].id, "tenant_id": tenant_id}
            await connection.execute(session_statements.RELEASE, values)
        return queue

    async def _queue_rows(
        self,
        connection: Transaction,
        tenant_id: str,
        session_id: UUID,
        unheard: QueryResult,
        under_way: QueryResult,
    ) -> Sequence[Row[Any]]:
        """Queue undelivered messages, and return the unfinished executions."""
        for each in unheard.rows:
            await self._enqueue_missed_message(connection, tenant_id, session_id, each)
        if not unheard.rows:
            return under_way.all()
        return (await connection.execute(session_statements.UNDER_WAY, {"session_id": session_id})).all()

    async def _enqueue_missed_message(
        self, connection: Transaction, tenant_id: str, session_id: UUID, missed: Row[Any]
    ) -> None:
        """Queue a new execution for the messages that an ended execution did not receive."""
        ref = ExecutionRef(follow_up_id(missed.execution_id, missed.key), tenant_id, session_id)
        message = transcripts.parse_message(missed.role, missed.content, missed.metadata)
        values = execution_key(ref) | {
            "steered_id": missed.execution_id,
            "key": missed.key,
            "messages": encode(export([message])),
            "breakdown": encode(Usage().to_breakdown()),
        }
        await connection.execute(session_statements.QUEUE_MISSED_MESSAGE, values)
        await self._append_lines(connection, ref, [(0, line) for line in transcripts.lines([message])])
        await self._open_ledger(connection, ref)
        await self._announce(connection, ref, session_id, {"queued": announcements.queued_announcement()})

    async def _announce(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        session_id: UUID,
        announcements_by_key: Mapping[str, Announcement],
        *then: BoundStatement,
        last: bool = False,
    ) -> Sequence[QueryResult]:
        news = [
            bodies.announcement_envelope(ref.execution_id, key, message)
            for key, message in announcements_by_key.items()
        ]
        return await self._append_envelopes(connection, ref, session_id, news, *then, last=last)

    async def _find_posted_message(
        self, connection: Transaction, message: NewMessage, found: Row[Any]
    ) -> MessageOutcome:
        """Return the outcome of a message that was posted before."""
        values = {"execution_id": message.execution_id, "session_id": message.session_id}
        execution = (await connection.execute(session_statements.POSTED_EXECUTION, values)).first()
        if execution and execution.queue_rank == INTERRUPT_RANK:
            key = cancel_command_key(str(message.id))
            waits = (
                await connection.execute(session_statements.INTERRUPTED_EXECUTION, values | {"key": key})
            ).scalar()
            cancels = _ref(message, waits) if waits else None
            return MessageOutcome(message_row(found), Route.INTERRUPT, _ref(message, execution.id), cancels)
        if execution:
            taken = Route.QUEUE if execution.released_at is None else Route.START
            return MessageOutcome(message_row(found), taken, _ref(message, execution.id))
        heard = select(steered.c.execution_id).where(steered.c.key == str(message.id))
        hearing = (await connection.execute(heard)).scalar()
        if hearing:
            return MessageOutcome(message_row(found), Route.STEER, _ref(message, hearing))
        question = UUID(found.metadata["request_id"])
        asked = select(requests.c.execution_id).where(requests.c.id == question)
        asking = (await connection.execute(asked)).scalar_one()
        return MessageOutcome(message_row(found), Route.ANSWER, _ref(message, asking), question=question)

    async def _steer_execution(
        self, connection: Transaction, message: NewMessage, ref: ExecutionRef
    ) -> MessageOutcome:
        said = announcements.input_received_announcement(
            message.content, message.id, message.metadata, message.context, message.attachments
        )
        await self._store_steering(connection, ref, str(message.id), message.as_message, said)
        stored = await connection.execute(session_statements.MESSAGE, {"message_id": message.id})
        return MessageOutcome(message_row(stored.one()), Route.STEER, ref)

    async def _post_to_new_session(self, message: NewMessage, new: NewSession) -> MessageOutcome | None:
        """Create the message's session and post the message to it, if the session is new.

        Other transactions do not see the session before the commit, so it needs no lock and has an empty
        queue.

        Returns:
            None, without any change, if the session or the message exists already.
        """
        ref = _ref(message, message.execution_id)
        titled = new if new.title is not None else replace(new, title=message.title)
        new_execution = _execution_from(message, new.context)
        values = execution_key(ref) | parameters.execution_values(new_execution, None, None)
        messages = message.first_messages
        async with self._transaction() as connection:
            created, accepted, owned, _, *used = await connection.together(
                (session_statements.CREATE_SESSION, session_values(titled)),
                (execution_statements.ACCEPT, values),
                (execution_statements.OWNS_STREAM, values),
                *ledger_writes(ref, [ledger_entries.acceptance_entry(new_execution, values)]),
                *use_statements(ref, messages),
            )
            if not all(answer.scalar() for answer in (created, accepted, owned)):
                await connection.rollback()
                return None
            require_used(messages, used)
            launch = _launch_from(message, new.context, accepted.one())
            kept, *_ = await self._announce_execution(connection, message, accepted.one())
            return MessageOutcome(message_row(kept.one()), Route.START, ref, launch=launch)

    async def _begin_execution(
        self, connection: Transaction, message: NewMessage, taken: Route, context: Context
    ) -> MessageOutcome:
        rank = INTERRUPT_RANK if taken is Route.INTERRUPT else 1
        accepted, is_new = await self._insert_execution(
            connection, _execution_from(message, context, is_queued=True, queue_rank=rank)
        )
        ref = _ref(message, message.execution_id)
        values = execution_key(ref) | {"session_id": message.session_id, "title": message.title}
        then: list[BoundStatement] = [(session_statements.TOUCH_SESSION, values)]
        # With an empty queue, the execution is released at once.
        begins = is_new and taken is Route.START
        if begins:
            then.append((session_statements.RELEASE, values))
        row = accepted if begins else None
        kept, *answers = await self._announce_execution(connection, message, row, *then)
        launch = _launch_from(message, context, answers[-1].one()) if begins else None
        return MessageOutcome(message_row(kept.one()), taken, ref, launch=launch)

    async def _announce_execution(
        self,
        connection: Transaction,
        message: NewMessage,
        beginning: Row[Any] | None,
        *then: BoundStatement,
    ) -> Sequence[QueryResult]:
        """Announce to the session's subscribers that the message's execution is accepted; the last write.

        Args:
            connection: The transaction.
            message: The message.
            beginning: The accepted execution; None if it waits for earlier ones of its session.
            then: Further statements.

        Returns:
            The message, then the answers to `then`.
        """
        ref = _ref(message, message.execution_id)
        said = announcements.message_received_announcement(
            message.content, message.id, message.metadata, message.context, message.attachments
        )
        position = beginning.expected_position if beginning else None
        by_key = {f"said/{message.id}": said, "queued": announcements.queued_announcement(position)}
        kept = (session_statements.MESSAGE, {"message_id": message.id})
        *answers, stored = await self._announce(
            connection, ref, message.session_id, by_key, *then, kept, last=True
        )
        return [stored, *answers]


def _can_open_session(message: NewMessage, new: NewSession) -> bool:
    """Return whether the message can be the first one in the session that is created for it."""
    return (
        message.session_id == new.id
        and message.scope.tenant_id == new.tenant_id
        and message.scope.covers(new.user_id)
        and message.request_id is None
    )


def _request_from(message: NewMessage, context: Context) -> FrozenDict:
    """Return the message's request; it is about what its session is about, if the message names nothing."""
    about = message.context if message.context.related_type is not None else context
    return request_data(message.metadata, about.related_type, about.related_id)


def _execution_from(message: NewMessage, context: Context, **queued: Any) -> NewExecution:
    """Return the message's execution."""
    return NewExecution(
        _ref(message, message.execution_id),
        message.spec,
        message.first_messages,
        user_id=message.user_id,
        plan=message.plan,
        task_queue=message.task_queue,
        request=_request_from(message, context),
        **queued,
    )


def _launch_from(message: NewMessage, context: Context, row: Row[Any]) -> ExecutionLaunch:
    """Return the launch of the message's execution; the row has the clocks of its session."""
    ref, clocks = _ref(message, message.execution_id), rows.clocks(row)
    run = RunContext.from_request(ref, message.user_id, _request_from(message, context))
    return ExecutionLaunch(
        ref, message.plan, message.task_queue, clocks=clocks, run=run, is_waiting=row.is_waiting
    )


def _ref(message: NewMessage, execution_id: UUID) -> ExecutionRef:
    return ExecutionRef(execution_id, message.scope.tenant_id, message.session_id)


def session_values(new: NewSession) -> dict[str, Any]:
    """Return the parameters of a new session."""
    return {
        "session_id": new.id,
        "tenant_id": new.tenant_id,
        "user_id": new.user_id,
        "related_type": new.context.related_type,
        "related_id": new.context.related_id,
        "url": new.context.url,
        "title": new.title,
        "metadata": encode(new.metadata, "metadata"),
    }


def session_scope(scope: Scope, session_id: UUID) -> dict[str, Any]:
    """Return the parameters that select a session within a scope."""
    return {"session_id": session_id, "tenant_id": scope.tenant_id, "user_id": scope.user_id}


def require_session(session_id: UUID, locked: QueryResult) -> Row[Any]:
    """Return the locked row, or raise `NotFound` for the session."""
    row = locked.first()
    if row is None:
        raise NotFound("session", session_id)
    return row
