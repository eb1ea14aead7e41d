"""Who reads what of an error: the model its words without secrets, the operator the same, anyone else less.

`StepError.told` is what anyone reads. It stands in envelopes and session messages as they are stored, and
takes the place of the words where steps, traces and snapshots are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid5

from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.redaction import Redaction

TOLD = "told"
"""In the metadata of a message that quotes an error: the content that anyone may read."""


@dataclass(frozen=True, slots=True)
class Disclosure:
    """How much of errors is told."""

    redaction: Redaction = field(default_factory=Redaction)
    is_full: bool = False
    """Whether anyone may read all words, for installations of one person."""

    def of(self, error: StepError, execution_id: UUID, key: str) -> StepError:
        """The error as it is kept: without secrets, and with what stands for its words elsewhere."""
        ref = error.ref or (error.exception and uuid5(execution_id, f"error/{key}").hex[:12])
        words = self.redaction(error.message)
        return replace(error, message=words, ref=ref, is_public=error.is_public or self.is_full)


def with_reasons_told(outcome: ContinuationOutcome, words: str, told: str) -> ContinuationOutcome:
    """The outcome in which a criterion raised these words: its vote says what anyone may read."""
    votes = (replace(vote, reason=vote.reason.replace(words, told)) for vote in outcome.evaluations)
    return replace(outcome, evaluations=tuple(votes))


def with_told(message: Message, error: StepError) -> Message:
    """A message that quotes an error, with the content that anyone may read beside it."""
    if error.told == error.message or error.message not in message.text:
        return message
    told = message.text.replace(error.message, error.told)
    return replace(message, metadata=message.metadata.merged({TOLD: told}))


def veiled(value: Any) -> Any:
    """A document as anyone may read it: errors by kind, and messages that quote them without their words.

    Documents are those of steps, traces and snapshots: an error is a map with `message` and `exception`, a
    message has its readable content in its metadata.
    """
    match value:
        case Mapping():
            return _veiled_map(cast("Mapping[str, Any]", value))
        case list() | tuple():
            return [veiled(each) for each in cast("list[Any]", value)]
        case _:
            return value


def _veiled_map(given: Mapping[str, Any]) -> dict[str, Any]:
    entries = {key: veiled(each) for key, each in given.items()}
    if "exception" in given and "message" in given:
        entries["message"] = StepError.from_dict(given).told
    error = given.get("error")
    if isinstance(error, Mapping) and "exception" in error:
        _veil_beside(entries, StepError.from_dict(cast("Mapping[str, Any]", error)))
    for name in ("metadata", "_metadata"):
        metadata = entries.get(name)
        if isinstance(metadata, dict) and TOLD in metadata and "content" in entries:
            entries["content"] = cast("dict[str, Any]", metadata).pop(TOLD)
    return entries


def _veil_beside(entries: dict[str, Any], error: StepError) -> None:
    """What stands beside an error in a vote or an execution of a tool may quote it."""
    for key in ("reason", "told", "text"):
        if isinstance(entries.get(key), str):
            entries[key] = entries[key].replace(error.message, error.told)
