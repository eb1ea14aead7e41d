"""Tool calls in the store: a call is reserved before it runs, and its result is recorded once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The one result of a call."""

    call_id: str
    result: Any
    error: StepError | None
    text: str
    """The text that the model reads."""
    started_at: datetime
    completed_at: datetime
    seconds: float
    success: bool = True
    besides: Besides = NOTHING_BESIDES
    note: str | None = None
    """The beginning of the text, such as that a person edited the arguments.

    None for a call that release 0.1 recorded.
    """
    own_text: str | None = None
    """The text that the tool gave in place of its result, or an empty text.

    None for a call that was closed without a result.
    """
    attachments: tuple[Attachment, ...] = ()
    """The files that the tool returned, without their content."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A call that this attempt may run, or its recorded result."""

    call: ToolCall
    step_number: int
    index: int
    metadata: FrozenDict
    recorded: CallRecord | None = None
    is_uncertain: bool = False
    """An earlier attempt reserved the call and left no result: its effect is unknown."""
    resolution: Resolution | None = None
    """A person's decision about the call, or the answer to its question."""
    answer: Resolution | None = None
    """The answer to the call's question, if the call needed approval first."""
    broadcast: Mapping[str, Any] = EMPTY
    """The plan's broadcast configuration: how much viewers receive."""
    earlier: tuple[ToolCall, ...] = ()
    """The calls before this one in the same response."""
    allowed: tuple[ApprovalRule, ...] = ()
    """Rules of calls that people have approved for the whole execution."""
    run: RunContext = NO_RUN_CONTEXT
    """The user and the request of the execution."""

    @property
    def is_denied(self) -> bool:
        """Whether a person denied the call."""
        return self.resolution is not None and self.resolution.is_denied


@dataclass(frozen=True, slots=True)
class RecordCall:
    """A call's result, its position in the conversation, and its metadata changes."""

    ref: ExecutionRef
    step_number: int
    index: int
    record: CallRecord
    messages: Messages
    notes: MetadataChanges = NO_METADATA_CHANGES
    events: Sequence[EventRecord] = ()
    attempt: int = 1
    digest: str | None = None
    """`call_digest` of the call as the model made it, with its result."""


@dataclass(frozen=True, slots=True)
class InnerReply:
    """A model's reply to a tool or processor during a step."""

    key: str
    """Identifies the question; the same in every attempt."""
    digest: str
    """The digest of the question; a retry that asks a different question calls the model again."""
    response: FrozenDict
    """`InferenceResponse.to_dict()`."""


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """The question of a call that was answered."""

    id: UUID
    """The id of its request."""
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call as clients see it."""

    call: ToolCall
    state: str
    attempts: int
    record: CallRecord | None
    index: int = 0
    """Its position among the calls of its step."""
    decision: Resolution | None = None
    """A person's decision about the call."""
    progress: Progress | None = None
    """What the tool reported last, while it runs."""
    answered: AnsweredQuestion | None = None
    """Its question, if it asked one and that was answered."""

    @property
    def edited_args(self) -> FrozenDict | None:
        """A person's replacement for the model's arguments."""
        return self.decision.edited_args if self.decision else None

    @property
    def allowed(self) -> ToolCall:
        """The call as it runs: with the edited arguments, if there are any."""
        if self.edited_args is None:
            return self.call
        return replace(self.call, args=self.edited_args, malformed=None)
