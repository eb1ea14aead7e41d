"""In-process events, which listeners of a running agent receive in order.

Attributes are snake_case; `to_dict()` gives the keys that other languages and logs expect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from inspect import iscoroutinefunction
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import InvalidInput, ListenerFailed
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import FrozenDict, format_moment, thaw


@dataclass(frozen=True, kw_only=True)
class Event:
    """The base of all events: something that happened to an agent at a time."""

    at: datetime
    """When it happened."""
    agent_id: UUID | None = None
    """The run of the agent."""
    parent_agent_id: UUID | None = None
    """The run of the agent that started this one as a subagent."""

    keys: ClassVar[Mapping[str, str]] = {}
    """Keys of attributes whose key is not simply their name in camelCase."""
    optional: ClassVar[tuple[str, ...]] = ("output", "cost_usd", "because")
    """Attributes that the payload leaves out while they are None."""

    def to_dict(self) -> dict[str, Any]:
        """The payload as JSON values, with the keys of rule 4.6; the time is not part of it."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "at"}
        return {
            self.keys.get(name, _camel(name)): _plain(value)
            for name, value in values.items()
            if value is not None or name not in self.optional
        }

    def payload(self) -> dict[str, Any]:
        """The same as `to_dict`."""
        return self.to_dict()


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _plain(value: object) -> Any:
    match value:
        case UUID() | datetime():
            return format_moment(value, 6) if isinstance(value, datetime) else str(value)
        case Usage():
            return value.to_wire()
        case Decimal():
            return float(value)
        case ContinuationOutcome() | StopSignal():
            return value.to_dict()
        case tuple():
            return [_plain(each) for each in cast("tuple[object, ...]", value)]
        case _:
            return thaw(value)


@dataclass(frozen=True, kw_only=True)
class AgentStepStarted(Event):
    """A step begins."""

    step_number: int
    """The number of the step, from 1."""
    message_count: int
    """The number of messages that the model reads."""
    available_tools: tuple[str, ...] = ()
    """The names of the tools that the model may call."""


@dataclass(frozen=True, kw_only=True)
class ModelCallDelayed(Event):
    """A model call failed in transport and is retried after a pause."""

    step_number: int
    """The number of the step, from 1."""
    detail: str
    """The problem, such as `provider unavailable, next attempt in 2 s`."""
    error: str
    """The text of the error."""
    seconds: float
    """The length of the pause."""


@dataclass(frozen=True, kw_only=True)
class ConversationCompacted(Event):
    """Requests contain summaries in place of old messages, or results of tools without their texts."""

    step_number: int
    """The number of the step before which it happened, from 1."""
    detail: str
    """What was done."""
    messages: int
    """How many messages were newly replaced by a summary."""
    results: int
    """How many results of tools were newly cut."""
    tokens_before: int
    """The input tokens of the request without it."""
    tokens_after: int
    """The estimated input tokens of the request with it."""
    usage: Usage
    """The tokens that the summary cost."""


@dataclass(frozen=True, kw_only=True)
class StreamEventReceived(Event):
    """The model wrote some text, or finished writing."""

    content: str
    """The text."""
    step_number: int
    """The number of the step, from 1."""
    attempt: int = 1
    """The attempt of the model call that wrote it, from 1."""
    is_complete: bool = False
    """True in the last event of an attempt, whose `content` is empty."""


@dataclass(frozen=True, kw_only=True)
class ToolCallStarted(Event):
    """A tool call begins."""

    tool: str
    """The name of the tool."""
    args: FrozenDict
    """The arguments of the call."""
    started_at: datetime
    """When the call began."""
    tool_call_id: str
    """The id of the call."""


@dataclass(frozen=True, kw_only=True)
class ToolCallProgressed(Event):
    """A tool says how far its call is."""

    tool: str
    """The name of the tool."""
    tool_call_id: str
    """The id of the call."""
    step_number: int
    """The number of the step."""
    text: str
    """What the tool says."""
    fraction: float | None
    """The part that is done, from 0 to 1; None if the tool does not know."""


@dataclass(frozen=True, kw_only=True)
class ToolCallCompleted(Event):
    """A tool call has its result."""

    tool: str
    """The name of the tool."""
    success: bool
    """Whether the call succeeded."""
    error: str | None
    """The error; None on success."""
    started_at: datetime
    """When the call began."""
    ended_at: datetime
    """When the call ended."""
    duration_ms: float
    """The duration in milliseconds."""
    tool_call_id: str
    """The id of the call."""
    result: Any = None
    """What the tool returned."""
    attachments: tuple[Attachment, ...] = ()
    """The files that the tool returned; the payload has their descriptions."""

    keys: ClassVar[Mapping[str, str]] = {"duration_ms": "duration_ms"}

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; a call without files has no key `attachments`."""
        payload = super().to_dict()
        del payload["attachments"]
        return payload | (
            {"attachments": [each.to_dict() for each in self.attachments]} if self.attachments else {}
        )


@dataclass(frozen=True, kw_only=True)
class AgentStepCompleted(Event):
    """A step is recorded; the evaluation after it is known."""

    step_number: int
    """The number of the step, from 1."""
    has_tool_calls: bool
    """Whether the model called tools."""
    error_count: int
    """The number of errors in the step."""
    error_messages: tuple[str, ...]
    """Their texts."""
    usage: Usage
    """The tokens that it used."""
    finish_reason: str | None
    """Why the model stopped writing."""
    duration_ms: float
    """The duration in milliseconds."""
    completed_at: datetime
    """When the step was complete."""
    continuation: ContinuationOutcome | None = None
    """The decision after the step."""
    cost_usd: Decimal | None = None
    """What all its model calls cost, in US dollars; None, and left out of JSON, if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class TokenUsageReported(Event):
    """A step used tokens."""

    operation: str = "step"
    """What used the tokens."""
    usage: Usage
    """The tokens that it used."""
    context: FrozenDict
    """Where they were used: `step` and `hasToolCalls`."""


