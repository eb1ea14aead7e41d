"""Which text of an error each reader sees: models and operators all of it without secrets, viewers less.

`StepError.told` is the text that every viewer may read. It is stored in envelopes and session messages, and
replaces the full text when steps, traces and snapshots are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid5

from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.redaction import Redaction

PUBLIC_CONTENT = "told"
"""The metadata key of the content that every viewer may read, in a message that quotes an error."""


@dataclass(frozen=True, slots=True)
class Disclosure:
    """The policy for showing error texts to viewers."""

    redaction: Redaction = field(default_factory=Redaction)
    is_full: bool = False
    """Whether every viewer may read the full text, for installations with a single user."""

    def of(self, error: StepError, execution_id: UUID, key: str) -> StepError:
        """The error as it is stored: without secrets, and with the reference that viewers see instead."""
        ref = error.ref or (error.exception and uuid5(execution_id, f"error/{key}").hex[:12])
        redacted = self.redaction(error.message)
        return replace(error, message=redacted, ref=ref, is_public=error.is_public or self.is_full)


def with_public_reasons(
    outcome: ContinuationOutcome, full_text: str, public_text: str
) -> ContinuationOutcome:
    """Replace the full text of a criterion's exception in an outcome's votes by the text for viewers."""
    votes = (
        replace(vote, reason=vote.reason.replace(full_text, public_text)) for vote in outcome.evaluations
    )
    return replace(outcome, evaluations=tuple(votes))


def with_public_content(message: Message, error: StepError) -> Message:
    """Add to a message that quotes an error the content that every viewer may read."""
    if error.told == error.message or error.message not in message.text:
        return message
    public_text = message.text.replace(error.message, error.told)
    return replace(message, metadata=message.metadata.merged({PUBLIC_CONTENT: public_text}))


def public_document(value: Any) -> Any:
    """Remove full error texts from the JSON of a step, trace or snapshot, for viewers.

    An error is a map with `message` and `exception`; only its kind remains. A message that quotes an error
    has the content for viewers in its metadata.
    """
    match value:
        case Mapping():
            return _public_map(cast("Mapping[str, Any]", value))
        case list() | tuple():
            return [public_document(each) for each in cast("list[Any]", value)]
        case _:
            return value


def _public_map(given: Mapping[str, Any]) -> dict[str, Any]:
    entries = {key: public_document(each) for key, each in given.items()}
    if "exception" in given and "message" in given:
        entries["message"] = StepError.from_dict(given).told
    error = given.get("error")
    if isinstance(error, Mapping) and "exception" in error:
        _replace_quotes(entries, StepError.from_dict(cast("Mapping[str, Any]", error)))
    for name in ("metadata", "_metadata"):
        metadata = entries.get(name)
        if isinstance(metadata, dict) and PUBLIC_CONTENT in metadata and "content" in entries:
            entries["content"] = cast("dict[str, Any]", metadata).pop(PUBLIC_CONTENT)
    return entries


def _replace_quotes(entries: dict[str, Any], error: StepError) -> None:
    """Replace the error's text in the fields next to it, which may quote it in votes and tool executions."""
    for key in ("reason", "told", "text"):
        if isinstance(entries.get(key), str):
            entries[key] = entries[key].replace(error.message, error.told)
