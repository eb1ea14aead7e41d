"""What happens in an execution, in the terms that all wires share.

Every event names the execution that it is about: the one that the reader follows, or one of its subagents.
The events of text carry no number of their own, because they come from chunks, which are not stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.values import EMPTY


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call as a model requested it."""

    id: str
    """Unique in its session, although providers repeat theirs."""
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestView:
    """An open question, approval or exhausted budget."""

    id: str
    execution_id: str
    call: CallView
    is_question: bool
    prompt: str = ""
    choices: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    """The JSON schema of the form that answers a question."""
    args_digest: str = ""
    expires_at: str | None = None
    budget: Mapping[str, Any] | None = None
    """The amounts of an exhausted budget, which has no call."""

    @property
    def is_budget(self) -> bool:
        """Whether it waits until a person raises a budget."""
        return self.budget is not None


@dataclass(frozen=True, slots=True)
class ThreadMessage:
    """A message of a conversation, as a wire restates it."""

    id: str
    role: str
    """`user`, `assistant`, `reasoning` or `tool`."""
    text: str = ""
    calls: tuple[CallView, ...] = ()
    call_id: str | None = None
    """The call that a tool message answers."""
    error: str | None = None
    """The error of a call that failed."""
    subagent_id: str | None = None
    """The execution of the subagent that wrote it; None for the agent itself."""
    files: tuple[Mapping[str, Any], ...] = ()
    """The references of attached files."""


Thread: TypeAlias = tuple[ThreadMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    execution_id: str
    """The execution that it is about."""
    seq: int
    """The last stored envelope behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(_Event):
    """The execution begins, or continues after people have answered."""

    segment: int
    """How often it has waited for people before."""
    state: Mapping[str, Any] = EMPTY
    """The metadata of the agent."""
    thread: Thread = ()
    has_news: bool = False
    """Whether the conversation went on while no run was open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaused(_Event):
    """The execution waits for people."""

    requests: tuple[RequestView, ...]
    thread: Thread
    state: Mapping[str, Any] = EMPTY
    because: str | None = None
    usage: Mapping[str, int] = EMPTY
    """Of the execution so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(_Event):
    """The execution has ended."""

    status: str
    """`completed`, `stopped`, `failed` or `cancelled`."""
    response: str | None
    error: str | None = None
    output: Mapping[str, Any] | None = None
    stop_reason: str | None = None
    because: str | None = None
    usage: Mapping[str, int] = EMPTY
    cost_usd: float | None = None
    state: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(_Event):
    """A step begins, or continues in a new run."""

    number: int
    is_continued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(_Event):
    """A step is complete, or its execution ends or waits in the middle of it."""

    number: int
    finish_reason: str | None = None
    because: str | None = None
    is_suspended: bool = False
    """Whether the step continues in a later run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStarted(_Event):
    """A model begins to write."""

    message_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAdded(_Event):
    """More text of a model."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnded(_Event):
    """The text is complete."""

    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDropped(_Event):
    """The text so far is void: its attempt was given up, or the stored message is another one."""

    message_id: str
    thread: Thread
    """The conversation without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSuperseded(_Event):
    """The attempt of a model call was given up after it had written text, and another one begins."""

    number: int
    """The step."""
    next_attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoned(_Event):
    """The reasoning that a provider returned with a reply."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequested(_Event):
    """A model requests a tool call."""

    message_id: str
    call: CallView
    is_question: bool = False
    """Whether it asks a person, whose answer is its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded(_Event):
    """A tool call has its result."""

    message_id: str
    """The id of the message with the result."""
    call: CallView
    text: str
    """The text that the model reads."""
    result: Any = None
    error: str | None = None
    is_denied: bool = False
    has_request: bool = False
    """Whether a person was asked about it."""
    files: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(_Event):
    """A call has changed the metadata of the agent."""

    changes: MetadataChanges
    state: Mapping[str, Any]
    """The metadata after the changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived(_Event):
    """A person has sent a message to the running execution."""

    message: ThreadMessage
    thread: Thread


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOpened(_Event):
    """A question or an approval waits for a person."""

    request: RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResolved(_Event):
    """A person has answered, or a default answer or an expiry has."""

    request: RequestView
    decision: str
    """`answer`, `default`, `approve`, `deny`, `edit` or `raise`."""
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentStarted(_Event):
    """A call has started a subagent, or one continues in a new run."""

    name: str
    parent_id: str
    """The execution whose call it is."""
    is_nested: bool
    """Whether that execution is a subagent itself."""
    call_id: str | None = None
    message_id: str | None = None
    """The message with the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentEnded(_Event):
    """A subagent has ended, or waits with its parent."""

    name: str
    status: str
    """A terminal status, or `paused`."""
    text: str = ""
    """What it said last."""
    error: str | None = None
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(_Event):
    """What an execution does or waits for, in words: a retry, the progress of a call, a pause."""

    detail: str
    call_id: str | None = None
    fraction: float | None = None


RunEvent: TypeAlias = (
    RunStarted
    | RunPaused
    | RunEnded
    | StepStarted
    | StepEnded
    | TextStarted
    | TextAdded
    | TextEnded
    | TextDropped
    | AttemptSuperseded
    | Reasoned
    | CallRequested
    | CallEnded
    | StateChanged
    | MessageReceived
    | RequestOpened
    | RequestResolved
    | SubagentStarted
    | SubagentEnded
    | Progressed
)

TEXT_EVENTS = (TextStarted, TextAdded, TextEnded, TextDropped)
"""Events that depend on how much text a reader has: they have no number among those of an envelope."""
