"""Sessions in PostgreSQL: the message queue and its executions.

`_queue` changes a session's queue under the session's lock: `route` of
`everstep.agent_domain.storage.sessions` decides where a message is placed, and the first queued execution is
released if none is running.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from sqlalchemy import Row, Select, func, literal_column, select, tuple_, update

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope, follow_up_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message, Role, export, user
from everstep.agent_domain.storage.commands import Command, CommandKind, cancel_key
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution, Page
from everstep.agent_domain.storage.forced_end import closed
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.sessions import (
    EVERY_SESSION,
    ExecutionFilter,
    Handed,
    Launch,
    NewMessage,
    NewSession,
    Posted,
    QuestionClosed,
    Route,
    SessionBusy,
    SessionChanges,
    SessionFilter,
    SessionMessageRow,
    SessionNotActive,
    SessionRow,
    SessionStatus,
    SnapshotRow,
    Stranded,
    merged_metadata,
    route,
    title_of,
)
from everstep.agent_domain.stream import session_messages as announcements
from everstep.agent_domain.stream.session_messages import Announcement, Context, MessageRole
from everstep.agent_domain.values import frozen_map
from everstep.store import bodies, parameters, rows, session_statements, statements, transcripts
from everstep.store.bodies import encode
from everstep.store.cursors import Cursor, page_size
from everstep.store.parameters import whose
from everstep.store.postgres import PostgresStore
from everstep.store.reading import ROW, found_execution, paged, questions
from everstep.store.tables import executions, requests, session_messages, sessions, snapshots, steered
from everstep.store.transaction import Answer, Asked, Transaction

FIRST = Cursor.first()

INTERRUPTING = 0
"""The queue rank of a message that cancels the running execution: before all others."""


class PostgresSessions(PostgresStore):
    """A store with sessions."""

    # Sessions.

    async def create_session(self, new: NewSession) -> SessionRow:
        """Create a session; a repeated id returns the stored one."""
        async with self._transaction() as connection:
            scope = Scope(new.tenant_id, new.user_id)
            _, locked = await connection.together(
                (session_statements.MAKE_SESSION, _made(new)),
                (session_statements.LOCK_SESSION, _locking(scope, new.id)),
            )
            return _session(_existing(new.id, locked))

    async def session(self, scope: Scope, session_id: UUID) -> SessionRow | None:
        """Return one session if the scope covers it."""
        found = await self._all(_seen(select(sessions), scope).where(sessions.c.id == session_id))
        return _session(found[0]) if found else None

    async def sessions(
        self,
        scope: Scope,
        wanted: SessionFilter = EVERY_SESSION,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[SessionRow]:
        """Return a page of sessions, newest first."""
        query = _seen(select(sessions), scope)
        for name in ("status", "related_type", "related_id"):
            value = getattr(wanted, name)
            if value is not None:
                query = query.where(sessions.c[name] == str(value))
        if wanted.search is not None:
            title = func.to_tsvector(literal_column("'simple'"), func.coalesce(sessions.c.title, ""))
            query = query.where(
                title.op("@@")(func.to_tsquery(literal_column("'simple'"), _words(wanted.search)))
            )
        return await self._newest(query, sessions, _session, cursor, limit)

    async def change_session(self, scope: Scope, session_id: UUID, changes: SessionChanges) -> SessionRow:
        """Change a session."""
        async with self._transaction() as connection:
            kept = _session(await self._locked_session(connection, scope, session_id))
            metadata = changes.metadata and merged_metadata(kept.metadata, changes.metadata)
            values = {
                "session_id": session_id,
                "title": changes.title,
                "status": changes.status and str(changes.status),
                "metadata": None if metadata is None else encode(metadata, "metadata"),
            }
            changed = await connection.execute(session_statements.CHANGE_SESSION, values)
            return _session(changed.one())

    async def retitle(self, scope: Scope, session_id: UUID, old: str, new: str) -> bool:
        """Replace a session's title if it is still the old one."""
        mine = (sessions.c.id == session_id, sessions.c.tenant_id == scope.tenant_id, sessions.c.title == old)
        return bool(await self._all(update(sessions).where(*mine).values(title=new).returning(sessions.c.id)))

    async def delete_session(
        self, scope: Scope, session_id: UUID, *, unchanged_since: datetime | None = None
    ) -> bool:
        """Delete a session with everything in it.

        Args:
            scope: The caller's scope.
            session_id: The session.
            unchanged_since: Do not delete a session that changed after this time.

        Returns:
            False if there is no such session, or if it has changed.

        Raises:
            SessionBusy: An execution of the session is running.
        """
        async with self._transaction() as connection:
            try:
                session = await self._locked_session(connection, scope, session_id)
            except NotFound:
                return False
            if unchanged_since and session.updated_at >= unchanged_since:
                return False
            if await self._queue(connection, scope.tenant_id, session_id):
                raise SessionBusy
            values = {"session_id": session_id, "tenant_id": scope.tenant_id}
            for statement in session_statements.DELETE_SESSION:
                await connection.execute(statement, values)
            return True

    async def messages(
        self, scope: Scope, session_id: UUID, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SessionMessageRow]:
        """Return a page of messages, newest first."""
        if await self.session(scope, session_id) is None:
            raise NotFound("session", session_id)
        query = select(session_messages).where(session_messages.c.session_id == session_id)
        return await self._newest(query, session_messages, _message, cursor, limit)

    # Messages and the queue.

    async def post(self, message: NewMessage) -> Posted:
        """Accept a user message; see `route`."""
        scope, session_id = message.scope, message.session_id
        values = _locking(scope, session_id) | {"message_id": message.id, "request_id": message.request_id}
        new = message.session
        if new and _belongs(message, new) and (posted := await self._opened(message, new)):
            return posted
        async with self._transaction() as connection:
            *_, locked, said, asked, unheard, under_way = await connection.together(
                *([(session_statements.MAKE_SESSION, _made(new))] if new else []),
                (session_statements.LOCK_SESSION, values),
                (session_statements.MESSAGE, values),
                (session_statements.OPEN_QUESTION, values),
                (session_statements.UNHEARD, values),
                (session_statements.UNDER_WAY, values),
            )
            session, known, question = _existing(session_id, locked), said.first(), asked.first()
            if known and known.session_id == session_id:
                return await self._posted(connection, message, known)
            if session.status != SessionStatus.ACTIVE:
                raise SessionNotActive(SessionStatus(session.status))
            if question is None and message.request_id is not None:
                is_closed = (await connection.execute(session_statements.IS_QUESTION, values)).first()
                raise QuestionClosed if is_closed else NotFound("open question", message.request_id)
            queue = await self._in_turn(connection, scope.tenant_id, session_id, unheard, under_way)
            taken = route(busy=bool(queue), asked=question is not None, on_busy=message.on_busy)
            current = queue[0] if queue else None
            if question and taken is Route.ANSWER:
                asking = _ref(message, question.execution_id)
                return Posted(None, taken, asking, question=question.id)
            if current and taken is Route.STEER:
                return await self._steered(connection, message, _ref(message, current.id))
            posted = await self._begun(connection, message, taken)
            if current is None or taken is not Route.INTERRUPT:
                return posted
            cancels = _ref(message, current.id)
            kept = {"key": cancel_key(str(message.id)), "kind": str(CommandKind.CANCEL)}
            await connection.execute(statements.KEEP_COMMAND, whose(cancels) | kept)
            return replace(posted, cancels=cancels)

    async def launch(self, ref: ExecutionRef) -> Launch | None:
        """Return the launch of this execution if it is pending and released."""
        found = await self._all(session_statements.LAUNCH, whose(ref))
        return _launch(found[0]) if found else None

    async def release(self, tenant_id: str, session_id: UUID) -> ExecutionRef | None:
        """Release the next queued execution if none is running, and return the released one."""
        async with self._transaction() as connection:
            await self._locked_session(connection, Scope(tenant_id), session_id)
            queue = await self._queue(connection, tenant_id, session_id)
            return ExecutionRef(queue[0].id, tenant_id, session_id) if queue else None

    async def cancel_pending(self, ref: ExecutionRef) -> bool:
        """Cancel an execution that has not begun; return False if it has begun or ended."""
        if await self.execution(ref) is None:
            raise NotFound("execution", ref.execution_id)
        return await self.settle(replace(closed(ref, ExecutionStatus.CANCELLED), only_pending=True))

    # Queries and recovery.

    async def inbox(self, scope: Scope, *, cursor: str | None = None, limit: int = 50) -> Page[RequestRow]:
        """Return a page of open requests of all executions, oldest first."""
        size = page_size(limit)
        query = questions().where(requests.c.tenant_id == scope.tenant_id, requests.c.state == "open")
        if scope.user_id is not None:
            query = query.where(requests.c.user_id == scope.user_id)
        if cursor is not None:
            last = Cursor.parse(cursor)
            query = query.where(tuple_(requests.c.created_at, requests.c.id) > (last.created_at, last.id))
        found = await self._all(query.order_by(requests.c.created_at, requests.c.id).limit(size + 1))
        return paged(found, size, rows.request_row)

    async def executions_of(
        self, scope: Scope, wanted: ExecutionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """Return a page of executions, newest first."""
        query = select(*ROW).where(executions.c.tenant_id == scope.tenant_id)
        if scope.user_id is not None:
            query = query.where(executions.c.user_id == scope.user_id)
        for name in ("session_id", "parent_execution_id", "status"):
            value = getattr(wanted, name)
            if value is not None:
                query = query.where(executions.c[name] == value)
        return await self._newest(query, executions, rows.execution_row, cursor, limit)

    async def snapshots(
        self, ref: ExecutionRef, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SnapshotRow]:
        """Return a page of an execution's snapshots, newest first."""
        query = select(snapshots).where(
            snapshots.c.agent_execution_id == ref.execution_id, snapshots.c.tenant_id == ref.tenant_id
        )
        return await self._newest(query, snapshots, _snapshot, cursor, limit)

    async def commands(
        self, task_queue: str, older_than: float, after: int = 0, limit: int = 100
    ) -> tuple[Sequence[Command], int | None]:
        """Return commands that have not been delivered for a while; see `SessionStore.commands`."""
        values = {"task_queue": task_queue, "older_than": older_than, "after": after, "limit": limit}
        found = await self._all(statements.UNDELIVERED, values)
        return tuple(map(rows.command, found)), found[-1].position if len(found) == limit else None

    async def unheard(self, task_queue: str, older_than: float, limit: int = 100) -> Sequence[ExecutionRef]:
        """Return ended executions that did not receive all of their steering messages."""
        values = {"task_queue": task_queue, "older_than": older_than, "limit": limit}
        return tuple(map(_owner, await self._all(session_statements.ENDED_UNHEARD, values)))

    async def hand_over(self, ref: ExecutionRef) -> Handed | None:
        """Pass steering messages of an ended execution to another one; see `SessionStore.hand_over`."""
        if not await self._all(session_statements.UNHEARD_OF, whose(ref)):
            return None
        async with self._transaction() as connection:
            unheard = (await connection.execute(session_statements.LOCK_UNHEARD_OF, whose(ref))).all()
            if not unheard:
                return None
            first = unheard[0]
            if first.parent_execution_id:
                parent = replace(ref, execution_id=first.parent_execution_id, session_id=first.session_id)
                values = whose(ref) | {"parent_id": parent.execution_id}
                await connection.execute(session_statements.HAND_TO_PARENT, values)
                await connection.execute(session_statements.MOVE_UNHEARD, whose(ref))
                return Handed(parent=parent)
            launch = await self._followed(connection, ref, unheard)
            await connection.execute(session_statements.MOVE_UNHEARD, whose(ref))
            return Handed(launch)

    async def _followed(
        self, connection: Transaction, ref: ExecutionRef, unheard: Sequence[Row[Any]]
    ) -> Launch | None:
        """Continue an execution without a session in a new one, with the messages it did not receive."""
        new = replace(ref, execution_id=follow_up_id(ref.execution_id))
        origin = (await connection.execute(session_statements.ORIGIN, whose(ref))).one()
        said = [transcripts.message_read(each.role, each.content, each.metadata) for each in unheard]
        following = NewExecution(
            new,
            rows.spec(origin),
            tuple(said),
            user_id=origin.user_id,
            continues=ref.execution_id,
            plan=frozen_map(origin.plan),
            task_queue=origin.task_queue,
        )
        await self._accept(connection, following)
        found = (await connection.execute(session_statements.LAUNCH, whose(new))).first()
        return _launch(found) if found else None

    async def owner(self, execution_id: UUID) -> ExecutionRef | None:
        """Return the full reference of an execution, from its id alone."""
        columns = (executions.c.id, executions.c.tenant_id, executions.c.session_id)
        found = await self._all(select(*columns).where(executions.c.id == execution_id))
        return _owner(found[0]) if found else None

    async def stranded(
        self,
        task_queue: str,
        older_than: float,
        after: str | None = None,
        limit: int = 100,
        *,
        pending_only: bool = True,
    ) -> Stranded:
        """Return executions of all tenants without a recent change, which may need recovery; oldest first."""
        last = Cursor.parse(after) if after else FIRST
        values = {
            "task_queue": task_queue,
            "older_than": older_than,
            "pending_only": pending_only,
            "after_at": last.created_at,
            "after_id": last.id,
            "limit": limit,
        }
        found = await self._all(session_statements.STRANDED, values)
        pending = [row for row in found if row.status == ExecutionStatus.PENDING]
        return Stranded(
            launches=[_launch(row) for row in pending if row.is_released and not row.is_child],
            queued=[_owner(row) for row in pending if not row.is_released],
            orphans=[_owner(row) for row in pending if row.is_child],
            open=[_owner(row) for row in found if row.status != ExecutionStatus.PENDING],
            cursor=Cursor(found[-1].updated_at, found[-1].id).text if len(found) == limit else None,
        )

    # Forks.

    async def fork(
        self, ref: ExecutionRef, step: int, new: ExecutionRef, content: str | None = None
    ) -> Launch | None:
        """Create an execution that shares the conversation up to a step.

        Args:
            ref: The execution to fork.
            step: The last shared step.
            new: The new execution.
            content: A message that replaces the last shared one.
        """
        async with self._transaction() as connection:
            if ref.session_id:
                await self._locked_session(connection, Scope(ref.tenant_id), ref.session_id)
            if await found_execution(connection, new) is None:
                await self._forked(connection, ref, step, new, content)
            found = (await connection.execute(session_statements.LAUNCH, whose(new))).first()
            return _launch(found) if found else None

    async def _forked(
        self, connection: Transaction, ref: ExecutionRef, step: int, new: ExecutionRef, content: str | None
    ) -> None:
        if ref.session_id and await self._queue(connection, ref.tenant_id, ref.session_id):
            raise SessionBusy
        origin = (await connection.execute(session_statements.ORIGIN, whose(ref))).first()
        if origin is None:
            raise NotFound("execution", ref.execution_id)
        if ref.session_id and origin.parent_execution_id:
            raise InvalidInput(
                "a subagent's conversation is not that of the session; fork its parent execution"
            )
        branch = await self._branch(connection, ref, origin, step, content)
        await self._accept(connection, replace(branch, ref=new))
        if content is not None and new.session_id:
            await self._announce(connection, new, new.session_id, _began(user(content), new.execution_id))

    async def _branch(
        self, connection: Transaction, ref: ExecutionRef, origin: Row[Any], step: int, content: str | None
    ) -> NewExecution:
        """Return the new execution that branches off after a step of this one."""
        last: int = (await connection.execute(session_statements.COMPLETE_STEPS, whose(ref))).scalar_one()
        if not 0 <= step <= last:
            raise InvalidInput(f"step {step} cannot be forked from; pass a complete one, from 0 to {last}")
        branch = NewExecution(
            ref,
            rows.spec(origin),
            (user(content),) if content is not None else (),
            user_id=origin.user_id,
            continues=ref.execution_id,
            continues_until=step,
            plan=frozen_map(origin.plan),
            task_queue=origin.task_queue,
            notes=frozen_map({"forked_from": str(ref.execution_id), "forked_step": step}),
        )
        if step > 0 or content is None:
            return branch
        # A fork with a different first message shares the earlier conversation but not the original first
        # message.
        began = (await connection.execute(session_statements.BEGAN_WITH, whose(ref))).all()
        said = [transcripts.message_read(row.role, row.content, row.metadata) for row in began]
        last_user = max((place for place, m in enumerate(said) if m.role is Role.USER), default=len(said))
        said[last_user : last_user + 1] = [user(content)]
        return replace(
            branch,
            metadata=bodies.document(origin.agent_metadata, "the agent's metadata"),
            messages=tuple(said),
            continues=origin.continues_execution_id,
            continues_until=origin.continues_until,
        )

    # Helpers of the methods above.

    async def _locked_session(self, connection: Transaction, scope: Scope, session_id: UUID) -> Row[Any]:
        """Return the session, whose queue is locked until this transaction ends."""
        locked = await connection.execute(session_statements.LOCK_SESSION, _locking(scope, session_id))
        return _existing(session_id, locked)

    async def _queue(self, connection: Transaction, tenant_id: str, session_id: UUID) -> Sequence[Row[Any]]:
        """Return the unfinished executions of the session: the released one, then the queue in order."""
        values = {"session_id": session_id}
        unheard, under_way = await connection.together(
            (session_statements.UNHEARD, values), (session_statements.UNDER_WAY, values)
        )
        return await self._in_turn(connection, tenant_id, session_id, unheard, under_way)

    async def _in_turn(
        self, connection: Transaction, tenant_id: str, session_id: UUID, unheard: Answer, under_way: Answer
    ) -> Sequence[Row[Any]]:
        """Queue undelivered messages, release the first execution, and return the unfinished ones."""
        values, queue = {"session_id": session_id}, under_way.all()
        if unheard.rows:
            for each in unheard.rows:
                await self._enqueue_unheard(connection, tenant_id, session_id, each)
            queue = (await connection.execute(session_statements.UNDER_WAY, values)).all()
        if queue and not queue[0].is_released:
            await connection.execute(session_statements.RELEASE, values | {"execution_id": queue[0].id})
        return queue

    async def _enqueue_unheard(
        self, connection: Transaction, tenant_id: str, session_id: UUID, unheard: Row[Any]
    ) -> None:
        """Queue a new execution for the messages that an ended execution did not receive."""
        ref = ExecutionRef(follow_up_id(unheard.execution_id, unheard.key), tenant_id, session_id)
        message = transcripts.message_read(unheard.role, unheard.content, unheard.metadata)
        values = whose(ref) | {
            "steered_id": unheard.execution_id,
            "key": unheard.key,
            "input": encode({"messages": export([message])}),
            "breakdown": encode(Usage().to_breakdown()),
        }
        await connection.execute(session_statements.QUEUE_UNHEARD, values)
        await self._say(connection, ref, [(0, line) for line in transcripts.lines([message])])
        await self._announce(connection, ref, session_id, {"queued": announcements.queued()})

    async def _announce(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        session_id: UUID,
        told: Mapping[str, Announcement],
        *then: Asked,
        last: bool = False,
    ) -> Sequence[Answer]:
        news = [bodies.announced(ref.execution_id, key, message) for key, message in told.items()]
        return await self._publish(connection, ref, session_id, news, *then, last=last)

    async def _posted(self, connection: Transaction, message: NewMessage, found: Row[Any]) -> Posted:
        """Return the outcome of a message that was posted before."""
        values = {"execution_id": message.execution_id, "session_id": message.session_id}
        execution = (await connection.execute(session_statements.POSTED, values)).first()
        if execution and execution.queue_rank == INTERRUPTING:
            key = cancel_key(str(message.id))
            waits = (await connection.execute(session_statements.INTERRUPTS, values | {"key": key})).scalar()
            cancels = _ref(message, waits) if waits else None
            return Posted(_message(found), Route.INTERRUPT, _ref(message, execution.id), cancels)
        if execution:
            taken = Route.QUEUE if execution.released_at is None else Route.START
            return Posted(_message(found), taken, _ref(message, execution.id))
        heard = select(steered.c.execution_id).where(steered.c.key == str(message.id))
        hearing = (await connection.execute(heard)).scalar()
        if hearing:
            return Posted(_message(found), Route.STEER, _ref(message, hearing))
        question = UUID(found.metadata["request_id"])
        asked = select(requests.c.execution_id).where(requests.c.id == question)
        asking = (await connection.execute(asked)).scalar_one()
        return Posted(_message(found), Route.ANSWER, _ref(message, asking), question=question)

    async def _steered(self, connection: Transaction, message: NewMessage, ref: ExecutionRef) -> Posted:
        said = announcements.input_received(message.content, message.id, message.metadata, message.context)
        await self._steer(connection, ref, str(message.id), user(message.content), said)
        stored = await connection.execute(session_statements.MESSAGE, {"message_id": message.id})
        return Posted(_message(stored.one()), Route.STEER, ref)

    async def _opened(self, message: NewMessage, new: NewSession) -> Posted | None:
        """Create the message's session and post the message to it, if the session is new.

        Other transactions do not see the session before the commit, so it needs no lock and has an empty
        queue.

        Returns:
            None, without any change, if the session or the message exists already.
        """
        ref = _ref(message, message.execution_id)
        titled = new if new.title is not None else replace(new, title=title_of(message.content))
        values = whose(ref) | parameters.accepted(_execution(message), None, None)
        async with self._transaction() as connection:
            answers = await connection.together(
                (session_statements.MAKE_SESSION, _made(titled)),
                (statements.ACCEPT, values),
                (statements.OWNS_STREAM, values),
            )
            if not all(answer.scalar() for answer in answers):
                await connection.rollback()
                return None
            launch = _turn(message, answers[1].one())
            kept, *_ = await self._told(connection, message)
            return Posted(_message(kept.one()), Route.START, ref, launch=launch)

    async def _begun(self, connection: Transaction, message: NewMessage, taken: Route) -> Posted:
        rank = INTERRUPTING if taken is Route.INTERRUPT else 1
        _, is_new = await self._accept(connection, _execution(message, is_queued=True, queue_rank=rank))
        ref = _ref(message, message.execution_id)
        values = whose(ref) | {"session_id": message.session_id, "title": title_of(message.content)}
        then: list[Asked] = [(session_statements.TOUCH_SESSION, values)]
        # With an empty queue, the execution is released at once.
        begins = is_new and taken is Route.START
        if begins:
            then.append((session_statements.RELEASE, values))
        kept, *answers = await self._told(connection, message, *then)
        launch = _turn(message, answers[-1].one()) if begins else None
        return Posted(_message(kept.one()), taken, ref, launch=launch)

    async def _told(self, connection: Transaction, message: NewMessage, *then: Asked) -> Sequence[Answer]:
        """Announce to the session's subscribers that the message's execution is accepted; the last write.

        Returns:
            The message, then the answers to `then`.
        """
        ref = _ref(message, message.execution_id)
        said = announcements.message_received(message.content, message.id, message.metadata, message.context)
        told = {f"said/{message.id}": said, "queued": announcements.queued()}
        kept = (session_statements.MESSAGE, {"message_id": message.id})
        *answers, stored = await self._announce(
            connection, ref, message.session_id, told, *then, kept, last=True
        )
        return [stored, *answers]


def _began(message: Message, execution_id: UUID) -> Mapping[str, Announcement]:
    """Return the announcement of a fork's own first message."""
    said = announcements.message_received(message.text, uuid5(execution_id, "message"))
    return {"said": said, "queued": announcements.queued()}


def _seen(query: Select[Any], scope: Scope) -> Select[Any]:
    query = query.where(sessions.c.tenant_id == scope.tenant_id)
    return query if scope.user_id is None else query.where(sessions.c.user_id == scope.user_id)


def _words(search: str) -> str:
    """Return a full-text query for all words of a search, with a prefix match for the last."""
    words = re.findall(r"\w+", search)
    if not words:
        raise InvalidInput("the search contains no word; send at least one")
    return " & ".join(f"'{word}'" for word in words) + ":*"


def _made(new: NewSession) -> dict[str, Any]:
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


def _belongs(message: NewMessage, new: NewSession) -> bool:
    """Return whether the message can be the first one in the session that is created for it."""
    return (
        message.session_id == new.id
        and message.scope.tenant_id == new.tenant_id
        and message.scope.covers(new.user_id)
        and message.request_id is None
    )


def _locking(scope: Scope, session_id: UUID) -> dict[str, Any]:
    return {"session_id": session_id, "tenant_id": scope.tenant_id, "user_id": scope.user_id}


def _existing(session_id: UUID, locked: Answer) -> Row[Any]:
    row = locked.first()
    if row is None:
        raise NotFound("session", session_id)
    return row


def _execution(message: NewMessage, **queued: Any) -> NewExecution:
    return NewExecution(
        _ref(message, message.execution_id),
        message.spec,
        (user(message.content),),
        user_id=message.user_id,
        plan=message.plan,
        task_queue=message.task_queue,
        **queued,
    )


def _turn(message: NewMessage, row: Row[Any]) -> Launch:
    """Return the launch of the message's execution; the row has the clocks of its session."""
    ref, clocks = _ref(message, message.execution_id), rows.clocks(row)
    return Launch(ref, message.plan, message.task_queue, clocks=clocks)


def _ref(message: NewMessage, execution_id: UUID) -> ExecutionRef:
    return ExecutionRef(execution_id, message.scope.tenant_id, message.session_id)


def _session(row: Row[Any]) -> SessionRow:
    return SessionRow(
        row.id,
        row.tenant_id,
        row.user_id,
        Context(row.related_type, row.related_id, row.initial_context_url),
        row.title,
        SessionStatus(row.status),
        bodies.document(row.metadata, "the session's metadata"),
        row.last_execution_id,
        row.last_snapshot_id,
        row.created_at,
        row.updated_at,
    )


def _message(row: Row[Any]) -> SessionMessageRow:
    return SessionMessageRow(
        row.id,
        row.session_id,
        MessageRole(row.role),
        row.content,
        row.agent_execution_id,
        Context(row.related_type, row.related_id, row.context_url),
        bodies.document(row.metadata, "the message's metadata"),
        row.created_at,
    )


def _snapshot(row: Row[Any]) -> SnapshotRow:
    return SnapshotRow(
        row.id,
        row.agent_execution_id,
        row.parent_snapshot_id,
        row.agent_name,
        row.step_number,
        row.is_final,
        row.debug_mode,
        bodies.document(row.state_json, "the snapshot"),
        row.created_at,
        row.previous_snapshot_id,
    )


def _owner(row: Row[Any]) -> ExecutionRef:
    return ExecutionRef(row.id, row.tenant_id, row.session_id)


def _launch(row: Row[Any]) -> Launch:
    return Launch(
        _owner(row), bodies.document(row.plan, "the plan"), row.task_queue, row.has_commands, rows.clocks(row)
    )
