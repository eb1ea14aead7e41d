"""What clients are told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.sessions import (
    Route,
    SessionMessageRow,
    SessionRow,
    SessionStatus,
)
from everstep.agent_domain.storage.usage_report import Account, Span
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.client.sessions import AGENT, Sent as Accepted
from everstep.http_api import samples
from everstep.http_api.samples import example
from everstep.http_api.schemas.execution_responses import Execution, ExecutionSteered, Request
from everstep.http_api.schemas.text import Moment, Told

T = TypeVar("T")
RowT = TypeVar("RowT")


class Listed(Told, Generic[T]):
    """A page of a list."""

    items: list[T]
    next_cursor: str | None = Field(
        default=None, description="Where the next page begins; null: this is the last."
    )


def listed(page: Page[RowT], of: Callable[[RowT], T]) -> Listed[T]:
    """A page of rows, as clients see them."""
    return Listed(items=[of(row) for row in page.rows], next_cursor=page.cursor)


class Session(Told):
    """A conversation over many executions."""

    model_config = example(samples.SESSION)

    id: UUID
    user_id: str
    title: str | None
    status: SessionStatus
    agent: str | None
    related_type: str | None
    related_id: str | None
    context_url: str | None
    initial_context_url: str | None = Field(description="The page on which it began.")
    metadata: Mapping[str, Any]
    last_execution_id: UUID | None
    last_snapshot_id: UUID | None
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, row: SessionRow) -> Self:
        """What a row says."""
        agent = row.metadata.get(AGENT)
        return cls(
            id=row.id,
            user_id=row.user_id,
            title=row.title,
            status=row.status,
            agent=agent if isinstance(agent, str) else None,
            related_type=row.context.related_type,
            related_id=row.context.related_id,
            context_url=row.context.url,
            initial_context_url=row.context.url,
            metadata=row.metadata,
            last_execution_id=row.last_execution_id,
            last_snapshot_id=row.last_snapshot_id,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


class Message(Told):
    """A stored message. What has the role `info` or `notification` may be folded away."""

    model_config = example(samples.MESSAGE)

    id: UUID
    session_id: UUID
    role: MessageRole
    content: str
    execution_id: UUID | None
    related_type: str | None
    related_id: str | None
    context_url: str | None
    metadata: Mapping[str, Any]
    created_at: Moment

    @classmethod
    def of(cls, row: SessionMessageRow) -> Self:
        """What a row says."""
        return cls(
            id=row.id,
            session_id=row.session_id,
            role=row.role,
            content=row.content,
            execution_id=row.execution_id,
            related_type=row.context.related_type,
            related_id=row.context.related_id,
            context_url=row.context.url,
            metadata=row.metadata,
            created_at=row.created_at,
        )


class MessageAccepted(Told):
    """A message was taken, and what it does."""

    model_config = example(samples.ACCEPTED)

    session_id: UUID
    execution_id: UUID = Field(description="The execution that it begins, that hears it, or that had asked.")
    route: Route = Field(description="Whether it begins an execution, waits, interrupts, steers or answers.")
    message: Message

    @classmethod
    def of(cls, sent: Accepted) -> Self:
        """What became of it."""
        message = Message.of(sent.message)
        return cls(
            session_id=message.session_id, execution_id=sent.execution_id, route=sent.route, message=message
        )


_TELLS_OF: Mapping[object, tuple[str, str]] = {
    Session: ("session_id", "id"),
    MessageAccepted: ("session_id", "session_id"),
    Request: ("execution_id", "execution_id"),
    Execution: ("execution_id", "id"),
    ExecutionSteered: ("execution_id", "id"),
}


def told_of(kind: object, body: Any) -> dict[str, UUID]:
    """What an answer of this kind tells of, and is erased with: a session, or an execution."""
    if kind not in _TELLS_OF:
        return {}
    what, field = _TELLS_OF[kind]
    return {what: UUID(body[field])}


class Agent(Told):
    """An agent that can be started."""

    name: str
    description: str
    tools: list[str]
    capabilities: list[str]
    source: str = Field(
        default="",
        description="Where the process of the API found it: a file, or `module:attribute`.",
        examples=["agents/reviewer.md"],
    )
    definition_hash: str = Field(
        default="", description="What a new execution of it would have as `definition_hash`."
    )

    @classmethod
    def of(cls, agent: AgentDefinition) -> Self:
        """What others are told about it."""
        told = agent.descriptor
        return cls(
            name=told.name,
            description=told.description,
            tools=[*told.tools],
            capabilities=[*told.capabilities],
            source=agent.source,
            definition_hash=agent.digest,
        )


class Agents(Told):
    """The agents of an installation."""

    items: list[Agent]
    default: str = Field(description="Whom a message goes to that names none.")


class AgentUsage(Told):
    """What the executions of one agent consumed; tokens are counted once each."""

    agent: str
    executions: int
    failed: int
    steps: int
    input: int
    output: int
    cached: int
    reasoning: int
    total: int


class Usage(Told):
    """What was consumed in a span of time."""

    since: Moment
    until: Moment
    total_tokens: int
    agents: list[AgentUsage]

    @classmethod
    def of(cls, span: Span, accounts: Sequence[Account]) -> Self:
        """What was added up."""
        return cls(
            since=span.since,
            until=span.until,
            total_tokens=sum(account.total for account in accounts),
            agents=[AgentUsage(**asdict(account)) for account in accounts],
        )


class ChannelAuth(Told):
    """What a browser shows to the gateway."""

    auth: str = Field(examples=["everstep:4f6a..."])
    channel_data: str | None = Field(
        default=None,
        description="Where the viewer was, signed along: pass it on to the gateway as it is. "
        "Absent if no `since` was sent.",
        examples=['{"since":{"epoch":"5d41","seq":7}}'],
    )


class Gateway(Told):
    """Where what happens is told as it happens: docs/streaming.md."""

    url: str = Field(
        description="Its address. `/v1` below it speaks `everstep.v1`, `/app/{key}` Pusher's protocol.",
        examples=["wss://watch.example"],
    )
    key: str | None = Field(description="The application's name in Pusher's protocol.", examples=["everstep"])
    channels: list[str] = Field(
        description="What may be watched; Pusher's clients put `private-` before it.",
        examples=[["agent.session.{session_id}", "agent.execution.{execution_id}"]],
    )


class CheckTold(Told):
    """One thing that the API cannot do without."""

    name: str
    ok: bool
    detail: str = Field(default="", description="What to do if it is missing.")


class Readiness(Told):
    """Whether requests can be served."""

    status: str = Field(examples=["ready"])
    checks: list[CheckTold]


class Health(Told):
    """That the process answers."""

    status: str = "ok"
