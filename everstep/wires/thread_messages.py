"""The messages of a conversation as wires restate them: with the same ids as in the events."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from everstep.agent_domain.ids import step_id
from everstep.wires.event_bodies import CallBody, StepBody
from everstep.wires.run_events import CallView, ThreadMessage

CLIENT_MESSAGE_ID = "client_message_id"
"""The key in the metadata of a message for the id that its sender gave it."""


def wire_call_id(execution_id: str, call_id: str) -> str:
    """The id of a call on every wire: providers repeat their own ids in the executions of a session."""
    return f"{execution_id[:8]}-{call_id}"


def message_id(execution_id: str, step_number: int) -> str:
    """The id of the message that a step adds to the conversation."""
    return str(step_id(UUID(execution_id), step_number))


def reply_messages(
    execution_id: str, body: StepBody, subagent_id: str | None = None
) -> Sequence[ThreadMessage]:
    """The messages of a reply: its reasoning, and its text with its calls."""
    id_ = message_id(execution_id, body.number)
    calls = tuple(CallView(wire_call_id(execution_id, each.id), each.name, each.args) for each in body.calls)
    messages: list[ThreadMessage] = []
    if body.reasoning:
        messages.append(
            ThreadMessage(f"{id_}-reasoning", "reasoning", body.reasoning, subagent_id=subagent_id)
        )
    if body.text or calls:
        messages.append(ThreadMessage(id_, "assistant", body.text, calls, subagent_id=subagent_id))
    return messages


def result_message(
    execution_id: str, said_in: str, call: CallBody, subagent_id: str | None = None
) -> ThreadMessage:
    """The result of a call; `said_in` is the message with the call."""
    return ThreadMessage(
        f"{said_in}-{call.id}",
        "tool",
        call.text,
        call_id=wire_call_id(execution_id, call.id),
        error=call.error,
        subagent_id=subagent_id,
        files=call.files,
    )


def step_messages(
    execution_id: str, body: StepBody, subagent_id: str | None = None
) -> Sequence[ThreadMessage]:
    """All messages of a step whose calls have their results."""
    id_ = message_id(execution_id, body.number)
    results = [result_message(execution_id, id_, call, subagent_id) for call in body.calls if call.is_done]
    return [*reply_messages(execution_id, body, subagent_id), *results]


def user_message(payload: Mapping[str, Any]) -> ThreadMessage:
    """The message of a person that an envelope announces."""
    metadata: Mapping[str, Any] = payload.get("metadata") or {}
    given = metadata.get(CLIENT_MESSAGE_ID)
    id_ = given if isinstance(given, str) else payload["message_id"]
    return ThreadMessage(id_, "user", payload["content"], files=tuple(payload.get("attachments") or ()))
