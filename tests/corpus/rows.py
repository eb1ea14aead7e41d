"""The rows of the recorded executions, in a file and in a database."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

FOLDER: Final = Path(__file__).parent
FILE: Final = FOLDER / "runs.json.gz"
EXPECTED: Final = FOLDER / "expected.json"

TABLES: Final[Mapping[str, str]] = {
    "agent_sessions": "created_at, id",
    # Parents come before their children.
    "agent_executions": "created_at, id",
    "agent_steps": "execution_id, number",
    "agent_tool_calls": "execution_id, step, idx",
}
"""The tables that a what-if reads, and those to which they refer, with the order of their rows."""

_LEFT_OUT: Final = {"last_snapshot_id", "last_execution_id"}
"""Columns that refer to rows that are not here, or that come later."""

Rows: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by table, each a map of its columns."""


def read_rows(url: str) -> Rows:
    """Read the rows of a database."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return {table: _read_table(connection, table, order) for table, order in TABLES.items()}


def _read_table(connection: psycopg.Connection[Any], table: str, order: str) -> list[dict[str, Any]]:
    query = sql.SQL("SELECT to_jsonb(t) FROM {} t ORDER BY {}").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, order.split(", ")))
    )
    rows = [row for (row,) in connection.execute(query)]
    return [{key: row[key] for key in row.keys() - _LEFT_OUT if row[key] is not None} for row in rows]


def write_rows(url: str, rows: Rows) -> None:
    """Write rows into an empty database."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for table in TABLES:
            for row in rows[table]:
                columns = sql.SQL(", ").join(map(sql.Identifier, row))
                statement = sql.SQL(
                    "INSERT INTO {table} ({columns}) "
                    "SELECT {columns} FROM jsonb_populate_record(NULL::{table}, %s)"
                ).format(table=sql.Identifier(table), columns=columns)
                connection.execute(statement, (Jsonb(row),))


def save(rows: Rows) -> None:
    """Write the file; the same rows make the same bytes."""
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


def load() -> Rows:
    """Read the file."""
    return json.loads(gzip.decompress(FILE.read_bytes()))
