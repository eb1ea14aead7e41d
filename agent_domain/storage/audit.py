"""The audit of a ledger: is its chain whole, and do the stored bodies have the recorded digests?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.ledger import (
    BEFORE_FIRST,
    EntryKind,
    LedgerEntry,
    LedgerHead,
    canonical_json,
    digest,
    require_known_version,
)
from everstep.agent_domain.values import EMPTY

AUDIT_VERSION: Final = 1
"""The version of the JSON form."""

STEERING_PREFIX: Final = "steering/"
MESSAGE_PREFIX: Final = "message/"


@dataclass(frozen=True, slots=True)
class AuditedExecution:
    """Everything that is stored about an execution and its ledger, read at one moment."""

    execution_id: UUID
    status: ExecutionStatus
    is_sealed: bool
    """Whether the execution was accepted with a ledger."""
    head: LedgerHead | None
    entries: Sequence[LedgerEntry]
    bodies: Mapping[str, str]
    """The digests of the stored bodies, by their names."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place at which the ledger, or what it records, is not what was written."""

    problem: str
    position: int | None = None
    """The entry; None if there is none."""
    kind: str | None = None
    body: str | None = None
    """The name of the body that differs."""
    recorded: str | None = None
    """What the ledger says."""
    found: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "problem": self.problem,
            "position": self.position,
            "kind": self.kind,
            "body": self.body,
            "recorded": self.recorded,
            "found": self.found,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of the audit of one execution."""

    execution_id: UUID
    is_sealed: bool
    is_closed: bool
    """Whether the chain has its end, so that nothing can follow."""
    entries: int
    hash: str | None
    """The hash of the last entry; compare it with one that was kept elsewhere."""
    bodies: int
    """How many stored bodies have the recorded digest."""
    gone: tuple[str, ...]
    """Recorded bodies that are not stored any more, because they were pruned or erased."""
    breaks: tuple[Break, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing contradicts the ledger."""
        return not self.breaks

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "version": AUDIT_VERSION,
            "execution_id": str(self.execution_id),
            "sealed": self.is_sealed,
            "whole": self.is_whole,
            "closed": self.is_closed,
            "entries": self.entries,
            "hash": self.hash,
            "bodies": self.bodies,
            "gone": list(self.gone),
            "breaks": [each.to_dict() for each in self.breaks],
        }


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The digest that an entry gives for a body."""

    digest: str
    entry: LedgerEntry
    kind: str


def audit(given: AuditedExecution) -> AuditReport:
    """Check the chain of an execution, and the stored bodies against it."""
    if given.head is None and not given.is_sealed and not given.entries:
        return AuditReport(given.execution_id, False, False, 0, None, 0, (), ())
    breaks = [*_chain_breaks(given)]
    recorded = _digests_by_body(given.entries)
    same, gone = 0, list[str]()
    for name, each in recorded.items():
        found = given.bodies.get(name)
        if found is None:
            gone.append(name)
        elif found == each.digest:
            same += 1
        else:
            breaks.append(_body_break(name, each, found))
    breaks += _added_body_breaks(given.bodies, recorded)
    last = given.entries[-1] if given.entries else None
    return AuditReport(
        given.execution_id,
        True,
        given.head is not None and given.head.is_closed,
        len(given.entries),
        last and last.hash,
        same,
        tuple(gone),
        tuple(breaks),
    )


def audit_export(execution_id: UUID, lines: Sequence[Mapping[str, Any]], head: LedgerHead) -> AuditReport:
    """Check entries that were exported.

    Args:
        execution_id: The execution.
        lines: Its entries, in order.
        head: The end of the stored chain, or the stored entry in the place of the last exported one.
    """
    entries = [_exported_entry(execution_id, number, line) for number, line in enumerate(lines, 1)]
    breaks = [*_link_breaks(execution_id, entries)]
    last = entries[-1] if entries else None
    if last is None:
        breaks.append(Break("The export has no entry of the execution"))
    elif (head.position, head.hash) != (last.position, last.hash):
        breaks.append(_head_break(head, last, str(lines[-1].get("kind", ""))))
    is_closed = bool(lines) and lines[-1].get("kind") == EntryKind.ENDED
    return AuditReport(execution_id, True, is_closed, len(entries), last and last.hash, 0, (), tuple(breaks))


def _exported_entry(execution_id: UUID, number: int, line: Mapping[str, Any]) -> LedgerEntry:
    document = {name: value for name, value in line.items() if name != "hash"}
    position = line.get("position")
    place = position if isinstance(position, int) else number
    return LedgerEntry(
        execution_id, place, canonical_json(document), str(line.get("hash")), datetime.min.replace(tzinfo=UTC)
    )


def _chain_breaks(given: AuditedExecution) -> Iterator[Break]:
    """Yield the places at which the chain itself is broken."""
    if not given.entries:
        yield Break("The ledger was removed: the execution was accepted with one")
        return
    yield from _link_breaks(given.execution_id, given.entries)
    last = given.entries[-1]
    document, _ = _parse_entry(last)
    yield from _end_breaks(given, last, str(document.get("kind", "")))


def _link_breaks(execution_id: UUID, entries: Sequence[LedgerEntry]) -> Iterator[Break]:
    """Yield the entries that were changed, or that do not follow the one before them."""
    previous, position, kind = BEFORE_FIRST, 0, ""
    for entry in entries:
        position += 1
        if entry.position != position:
            yield Break(
                "An entry is missing before this one",
                entry.position,
                recorded=str(position),
                found=str(entry.position),
            )
            position = entry.position
        document, problem = _parse_entry(entry)
        kind = str(document.get("kind", ""))
        if problem:
            yield Break(problem, entry.position, kind)
        if (own := digest(entry.text)) != entry.hash:
            yield Break(
                "The text of the entry was changed: it has another hash",
                entry.position,
                kind,
                recorded=entry.hash,
                found=own,
            )
        if (named := str(document.get("previous", ""))) != previous:
            yield Break(
                "The entry does not follow the one before it",
                entry.position,
                kind,
                recorded=named,
                found=previous,
            )
        if document and not _is_own(document, execution_id, entry.position):
            yield Break("The entry is that of another place or execution", entry.position, kind)
        previous = entry.hash


def _end_breaks(given: AuditedExecution, last: LedgerEntry, kind: str) -> Iterator[Break]:
    head = given.head
    if head is None:
        yield Break("The head of the chain was removed", last.position, kind)
    elif (head.position, head.hash) != (last.position, last.hash):
        yield _head_break(head, last, kind)
    if given.status.is_terminal and kind != EntryKind.ENDED:
        yield Break("The execution has ended, and its ledger has no end", last.position, kind)
    if kind == EntryKind.ENDED and not given.status.is_terminal:
        yield Break(
            "The ledger has its end, and the execution has not ended",
            last.position,
            kind,
            found=str(given.status),
        )


def _head_break(head: LedgerHead, last: LedgerEntry, kind: str) -> Break:
    return Break(
        "The chain does not end where its head says",
        last.position,
        kind,
        recorded=f"entry {head.position}, {head.hash}",
        found=f"entry {last.position}, {last.hash}",
    )


def _parse_entry(entry: LedgerEntry) -> tuple[Mapping[str, Any], str | None]:
    """Return the entry, and the reason why it cannot be read."""
    try:
        document = entry.document
        require_known_version(document)
    except InvalidInput as error:
        return EMPTY, f"The entry cannot be read: {error}"
    return document, None


def _is_own(document: Mapping[str, Any], execution_id: UUID, position: int) -> bool:
    return document.get("execution_id") == str(execution_id) and document.get("position") == position


def _digests_by_body(entries: Sequence[LedgerEntry]) -> dict[str, _Recorded]:
    """Return the latest digest of each body."""
    recorded = dict[str, _Recorded]()
    for entry in entries:
        document, _ = _parse_entry(entry)
        for name, value in document.get("digests", EMPTY).items():
            recorded[name] = _Recorded(str(value), entry, str(document.get("kind", "")))
    return recorded


def _body_break(name: str, recorded: _Recorded, found: str) -> Break:
    return Break(
        f"{name} was changed: it does not have the recorded digest",
        recorded.entry.position,
        recorded.kind,
        name,
        recorded.digest,
        found,
    )


def _added_body_breaks(bodies: Mapping[str, str], recorded: Mapping[str, _Recorded]) -> Iterator[Break]:
    """Yield the stored bodies that no entry knows; a message that steers is stored again when it is read."""
    steered = {each.digest for name, each in recorded.items() if name.startswith(STEERING_PREFIX)}
    for name, found in bodies.items():
        is_copy = name.startswith(MESSAGE_PREFIX) and found in steered
        if name not in recorded and not is_copy:
            yield Break(f"{name} was added: no entry records it", body=name, found=found)
