"""Sessions: conversations of people with agents, as one execution after another.

A session processes one message at a time. `choose_route` decides how a message is handled while an execution
is running. The store applies the decision under the session's lock, so messages are accepted in the order of
their arrival, and two executions of one session never run at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.storage.feedback import Feedback
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context, MessageRole, limited_text
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

MAX_CONTENT = 200_000
"""The maximum length of a user message, in characters."""


MAX_TITLE = 200

AGENT_KEY = "agent"
"""The key in the metadata of a session for its agent."""


MAX_DERIVED_TITLE = 60
"""The maximum length of a title that is derived from a message, in characters."""


class SessionStatus(StrEnum):
    """The status of a session; only an active one accepts messages."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    CLOSED = "closed"


class OnBusy(StrEnum):
    """How to handle a message while an execution of its session is running."""

    ENQUEUE = "enqueue"
    STEER = "steer"
    INTERRUPT = "interrupt"
    REJECT = "reject"


class Route(StrEnum):
    """How a message is handled."""

    START = "start"
    """Its execution begins at once."""
    QUEUE = "queue"
    """Its execution begins when those before it have ended."""
    INTERRUPT = "interrupt"
    """The running execution is cancelled, and the message's own execution comes next."""
    STEER = "steer"
    """The running execution receives it."""
    ANSWER = "answer"
    """It answers an open question."""


class SessionBusy(EverstepError):
    """An execution of the session is running, and the message was sent with `on_busy=reject`."""

    def __init__(self) -> None:
        super().__init__("Session is busy")


class CannotRetry(EverstepError):
    """The execution cannot be retried; the message says why. Nothing was changed."""


class SessionNotActive(EverstepError):
    """The session is archived or closed, so it accepts no messages."""

    def __init__(self, status: SessionStatus) -> None:
        super().__init__(f"The session is {status}; make it active again, or start another one")


class QuestionClosed(EverstepError):
    """The question was answered before, or its execution no longer waits for an answer."""

    def __init__(self) -> None:
        super().__init__("The question is no longer open")


class AnswerHasFiles(InvalidInput):
    """A question is open, and answers are text."""

    def __init__(self) -> None:
        super().__init__(
            "the agent waits for the answer to a question, which is text; answer it without attachments, or "
            "send them with on_busy=interrupt"
        )


class ContextForbidden(EverstepError):
    """The user may not see the subject of the message."""


