"""The ledger of an execution: a chain of entries, each of which contains the hash of the one before it.

An entry has facts, and digests of bodies in place of the bodies: no text of a conversation is in it. It is
written in the transaction of the event that it records. Its text is canonical JSON (sorted keys, no spaces,
no escapes except those that JSON requires), which contains no fractions, so that any program that parses an
entry can serialize it to the same text and verify its hash.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import EMPTY, format_moment, frozen_map, reading

LEDGER_VERSION: Final = 1
"""The version of the form of entries; an entry contains it."""

BEFORE_FIRST: Final = "0" * 64
"""What the first entry has in place of the hash of the previous one."""

ABSENT_PART: Final = "-"
"""What a digest of several parts has in place of the digest of a part that does not exist."""


class EntryKind(StrEnum):
    """What an entry records."""

    ACCEPTED = "accepted"
    TOOLS_LISTED = "tools_listed"
    STARTED = "started"
    ATTEMPT_FAILED = "attempt_failed"
    WAITED = "waited"
    COMPACTED = "compacted"
    REPLIED = "replied"
    INNER_REPLIED = "inner_replied"
    ASKED = "asked"
    DECIDED = "decided"
    CALLED = "called"
    PROCESSED = "processed"
    JUDGED = "judged"
    STEERED = "steered"
    COMMANDED = "commanded"
    WITHDRAWN = "withdrawn"
    BUDGET_RAISED = "budget_raised"
    SETTLED = "settled"
    ENDED = "ended"


FACTS: Final[Mapping[EntryKind, tuple[str, ...]]] = {
    EntryKind.ACCEPTED: (
        *("agent", "definition_hash", "user_id", "session_id", "parent_execution_id"),
        *("continues", "continues_until", "messages"),
    ),
    EntryKind.TOOLS_LISTED: (),
    EntryKind.STARTED: (),
    EntryKind.ATTEMPT_FAILED: ("step", "attempt"),
    EntryKind.WAITED: ("step", "attempt", "until"),
    EntryKind.COMPACTED: ("step", "messages", "results", "tokens_before", "tokens_after", "usage"),
    EntryKind.REPLIED: (
        *("step", "attempt", "model", "finish_reason", "failed", "usage", "microseconds", "errors"),
        "calls",
    ),
    EntryKind.INNER_REPLIED: ("key", "usage"),
    EntryKind.ASKED: ("request_id", "call_id", "kind"),
    EntryKind.DECIDED: ("request_id", "call_id", "kind", "args_digest", "decision", "by"),
    EntryKind.CALLED: ("step", "call_id", "attempt", "effect", "error", "usage", "microseconds"),
    EntryKind.PROCESSED: ("step",),
    EntryKind.JUDGED: ("step", "decision", "resolved_by", "stop_reason", "votes", "replaces"),
    EntryKind.STEERED: ("key", "role"),
    EntryKind.COMMANDED: ("key", "kind", "by"),
    EntryKind.WITHDRAWN: ("key",),
    EntryKind.BUDGET_RAISED: ("budget_id", "unit", "limit", "by"),
    EntryKind.SETTLED: ("key", "status", "request_id"),
    EntryKind.ENDED: ("key", "status", "stop_reason", "steps", "tokens", "cost_usd", "error"),
}
"""The facts of each kind of entry; each entry of the kind has all of them, some null."""


class CallEffect(StrEnum):
    """What is known of the effect of a call."""

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It was started, and its worker was lost: it may have had its effect."""
    NOT_RUN = "not_run"
    """A person or a rule denied it."""
    CANCELLED = "cancelled"
    """The execution went on or ended without its result."""

    @classmethod
    def of(cls, success: bool, error: StepError | None) -> "CallEffect":
        """Return the effect of a call with this result."""
        if error is None:
            return cls.DONE if success else cls.NOT_RUN
        return cls.UNKNOWN if error.is_effect_unknown else cls.FAILED


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to append."""

    kind: EntryKind
    key: str
    """Appending another entry with the same key changes nothing."""
    facts: Mapping[str, Any] = EMPTY
    digests: Mapping[str, str] = EMPTY
    """The digests of bodies, by their names."""
    fallback_key: str | None = None
    """The key if the first one is used: the entry replaces what the earlier one says."""

    def text_after_time(self, execution_id: UUID) -> str:
        """Return the part of the entry's text from its time to its position, which the store adds.

        The whole text is `{"at":"`, the time, this part, the position, and
        `,"previous":"` with the hash before it and `","version":1}`.
        """
        middle = canonical_json(
            {
                "digests": self.digests,
                "execution_id": str(execution_id),
                "facts": self.facts,
                "kind": self.kind,
            }
        )
        return f'",{middle[1:-1]},"position":'

    @property
    def ends(self) -> bool:
        """Whether no entry follows it."""
        return self.kind is EntryKind.ENDED


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A stored entry."""

    execution_id: UUID
    position: int
    """1 for the first."""
    text: str
    """The text that the hash covers."""
    hash: str
    at: datetime
    """When it was stored; for the order of exports."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The entry without its hash.

        Raises:
            InvalidInput: Its text is no JSON object, because it was changed.
        """
        with reading("the entry"):
            return frozen_map(json.loads(self.text), "the entry")

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {**self.document, "hash": self.hash}


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The end of a chain, which is stored apart from its entries."""

    position: int = 0
    hash: str = BEFORE_FIRST
    is_closed: bool = False
    """Whether the execution has ended."""


@dataclass(frozen=True, slots=True)
class PrunedLedger:
    """What stays of the ledger of an execution that was pruned: no name, and no fact but its length."""

    execution_id: UUID
    entries: int
    hash: str
    """The hash of the last entry."""
    pruned_at: datetime

    @property
    def head(self) -> LedgerHead:
        """The end of the chain."""
        return LedgerHead(self.entries, self.hash, is_closed=True)


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """Entries of a ledger."""

    entries: tuple[LedgerEntry, ...] = ()
    is_sealed: bool = True
    """Whether the entries were written with what they record; otherwise they were built from its rows."""
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class PeriodPage:
    """Entries of many ledgers, in the order of their times."""

    entries: tuple[LedgerEntry, ...]
    cursor: str | None
    """Where to continue, also after the last page; None if nothing was ever read."""
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of entries in memory."""

    execution_id: UUID
    entries: tuple[LedgerEntry, ...] = ()
    head: LedgerHead = field(default_factory=LedgerHead)

    def appended(self, new: NewEntry, at: datetime) -> "Chain":
        """A chain with one more entry."""
        entry = seal(self.execution_id, self.head, new, at)
        head = LedgerHead(entry.position, entry.hash, new.ends)
        return replace(self, entries=(*self.entries, entry), head=head)


