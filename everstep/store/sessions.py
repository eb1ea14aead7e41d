"""Sessions in PostgreSQL: creating, changing and listing them, and recovery of their executions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    TextClause,
    func,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    update,
)

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope, follow_up_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import Command
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution, Page
from everstep.agent_domain.storage.requests import NO_ACCESS, RequestAccess, RequestRow, RequestState
from everstep.agent_domain.storage.sessions import (
    AGENT_KEY,
    ALL_SESSIONS,
    ExecutionFilter,
    ExecutionLaunch,
    Handover,
    NewSession,
    RepairCandidates,
    SessionBusy,
    SessionChanges,
    SessionFilter,
    SessionMessageRow,
    SessionRow,
    SnapshotRow,
    merge_metadata,
)
from everstep.agent_domain.values import frozen_map
from everstep.store import command_statements, ledger_entries, rows, session_statements, transcripts
from everstep.store.bodies import encode
from everstep.store.cost_statements import SESSION_COST
from everstep.store.cursors import Cursor, page_size, parse_place, place_text
from everstep.store.message_feedback import MessageFeedback, select_messages
from everstep.store.parameters import execution_key
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.postgres_text_search import filter_executions
from everstep.store.reading import (
    CANCELLED_BY,
    PLACE_OF_REQUEST,
    ROW,
    STEP_OF_REQUEST,
    page_from,
    select_requests,
    select_requests_of,
)
from everstep.store.session_queue import require_session, session_scope, session_values
from everstep.store.session_rows import execution_ref, launch_row, message_row, session_row, snapshot_row
from everstep.store.tables import executions, requests, session_messages, sessions, snapshots
from everstep.store.transaction import BoundStatement, Transaction

FIRST_CURSOR = Cursor.first()


class PostgresSessions(MessageFeedback):
    """A store with sessions."""

    async def create_session(self, new: NewSession) -> SessionRow:
        """Create a session; a repeated id returns the stored one."""
        async with self._transaction() as connection:
            scope = Scope(new.tenant_id, new.user_id)
            _, locked = await connection.together(
                (session_statements.CREATE_SESSION, session_values(new)),
                (session_statements.LOCK_SESSION, session_scope(scope, new.id)),
            )
            return session_row(require_session(new.id, locked))

    async def session(self, scope: Scope, session_id: UUID) -> SessionRow | None:
        """Return one session if the scope covers it."""
        found = await self._fetch_all(
            _filter_by_scope(select(sessions, SESSION_COST), scope).where(sessions.c.id == session_id)
        )
        return replace(session_row(found[0]), cost_usd=found[0].cost_usd) if found else None

    async def sessions(
        self,
        scope: Scope,
        wanted: SessionFilter = ALL_SESSIONS,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[SessionRow]:
        """Return a page of sessions, newest first."""
        query = _filter_by_scope(select(sessions), scope)
        for name in ("status", "related_type", "related_id", "user_id"):
            value = getattr(wanted, name)
            if value is not None:
                query = query.where(sessions.c[name] == str(value))
        if wanted.agent is not None:
            query = query.where(sessions.c.metadata[AGENT_KEY].as_string() == wanted.agent)
        if wanted.since is not None:
            query = query.where(sessions.c.created_at >= wanted.since)
        if wanted.search is not None:
            title = func.to_tsvector(literal_column("'simple'"), func.coalesce(sessions.c.title, ""))
            query = query.where(
                title.op("@@")(func.to_tsquery(literal_column("'simple'"), _search_query(wanted.search)))
            )
        if wanted.query is None:
            return await self._load_page(query, sessions, session_row, cursor, limit)
        candidates = await self._find_candidates(scope.tenant_id, wanted.query)
        query = query.where(candidates.sessions())
        return await self._load_page(query, sessions, session_row, cursor, limit, fetch=self._fetch_matches)

    async def change_session(self, scope: Scope, session_id: UUID, changes: SessionChanges) -> SessionRow:
        """Change a session."""
        async with self._transaction() as connection:
            kept = session_row(await self._lock_session(connection, scope, session_id))
            metadata = changes.metadata and merge_metadata(kept.metadata, changes.metadata)
            values = {
                "session_id": session_id,
                "title": changes.title,
                "status": changes.status and str(changes.status),
                "metadata": None if metadata is None else encode(metadata, "metadata"),
            }
            changed = await connection.execute(session_statements.CHANGE_SESSION, values)
            return session_row(changed.one())

    async def retitle(self, scope: Scope, session_id: UUID, old: str, new: str) -> bool:
        """Replace a session's title if it is still the old one."""
        mine = (sessions.c.id == session_id, sessions.c.tenant_id == scope.tenant_id, sessions.c.title == old)
        return bool(
            await self._fetch_all(update(sessions).where(*mine).values(title=new).returning(sessions.c.id))
        )

    async def delete_session(
        self, scope: Scope, session_id: UUID, *, unchanged_since: datetime | None = None
    ) -> bool:
        """Delete a session with everything in it.

        Args:
            scope: The caller's scope.
            session_id: The session.
            unchanged_since: Do not delete a session that changed after this time. The session is pruned, not
                erased: the heads of its ledgers are kept.

        Returns:
            False if there is no such session, or if it has changed.

        Raises:
            SessionBusy: An execution of the session is running.
        """
        async with self._transaction() as connection:
            try:
                session = await self._lock_session(connection, scope, session_id)
            except NotFound:
                return False
            if unchanged_since and session.updated_at >= unchanged_since:
                return False
            if await self._advance_queue(connection, scope.tenant_id, session_id):
                raise SessionBusy
            values = {"session_id": session_id, "tenant_id": scope.tenant_id}
            if unchanged_since:
                await connection.execute(session_statements.KEEP_HEADS_OF_SESSION, values)
            for statement in session_statements.DELETE_SESSION:
                await connection.execute(statement, values)
            return True

    async def messages(
        self, scope: Scope, session_id: UUID, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SessionMessageRow]:
        """Return a page of messages, newest first."""
        if await self.session(scope, session_id) is None:
            raise NotFound("session", session_id)
        query = select_messages().where(session_messages.c.session_id == session_id)
        return await self._load_page(query, session_messages, message_row, cursor, limit)

    async def inbox(
        self,
        scope: Scope,
        access: RequestAccess = NO_ACCESS,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[RequestRow]:
        """Return a page of open requests of all executions, oldest first."""
        size = page_size(limit)
        query = select_requests().where(requests.c.tenant_id == scope.tenant_id, requests.c.state == "open")
        if scope.user_id is not None:
            query = query.where(or_(requests.c.user_id == scope.user_id, *_visible_to_others(access)))
        if cursor is not None:
            last = Cursor.parse(cursor)
            query = query.where(tuple_(requests.c.created_at, requests.c.id) > (last.created_at, last.id))
        found = await self._fetch_all(query.order_by(requests.c.created_at, requests.c.id).limit(size + 1))
        return page_from(found, size, rows.request_row)

    async def requests_of(
        self,
        ref: ExecutionRef,
        scope: Scope,
        access: RequestAccess = NO_ACCESS,
        *,
        state: RequestState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[RequestRow]:
        """Return a page of the requests of an execution that a caller sees, oldest first."""
        size = page_size(limit)
        query = select_requests_of(ref)
        if scope.user_id is not None:
            query = query.where(or_(requests.c.user_id == scope.user_id, *_visible_to_others(access)))
        if state is not None:
            query = query.where(requests.c.state == str(state))
        # A call that asks for its approval and then a question has two requests, in the order of their kinds.
        place = (STEP_OF_REQUEST, PLACE_OF_REQUEST, requests.c.kind)
        if cursor is not None:
            query = query.where(tuple_(*place) > parse_place(cursor))
        found = await self._fetch_all(query.order_by(*place).limit(size + 1))
        shown = found[:size]
        last = place_text(shown[-1].step, shown[-1].idx, shown[-1].kind) if len(found) > size else None
        return Page(tuple(map(rows.request_row, shown)), last)

    async def executions_of(
        self, scope: Scope, wanted: ExecutionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """Return a page of executions, newest first."""
        more = (executions.c.outcome, CANCELLED_BY) if wanted.with_outcome else ()
        row_of = rows.ended_execution_row if wanted.with_outcome else rows.execution_row
        query = filter_executions(select(*ROW, *more), scope, wanted)
        if wanted.query is None:
            found = await self._load_page(query, executions, row_of, cursor, limit)
            return await self._with_queue_positions(scope.tenant_id, found)
        candidates = await self._find_candidates(scope.tenant_id, wanted.query)
        query = query.where(candidates.executions())
        fetch = self._fetch_matches
        found = await self._load_page(query, executions, row_of, cursor, limit, fetch=fetch)
        return await self._with_queue_positions(scope.tenant_id, found)

    async def snapshots(
        self, ref: ExecutionRef, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SnapshotRow]:
        """Return a page of an execution's snapshots, newest first."""
        query = select(snapshots).where(
            snapshots.c.agent_execution_id == ref.execution_id, snapshots.c.tenant_id == ref.tenant_id
        )
        return await self._load_page(query, snapshots, snapshot_row, cursor, limit)

    async def commands(
        self, task_queue: str, older_than: float, after: int = 0, limit: int = 100
    ) -> tuple[Sequence[Command], int | None]:
        """Return commands that have not been delivered for a while; see `SessionStore.commands`."""
        values = {"task_queue": task_queue, "older_than": older_than, "after": after, "limit": limit}
        found = await self._fetch_all(command_statements.UNDELIVERED, values)
        return tuple(map(rows.command, found)), found[-1].position if len(found) == limit else None

    async def with_undelivered_messages(
        self, task_queue: str, older_than: float, limit: int = 100
    ) -> Sequence[ExecutionRef]:
        """Return ended executions that did not receive all of their steering messages."""
        values = {"task_queue": task_queue, "older_than": older_than, "limit": limit}
        return tuple(
            map(execution_ref, await self._fetch_all(session_statements.ENDED_WITH_MISSED_MESSAGES, values))
        )

    async def hand_over(self, ref: ExecutionRef) -> Handover | None:
        """Pass steering messages of an ended execution to another one; see `SessionStore.hand_over`."""
        if not await self._fetch_all(session_statements.MISSED_MESSAGES_OF, execution_key(ref)):
            return None
        async with self._transaction() as connection:
            unheard = (
                await connection.execute(session_statements.LOCK_MISSED_MESSAGES_OF, execution_key(ref))
            ).all()
            if not unheard:
                return None
            first = unheard[0]
            if first.parent_execution_id:
                parent = replace(ref, execution_id=first.parent_execution_id, session_id=first.session_id)
                values = execution_key(ref) | {"parent_id": parent.execution_id}
                await connection.execute(session_statements.STEER_PARENT, values)
                await connection.execute(session_statements.MOVE_MISSED_MESSAGES, execution_key(ref))
                await connection.together(*_steered_entries(ref, parent, unheard), last=True)
                return Handover(parent=parent)
            launch = await self._continue_in_new_execution(connection, ref, unheard)
            await connection.execute(session_statements.MOVE_MISSED_MESSAGES, execution_key(ref))
            return Handover(launch)

    async def _continue_in_new_execution(
        self, connection: Transaction, ref: ExecutionRef, missed: Sequence[Row[Any]]
    ) -> ExecutionLaunch | None:
        """Continue an execution without a session in a new one, with the messages it did not receive."""
        new = replace(ref, execution_id=follow_up_id(ref.execution_id))
        origin = (await connection.execute(session_statements.ORIGIN, execution_key(ref))).one()
        said = [transcripts.parse_message(each.role, each.content, each.metadata) for each in missed]
        following = NewExecution(
            new,
            rows.spec(origin),
            tuple(said),
            user_id=origin.user_id,
            continues=ref.execution_id,
            plan=frozen_map(origin.plan),
            task_queue=origin.task_queue,
            request=frozen_map(origin.request or {}),
        )
        await self._insert_execution(connection, following)
        found = (await connection.execute(session_statements.LAUNCH, execution_key(new))).first()
        return launch_row(found) if found else None

    async def stored_statuses(
        self, execution_ids: Sequence[UUID]
    ) -> Mapping[UUID, tuple[ExecutionRef, ExecutionStatus]]:
        """Return the full references and statuses of executions, from their ids alone."""
        columns = (executions.c.id, executions.c.tenant_id, executions.c.session_id, executions.c.status)
        found = await self._fetch_all(select(*columns).where(executions.c.id.in_(execution_ids)))
        return {row.id: (execution_ref(row), ExecutionStatus(row.status)) for row in found}

    async def deliver_again(self, ref: ExecutionRef, since: datetime) -> int:
        """Have the commands delivered again that were accepted after a moment; return how many there are.

        A workflow whose last event is older than a command does not know it, whatever the store says.
        """
        values = execution_key(ref) | {"since": since}
        return len(await self._fetch_all(command_statements.DELIVER_LATER_AGAIN, values))

    async def repair_candidates(
        self,
        task_queue: str,
        older_than: float,
        after: str | None = None,
        limit: int = 100,
        *,
        pending_only: bool = True,
    ) -> RepairCandidates:
        """Return executions of all tenants without a recent change, which may need recovery; oldest first."""
        last = Cursor.parse(after) if after else FIRST_CURSOR
        values = {
            "task_queue": task_queue,
            "older_than": older_than,
            "pending_only": pending_only,
            "after_at": last.created_at,
            "after_id": last.id,
            "limit": limit,
        }
        found = await self._fetch_all(session_statements.STRANDED, values)
        pending = [row for row in found if row.status == ExecutionStatus.PENDING]
        return RepairCandidates(
            launches=[launch_row(row) for row in pending if row.is_released and not row.is_child],
            queued=[execution_ref(row) for row in pending if not row.is_released],
            orphans=[execution_ref(row) for row in pending if row.is_child],
            open=[launch_row(row) for row in found if row.status != ExecutionStatus.PENDING],
            cursor=Cursor(found[-1].updated_at, found[-1].id).text if len(found) == limit else None,
        )


def _steered_entries(
    ref: ExecutionRef, parent: ExecutionRef, unheard: Sequence[Row[Any]]
) -> list[BoundStatement]:
    """Return the write of the parent's ledger for messages that a subagent did not receive."""
    entries = [
        ledger_entries.steered_entry(
            f"{ref.execution_id}/{each.key}", each.role, each.content_text, each.metadata_text
        )
        for each in unheard
    ]
    return ledger_writes(parent, entries)


_NAMED_AS_APPROVER = text("""
    EXISTS (SELECT 1
              FROM json_array_elements_text(agent_requests.policy -> 'approver') AS named(approver)
             WHERE named.approver = ANY (CAST(:approvers AS text[])))
""")


def _visible_to_others(access: RequestAccess) -> Iterator[ColumnElement[bool] | TextClause]:
    """Yield the conditions under which a caller sees requests of other users."""
    if access.kinds:
        yield requests.c.kind.in_([str(kind) for kind in access.kinds])
    if access.approvers:
        yield _NAMED_AS_APPROVER.bindparams(approvers=[*access.approvers])


def _filter_by_scope(query: Select[Any], scope: Scope) -> Select[Any]:
    query = query.where(sessions.c.tenant_id == scope.tenant_id)
    return query if scope.user_id is None else query.where(sessions.c.user_id == scope.user_id)


def _search_query(search: str) -> str:
    """Return a full-text query for all words of a search, with a prefix match for the last."""
    words = re.findall(r"\w+", search)
    if not words:
        raise InvalidInput("the search contains no word; send at least one")
    return " & ".join(f"'{word}'" for word in words) + ":*"
