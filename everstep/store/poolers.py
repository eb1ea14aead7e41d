"""Connections through a pooler, such as PgBouncer in transaction mode.

A pooler gives each transaction a session of the server, which other clients used before. So settings of the
session and prepared statements do not last. Here it is found out whether a connection is through a pooler,
and what it permits:

- The key with which a client cancels statements names a process of the server. A pooler sends a key of its
  own, so the process is another one than the server says.
- A pooler refuses the settings with which a connection begins, or ignores them. Then they are set at the
  beginning of each transaction, those that the session does not have anyway (`ALTER ROLE ... SET`).
- Statements are prepared if the pooler manages them (PgBouncer from 1.21 on).
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import psycopg

from everstep.store.prepared_statements import Query

if TYPE_CHECKING:
    from everstep.store.deadline_connection import ServerConnection

Preparing = Literal["auto", "on", "off"]
"""Whether statements are prepared on the server; `auto` finds out what a pooler permits."""

_BACKEND = Query(b"SELECT pg_backend_pid()")
_TRACKED = frozenset({"timezone"})
"""Settings that poolers keep for each client, if it sets them once."""

_OPTION = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|\S)*)")


def parse_options(text: str) -> Mapping[str, str]:
    """Return the settings in a connection's `options`."""
    return {name.replace("-", "_"): re.sub(r"\\(.)", r"\1", value) for name, value in _OPTION.findall(text)}


def is_refusal_of_options(error: psycopg.OperationalError) -> bool:
    """Whether a pooler refuses the settings of a session."""
    return "unsupported startup parameter" in str(error)


async def adopt(
    connection: "ServerConnection", session: Mapping[str, str], preparing: Preparing, *, has_options: bool
) -> None:
    """Find out whether a new connection is through a pooler, and give it the settings of a session."""
    (((backend,),),) = await connection.statements.run(connection, [_BACKEND])
    connection.is_pooled = backend != connection.info.backend_pid
    if connection.is_pooled:
        # Its own statements, which it would prepare after some executions.
        connection.prepare_threshold = None
        lasting = {name: value for name, value in session.items() if name in _TRACKED}
        await _set_all(connection, lasting)
        changing = {name: value for name, value in session.items() if name not in _TRACKED}
        connection.settings = await _settings_query(connection, changing)
    elif not has_options:
        await _set_all(connection, session)
    if preparing == "auto" and connection.is_pooled:
        connection.statements.is_enabled = await connection.statements.can_prepare(connection)
    else:
        connection.statements.is_enabled = preparing != "off"


async def _set_all(connection: "ServerConnection", settings: Mapping[str, str]) -> None:
    sql = b"SELECT set_config($1, $2, false)"
    await connection.statements.run(connection, [Query(sql, each) for each in settings.items()])


async def _settings_query(connection: "ServerConnection", settings: Mapping[str, str]) -> Query | None:
    """Return the statement that sets, for one transaction, what the session does not have."""
    compare = b"SELECT current_setting($1) AS before, set_config($1, $2, true) AS after"
    found = await connection.statements.run(connection, [Query(compare, each) for each in settings.items()])
    wrong = [name for name, ((before, after),) in zip(settings, found, strict=True) if before != after]
    if not wrong:
        return None
    calls = ", ".join(f"set_config('{name}', ${place}, true)" for place, name in enumerate(wrong, 1))
    return Query(f"SELECT {calls}".encode(), [settings[name] for name in wrong])
