"""The transcript: messages and notes, each at its place in a step.

The order within a step: hook notes, steering messages, hook messages, the reply, results, processor messages,
call notes, processor notes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import Message, Messages, Role
from everstep.agent_domain.storage.compactions import RecordCompaction
from everstep.agent_domain.storage.metadata_changes import (
    MetadataChanges,
    MetadataHistory,
    inherited_metadata,
)
from everstep.agent_domain.storage.steps import (
    EARLIER_EXECUTION,
    RESULTS_FROM,
    HookAdditions,
    MessagePlace,
    result_index,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, reading
from everstep.store.bodies import document, encode

PROCESSED_FROM = 1_900_000_000
_NOTES_OF_HOOKS = -2_000_000_000
_NOTES_OF_CALLS = 2_000_000_000
_NOTES_OF_PROCESSORS = 2_100_000_000

COMPACTIONS_FROM = -1_900_000_000
"""The index of the first compaction before a step: they precede everything that the step reads."""

COMPACTED = "compacted"
"""The key of a note that is a compaction; for other readers it is a note without changes."""

NOTE = "note"
"""The role of a line that is no message: it holds `Notes`, or the metadata with which an execution began."""


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """A message at its place in a step."""

    idx: int
    role: str
    content: str
    metadata: str


def lines(messages: Sequence[Message], start: int = 0) -> tuple[TranscriptLine, ...]:
    """Return transcript lines of messages, from an index on."""
    return tuple(
        TranscriptLine(
            start + offset,
            str(message.role),
            encode(message.content, "message content"),
            encode(message.metadata, "message metadata"),
        )
        for offset, message in enumerate(messages)
    )


def reply_lines(messages: Messages) -> tuple[TranscriptLine, ...]:
    """Return the lines of the model's reply, which precede all results."""
    _fits(len(messages))
    return lines(messages)


def result_lines(messages: Messages, call_index: int) -> tuple[TranscriptLine, ...]:
    """Return the lines of a call's result, placed in call order rather than completion order."""
    _fits(len(messages))
    return lines(messages, result_index(call_index))


def _fits(count: int) -> None:
    if count > RESULTS_FROM:
        raise InvalidInput(f"a reply or a result has at most {RESULTS_FROM} messages, not {count}; join some")


def parse_message(role: str, content: Any, metadata: Any) -> Message:
    """Return one stored message."""
    with reading("the message"):
        return Message(Role.parse(role), content, frozen_map(metadata, "message metadata"))


# Notes, and messages of hooks and processors.


def call_notes(notes: MetadataChanges, call_index: int) -> tuple[TranscriptLine, ...]:
    """Return the line of a call's notes; the last call in the reply wins, in any completion order."""
    return _note_lines(notes, _NOTES_OF_CALLS + call_index)


def hook_lines(number: int, added: HookAdditions) -> tuple[tuple[int, TranscriptLine], ...]:
    """Return the messages and notes that hooks added before the model was called, each with its step."""
    _fits(len(added.said))
    said = (*lines(added.said, -len(added.said)), *_note_lines(added.notes, _NOTES_OF_HOOKS))
    return (*_opening_lines(number, added.opening), *((number, line) for line in said))


def processed_lines(number: int, added: HookAdditions) -> tuple[tuple[int, TranscriptLine], ...]:
    """Return the messages and notes that processors added after the last result, each with its step."""
    _fits(len(added.said))
    said = (*lines(added.said, PROCESSED_FROM), *_note_lines(added.notes, _NOTES_OF_PROCESSORS))
    return (*_opening_lines(number, added.opening, 1), *((number, line) for line in said))


def _note_lines(notes: MetadataChanges, idx: int) -> tuple[TranscriptLine, ...]:
    return (
        (TranscriptLine(idx, NOTE, encode(notes.to_dict(), "the agent's metadata"), "{}"),) if notes else ()
    )


def compaction_line(record: RecordCompaction) -> TranscriptLine:
    """Return the line of a compaction."""
    content = encode({COMPACTED: record.compaction.to_dict()}, "the compaction")
    return TranscriptLine(COMPACTIONS_FROM + record.ordinal, NOTE, content, "{}")


def parse_compaction(content: Any) -> Compaction | None:
    """Return the compaction of a note, or None for other notes."""
    if COMPACTED not in content:
        return None
    with reading("the compaction"):
        return Compaction.from_dict(content[COMPACTED])


@dataclass(frozen=True, slots=True)
class OwnPart:
    """The part of a conversation that belongs to one execution."""

    places: Sequence[MessagePlace]
    compactions: tuple[Compaction, ...]
    """In the order in which they were recorded."""


def latest_compaction(parts: Sequence[OwnPart]) -> Compaction | None:
    """Return the compaction in force, for the messages of all parts in order.

    Messages that hooks have put before the conversation since it was recorded move its positions. A continued
    part may have compactions of its next step, which fit if they replace no message that was left out.
    """
    found, start = None, 0
    for part in parts:
        end = start + len(part.places)
        for compaction in reversed(part.compactions):
            moved = _moved(compaction, part, start)
            fit = moved if part is parts[-1] else moved.within(end)
            if fit is not None:
                found = fit
                break
        start = end
    return found


