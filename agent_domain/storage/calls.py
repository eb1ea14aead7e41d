"""The ledger of tool calls: reserved before they run, recorded once after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.metadata_changes import NO_NOTES, Notes
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The one result of a call."""

    call_id: str
    result: Any
    error: StepError | None
    text: str
    """What the model reads."""
    started_at: datetime
    completed_at: datetime
    seconds: float
    success: bool = True
    besides: Besides = NOTHING_BESIDES


@dataclass(frozen=True, slots=True)
class Reservation:
    """A call that this attempt may run, or what is known of it already."""

    call: ToolCall
    step_number: int
    index: int
    metadata: FrozenDict
    recorded: CallRecord | None = None
    is_uncertain: bool = False
    """An earlier attempt reserved the call and left no result: its effect is unknown."""
    resolution: Resolution | None = None
    """What people decided about it or answered."""
    answer: Resolution | None = None
    """What they answered once they had allowed it to ask."""
    broadcast: Mapping[str, Any] = EMPTY
    """How much viewers are told, as the execution's plan has it."""
    earlier: tuple[ToolCall, ...] = ()
    """The calls before this one in the same response."""
    allowed: tuple[ApprovalRule, ...] = ()
    """The calls that people have allowed for the whole execution."""


@dataclass(frozen=True, slots=True)
class RecordCall:
    """A call's result, its place in the conversation, and what it changes in the metadata."""

    ref: ExecutionRef
    step_number: int
    index: int
    record: CallRecord
    messages: Messages
    notes: Notes = NO_NOTES
    events: Sequence[EventRecord] = ()
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class InnerReply:
    """What a model answered to a tool or a processor, in the midst of a step."""

    key: str
    """Which question it is: the same for every attempt."""
    digest: str
    """Of what was asked; another question is asked anew."""
    response: FrozenDict
    """`InferenceResponse.to_dict()`."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call as clients see it."""

    call: ToolCall
    state: str
    attempts: int
    record: CallRecord | None
    index: int = 0
    """Its place among the calls of its step."""
    edited_args: FrozenDict | None = None
    """The arguments that a person put in place of the model's."""

    @property
    def allowed(self) -> ToolCall:
        """The call as it runs: with the arguments that people left it."""
        if self.edited_args is None:
            return self.call
        return replace(self.call, args=self.edited_args, malformed=None)
