"""Executions in PostgreSQL.

Every method is one transaction. A writer locks the execution's row first, or only the row of the call that it
changes. The stream's row is locked last, because other executions of the session wait for it.
A repeated call finds its earlier writes under the same keys.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    execution_statements,
    ledger_entries,
    ledger_statements,
    parameters,
    rows,
)
from everstep.store.attachments import require_used, use_statements
from everstep.store.bodies import encode
from everstep.store.parameters import execution_key
from everstep.store.postgres_budgets import PostgresBudgets
from everstep.store.postgres_calls import PostgresCalls
from everstep.store.postgres_commands import PostgresCommands
from everstep.store.postgres_ledger import PostgresLedger, ledger_writes
from everstep.store.postgres_rates import PostgresRates
from everstep.store.postgres_status import PostgresStatus
from everstep.store.postgres_steps import PostgresSteps
from everstep.store.postgres_tenants import PostgresTenants
from everstep.store.postgres_text_search import PostgresTextSearch
from everstep.store.reading import find_execution
from everstep.store.recorded_reading import PostgresRecords
from everstep.store.transaction import Transaction


class PostgresStore(
    PostgresSteps,
    PostgresCalls,
    PostgresStatus,
    PostgresCommands,
    PostgresBudgets,
    PostgresRecords,
    PostgresLedger,
    PostgresTextSearch,
    PostgresTenants,
    PostgresRates,
):
    """The execution store of an installation, on an engine from `create_engine`.

    Committed envelopes are also pushed to the bus.
    """

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; a repeated id returns the stored one."""
        async with self._transaction() as connection:
            row, _ = await self._insert_execution(connection, new)
            return rows.execution_row(row)

    async def record_tools(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; an earlier record wins."""
        values = execution_key(ref) | {"listed": encode(tools, "the tools that were listed")}
        async with self._transaction() as connection:
            found, _ = await connection.together(
                (execution_statements.RECORD_TOOLSET_TOOLS, values),
                *ledger_writes(ref, [ledger_entries.tools_entry(values)]),
                last=True,
            )
        if found.first() is None:
            raise NotFound("execution", ref.execution_id)
        return bodies.document(found.one().listed, "the tools that were listed")

    async def _insert_execution(self, connection: Transaction, new: NewExecution) -> tuple[Row[Any], bool]:
        """Return the execution, and whether it is new."""
        ref = new.ref
        if new.continues == ref.execution_id:
            raise InvalidInput("an execution cannot continue itself; give the new one a different id")
        continued = await self._find_referenced_execution(connection, ref, new.continues)
        parent = await self._find_referenced_execution(connection, ref, new.parent_execution_id)
        values = execution_key(ref) | parameters.execution_values(new, continued, parent)
        # The session is locked because the execution becomes its last one, unless it is a subagent's.
        lock = [] if parent or not ref.session_id else [(execution_statements.LOCK_NAMED_SESSION, values)]
        accepting = (execution_statements.ACCEPT, values), (execution_statements.OWNS_STREAM, values)
        entries = ledger_writes(ref, [ledger_entries.acceptance_entry(new, values)])
        uses = use_statements(ref, new.messages)
        answers = await connection.together(*lock, *accepting, *entries, *uses)
        accepted, owned, _, *used = answers[len(lock) :]
        made = accepted.first()
        if made is None:
            return await self._find_accepted_execution(connection, ref), False
        if owned.first() is None:
            raise NotFound("session", ref.stream_id)
        require_used(new.messages, used)
        return made, True

    async def _open_ledger(self, connection: Transaction, ref: ExecutionRef) -> None:
        """Write the first entry of an execution that was copied, with the digests of its rows."""
        accepted, stored = await connection.together(
            (ledger_statements.ACCEPTED, execution_key(ref)), (ledger_statements.BODIES, execution_key(ref))
        )
        digests = {row.name: row.digest for row in stored.all()}
        entry = ledger_entries.copy_entry(accepted.one(), digests)
        await connection.together(*ledger_writes(ref, [entry]))

    async def _find_referenced_execution(
        self, connection: Transaction, ref: ExecutionRef, execution_id: UUID | None
    ) -> Row[Any] | None:
        """Return an execution of the same tenant that the new one refers to."""
        if execution_id is None:
            return None
        found = await find_execution(connection, replace(ref, execution_id=execution_id))
        if found is None:
            raise NotFound("execution", execution_id)
        return found

    async def _find_accepted_execution(self, connection: Transaction, ref: ExecutionRef) -> Row[Any]:
        found = await find_execution(connection, ref)
        if found is None:
            raise InvalidInput(f"the execution id {ref.execution_id} is taken; choose another one")
        return found
