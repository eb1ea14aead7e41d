"""Response models, except those about executions."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.feedback import AnswerFeedback, Feedback, Rating
from everstep.agent_domain.storage.sessions import (
    AGENT_KEY,
    Route,
    SessionMessageRow,
    SessionRow,
    SessionStatus,
)
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.client.sessions import SendResult as Accepted
from everstep.http_api import samples
from everstep.http_api.samples import example
from everstep.http_api.schemas.attachment_responses import AttachmentResponse
from everstep.http_api.schemas.execution_responses import (
    ExecutionCancelled,
    ExecutionResponse,
    ExecutionSteered,
    Request,
)
from everstep.http_api.schemas.text import Moment, ResponseModel, Usd

T = TypeVar("T")
RowT = TypeVar("RowT")


class PageResponse(ResponseModel, Generic[T]):
    """A page of a list."""

    items: list[T]
    next_cursor: str | None = Field(
        default=None, description="The cursor of the next page; null on the last page."
    )


def page_response(page: Page[RowT], of: Callable[[RowT], T]) -> PageResponse[T]:
    """Convert a page of rows to a page of response models."""
    return PageResponse(items=[of(row) for row in page.rows], next_cursor=page.cursor)


class Session(ResponseModel):
    """A conversation of one or more executions."""

    model_config = example(samples.SESSION)

    id: UUID
    user_id: str
    title: str | None
    status: SessionStatus
    agent: str | None
    related_type: str | None
    related_id: str | None
    context_url: str | None
    initial_context_url: str | None = Field(description="The URL of the page on which the session started.")
    metadata: Mapping[str, Any]
    last_execution_id: UUID | None
    last_snapshot_id: UUID | None
    cost_usd: Usd | None = Field(
        default=None,
        description="What its executions cost so far, in US dollars, their subagents included; null if that "
        "is unknown, and in lists.",
    )
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, row: SessionRow) -> Self:
        """Convert a stored row."""
        agent = row.metadata.get(AGENT_KEY)
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
            cost_usd=row.cost_usd,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


class FeedbackResponse(ResponseModel):
    """What a person said about an answer."""

    rating: Rating | None
    text: str | None
    by: str = Field(description="The user or the service that gave it.")
    at: Moment

    @classmethod
    def of(cls, given: Feedback) -> Self:
        """Convert stored feedback."""
        return cls(rating=given.rating, text=given.text, by=given.by, at=given.at)


class AnswerFeedbackResponse(FeedbackResponse):
    """Feedback with the answer that it is about."""

    message_id: UUID
    session_id: UUID
    execution_id: UUID | None
    agent: str | None
    answer: str
    created_at: Moment = Field(description="The time of the answer.")

    @classmethod
    def from_row(cls, row: AnswerFeedback) -> Self:
        """Convert a stored row."""
        return cls(
            **FeedbackResponse.of(row.feedback).model_dump(),
            message_id=row.id,
            session_id=row.session_id,
            execution_id=row.execution_id,
            agent=row.agent,
            answer=row.answer,
            created_at=row.created_at,
        )


class MessageResponse(ResponseModel):
    """A stored message. User interfaces may collapse those with the role `info` or `notification`."""

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
    attachments: list[AttachmentResponse] = Field(description="The files of the message.")
    created_at: Moment
    feedback: FeedbackResponse | None = Field(
        default=None, description="What a person said about the answer; null without feedback."
    )

    @classmethod
    def of(cls, row: SessionMessageRow) -> Self:
        """Convert a stored row."""
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
            attachments=[AttachmentResponse.of(each) for each in row.attachments],
            created_at=row.created_at,
            feedback=FeedbackResponse.of(row.feedback) if row.feedback else None,
        )


class MessageAccepted(ResponseModel):
    """An accepted message, and its effect."""

    model_config = example(samples.ACCEPTED)

    session_id: UUID
    execution_id: UUID = Field(description="The execution that the message starts, steers or answers.")
    route: Route = Field(
        description="Whether the message starts an execution, is queued, interrupts, steers or answers."
    )
    message: MessageResponse

    @classmethod
    def of(cls, sent: Accepted) -> Self:
        """Convert the result of sending a message."""
        message = MessageResponse.of(sent.message)
        return cls(
            session_id=message.session_id, execution_id=sent.execution_id, route=sent.route, message=message
        )


_SUBJECTS: Mapping[object, tuple[str, str]] = {
    Session: ("session_id", "id"),
    MessageAccepted: ("session_id", "session_id"),
    MessageResponse: ("session_id", "session_id"),
    Request: ("execution_id", "execution_id"),
    ExecutionResponse: ("execution_id", "id"),
    ExecutionSteered: ("execution_id", "id"),
    ExecutionCancelled: ("execution_id", "id"),
    AttachmentResponse: ("attachment_id", "id"),
}


def subject_of(kind: object, body: Any) -> dict[str, UUID]:
    """The object that a response is about, which erases the stored response with itself."""
    if kind not in _SUBJECTS:
        return {}
    what, field = _SUBJECTS[kind]
    return {what: UUID(body[field])}


class AgentResponse(ResponseModel):
    """An agent that can be started."""

    name: str
    description: str
    tools: list[str]
    capabilities: list[str]
    source: str = Field(
        default="",
        description="Where the API process found the agent: a file, or `module:attribute`.",
        examples=["agents/reviewer.md"],
    )
    definition_hash: str = Field(
        default="", description="The `definition_hash` of new executions of the agent."
    )

    @classmethod
    def of(cls, agent: AgentDefinition) -> Self:
        """Convert an agent definition."""
        descriptor = agent.descriptor
        return cls(
            name=descriptor.name,
            description=descriptor.description,
            tools=[*descriptor.tools],
            capabilities=[*descriptor.capabilities],
            source=agent.source,
            definition_hash=agent.digest,
        )


class Agents(ResponseModel):
    """The agents of an installation."""

    items: list[AgentResponse]
    default: str = Field(description="The agent for messages that name none.")


class ChannelAuth(ResponseModel):
    """The authorisation that a browser sends to the gateway."""

    auth: str = Field(examples=["everstep:4f6a..."])
    channel_data: str | None = Field(
        default=None,
        description="The signed position of the viewer; send it to the gateway unchanged. "
        "Absent if no `since` was sent.",
        examples=['{"since":{"epoch":"5d41","seq":7}}'],
    )


class Gateway(ResponseModel):
    """The gateway, which streams events; see docs/streaming.md."""

    url: str = Field(
        description="Its URL. The path `/v1` serves `everstep.v1`, `/app/{key}` serves Pusher's protocol.",
        examples=["wss://watch.example"],
    )
    key: str | None = Field(description="The application key in Pusher's protocol.", examples=["everstep"])
    channels: list[str] = Field(
        description="The patterns of channel names; Pusher's clients prefix them with `private-`.",
        examples=[["agent.session.{session_id}", "agent.execution.{execution_id}"]],
    )


class CheckResponse(ResponseModel):
    """The result of a readiness check."""

    name: str
    ok: bool
    detail: str = Field(default="", description="How to fix a failed check.")


class ReadinessResponse(ResponseModel):
    """Whether the API can serve requests."""

    status: str = Field(examples=["ready"])
    checks: list[CheckResponse]


class Health(ResponseModel):
    """The process is alive."""

    status: str = "ok"
