"""What clients are told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Generic, Literal, Self, TypeVar
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.disclosure import veiled
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.commands import Steering
from everstep.agent_domain.storage.executions import ExecutionRow, Page
from everstep.agent_domain.storage.requests import RequestRow, RequestState
from everstep.agent_domain.storage.sessions import (
    Route,
    SessionMessageRow,
    SessionRow,
    SessionStatus,
    SnapshotRow,
)
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.agent_domain.storage.usage_report import Account, Span
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.client.sessions import AGENT, Sent as Accepted
from everstep.http_api import samples
from everstep.http_api.samples import example
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


class Request(Told):
    """A question to people, or a call that waits for their approval."""

    model_config = example(samples.REQUEST)

    id: UUID
    execution_id: UUID
    session_id: UUID | None
    kind: CallNeed = Field(description="`input` for a question, `approval` for a call.")
    state: RequestState
    tool: str
    args: Mapping[str, Any]
    args_digest: str = Field(description="What an approval has to send back.")
    request: Mapping[str, Any] = Field(description="Of a question: its prompt, choices and schema.")
    created_at: Moment

    @classmethod
    def of(cls, row: RequestRow) -> Self:
        """What a row says."""
        return cls(
            id=row.id,
            execution_id=row.ref.execution_id,
            session_id=row.ref.session_id,
            kind=row.kind,
            state=row.state,
            tool=row.tool,
            args=row.args,
            args_digest=row.args_digest,
            request=row.request,
            created_at=row.created_at,
        )


class Execution(Told):
    """One run of an agent from its start to its stop reason."""

    model_config = example(samples.EXECUTION)

    id: UUID
    session_id: UUID | None
    parent_execution_id: UUID | None
    user_id: str | None
    agent: str
    definition_hash: str | None = Field(
        default=None,
        description="SHA-256 of the agent's definition as it was when this was accepted; told of single "
        "executions only, null in lists.",
    )
    status: ExecutionStatus
    stop_reason: StopReason | None
    step_count: int
    usage: Mapping[str, Any]
    output: Mapping[str, Any] | None = Field(description="`response` and `stop_reason`, once it has ended.")
    error_message: str | None
    last_snapshot_id: UUID | None = Field(default=None, description="The latest of its stored states.")
    metadata: Mapping[str, Any]
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None

    @classmethod
    def of(cls, row: ExecutionRow, *, in_full: bool = False) -> Self:
        """What a row says; the words of errors to those who may see everything."""
        told = row.error_told or (row.error_message and NOT_TOLD)
        return cls(
            id=row.ref.execution_id,
            session_id=row.ref.session_id,
            parent_execution_id=row.parent_execution_id,
            user_id=row.user_id,
            agent=row.agent,
            definition_hash=row.definition_hash,
            status=row.status,
            stop_reason=row.stop_reason,
            step_count=row.step_count,
            usage=row.usage,
            output=row.output,
            error_message=row.error_message if in_full else told,
            last_snapshot_id=row.last_snapshot_id,
            metadata=row.metadata,
            created_at=row.created_at,
            started_at=row.started_at,
            completed_at=row.completed_at,
        )


class ExecutionSteered(Execution):
    """An execution to which something was said, and who hears it."""

    route: Literal["steer", "queue"] = Field(
        description="`steer`: the execution hears it before its next step, or if a guard forbids another "
        "step, the execution that comes after it. `queue`: it is ending, and `heard_by` comes after it."
    )
    heard_by: UUID = Field(description="The execution that hears it.")

    @classmethod
    def told(cls, row: ExecutionRow, steering: Steering) -> Self:
        """Where the execution stands, and who hears what was said."""
        route = "queue" if steering.is_moved else "steer"
        heard_by = steering.heard_by.execution_id
        return cls(**Execution.of(row).model_dump(), route=route, heard_by=heard_by)


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


NOT_TOLD = "Failed"
"""What is told of errors that an older release stored."""


class ErrorTold(Told):
    """Something that went wrong in a step."""

    message: str
    type: str | None
    tool: str | None

    @classmethod
    def of(cls, error: StepError, *, in_full: bool = False) -> Self:
        """What a step's error says; its words to those who may see everything."""
        words = error.message if in_full else error.told
        return cls(message=words, type=error.type, tool=error.tool_name)


