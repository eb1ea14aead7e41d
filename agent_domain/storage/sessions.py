"""Sessions: conversations that people have with agents, one execution after the other.

A session hears one message at a time. What becomes of a message while an execution is still under way
is decided here, by `route`; the store carries it out under the session's lock, so that messages are
taken in the order in which they arrive and no two executions of one session ever run at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import Command
from everstep.agent_domain.storage.executions import ExecutionRow, ExecutionSpec, Page
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context, MessageRole, bounded
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

MAX_CONTENT = 200_000
"""Characters that a message of a person has at most."""


MAX_TITLE = 200


WORDS_OF_TITLE = 60
"""Characters of a title that is taken from a message."""


class SessionStatus(StrEnum):
    """Whether a session still takes messages: only an active one does."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    CLOSED = "closed"


class OnBusy(StrEnum):
    """What becomes of a message while an execution of its session is under way."""

    ENQUEUE = "enqueue"
    STEER = "steer"
    INTERRUPT = "interrupt"
    REJECT = "reject"


class Route(StrEnum):
    """What a message does."""

    START = "start"
    """Its execution begins at once."""
    QUEUE = "queue"
    """Its execution begins when those before it have ended."""
    INTERRUPT = "interrupt"
    """The execution under way is cancelled, and its own comes next."""
    STEER = "steer"
    """The execution under way hears it."""
    ANSWER = "answer"
    """It answers an open question."""


class SessionBusy(EverstepError):
    """An execution of the session is under way, and the message was not to wait."""

    def __init__(self) -> None:
        super().__init__("Session is busy")


class SessionNotActive(EverstepError):
    """The session takes no messages any more."""

    def __init__(self, status: SessionStatus) -> None:
        super().__init__(f"The session is {status}; make it active again, or start another one")


class QuestionClosed(EverstepError):
    """The question that a message answers was answered before, or nobody waits for an answer any more."""

    def __init__(self) -> None:
        super().__init__("The question is no longer open")


class ContextForbidden(EverstepError):
    """The user may not see what the message is about."""


def route(*, busy: bool, asked: bool, on_busy: OnBusy) -> Route:
    """What a message does to its session: an open question comes first, unless it interrupts."""
    if asked and on_busy is not OnBusy.INTERRUPT:
        return Route.ANSWER
    if not busy:
        return Route.START
    if on_busy is OnBusy.REJECT:
        raise SessionBusy
    return _WHEN_BUSY[on_busy]


_WHEN_BUSY = {
    OnBusy.ENQUEUE: Route.QUEUE,
    OnBusy.STEER: Route.STEER,
    OnBusy.INTERRUPT: Route.INTERRUPT,
}


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session that is to be made; the same id again makes nothing new."""

    id: UUID
    tenant_id: str
    user_id: str
    context: Context = NO_CONTEXT
    title: str | None = None
    metadata: FrozenDict = EMPTY

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", frozen_map(self.metadata, "metadata"))
        if self.title is not None:
            bounded("title", self.title, MAX_TITLE)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as clients see it."""

    id: UUID
    tenant_id: str
    user_id: str
    context: Context
    title: str | None
    status: SessionStatus
    metadata: FrozenDict
    last_execution_id: UUID | None
    last_snapshot_id: UUID | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SessionMessageRow:
    """A stored message of a session."""

    id: UUID
    session_id: UUID
    role: MessageRole
    content: str
    execution_id: UUID | None
    context: Context
    metadata: FrozenDict
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions are wanted; what is None does not matter."""

    status: SessionStatus | None = None
    related_type: str | None = None
    related_id: str | None = None
    search: str | None = None
    """Words of the title, in any order; the last may be the beginning of one."""


EVERY_SESSION = SessionFilter()


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """What is to be changed; what is None stays as it is."""

    title: str | None = None
    status: SessionStatus | None = None
    metadata: FrozenDict | None = None
    """Merged into what is there; a null removes a key."""

    def __post_init__(self) -> None:
        if self.title is not None:
            bounded("title", self.title, MAX_TITLE)
        if self.metadata is not None:
            object.__setattr__(self, "metadata", frozen_map(self.metadata, "metadata"))


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A person's message, and the execution that it begins if it begins one.

    `id` names the message: the same one again changes nothing and returns what became of the first.
    """

    id: UUID
    session_id: UUID
    scope: Scope
    user_id: str
    content: str
    spec: ExecutionSpec
    plan: FrozenDict
    execution_id: UUID
    task_queue: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE
    context: Context = NO_CONTEXT
    metadata: FrozenDict = EMPTY
    session: NewSession | None = None
    """The session, if the message makes it."""
    request_id: UUID | None = None
    """The question that it answers."""

    def __post_init__(self) -> None:
        bounded("content", self.content, MAX_CONTENT)
        if not self.content.strip():
            raise InvalidInput("content is empty; say something")


