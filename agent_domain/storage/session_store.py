"""The port that stores sessions, their messages and their queue."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import Command
from everstep.agent_domain.storage.executions import ExecutionRow, Page
from everstep.agent_domain.storage.feedback import AnswerFeedback, Feedback
from everstep.agent_domain.storage.requests import NO_ACCESS, RequestAccess, RequestRow, RequestState
from everstep.agent_domain.storage.session_charges import SessionChargeStore
from everstep.agent_domain.storage.sessions import (
    ALL_SESSIONS,
    CompleteMessage,
    ExecutionFilter,
    ExecutionLaunch,
    Handover,
    MessageOutcome,
    NewMessage,
    NewSession,
    RepairCandidates,
    SessionChanges,
    SessionFilter,
    SessionMessageRow,
    SessionRow,
    SnapshotRow,
    as_it_is,
)


class SessionStore(SessionChargeStore, Protocol):
    """Stores sessions. Every method is one transaction."""

    async def create_session(self, new: NewSession) -> SessionRow:
        """Create a session; an existing one with the same id is returned unchanged."""
        ...

    async def session(self, scope: Scope, session_id: UUID) -> SessionRow | None:
        """One session, if it exists and the scope covers it."""
        ...

    async def sessions(
        self,
        scope: Scope,
        wanted: SessionFilter = ALL_SESSIONS,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[SessionRow]:
        """Sessions, newest first."""
        ...

    async def change_session(self, scope: Scope, session_id: UUID, changes: SessionChanges) -> SessionRow:
        """Change a session.

        Raises:
            NotFound: There is no such session in the scope.
        """
        ...

    async def retitle(self, scope: Scope, session_id: UUID, old: str, new: str) -> bool:
        """Replace the title `old` with `new`; False if the title is no longer `old`."""
        ...

    async def delete_session(
        self, scope: Scope, session_id: UUID, *, unchanged_since: datetime | None = None
    ) -> bool:
        """Delete a session and everything in it.

        Args:
            scope: The caller's scope.
            session_id: The session.
            unchanged_since: Delete only if the session has not changed since this moment.

        Returns:
            False if there is no such session, or if it has changed.

        Raises:
            SessionBusy: An execution of the session is running.
        """
        ...

    async def messages(
        self, scope: Scope, session_id: UUID, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SessionMessageRow]:
        """Messages of a session, newest first.

        Raises:
            NotFound: There is no such session in the scope.
        """
        ...

    async def post(self, message: NewMessage, complete: CompleteMessage = as_it_is) -> MessageOutcome:
        """Accept a user message; see `choose_route`.

        Args:
            message: The message.
            complete: Completes a message that begins an execution, given its session. So the caller does not
                have to read the session first.

        Raises:
            NotFound: There is no such session, or no such question in it.
            QuestionClosed: The named question is no longer open.
            SessionNotActive: The session accepts no messages.
            SessionBusy: An execution is running, and `on_busy` is `REJECT`.
        """
        ...

    async def launch(self, ref: ExecutionRef) -> ExecutionLaunch | None:
        """The data to start this execution, if it is pending and released from the queue."""
        ...

    async def release(self, tenant_id: str, session_id: UUID) -> ExecutionRef | None:
        """Release the next queued execution, if none is running; return the released one."""
        ...

    async def cancel_pending(self, ref: ExecutionRef) -> bool:
        """Cancel an execution that has not begun; False if it has begun or ended."""
        ...

    async def inbox(
        self,
        scope: Scope,
        access: RequestAccess = NO_ACCESS,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[RequestRow]:
        """Open questions and approvals of all executions in the scope, oldest first.

        Args:
            scope: The tenant, and the user whose requests are listed.
            access: The requests of other users that are listed, too.
            cursor: Where the page begins.
            limit: The number of rows.
        """
        ...

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
        """The requests of an execution that a caller sees, oldest first.

        Args:
            ref: The execution.
            scope: The tenant, and the user whose requests are listed.
            access: The requests of other users that are listed, too.
            state: Only those in this state.
            cursor: Where the page begins.
            limit: The number of rows.
        """
        ...

    async def repair_candidates(
        self,
        task_queue: str,
        older_than: float,
        after: str | None = None,
        limit: int = 100,
        *,
        pending_only: bool = True,
    ) -> RepairCandidates:
        """Executions of all tenants that may need repair, those without a change for the longest time first.

        Args:
            task_queue: Only executions of this task queue.
            older_than: Only executions that have not changed for this many seconds.
            after: The cursor of the previous result.
            limit: The maximum number of executions.
            pending_only: Whether to leave out executions that run or are paused.
        """
        ...

    async def commands(
        self, task_queue: str, older_than: float, after: int = 0, limit: int = 100
    ) -> tuple[Sequence[Command], int | None]:
        """Commands of all tenants that have been undelivered for this many seconds, oldest first.

        Returns:
            The commands, and the `after` of the next page, which is None on the last page.
        """
        ...

    async def with_undelivered_messages(
        self, task_queue: str, older_than: float, limit: int = 100
    ) -> Sequence[ExecutionRef]:
        """Executions that ended this many seconds ago and still have undelivered messages."""
        ...

    async def hand_over(self, ref: ExecutionRef) -> Handover | None:
        """Pass the undelivered messages of an ended execution on to another one; None if there are none.

        This is for executions without a session and for subagents; in a session, `release` does it.
        """
        ...

    async def stored_statuses(
        self, execution_ids: Sequence[UUID]
    ) -> Mapping[UUID, tuple[ExecutionRef, ExecutionStatus]]:
        """The references and statuses of executions of any tenant, for operators; without unknown ids."""
        ...

    async def deliver_again(self, ref: ExecutionRef, since: datetime) -> int:
        """Have the commands delivered again that were accepted after a moment; return how many there are."""
        ...

    async def executions_of(
        self, scope: Scope, wanted: ExecutionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """Executions that match a filter, newest first."""
        ...

    async def snapshots(
        self, ref: ExecutionRef, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SnapshotRow]:
        """Snapshots of an execution, newest first."""
        ...

    async def fork(
        self, ref: ExecutionRef, step: int, new: ExecutionRef, content: str | None = None
    ) -> ExecutionLaunch | None:
        """Create an execution that shares the conversation of another one up to a step.

        Args:
            ref: The execution to fork.
            step: The last shared step.
            new: The new execution; repeating its id creates nothing new.
            content: A new user message. It follows the shared conversation; at step 0 it replaces the message
                that began the execution.

        Returns:
            The data to start the new execution; None if it has begun already.

        Raises:
            NotFound: There is no such execution.
            InvalidInput: The step is not complete, or a subagent's execution cannot be forked in its session.
            SessionBusy: An execution of the session is running or queued.
        """
        ...

    async def give_feedback(
        self, scope: Scope, message_id: UUID, given: Feedback | None
    ) -> SessionMessageRow:
        """Store feedback on an answer, in place of earlier feedback; None removes it.

        Raises:
            NotFound: There is no such message in the scope.
            InvalidInput: The message is no answer.
        """
        ...

    async def feedback(
        self, scope: Scope, *, cursor: str | None = None, limit: int = 50
    ) -> Page[AnswerFeedback]:
        """Return a page of feedback with its answers, of the newest answers first."""
        ...

    async def retry(self, ref: ExecutionRef, new: ExecutionRef) -> ExecutionLaunch | None:
        """Create an execution that continues a failed one, with its whole conversation.

        Args:
            ref: The failed execution.
            new: The new execution; repeating its id creates nothing new.

        Returns:
            The data to start the new execution; None if it has begun already.

        Raises:
            NotFound: There is no such execution.
            CannotRetry: It has not failed, its session has gone on, or it belongs to a subagent.
            SessionBusy: An execution of the session is running or queued.
            SessionNotActive: The session is closed or archived.
        """
        ...