def choose_route(*, is_busy: bool, has_question: bool, on_busy: OnBusy) -> Route:
    """Decide how a message is handled.

    An open question takes precedence, unless the message interrupts.

    Args:
        is_busy: Whether an execution of the session is running or queued.
        has_question: Whether a question is open.
        on_busy: The sender's choice for a busy session.

    Raises:
        SessionBusy: The session is busy, and `on_busy` is `REJECT`.
    """
    if has_question and on_busy is not OnBusy.INTERRUPT:
        return Route.ANSWER
    if not is_busy:
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
    """A session to create; repeating the same id creates nothing new."""

    id: UUID
    tenant_id: str
    user_id: str
    context: Context = NO_CONTEXT
    title: str | None = None
    metadata: FrozenDict = EMPTY

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", frozen_map(self.metadata, "metadata"))
        if self.title is not None:
            limited_text("title", self.title, MAX_TITLE)


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
    cost_usd: Decimal | None = field(default=None, compare=False)
    """What its executions cost so far, in US dollars; None if it is unknown, and in lists."""


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
    attachments: tuple[Attachment, ...] = ()
    feedback: Feedback | None = None
    """What a person said about the answer; only lists of messages have it."""


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter of sessions; fields that are None match all."""

    status: SessionStatus | None = None
    related_type: str | None = None
    related_id: str | None = None
    search: str | None = None
    """Words of the title, in any order; the last one may be a prefix."""
    agent: str | None = None
    user_id: str | None = None
    since: datetime | None = None
    """Only sessions that began then or later."""
    query: TextQuery | None = None
    """Only sessions in which a message matches."""


ALL_SESSIONS = SessionFilter()


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """Changes of a session; fields that are None stay unchanged."""

    title: str | None = None
    status: SessionStatus | None = None
    metadata: FrozenDict | None = None
    """Merged into the existing metadata; a null removes its key."""

    def __post_init__(self) -> None:
        if self.title is not None:
            limited_text("title", self.title, MAX_TITLE)
        if self.metadata is not None:
            object.__setattr__(self, "metadata", frozen_map(self.metadata, "metadata"))


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A user message, and the execution that it may begin.

    `id` is the idempotency key: repeating it changes nothing and returns the outcome of the first message.
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
    """The session, if the message creates it."""
    request_id: UUID | None = None
    """The question that the message answers."""
    sent_by: Decider | None = None
    """Who sends it, to record if it cancels an execution."""
    attachments: tuple[Attachment, ...] = ()
    history: Messages = ()
    """An earlier conversation, which the execution reads before the message."""

    def __post_init__(self) -> None:
        limited_text("content", self.content, MAX_CONTENT)
        if not self.content.strip() and not self.attachments:
            raise InvalidInput("content is empty; say something")

    @property
    def as_message(self) -> Message:
        """The message as the model reads it."""
        return Message.user(self.content, attachments=self.attachments)

    @property
    def first_messages(self) -> Messages:
        """The messages with which its execution begins."""
        return (*self.history, self.as_message)

    @property
    def title(self) -> str:
        """The title of a session that begins with it."""
        return title_from(self.content if self.content.strip() else self.attachments[0].name)


CompleteMessage: TypeAlias = "Callable[[NewMessage, SessionRow], NewMessage]"


def as_it_is(message: NewMessage, _session: SessionRow) -> NewMessage:
    """Return the message: the default of callbacks that complete it."""
    return message


@dataclass(frozen=True, slots=True)
class ExecutionLaunch:
    """The data needed to start the workflow of a pending execution."""

    ref: ExecutionRef
    plan: FrozenDict
    task_queue: str | None = None
    has_commands: bool = False
    """Whether stored commands wait to be delivered to its workflow."""
    clocks: StateInfo = StateInfo()
    """The times with which it begins: those of its session."""
    run: RunContext = NO_RUN_CONTEXT
    """Its user and its request."""
    is_waiting: bool = False
    """Whether it waits for a place of its tenant, so that it must be admitted first."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a settlement that changed an execution."""

    is_queue_checked: bool = False
    """Whether the queue of the execution's session was advanced in the same transaction."""
    launch: ExecutionLaunch | None = None
    """The next execution of the session, whose workflow is to be started."""
    frees_place: bool = False
    """Whether an execution of the tenant may now be admitted that waits for a place."""
    has_ended: bool = True
    """Whether the execution has ended; otherwise it runs or is paused."""


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """The outcome of a user message."""

    message: SessionMessageRow | None
    """None if it answers a question: then nothing is stored yet."""
    route: Route
    execution: ExecutionRef
    """The execution that it began, that receives it, or that asked the question."""
    cancels: ExecutionRef | None = None
    """The execution that must be cancelled now."""
    question: UUID | None = None
    """The request that it answers."""
    launch: ExecutionLaunch | None = None
    """Set if the execution has just been released, so that its workflow must be started."""
    is_behind_running: bool = False
    """Whether it was just queued behind an execution that has begun, whose end releases it."""
    was_untitled: bool = False
    """Whether its session had no title before it."""


@dataclass(frozen=True, slots=True)
class ExecutionFilter:
    """A filter of executions; fields that are None match all."""

    session_id: UUID | None = None
    parent_execution_id: UUID | None = None
    status: ExecutionStatus | None = None
    agent: str | None = None
    user_id: str | None = None
    since: datetime | None = None
    """Only executions that were accepted then or later."""
    query: TextQuery | None = None
    """Only executions in which a message matches."""
    with_outcome: bool = False
    """Whether the outcomes are read as well, and who cancelled; they are large."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A stored state of an execution."""

    id: UUID
    execution_id: UUID
    parent_snapshot_id: UUID | None
    """For a subagent: the snapshot of its parent agent."""
    agent_name: str | None
    step_number: int | None
    is_final: bool
    debug_mode: bool
    state: FrozenDict
    created_at: datetime
    previous_snapshot_id: UUID | None = None
    """The previous snapshot of the same execution."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The execution that receives the undelivered messages of an ended one."""

    launch: ExecutionLaunch | None = None
    """Set if that execution must be started."""
    parent: ExecutionRef | None = None
    """The ended execution's parent, if the parent receives them."""


@dataclass(frozen=True, slots=True)
class RepairCandidates:
    """Executions that may need repair because a process crashed between two writes."""

    launches: Sequence[ExecutionLaunch] = ()
    """Released executions whose workflow may never have been started."""
    queued: Sequence[ExecutionRef] = ()
    """Queued executions; the reconciler checks whether anything is ahead of them."""
    orphans: Sequence[ExecutionRef] = ()
    """Children that never began, and whose parents have ended."""
    open: Sequence[ExecutionLaunch] = ()
    """Running or paused executions; the reconciler checks whether their workflow exists."""
    cursor: str | None = None
    """The `after` of the next query; None: start from the beginning."""


def title_from(content: str) -> str:
    """A title for a session without one: the first words of its first message."""
    words = " ".join(content.split())
    if len(words) <= MAX_DERIVED_TITLE:
        return words
    cut = words[:MAX_DERIVED_TITLE].rsplit(" ", 1)[0]
    return f"{cut}…"


def merge_metadata(metadata: FrozenDict, changes: Mapping[str, Any]) -> FrozenDict:
    """Metadata after a change; a null removes its key."""
    return FrozenDict({key: value for key, value in metadata.merged(changes).items() if value is not None})