@dataclass(frozen=True, slots=True)
class Launch:
    """What is needed to start a pending execution's workflow."""

    ref: ExecutionRef
    plan: FrozenDict
    task_queue: str | None = None
    has_commands: bool = False
    """Whether people have said something to it that its workflow has to be told."""
    clocks: StateInfo = StateInfo()
    """Those that it begins with: its session's."""


@dataclass(frozen=True, slots=True)
class Posted:
    """What became of a message."""

    message: SessionMessageRow | None
    """None if it answers a question: then nothing is stored yet."""
    route: Route
    execution: ExecutionRef
    """The execution that it began, that hears it, or that asked."""
    cancels: ExecutionRef | None = None
    """The execution that has to be cancelled now."""
    question: UUID | None = None
    """The request that it answers."""
    launch: Launch | None = None
    """What starts the execution, if its turn has come just now."""


@dataclass(frozen=True, slots=True)
class ExecutionFilter:
    """Which executions are wanted; what is None does not matter."""

    session_id: UUID | None = None
    parent_execution_id: UUID | None = None
    status: ExecutionStatus | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A stored state of an execution."""

    id: UUID
    execution_id: UUID
    parent_snapshot_id: UUID | None
    """Of a subagent's: the snapshot of the agent that it works for."""
    agent_name: str | None
    step_number: int | None
    is_final: bool
    debug_mode: bool
    state: FrozenDict
    created_at: datetime
    previous_snapshot_id: UUID | None = None
    """The one before it of the same execution."""


