"""The rows of one person, in every table: to export them, to erase them, and to count what is left.

`WHOSE` has a condition for each table; a test compares it with the tables, so that a new one is not
forgotten.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.attachments import Attachment
from everstep.store.attachments import GRACE_SECONDS
from everstep.store.columns import IS_UNDER_WAY
from everstep.store.errors import error_translation
from everstep.store.postgres_writing import PostgresWriter

_OWN: Final = "tenant_id = :tenant_id AND user_id = :user_id"

_MINE: Final = f"""
    WITH RECURSIVE sessions AS (
        SELECT id FROM agent_sessions WHERE {_OWN}
    ), executions AS (
        SELECT id FROM agent_executions WHERE session_id IN (SELECT id FROM sessions)
     UNION
        SELECT id FROM agent_executions WHERE {_OWN}
     UNION
        SELECT child.id
          FROM executions JOIN agent_executions child ON child.parent_execution_id = executions.id
    )"""  # noqa: S608 -- constants only
"""The person's sessions and executions: those in these sessions, the person's own, and their subagents."""

_IN_EXECUTION: Final = "execution_id IN (SELECT id FROM executions)"
_IN_SESSION: Final = "session_id IN (SELECT id FROM sessions)"
_IN_STREAM: Final = "stream_id IN (SELECT id FROM sessions UNION ALL SELECT id FROM executions)"

WHOSE: Final[Mapping[str, str | None]] = {
    "agent_sessions": "id IN (SELECT id FROM sessions)",
    "agent_session_messages": _IN_SESSION,
    "agent_executions": "id IN (SELECT id FROM executions)",
    "agent_state_snapshots": "agent_execution_id IN (SELECT id FROM executions)",
    "agent_steps": _IN_EXECUTION,
    "agent_transcript": _IN_EXECUTION,
    "agent_inner_replies": _IN_EXECUTION,
    "agent_tool_calls": _IN_EXECUTION,
    "agent_requests": _IN_EXECUTION,
    "agent_steered": _IN_EXECUTION,
    "agent_commands": _IN_EXECUTION,
    "agent_settlements": _IN_EXECUTION,
    "agent_ledger_heads": _IN_EXECUTION,
    "agent_ledger": _IN_EXECUTION,
    "agent_model_usage": _IN_EXECUTION,
    "agent_session_usage": _IN_SESSION,
    "agent_budgets": f"""
        {_IN_EXECUTION} OR {_IN_SESSION}
        OR (tenant_id = :tenant_id AND scope = 'user' AND subject = :user_id)
    """,
    "agent_budget_reservations": _IN_EXECUTION,
    "agent_places": _IN_EXECUTION,
    "agent_streams": _IN_STREAM,
    "agent_envelopes": _IN_STREAM,
    "agent_attachments": _OWN,
    "agent_attachment_uses": _IN_EXECUTION,
    "agent_feedback": f"""
        tenant_id = :tenant_id
        AND (given_by = :user_id
             OR message_id IN (SELECT id FROM agent_session_messages WHERE {_IN_SESSION}))
    """,  # noqa: S608 -- constants only
    "agent_api_keys": _OWN,
    "agent_sign_ins": _OWN,
    # Also those to services that acted for the person.
    "agent_answers": """
        tenant_id = :tenant_id
        AND :user_id IN (user_id, body ->> 'user_id', body -> 'data' ->> 'user_id')
    """,
    "agent_claims": _OWN,
    "agent_schedules": _OWN,
    # Those of `*` are of every other user.
    "agent_tenant_limits": f"{_OWN} AND user_id <> '*'",
    "agent_webhook_deliveries": "tenant_id = :tenant_id AND data ->> 'user_id' = :user_id",
    # The files are exported beside the tables.
    "agent_attachment_contents": None,
    # Users are named by a hash, and rows that are not used are removed after a day.
    "agent_rates": None,
    # They name no person, and refer to nothing that does.
    "agent_budget_holds": None,
    "agent_pruned_ledgers": None,
    "agent_webhooks": None,
    "agent_journal": None,
    "agent_gateways": None,
}
"""The condition for the rows of a person, by table; None if a table has none that are exported."""

SECRETS: Final[Mapping[str, frozenset[str]]] = {
    "agent_api_keys": frozenset({"digest"}),
    "agent_sign_ins": frozenset({"digest", "signing_key"}),
    "agent_claims": frozenset({"owner"}),
}
"""Columns that no export contains."""

ACCESS: Final = ("agent_sign_ins", "agent_api_keys")
"""What lets a person in: it is erased first, so that nothing new is begun."""

_OPEN_EXECUTIONS = text(f"""{_MINE}
    SELECT id, session_id FROM agent_executions
     WHERE id IN (SELECT id FROM executions) AND status {IS_UNDER_WAY} AND parent_execution_id IS NULL
     ORDER BY created_at, id