def seal(execution_id: UUID, head: LedgerHead, new: NewEntry, at: datetime, **more: Any) -> LedgerEntry:
    """Return the entry that follows the head of a chain."""
    position = head.position + 1
    text = canonical_json(
        {
            "at": format_moment(at, 6),
            "digests": new.digests,
            "execution_id": str(execution_id),
            "facts": new.facts,
            "kind": new.kind,
            "position": position,
            "previous": head.hash,
            "version": LEDGER_VERSION,
            **more,
        }
    )
    return LedgerEntry(execution_id, position, text, digest(text), at)


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def canonical_json(value: object) -> str:
    """Return a value as JSON with sorted keys and without spaces."""
    return _ENCODER.encode(value)


def digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal.

    Half of a surrogate pair has a digest, too: the store refuses the text with a sentence.
    """
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def digest_of(*parts: str | None) -> str:
    """Return the digest of a body: of its text, or of the digests of its parts one after the other."""
    if len(parts) == 1 and parts[0] is not None:
        return digest(parts[0])
    return digest("".join(ABSENT_PART if part is None else digest(part) for part in parts))


# Facts.


def usage_facts(usage: Usage) -> Mapping[str, Any]:
    """Return tokens and the cost; a cost is a text, and null if it is unknown."""
    return {
        "input": usage.input,
        "output": usage.output,
        "cache_write": usage.cache_write,
        "cache_read": usage.cache_read,
        "reasoning": usage.reasoning,
        "cost_usd": amount_text(usage.cost_usd),
    }


def amount_text(amount: Decimal | None) -> str | None:
    """Return an amount as text without an exponent."""
    return None if amount is None else f"{amount:f}"


def microseconds(seconds: float) -> int:
    """Return a duration as a whole number."""
    return round(seconds * 1_000_000)


def error_facts(error: StepError | None) -> Mapping[str, Any] | None:
    """Return the kind of an error, and the reference by which an operator finds its text."""
    if error is None:
        return None
    return {"type": error.type, "exception": error.exception, "ref": error.ref}


def decider_facts(by: Decider | None) -> Mapping[str, Any] | None:
    """Return who decided, with the rights that this used."""
    return by and by.to_dict()


def vote_facts(outcome: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the votes of an outcome, without their reasons, which may quote a conversation."""
    for vote in outcome.get("evaluations", ()):
        yield {
            "criterion": vote.get("criterion"),
            "decision": vote.get("decision"),
            "stop_reason": vote.get("stopReason"),
        }


def judged_facts(step: int, outcome: Mapping[str, Any], *, replaces: bool = False) -> Mapping[str, Any]:
    """Return the facts of the evaluation after a step."""
    return {
        "step": step,
        "decision": outcome.get("decision"),
        "resolved_by": outcome.get("resolvedBy"),
        "stop_reason": None if outcome.get("shouldContinue") else outcome.get("stopReason"),
        "votes": [*vote_facts(outcome)],
        "replaces": replaces,
    }


def build_chain(execution_id: UUID, new: Iterable[tuple[NewEntry, datetime]]) -> tuple[LedgerEntry, ...]:
    """Build the entries of an execution that has no ledger; each says that it is not sealed."""
    entries, head = list[LedgerEntry](), LedgerHead()
    for each, at in new:
        entry = seal(execution_id, head, each, at, sealed=False)
        head = LedgerHead(entry.position, entry.hash)
        entries.append(entry)
    return tuple(entries)


def require_known_version(document: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for an entry of a newer version."""
    version = document.get("version")
    if version != LEDGER_VERSION:
        raise InvalidInput(
            f"the entry has version {version}; this release reads version {LEDGER_VERSION}. Upgrade Everstep"
        )
