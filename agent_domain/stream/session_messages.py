"""Session messages about an execution: one stored message for each event, for readers of the session.

An announcement accompanies the envelope of the same event. It is stored as a message of the session in the
same transaction, and sent to the session's viewers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.rights import DEFAULT_POLICY, DecisionPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.budget import ExhaustedBudget
from everstep.agent_domain.loop.status import StopReason, WireStatus
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    format_moment,
    format_optional_moment,
    frozen_map,
    valid_text,
)


class MessageRole(StrEnum):
    """The author of a session message. User interfaces may collapse `info` and `notification`."""

    USER = "user"
    ASSISTANT = "assistant"
    INFO = "info"
    NOTIFICATION = "notification"


MAX_CONTEXT = 2_000
"""The maximum length of each field of a context, in characters."""


def limited_text(name: str, value: str, limit: int) -> str:
    """Return a text after checking that it can be stored and is not too long.

    Args:
        name: The name of the field, for error messages.
        value: The text.
        limit: The maximum length, in characters.

    Raises:
        InvalidInput: It cannot be stored, or is too long.
    """
    valid_text(value, name)
    if len(value) > limit:
        raise InvalidInput(f"{name} has {len(value)} characters; send at most {limit}")
    return value


@dataclass(frozen=True, slots=True)
class Context:
    """The subject of a message or session. It informs people and never restricts the agent."""

    related_type: str | None = None
    related_id: str | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        number = cast("object", self.related_id)
        if isinstance(number, int) and not isinstance(number, bool):
            object.__setattr__(self, "related_id", str(number))
        for name in ("related_type", "related_id", "url"):
            value = getattr(self, name)
            if value is not None:
                limited_text(name, value, MAX_CONTEXT)
        if self.related_id is not None and self.related_type is None:
            raise InvalidInput("related_id needs a related_type; send both, or neither")


NO_CONTEXT = Context()


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message for a session, and the type of the envelope that announces it."""

    event_type: str
    role: MessageRole
    content: str
    metadata: FrozenDict = EMPTY
    message_id: UUID | None = None
    """The id that the sender chose; otherwise it is derived from the event."""
    context: Context = NO_CONTEXT
    attachments: tuple[Attachment, ...] = ()
    """The files of the message, or those that the call returned."""


def _info(event_type: str, content: str, **metadata: Any) -> Announcement:
    return Announcement(event_type, MessageRole.INFO, content, _present_metadata(metadata))


def _notification(event_type: str, content: str, **metadata: Any) -> Announcement:
    return Announcement(event_type, MessageRole.NOTIFICATION, content, _present_metadata(metadata))


def _present_metadata(metadata: Mapping[str, Any]) -> FrozenDict:
    return frozen_map({key: value for key, value in metadata.items() if value is not None}, "metadata")


def queued_announcement(queue_position: int | None = None) -> Announcement:
    """The message for an accepted execution.

    Args:
        queue_position: Its position in the queue of its tenant, if it has to wait for others to end.
    """
    return _info("execution.queued", "Execution queued", queue_position=queue_position)


def started_announcement() -> Announcement:
    """The message for an execution's first start."""
    return _info("execution.started", "Execution started")


def step_started_announcement(number: int) -> Announcement:
    """The message for the start of a step."""
    return _info("step.started", f"Started step {number}", step_number=number)


def step_completed_announcement(
    number: int, max_steps: int | None, tools: Sequence[str] = ()
) -> Announcement:
    """The message for a completed step."""
    of = "" if max_steps is None else f" of {max_steps}"
    tool = ", ".join(tools) or None
    return _info("step.completed", f"Completed step {number}{of}", step_number=number, tool=tool)


def tool_called_announcement(tool: str, summary: str) -> Announcement:
    """The message for the start of a tool call."""
    return _info("tool.called", f"{tool}({summary})", tool=tool)


def tool_completed_announcement(
    tool: str, error: str | None, summary: str, attachments: Sequence[Attachment] = ()
) -> Announcement:
    """The message for a completed tool call, with the files that it returned."""
    if error is not None:
        return _notification("tool.completed", f"{tool} failed: {error}", tool=tool)
    announcement = _info("tool.completed", f"{tool}: {summary}", tool=tool)
    return replace(announcement, attachments=tuple(attachments))


def input_requested_announcement(
    request_id: UUID, prompt: str, choices: Sequence[str], schema: Mapping[str, Any] | None
) -> Announcement:
    """The message with a question to a person."""
    metadata = {"request_id": str(request_id), "choices": list(choices), "schema": schema}
    return Announcement("execution.paused", MessageRole.ASSISTANT, prompt, frozen_map(metadata, "metadata"))


def approval_requested_announcement(
    request_id: UUID,
    tool: str,
    args_digest: str,
    *,
    policy: DecisionPolicy = DEFAULT_POLICY,
    expires_at: datetime | None = None,
) -> Announcement:
    """The message with a request for approval, which says who may decide and until when."""
    until = f" until {format_moment(expires_at, 0)}" if expires_at else ""
    text = f"{tool} waits for approval by {policy.approver_text}{until}"
    return _notification(
        "execution.paused",
        text,
        request_id=str(request_id),
        tool=tool,
        args_digest=args_digest,
        approver=list(policy.approver),
        expires_at=format_optional_moment(expires_at),
    )


def budget_requested_announcement(request_id: UUID, budget: ExhaustedBudget) -> Announcement:
    """The message with a request to raise a budget."""
    return _notification(
        "execution.paused",
        f"{budget.text}; it waits until {DEFAULT_POLICY.approver_text} raise it",
        request_id=str(request_id),
        kind="budget",
        **budget.to_dict(),
    )


def input_received_announcement(
    content: str,
    message_id: UUID | None,
    metadata: Mapping[str, Any] = EMPTY,
    context: Context = NO_CONTEXT,
    attachments: Sequence[Attachment] = (),
) -> Announcement:
    """The message with a person's answer, or with a steering message."""
    frozen, files = frozen_map(metadata, "metadata"), tuple(attachments)
    return Announcement("input.received", MessageRole.USER, content, frozen, message_id, context, files)


def message_received_announcement(
    content: str,
    message_id: UUID,
    metadata: Mapping[str, Any] = EMPTY,
    context: Context = NO_CONTEXT,
    attachments: Sequence[Attachment] = (),
) -> Announcement:
    """The message with a user's text that begins an execution."""
    frozen, files = frozen_map(metadata, "metadata"), tuple(attachments)
    return Announcement("message.received", MessageRole.USER, content, frozen, message_id, context, files)


def resumed_announcement() -> Announcement:
    """The message for a resumed execution."""
    return _info("execution.resumed", "Execution resumed")


def ended_announcement(
    status: WireStatus, reason: StopReason, response: str | None, error: str | None
) -> Announcement:
    """The message for the end of an execution."""
    match status:
        case WireStatus.FAILED:
            return _notification("execution.failed", error or f"stopped: {reason}", stop_reason=reason)
        case WireStatus.CANCELLED:
            return _info("execution.cancelled", "Execution cancelled")
        case _ if response:
            metadata = frozen_map({"stop_reason": reason}, "metadata")
            return Announcement("execution.completed", MessageRole.ASSISTANT, response, metadata)
        case _:
            return _notification(
                "execution.completed", f"Ended without an answer: {reason}", stop_reason=reason
            )