""")  # noqa: S608 -- constants only

_SESSIONS = text(f"SELECT id FROM agent_sessions WHERE {_OWN} ORDER BY id")  # noqa: S608 -- constants only

_SCHEDULES = text(f"""
    SELECT id FROM agent_schedules WHERE {_OWN} AND NOT is_deleted ORDER BY created_at, id
""")  # noqa: S608 -- constants only

_LONE_EXECUTIONS = text(f"""
    SELECT id FROM agent_executions execution
     WHERE {_OWN} AND parent_execution_id IS NULL
       AND NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = execution.session_id)
     ORDER BY created_at DESC, id
""")  # noqa: S608 -- constants only
"""The newest first: an execution that another one continues is removed after that one."""

_REST = (
    *(
        text(f"DELETE FROM {table} WHERE {WHOSE[table]}")  # noqa: S608 -- constants only
        for table in ("agent_answers", "agent_claims", "agent_tenant_limits", "agent_webhook_deliveries")
    ),
    text("DELETE FROM agent_feedback WHERE tenant_id = :tenant_id AND given_by = :user_id"),
    text("DELETE FROM agent_budgets WHERE tenant_id = :tenant_id AND scope = 'user' AND subject = :user_id"),
    # In the sessions of others: their conversations, in which the person is named no longer.
    text(f"""
        UPDATE agent_executions SET user_id = NULL
         WHERE {_OWN} AND NOT status {IS_UNDER_WAY}
           AND EXISTS (SELECT 1 FROM agent_sessions
                        WHERE id = agent_executions.session_id AND user_id <> :user_id)
    """),  # noqa: S608 -- constants only
    text(f"""
        UPDATE agent_requests SET user_id = NULL
         WHERE {_OWN}
           AND EXISTS (SELECT 1 FROM agent_executions WHERE id = execution_id AND user_id IS NULL)
    """),  # noqa: S608 -- constants only
    text(f"""
        UPDATE agent_attachments file
           SET user_id = NULL,
               expires_at = CASE WHEN EXISTS (SELECT 1
                                                FROM agent_attachment_uses
                                               WHERE attachment_id = file.id)
                                 THEN expires_at
                                 ELSE clock_timestamp() - {2 * GRACE_SECONDS} * interval '1 second' END
         WHERE {_OWN}
    """),  # noqa: S608 -- constants only
)


def _statement(table: str, what: str) -> TextClause:
    return text(f"{_MINE} SELECT {what} FROM {table} AS found WHERE {WHOSE[table]}")  # noqa: S608 -- constants only


class PostgresPersonRows(PostgresWriter):
    """Finds and erases the rows of one person in a tenant."""

    def __init__(self, engine: AsyncEngine, tenant_id: str, user_id: str) -> None:
        super().__init__(engine)
        self._person = {"tenant_id": tenant_id, "user_id": user_id}

    async def export(self) -> AsyncGenerator[tuple[str, str]]:
        """Yield the table and the JSON text of each row, all of the same moment."""
        with error_translation(self.engine.url):
            async with self.engine.connect() as plain:
                connection = await plain.execution_options(isolation_level="REPEATABLE READ")
                async with connection.begin():
                    for table in tables_with_rows():
                        hidden = SECRETS.get(table, frozenset())
                        without = f" - CAST('{{{','.join(sorted(hidden))}}}' AS text[])" if hidden else ""
                        what = f"CAST(to_jsonb(found){without} AS text) AS row" if hidden else _AS_JSON
                        rows = await connection.stream(_statement(table, what), self._person)
                        async for (row,) in rows:
                            yield table, row

    async def attachments(self) -> Sequence[Attachment]:
        """Return the person's files: sent ones, and those of the person's executions."""
        statement = text(f"""{_MINE}
            SELECT id, name, media_type, size, sha256 FROM agent_attachments
             WHERE ({_OWN})
                OR id IN (SELECT attachment_id FROM agent_attachment_uses WHERE {_IN_EXECUTION})
             ORDER BY created_at, id
        """)  # noqa: S608 -- constants only
        found = await self._fetch_all(statement, self._person)
        return tuple(Attachment(row.id, row.name, row.media_type, row.size, row.sha256) for row in found)

    async def counts(self) -> Mapping[str, int]:
        """Return the number of rows in each table that has any."""
        found = dict[str, int]()
        for table in tables_with_rows():
            (row,) = await self._fetch_all(_statement(table, "count(*) AS many"), self._person)
            if row.many:
                found[table] = row.many
        return found

    async def count_decisions(self) -> int:
        """Return how many decisions and commands of the person are in executions of others."""
        statement = text(f"""{_MINE}
            SELECT (SELECT count(*) FROM agent_requests
                     WHERE tenant_id = :tenant_id AND resolution -> 'by' ->> 'subject' = :user_id
                       AND NOT {_IN_EXECUTION})
                 + (SELECT count(*) FROM agent_commands
                     WHERE tenant_id = :tenant_id AND sent_by ->> 'subject' = :user_id
                       AND NOT {_IN_EXECUTION}) AS many
        """)  # noqa: S608 -- constants only
        (row,) = await self._fetch_all(statement, self._person)
        return row.many

    async def open_executions(self) -> Sequence[tuple[UUID, UUID | None]]:
        """Return the ids and sessions of executions that are under way, without subagents."""
        found = await self._fetch_all(_OPEN_EXECUTIONS, self._person)
        return tuple((row.id, row.session_id) for row in found)

    async def session_ids(self) -> Sequence[UUID]:
        """Return the person's sessions."""
        return tuple(row.id for row in await self._fetch_all(_SESSIONS, self._person))

    async def schedule_ids(self) -> Sequence[UUID]:
        """Return the person's schedules."""
        return tuple(row.id for row in await self._fetch_all(_SCHEDULES, self._person))

    async def lone_execution_ids(self) -> Sequence[UUID]:
        """Return the person's executions without a session and without a parent."""
        return tuple(row.id for row in await self._fetch_all(_LONE_EXECUTIONS, self._person))

    async def erase_access(self) -> None:
        """Erase what lets the person in: sign-ins and API keys."""
        async with self._transaction() as connection:
            for table in ACCESS:
                await connection.execute(text(f"DELETE FROM {table} WHERE {WHOSE[table]}"), self._person)  # noqa: S608 -- constants only

    async def erase_rest(self) -> None:
        """Erase what belongs to no session and no execution of the person."""
        async with self._transaction() as connection:
            for statement in _REST:
                await connection.execute(statement, self._person)


_AS_JSON: Final = "CAST(to_json(found) AS text) AS row"


def tables_with_rows() -> Sequence[str]:
    """Return the tables that may have rows of a person."""
    return [table for table, condition in WHOSE.items() if condition is not None]
