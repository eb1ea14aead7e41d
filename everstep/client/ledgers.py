"""Reads and audits the ledgers of executions."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.storage.audit import AuditReport, audit, audit_export
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.ledger import LedgerEntry, LedgerHead, LedgerPage
from everstep.agent_domain.storage.unsealed_ledger import unsealed_entries
from everstep.client.errors import Pruned

PAGE = 1000

EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)


async def read_ledger(
    store: ExecutionStore, row: ExecutionRow, after: int = 0, limit: int = 50
) -> LedgerPage:
    """Read entries of an execution's ledger, after a position.

    The ledger of an execution that an older release accepted is built from its rows, and not sealed.
    """
    page = await store.sealed_ledger(row.ref, after, limit)
    if page is not None:
        return page
    requests = [each for each in await store.requests_within(row.ref) if each.ref == row.ref]
    entries = unsealed_entries(row, await store.steps(row.ref), requests)[after:]
    return LedgerPage(entries[:limit], is_sealed=False, has_more=len(entries) > limit)


async def each_entry(store: ExecutionStore, ref: ExecutionRef) -> AsyncGenerator[LedgerEntry]:
    """Iterate over the ledger of an execution; at most a page of it is in memory.

    Raises:
        NotFound: There is no such execution.
    """
    row = await store.execution(ref)
    if row is None:
        raise await missing_execution(store, ref)
    for page in count():
        found = await read_ledger(store, row, page * PAGE, PAGE)
        for entry in found.entries:
            yield entry
        if not found.has_more:
            return


async def each_entry_of_period(
    store: ExecutionStore, scope: Scope, since: datetime | None, until: datetime | None
) -> AsyncGenerator[LedgerEntry]:
    """Iterate over the entries of all executions of a scope, in the order of their times."""
    cursor, has_more = None, True
    while has_more:
        page = await store.ledger_of_period(scope, since or EARLIEST, until or LATEST, cursor, PAGE)
        for entry in page.entries:
            yield entry
        cursor, has_more = page.cursor, page.has_more


async def audit_lines(
    store: ExecutionStore, ref: ExecutionRef, lines: Sequence[Mapping[str, Any]]
) -> AuditReport:
    """Check exported entries of an execution against its stored ledger, or what stays of that after a prune.

    An export may end before the stored ledger does.

    Raises:
        NotFound: There is no such execution, and none was pruned.
    """
    pruned = await store.pruned_ledger(ref)
    if pruned is not None:
        return audit_export(ref.execution_id, lines, pruned.head)
    if await store.execution(ref) is None:
        raise NotFound("execution", ref.execution_id)
    page = await store.sealed_ledger(ref, max(0, len(lines) - 1), 1)
    found = page.entries[0] if page and page.entries else None
    head = LedgerHead(found.position, found.hash) if found else LedgerHead()
    return audit_export(ref.execution_id, lines, head)


async def audit_execution(store: ExecutionStore, ref: ExecutionRef) -> AuditReport:
    """Check the ledger of an execution, and its stored bodies against it.

    Raises:
        NotFound: There is no such execution.
    """
    audited = await store.audited_execution(ref)
    if audited is None:
        raise await missing_execution(store, ref)
    return audit(audited)


async def missing_execution(store: ExecutionStore, ref: ExecutionRef) -> NotFound:
    """The error about an execution that is not stored: whether it was pruned."""
    pruned = await store.pruned_ledger(ref)
    if pruned is None:
        return NotFound("execution", ref.execution_id)
    return Pruned(pruned)
