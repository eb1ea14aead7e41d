"""Ledgers in PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.audit import AuditedExecution
from everstep.agent_domain.storage.ledger import (
    EntryKind,
    LedgerEntry,
    LedgerHead,
    LedgerPage,
    NewEntry,
    PeriodPage,
    PrunedLedger,
)
from everstep.store import ledger_statements
from everstep.store.cursors import LedgerCursor, page_size
from everstep.store.errors import error_translation
from everstep.store.ledger_entries import entry_values
from everstep.store.parameters import execution_key
from everstep.store.reading import PostgresReader
from everstep.store.transaction import BEGIN_SNAPSHOT, BoundStatement, transaction

MOST_ENTRIES: Final = 4
"""The most entries that one statement appends."""


def ledger_writes(
    ref: ExecutionRef, entries: Sequence[NewEntry], **guards: UUID | int | str
) -> list[BoundStatement]:
    """Return the statements that append entries, as the last ones of a transaction.

    Args:
        ref: The execution.
        entries: What to append; nothing for none.
        guards: A `step`, a `begun` step or a `request` without whose record nothing is appended.
    """
    condition, guard = next(iter(guards.items()), (None, None))
    if entries and entries[0].kind is EntryKind.ACCEPTED:
        condition = "opens"
    writes = list[BoundStatement]()
    for first in range(0, len(entries), MOST_ENTRIES):
        batch = entries[first : first + MOST_ENTRIES]
        fallbacks = tuple(entry.fallback_key is not None for entry in batch)
        values = execution_key(ref) | entry_values(ref, batch) | {"guard": guard}
        writes.append((ledger_statements.append_entries(fallbacks, condition), values))
    return writes


class PostgresLedger(PostgresReader):
    """Reads ledgers."""

    async def sealed_ledger(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> LedgerPage | None:
        """Return a page of an execution's entries, or None if it was accepted without a ledger."""
        size = page_size(limit)
        values = execution_key(ref) | {"after": after, "limit": size + 1}
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                audited, found = await connection.together(
                    (ledger_statements.AUDITED, execution_key(ref)),
                    (ledger_statements.ENTRIES, values),
                    last=True,
                )
        state, rows = audited.first(), found.all()
        if state is None or not (state.is_sealed or rows):
            return None
        return LedgerPage(tuple(map(_entry, rows[:size])), has_more=len(rows) > size)

    async def pruned_ledger(self, ref: ExecutionRef) -> PrunedLedger | None:
        """Return what stays of the ledger of an execution that was pruned, or None if it was not."""
        with error_translation(self.engine.url):
            async with transaction(self.engine) as connection:
                (found,) = await connection.together(
                    (ledger_statements.PRUNED, execution_key(ref)), last=True
                )
        row = found.first()
        return row and PrunedLedger(ref.execution_id, row.entries, row.hash, row.pruned_at)

    async def ledger_of_period(
        self,
        scope: Scope,
        since: datetime,
        until: datetime,
        cursor: str | None = None,
        limit: int = 1000,
    ) -> PeriodPage:
        """Return a page of the entries of all executions that a caller sees, in the order of their times."""
        size = page_size(limit)
        last = LedgerCursor.parse(cursor) if cursor else LedgerCursor.first()
        with error_translation(self.engine.url):
            async with transaction(self.engine) as connection:
                # An entry of a transaction that is not committed yet could be older than others: it is left
                # for the next page.
                (horizon,) = await connection.together((ledger_statements.HORIZON, {}))
                values = {
                    "tenant_id": scope.tenant_id,
                    "user_id": scope.user_id,
                    "since": since,
                    "until": min(until, horizon.one().at),
                    "after_at": last.at,
                    "after_id": last.execution_id,
                    "after_position": last.position,
                    "limit": size + 1,
                }
                (found,) = await connection.together((ledger_statements.ENTRIES_OF_PERIOD, values), last=True)
        rows = found.all()
        entries = tuple(map(_entry, rows[:size]))
        return PeriodPage(entries, LedgerCursor.after(entries, cursor), len(rows) > size)

    async def audited_execution(self, ref: ExecutionRef) -> AuditedExecution | None:
        """Return everything that an audit compares, read at one moment."""
        values = execution_key(ref) | {"after": 0, "limit": None}
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                audited, found, bodies = await connection.together(
                    (ledger_statements.AUDITED, execution_key(ref)),
                    (ledger_statements.ENTRIES, values),
                    (ledger_statements.BODIES, execution_key(ref)),
                    last=True,
                )
        state = audited.first()
        if state is None:
            return None
        head = None if state.position is None else LedgerHead(state.position, state.hash, state.is_closed)
        return AuditedExecution(
            ref.execution_id,
            ExecutionStatus(state.status),
            state.is_sealed,
            head,
            tuple(map(_entry, found.all())),
            {row.name: row.digest for row in bodies.all()},
        )


def _entry(row: Row[Any]) -> LedgerEntry:
    execution_id: UUID = row.execution_id
    return LedgerEntry(execution_id, row.position, row.entry, row.hash, row.recorded_at)