@dataclass(frozen=True, kw_only=True)
class ContinuationEvaluated(Event):
    """The criteria decided whether another step follows."""

    step_number: int
    """The number of the step, from 1."""
    outcome: ContinuationOutcome
    """The decision, with every vote."""
    stop_signal: StopSignal | None
    """The stop signal that decided, if there is one."""
    source: str
    """The deciding criterion, or the source that the stop signal names."""
    status: AgentStatus
    """The status of the run."""
    errors: tuple[str, ...] = ()
    """The texts of the errors."""
    last_response: str | None = None
    """The last text of the agent."""
    output: Any = None
    """The structured result as JSON, if the execution ends with one."""
    cost_usd: Decimal | None = None
    """What the run cost so far, in US dollars; None, and left out of JSON, if it is unknown."""
    because: str | None = None
    """Why another step follows or none does, in one sentence."""

    @property
    def step(self) -> int:
        """The step's number."""
        return self.step_number

    @property
    def should_continue(self) -> bool:
        """Whether another step follows."""
        return self.outcome.should_continue

    @property
    def stop_reason(self) -> StopReason:
        """Why the run stops."""
        return self.outcome.stop_reason

    @property
    def resolved_by(self) -> str:
        """The name of the deciding criterion."""
        return self.outcome.resolved_by

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return super().to_dict() | {
            "step": self.step,
            "shouldContinue": self.should_continue,
            "stopReason": self.stop_reason,
            "resolvedBy": self.resolved_by,
        }

    def __str__(self) -> str:
        decided = (
            f"CONTINUE (requested by {self.resolved_by})"
            if self.should_continue
            else f"STOP ({self.stop_reason})"
        )
        return f"Agent [{str(self.agent_id)[:8]}] step {self.step_number}: {decided}"


@dataclass(frozen=True, kw_only=True)
class AgentStateUpdated(Event):
    """The state after a step, as a snapshot, and the step."""

    status: AgentStatus
    """The status of the run."""
    step_count: int
    """The number of completed steps."""
    state: Mapping[str, Any]
    """The state, as a slim snapshot."""
    step: Mapping[str, Any] | None
    """The step, in the form in which snapshots have it."""


@dataclass(frozen=True, kw_only=True)
class AgentFailed(Event):
    """The execution ended as failed."""

    exception: str
    """The error that ended the run."""
    status: AgentStatus
    """The status of the run."""
    steps_completed: int
    """The number of completed steps."""
    total_usage: Usage
    """The tokens of all steps."""
    errors: tuple[str, ...] = ()
    """The texts of the errors."""
    cost_usd: Decimal | None = None
    """What the run cost, in US dollars; None, and left out of JSON, if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class AgentFinished(Event):
    """The execution ended; nothing follows."""

    status: AgentStatus
    """The status of the run."""
    total_steps: int
    """The number of completed steps."""
    total_usage: Usage
    """The tokens of all steps."""
    errors: tuple[str, ...] = ()
    """The texts of the errors."""
    stop_reason: StopReason = StopReason.COMPLETED
    """Why the run ended."""
    output: Any = None
    """The structured result as JSON, if there is one."""
    cost_usd: Decimal | None = None
    """What the run cost, in US dollars; None, and left out of JSON, if it is unknown."""


E = TypeVar("E", bound=Event)
Listener: TypeAlias = Callable[[Event], object]


@dataclass
class EventBus:
    """Calls listeners with every event, in order.

    A listener that raises is a bug in the program that registered it: `ListenerFailed`
    is raised from `run` and never becomes an error of the agent.
    """

    listeners: list[Listener] = field(default_factory=list["Listener"])

    def wiretap(self, fn: Listener | None) -> None:
        """Register a listener for all events; None changes nothing."""
        if fn is not None:
            self.listeners.append(_callable(fn))

    @overload
    def on_event(self, cls: type[E], fn: Callable[[E], object]) -> None: ...
    @overload
    def on_event(self, cls: type[E], fn: None) -> None: ...
    def on_event(self, cls: type[E], fn: Callable[[E], object] | None) -> None:
        """Register a listener for the events of a class; None changes nothing."""
        if fn is None:
            return
        given = cast("object", cls)
        if not (isinstance(given, type) and issubclass(given, Event)):
            raise InvalidInput(f"on_event takes a class of events, not {given!r}")
        listener = _callable(fn)

        def only_these(event: Event) -> None:
            if isinstance(event, cls):
                listener(event)

        self.listeners.append(only_these)

    def emit(self, event: Event) -> None:
        """Call every listener.

        Raises:
            ListenerFailed: A listener raised; the ones after it are not called.
        """
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except ListenerFailed:
                # The listener is another bus, which wrapped the exception already.
                raise
            except Exception as error:
                raise ListenerFailed(type(event).__name__) from error


F = TypeVar("F", bound=Callable[..., object])


def _callable(fn: F) -> F:
    if not callable(fn):
        raise InvalidInput(f"a listener must be callable, {fn!r} is not")
    if iscoroutinefunction(fn) or iscoroutinefunction(type(fn).__call__):
        raise InvalidInput(
            f"a listener is called synchronously and cannot be awaited; make {fn!r} a plain function"
        )
    return fn