def _moved(compaction: Compaction, part: OwnPart, start: int) -> Compaction:
    """Return the compaction for the messages that the part has now."""
    late = sum(not is_filled_by((step, idx), compaction.step - 1) for step, idx in part.places if step == 0)
    return compaction.shifted(late, start)


def own_parts(said: Iterable[Row[Any]]) -> list[OwnPart]:
    """Return the parts of a transcript, the continued executions first."""
    parts: list[tuple[list[MessagePlace], list[Compaction]]] = [([], [])]
    for row in said:
        if row.role != NOTE:
            parts[-1][0].append((row.step, row.idx))
        elif "begins" in row.content:
            parts.append(([], []))
        elif compaction := parse_compaction(row.content):
            parts[-1][1].append(compaction)
    return [OwnPart(places, tuple(compactions)) for places, compactions in parts]


def _opening_lines(number: int, messages: Messages, after: int = 0) -> Iterable[tuple[int, TranscriptLine]]:
    """Place messages before the execution's first message; later additions go further to the front."""
    _fits(len(messages))
    return ((0, line) for line in lines(messages, -RESULTS_FROM * (2 * number + after)))


def is_filled_by(place: tuple[int, int], number: int) -> bool:
    """Return whether a place, a step and an index, was filled by the end of the given step."""
    step, idx = place
    return step <= number and (step > 0 or idx >= -RESULTS_FROM * (2 * number + 1))


# Reading.


def parse_transcript(said: Iterable[Row[Any]]) -> tuple[Messages, FrozenDict]:
    """Return the messages, and the metadata that the notes among them add up to."""
    messages, metadata = list[Message](), EMPTY
    for row in said:
        if row.role != NOTE:
            messages.append(parse_message(row.role, row.content, row.metadata))
        elif "begins" in row.content:
            metadata = initial_metadata(metadata, document(row.content["begins"], "the agent's metadata"))
        else:
            metadata = parse_notes(row.content).apply_to(metadata)
    return tuple(messages), metadata


def message_places(said: Iterable[Row[Any]]) -> tuple[MessagePlace, ...]:
    """Return the place of each message of these rows."""
    places = list[MessagePlace]()
    for row in said:
        if row.role != NOTE:
            places.append((row.step, row.idx))
        elif "begins" in row.content:
            places = [EARLIER_EXECUTION] * len(places)
    return tuple(places)


def parse_metadata_history(said: Iterable[Row[Any]]) -> MetadataHistory:
    """Return the metadata with which the last execution of these rows began, and the changes of its calls."""
    metadata, initial, calls = EMPTY, EMPTY, dict[tuple[int, int], MetadataChanges]()
    for row in said:
        if row.role != NOTE:
            continue
        if "begins" in row.content:
            initial = metadata = initial_metadata(
                metadata, document(row.content["begins"], "the agent's metadata")
            )
            calls = {}
            continue
        changes = parse_notes(row.content)
        metadata = changes.apply_to(metadata)
        if index := call_of_note(row.idx):
            calls[row.step, index - 1] = changes
    return MetadataHistory(initial, calls)


def call_of_note(idx: int) -> int:
    """Return the position, from 1, of the call whose note has this index; 0 for other notes."""
    return idx - _NOTES_OF_CALLS + 1 if _NOTES_OF_CALLS <= idx < _NOTES_OF_PROCESSORS else 0


def find_task(said: Iterable[tuple[tuple[int, int], Message]], earlier: str | None) -> str | None:
    """Return the message that began an execution, from its own part of the transcript.

    Args:
        said: Messages with their places, in order.
        earlier: The task of the continued execution, which a fork without a message inherits.
    """
    began = (message for (step, idx), message in said if step == 0 and idx >= 0 and message.is_user)
    return next((message.text for message in reversed([*began])), earlier)


def task_from_rows(said: Iterable[Row[Any]]) -> str | None:
    """Return the message that began the last execution of these rows."""
    task, own = None, list[tuple[tuple[int, int], Message]]()
    for row in said:
        if row.role == NOTE:
            if "begins" in row.content:
                task, own = find_task(own, task), []
        elif row.step == 0:
            own.append(((row.step, row.idx), parse_message(row.role, row.content, row.metadata)))
    return find_task(own, task)


def initial_metadata(metadata: FrozenDict, own: FrozenDict) -> FrozenDict:
    """Return the initial metadata of an execution, merged onto that of the execution it continues."""
    return inherited_metadata(metadata).merged(own)


def parse_notes(content: Any) -> MetadataChanges:
    """Return the notes of one line; a compaction has none."""
    with reading("the notes"):
        return MetadataChanges.from_dict(document(content, "the notes"))