class Call(Told):
    """A tool call, and its result once it has one."""

    id: str
    tool: str
    args: Mapping[str, Any] = Field(description="What it runs with.")
    requested_args: Mapping[str, Any] | None = Field(
        default=None, description="What the model asked for, where a person edited the arguments."
    )
    state: str
    attempts: int
    result: Any = None
    text: str | None = Field(default=None, description="What the model reads.")
    success: bool | None = None
    error: ErrorTold | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None

    @classmethod
    def of(cls, row: CallRow, *, in_full: bool = False) -> Self:
        """What a row says; the words of errors to those who may see everything."""
        call = cls(
            id=row.call.id,
            tool=row.call.name,
            args=row.allowed.args,
            requested_args=None if row.edited_args is None else row.call.args,
            state=row.state,
            attempts=row.attempts,
        )
        record = row.record
        if record is None:
            return call
        told = {
            "result": record.result,
            "text": record.text if in_full else _told_text(record),
            "success": record.success,
            "error": ErrorTold.of(record.error, in_full=in_full) if record.error else None,
            "started_at": record.started_at,
            "completed_at": record.completed_at,
        }
        return call.model_copy(update=told)


def _told_text(record: CallRecord) -> str:
    error = record.error
    return record.text.replace(error.message, error.told) if error and error.message else record.text


class Waits(Told):
    """Why the model is not asked at the moment, and when it is asked again."""

    detail: str
    since: Moment
    next_attempt_at: Moment

    @classmethod
    def of(cls, wait: RetryWait) -> Self:
        """What is told of a wait: not what the provider said."""
        return cls(detail=wait.told, since=wait.since, next_attempt_at=wait.until)


class Step(Told):
    """One exchange with the model, and the tool calls that followed from it."""

    number: int
    attempt: int
    type: str | None = Field(description="Null while the model answers.")
    finish_reason: str | None
    usage: Mapping[str, int] | None
    errors: list[ErrorTold]
    messages: list[dict[str, Any]]
    calls: list[Call]
    partial_text: str = Field(description="What was said so far of an answer that is under way.")
    waits: Waits | None = Field(
        default=None, description="Set while the model is not asked because its provider is unavailable."
    )
    started_at: Moment
    completed_at: Moment | None
    duration_ms: float | None

    @classmethod
    def of(cls, row: StepRow, *, in_full: bool = False) -> Self:
        """What a row says; the words of errors to those who may see everything."""
        facts = row.facts
        messages = [message.to_dict() for message in row.messages]
        return cls(
            number=row.number,
            attempt=row.attempt,
            type=facts.step_type if facts else None,
            finish_reason=facts.finish_reason if facts else None,
            usage=facts.usage.to_wire() if facts else None,
            errors=[ErrorTold.of(error, in_full=in_full) for error in row.errors],
            messages=messages if in_full else veiled(messages),
            calls=[Call.of(call, in_full=in_full) for call in row.calls],
            partial_text=row.partial_text,
            waits=Waits.of(row.waits) if row.waits else None,
            started_at=row.started_at,
            completed_at=row.completed_at,
            duration_ms=row.duration_ms,
        )


class Decision(Told):
    """Why a step was followed by another, or by none: all votes, and what they came to."""

    number: int
    outcome: Mapping[str, Any] | None = Field(description="Null while the step is under way.")

    @classmethod
    def of(cls, row: StepRow, *, in_full: bool = False) -> Self:
        """What a row says; the words of errors to those who may see everything."""
        return cls(number=row.number, outcome=row.outcome if in_full else veiled(row.outcome))


class Snapshot(Told):
    """A stored state of an execution."""

    id: UUID
    execution_id: UUID
    parent_snapshot_id: UUID | None = Field(
        description="Of a subagent's: the latest snapshot of the agent that it works for."
    )
    previous_snapshot_id: UUID | None = Field(description="The one before it of the same execution.")
    agent_name: str | None
    step_number: int | None
    is_final: bool
    debug_mode: bool
    state: Mapping[str, Any]
    created_at: Moment

    @classmethod
    def of(cls, row: SnapshotRow, *, in_full: bool = False) -> Self:
        """What a row says; the words of errors to those who may see everything."""
        return cls(
            id=row.id,
            execution_id=row.execution_id,
            parent_snapshot_id=row.parent_snapshot_id,
            previous_snapshot_id=row.previous_snapshot_id,
            agent_name=row.agent_name,
            step_number=row.step_number,
            is_final=row.is_final,
            debug_mode=row.debug_mode,
            state=row.state if in_full else veiled(row.state),
            created_at=row.created_at,
        )


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
