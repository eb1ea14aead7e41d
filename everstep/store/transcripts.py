"""The transcript: messages and notes, each at its place in a step.

The order within a step: hook notes, steering messages, hook messages, the reply, results, processor messages,
call notes, processor notes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import Message, Messages, Role
from everstep.agent_domain.storage.metadata_changes import Notes, of_next_execution
from everstep.agent_domain.storage.steps import Added
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, reading
from everstep.store.bodies import document, encode

RESULTS_FROM = 1000
"""The index of the first result within a step, above that of any reply."""

HEARD_BEFORE = -RESULTS_FROM
"""Steering messages are placed below this index; the range above it is for hook messages."""

PROCESSED_FROM = 1_900_000_000
_NOTES_OF_HOOKS = -2_000_000_000
_NOTES_OF_CALLS = 2_000_000_000
_NOTES_OF_PROCESSORS = 2_100_000_000

NOTE = "note"
"""The role of a line that is no message: it holds `Notes`, or the metadata with which an execution began."""


@dataclass(frozen=True, slots=True)
class Line:
    """A message at its place in a step."""

    idx: int
    role: str
    content: str
    metadata: str


def lines(messages: Sequence[Message], start: int = 0) -> tuple[Line, ...]:
    """Return transcript lines of messages, from an index on."""
    return tuple(
        Line(
            start + offset,
            str(message.role),
            encode(message.content, "message content"),
            encode(message.metadata, "message metadata"),
        )
        for offset, message in enumerate(messages)
    )


def reply_lines(messages: Messages) -> tuple[Line, ...]:
    """Return the lines of the model's reply, which precede all results."""
    _fits(len(messages))
    return lines(messages)


def result_lines(messages: Messages, call_index: int) -> tuple[Line, ...]:
    """Return the lines of a call's result, placed in call order rather than completion order."""
    _fits(len(messages))
    return lines(messages, place(call_index))


def place(call_index: int) -> int:
    """Return the first index of a call's result."""
    return RESULTS_FROM * (call_index + 1)


def _fits(count: int) -> None:
    if count > RESULTS_FROM:
        raise InvalidInput(f"a reply or a result has at most {RESULTS_FROM} messages, not {count}; join some")


def message_read(role: str, content: Any, metadata: Any) -> Message:
    """Return one stored message."""
    with reading("the message"):
        return Message(Role.parse(role), content, frozen_map(metadata, "message metadata"))


# Notes, and messages of hooks and processors.


def call_notes(notes: Notes, call_index: int) -> tuple[Line, ...]:
    """Return the line of a call's notes; the last call in the reply wins, in any completion order."""
    return _note(notes, _NOTES_OF_CALLS + call_index)


def hook_lines(number: int, added: Added) -> tuple[tuple[int, Line], ...]:
    """Return the messages and notes that hooks added before the model was called, each with its step."""
    _fits(len(added.said))
    said = (*lines(added.said, -len(added.said)), *_note(added.notes, _NOTES_OF_HOOKS))
    return (*_opening(number, added.opening), *((number, line) for line in said))


def processed_lines(number: int, added: Added) -> tuple[tuple[int, Line], ...]:
    """Return the messages and notes that processors added after the last result, each with its step."""
    _fits(len(added.said))
    said = (*lines(added.said, PROCESSED_FROM), *_note(added.notes, _NOTES_OF_PROCESSORS))
    return (*_opening(number, added.opening, 1), *((number, line) for line in said))


def _note(notes: Notes, idx: int) -> tuple[Line, ...]:
    return (Line(idx, NOTE, encode(notes.to_dict(), "the agent's metadata"), "{}"),) if notes else ()


def _opening(number: int, messages: Messages, after: int = 0) -> Iterable[tuple[int, Line]]:
    """Place messages before the execution's first message; later additions go further to the front."""
    _fits(len(messages))
    return ((0, line) for line in lines(messages, -RESULTS_FROM * (2 * number + after)))


def is_said_by(place: tuple[int, int], number: int) -> bool:
    """Return whether a place, a step and an index, was filled by the end of the given step."""
    step, idx = place
    return step <= number and (step > 0 or idx >= -RESULTS_FROM * (2 * number + 1))


# Reading.


def told(said: Iterable[Row[Any]]) -> tuple[Messages, FrozenDict]:
    """Return the messages, and the metadata that the notes among them add up to."""
    messages, metadata = list[Message](), EMPTY
    for row in said:
        if row.role != NOTE:
            messages.append(message_read(row.role, row.content, row.metadata))
        elif "begins" in row.content:
            metadata = begun_with(metadata, document(row.content["begins"], "the agent's metadata"))
        else:
            metadata = notes_read(row.content).added_to(metadata)
    return tuple(messages), metadata


def task_of(said: Iterable[tuple[tuple[int, int], Message]], earlier: str | None) -> str | None:
    """Return the message that began an execution, from its own part of the transcript.

    Args:
        said: Messages with their places, in order.
        earlier: The task of the continued execution, which a fork without a message inherits.
    """
    began = (message for (step, idx), message in said if step == 0 and idx >= 0 and message.is_user)
    return next((message.text for message in reversed([*began])), earlier)


def task_told(said: Iterable[Row[Any]]) -> str | None:
    """Return the message that began the last execution of these rows."""
    task, own = None, list[tuple[tuple[int, int], Message]]()
    for row in said:
        if row.role != NOTE:
            own.append(((row.step, row.idx), message_read(row.role, row.content, row.metadata)))
        elif "begins" in row.content:
            task, own = task_of(own, task), []
    return task_of(own, task)


def begun_with(metadata: FrozenDict, own: FrozenDict) -> FrozenDict:
    """Return the initial metadata of an execution, merged onto that of the execution it continues."""
    return of_next_execution(metadata).merged(own)


def notes_read(content: Any) -> Notes:
    """Return the notes of one line."""
    with reading("the notes"):
        return Notes.from_dict(document(content, "the notes"))