@dataclass(frozen=True, slots=True)
class Handed:
    """Another execution hears what an ended one did not."""

    launch: Launch | None = None
    """What starts it, if it has to be started."""
    parent: ExecutionRef | None = None
    """The execution that the ended one worked for, if that hears it."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """What a process left behind when it was lost between two writes."""

    launches: Sequence[Launch] = ()
    """Executions whose turn it is and whose workflow was perhaps never started."""
    queued: Sequence[ExecutionRef] = ()
    """Executions that wait for their turn: is anything before them?"""
    orphans: Sequence[ExecutionRef] = ()
    """Children that never began, of parents that have ended."""
    open: Sequence[ExecutionRef] = ()
    """Executions that run or are paused: is their workflow still there?"""
    cursor: str | None = None
    """Where the next look goes on; None: at the beginning."""


class SessionStore(Protocol):
    """Keeps sessions. Every method is one transaction."""

    async def create_session(self, new: NewSession) -> SessionRow:
        """Make a session; the same id again returns what is there."""
        ...

    async def session(self, scope: Scope, session_id: UUID) -> SessionRow | None:
        """One session, if it may be seen."""
        ...

    async def sessions(
        self,
        scope: Scope,
        wanted: SessionFilter = EVERY_SESSION,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[SessionRow]:
        """Sessions, newest first."""
        ...

    async def change_session(self, scope: Scope, session_id: UUID, changes: SessionChanges) -> SessionRow:
        """Change a session; `NotFound`."""
        ...

    async def retitle(self, scope: Scope, session_id: UUID, old: str, new: str) -> bool:
        """Give a session another title, if nobody has done so meanwhile."""
        ...

    async def delete_session(
        self, scope: Scope, session_id: UUID, *, unchanged_since: datetime | None = None
    ) -> bool:
        """Remove a session with everything in it; `SessionBusy` while it runs.

        False if there is none, or if it was changed since then.
        """
        ...

    async def messages(
        self, scope: Scope, session_id: UUID, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SessionMessageRow]:
        """Messages, newest first; `NotFound`."""
        ...

    async def post(self, message: NewMessage) -> Posted:
        """Take a person's message: see `route`.

        Raises:
            NotFound: There is no such session, or no such question in it.
            QuestionClosed: The question that it names is no longer open.
            SessionNotActive: The session takes no messages.
            SessionBusy: An execution is under way, and the message was not to wait.
        """
        ...

    async def launch(self, ref: ExecutionRef) -> Launch | None:
        """What starts this execution, if it is pending and its turn."""
        ...

    async def release(self, tenant_id: str, session_id: UUID) -> ExecutionRef | None:
        """Give the next queued execution its turn, if none is under way; the one whose turn it is."""
        ...

    async def cancel_pending(self, ref: ExecutionRef) -> bool:
        """Cancel an execution that has not begun; False if it has, or has ended."""
        ...

    async def inbox(self, scope: Scope, *, cursor: str | None = None, limit: int = 50) -> Page[RequestRow]:
        """Open questions and approvals of all executions, oldest first."""
        ...

    async def stranded(
        self,
        task_queue: str,
        older_than: float,
        after: str | None = None,
        limit: int = 100,
        *,
        pending_only: bool = True,
    ) -> Stranded:
        """What has not changed for this many seconds and may need help, of all tenants, longest first."""
        ...

    async def commands(
        self, task_queue: str, older_than: float, after: int = 0, limit: int = 100
    ) -> tuple[Sequence[Command], int | None]:
        """Commands that workflows have not been told for this many seconds, of all tenants, oldest first.

        Returns:
            The commands, and the `after` of the next page; None on the last.
        """
        ...

    async def unheard(self, task_queue: str, older_than: float, limit: int = 100) -> Sequence[ExecutionRef]:
        """Executions that ended this many seconds ago, and to which something was said that nobody heard."""
        ...

    async def hand_over(self, ref: ExecutionRef) -> Handed | None:
        """Let another execution hear what was said to one that has ended; None if there is nothing left.

        For an execution without a session and for a subagent; in a session, `release` does it.
        """
        ...

    async def owner(self, execution_id: UUID) -> ExecutionRef | None:
        """Whose execution this is; for those who look after all tenants."""
        ...

    async def executions_of(
        self, scope: Scope, wanted: ExecutionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """Executions, newest first."""
        ...

    async def snapshots(
        self, ref: ExecutionRef, *, cursor: str | None = None, limit: int = 50
    ) -> Page[SnapshotRow]:
        """Snapshots of an execution, newest first."""
        ...

    async def fork(
        self, ref: ExecutionRef, step: int, new: ExecutionRef, content: str | None = None
    ) -> Launch | None:
        """An execution that shares the conversation up to a step, optionally with other last words.

        The same id again makes nothing new; None if it has begun.
        """
        ...


def title_of(content: str) -> str:
    """A title for a session that has none: the first words of its first message."""
    words = " ".join(content.split())
    if len(words) <= WORDS_OF_TITLE:
        return words
    cut = words[:WORDS_OF_TITLE].rsplit(" ", 1)[0]
    return f"{cut}…"


def merged_metadata(kept: FrozenDict, changes: Mapping[str, Any]) -> FrozenDict:
    """Metadata after a change; a null removes its key."""
    return FrozenDict({key: value for key, value in kept.merged(changes).items() if value is not None})
