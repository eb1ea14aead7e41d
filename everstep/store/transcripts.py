"""The transcript: what was said and what was noted, each at its place in a step's part of it.

In a step's part stand, in this order: the notes of hooks, what people steered with, what hooks said, the
reply, the results, what processors said, the notes of calls, the notes of processors.
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
"""Where the results stand in a step's part of the transcript: after any reply."""

HEARD_BEFORE = -RESULTS_FROM
"""What people steered with stands below: so many places are left for what hooks say."""

PROCESSED_FROM = 1_900_000_000
_NOTES_OF_HOOKS = -2_000_000_000
_NOTES_OF_CALLS = 2_000_000_000
_NOTES_OF_PROCESSORS = 2_100_000_000

NOTE = "note"
"""The role of a line that nobody said: it holds `Notes`, or the metadata with which an execution began."""


@dataclass(frozen=True, slots=True)
class Line:
    """A message at its place in a step's part of the transcript."""

    idx: int
    role: str
    content: str
    metadata: str


def lines(messages: Sequence[Message], start: int = 0) -> tuple[Line, ...]:
    """The messages from a place on, as they are written."""
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
    """What the model said, before all results."""
    _fits(len(messages))
    return lines(messages)


def result_lines(messages: Messages, call_index: int) -> tuple[Line, ...]:
    """The result of a call, in the order of the calls and not of their completion."""
    _fits(len(messages))
    return lines(messages, place(call_index))


def place(call_index: int) -> int:
    """Where the result of a call begins."""
    return RESULTS_FROM * (call_index + 1)


def _fits(count: int) -> None:
    if count > RESULTS_FROM:
        raise InvalidInput(f"a reply or a result has at most {RESULTS_FROM} messages, not {count}; join some")


def message_read(role: str, content: Any, metadata: Any) -> Message:
    """One stored message."""
    with reading("the message"):
        return Message(Role.parse(role), content, frozen_map(metadata, "message metadata"))


# Notes, and what hooks and processors said.


def call_notes(notes: Notes, call_index: int) -> tuple[Line, ...]:
    """What a call changed: of several calls the last one in the reply wins, whoever was done first."""
    return _note(notes, _NOTES_OF_CALLS + call_index)


def hook_lines(number: int, added: Added) -> tuple[tuple[int, Line], ...]:
    """What hooks added before the model was asked, each line with its step."""
    _fits(len(added.said))
    said = (*lines(added.said, -len(added.said)), *_note(added.notes, _NOTES_OF_HOOKS))
    return (*_opening(number, added.opening), *((number, line) for line in said))


def processed_lines(number: int, added: Added) -> tuple[tuple[int, Line], ...]:
    """What processors added after the last result, each line with its step."""
    _fits(len(added.said))
    said = (*lines(added.said, PROCESSED_FROM), *_note(added.notes, _NOTES_OF_PROCESSORS))
    return (*_opening(number, added.opening, 1), *((number, line) for line in said))


def _note(notes: Notes, idx: int) -> tuple[Line, ...]:
    return (Line(idx, NOTE, encode(notes.to_dict(), "the agent's metadata"), "{}"),) if notes else ()


def _opening(number: int, messages: Messages, after: int = 0) -> Iterable[tuple[int, Line]]:
    """Before all that the execution began with; what comes later stands further to the front."""
    _fits(len(messages))
    return ((0, line) for line in lines(messages, -RESULTS_FROM * (2 * number + after)))


def is_said_by(place: tuple[int, int], number: int) -> bool:
    """Whether this place, a step and an index, was taken by the end of that step."""
    step, idx = place
    return step <= number and (step > 0 or idx >= -RESULTS_FROM * (2 * number + 1))


# Reading.


def told(said: Iterable[Row[Any]]) -> tuple[Messages, FrozenDict]:
    """What was said, and the metadata that the notes beside it come to."""
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
    """The message that began an execution, given its own part of the transcript.

    Args:
        said: Messages with their places, in order.
        earlier: The same of the execution that it continues; a fork without words of its own inherits it.
    """
    began = (message for (step, idx), message in said if step == 0 and idx >= 0 and message.is_user)
    return next((message.text for message in reversed([*began])), earlier)


def task_told(said: Iterable[Row[Any]]) -> str | None:
    """The message that began the last execution of these rows."""
    task, own = None, list[tuple[tuple[int, int], Message]]()
    for row in said:
        if row.role != NOTE:
            own.append(((row.step, row.idx), message_read(row.role, row.content, row.metadata)))
        elif "begins" in row.content:
            task, own = task_of(own, task), []
    return task_of(own, task)


def begun_with(metadata: FrozenDict, own: FrozenDict) -> FrozenDict:
    """The metadata of an execution that begins, after those of the one that it continues."""
    return of_next_execution(metadata).merged(own)


def notes_read(content: Any) -> Notes:
    """The notes of one line."""
    with reading("the notes"):
        return Notes.from_dict(document(content, "the notes"))
