"""Forks of executions, with the conversation up to a step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

from sqlalchemy import Row

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message, Role, user
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.storage.sessions import (
    CannotRetry,
    ExecutionLaunch,
    SessionBusy,
    SessionNotActive,
    SessionStatus,
)
from everstep.agent_domain.stream import session_messages as announcements
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.values import frozen_map
from everstep.store import bodies, rows, session_statements, transcripts
from everstep.store.parameters import execution_key
from everstep.store.reading import find_execution
from everstep.store.session_queue import SessionQueue
from everstep.store.session_rows import launch_row
from everstep.store.transaction import Transaction


class SessionForks(SessionQueue):
    """Forks of executions."""

    async def fork(
        self, ref: ExecutionRef, step: int, new: ExecutionRef, content: str | None = None
    ) -> ExecutionLaunch | None:
        """Create an execution that shares the conversation up to a step.

        Args:
            ref: The execution to fork.
            step: The last shared step.
            new: The new execution.
            content: A new message after that step; at step 0 it replaces the first message.
        """
        async with self._transaction() as connection:
            if ref.session_id:
                await self._lock_session(connection, Scope(ref.tenant_id), ref.session_id)
            if await find_execution(connection, new) is None:
                await self._accept_fork(connection, ref, step, new, content)
            found = (await connection.execute(session_statements.LAUNCH, execution_key(new))).first()
            return launch_row(found) if found else None

    async def retry(self, ref: ExecutionRef, new: ExecutionRef) -> ExecutionLaunch | None:
        """Create an execution that continues a failed one; see `SessionStore.retry`."""
        async with self._transaction() as connection:
            session = None
            if ref.session_id:
                session = await self._lock_session(connection, Scope(ref.tenant_id), ref.session_id)
            if await find_execution(connection, new) is None:
                if session is not None and session.status != SessionStatus.ACTIVE:
                    raise SessionNotActive(SessionStatus(session.status))
                await self._accept_retry(connection, ref, new)
            found = (await connection.execute(session_statements.LAUNCH, execution_key(new))).first()
            return launch_row(found) if found else None

    async def _accept_retry(self, connection: Transaction, ref: ExecutionRef, new: ExecutionRef) -> None:
        found = (await connection.execute(session_statements.RETRIED, execution_key(ref))).first()
        if found is None:
            raise NotFound("execution", ref.execution_id)
        if found.status != ExecutionStatus.FAILED:
            raise CannotRetry(f"Only a failed execution can be retried; this one is {found.status}")
        if found.parent_execution_id:
            raise CannotRetry(f"A subagent cannot be retried; retry its parent {found.parent_execution_id}")
        if ref.session_id and found.has_successor:
            raise CannotRetry("Its session has gone on since then; send a message instead")
        if ref.session_id and await self._advance_queue(connection, ref.tenant_id, ref.session_id):
            raise SessionBusy
        origin = (await connection.execute(session_statements.ORIGIN, execution_key(ref))).one()
        last: int = (
            await connection.execute(session_statements.LAST_COMPLETE_STEP, execution_key(ref))
        ).scalar_one()
        branch = await self._build_branch(connection, ref, origin, last, None)
        notes = frozen_map({"retry_of": str(ref.execution_id)})
        await self._insert_execution(connection, replace(branch, ref=new, notes=notes))

    async def _accept_fork(
        self, connection: Transaction, ref: ExecutionRef, step: int, new: ExecutionRef, content: str | None
    ) -> None:
        if ref.session_id and await self._advance_queue(connection, ref.tenant_id, ref.session_id):
            raise SessionBusy
        origin = (await connection.execute(session_statements.ORIGIN, execution_key(ref))).first()
        if origin is None:
            raise NotFound("execution", ref.execution_id)
        if ref.session_id and origin.parent_execution_id:
            raise InvalidInput(
                "a subagent's conversation is not that of the session; fork its parent execution"
            )
        branch = await self._build_branch(connection, ref, origin, step, content)
        await self._insert_execution(connection, replace(branch, ref=new))
        if content is not None and new.session_id:
            await self._announce(
                connection, new, new.session_id, _fork_announcements(user(content), new.execution_id)
            )

    async def _build_branch(
        self, connection: Transaction, ref: ExecutionRef, origin: Row[Any], step: int, content: str | None
    ) -> NewExecution:
        """Return the new execution that branches off after a step of this one."""
        last: int = (
            await connection.execute(session_statements.LAST_COMPLETE_STEP, execution_key(ref))
        ).scalar_one()
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
            request=frozen_map(origin.request or {}),
            notes=frozen_map({"forked_from": str(ref.execution_id), "forked_step": step}),
        )
        if step > 0 or content is None:
            return branch
        # A fork with a different first message shares the earlier conversation but not the original first
        # message.
        began = (await connection.execute(session_statements.FIRST_MESSAGES, execution_key(ref))).all()
        said = [transcripts.parse_message(row.role, row.content, row.metadata) for row in began]
        last_user = max((place for place, m in enumerate(said) if m.role is Role.USER), default=len(said))
        said[last_user : last_user + 1] = [user(content)]
        return replace(
            branch,
            metadata=bodies.document(origin.agent_metadata, "the agent's metadata"),
            messages=tuple(said),
            continues=origin.continues_execution_id,
            continues_until=origin.continues_until,
        )


def _fork_announcements(message: Message, execution_id: UUID) -> Mapping[str, Announcement]:
    """Return the announcement of a fork's own first message."""
    said = announcements.message_received_announcement(message.text, uuid5(execution_id, "message"))
    return {"said": said, "queued": announcements.queued_announcement()}
