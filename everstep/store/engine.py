"""Connections to PostgreSQL.

A connection that hangs is worse than one that fails, so every wait has a limit: for a connection from the
pool, for the server to accept one, for a statement, for a lock, for an answer on a dead network, and for an
answer on a network that acknowledges packets and drops them (`deadline_connection.py`). Options in the URL
itself (`?connect_timeout=1&options=...`) take precedence.
"""

import select
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from everstep.agent_domain.errors import InvalidInput
from everstep.store.deadline_connection import ServerConnection, ServerLink
from everstep.store.errors import error_translation
from everstep.store.measured_pool import MeasuredPool
from everstep.store.poolers import Preparing, parse_options

STATEMENT_SECONDS = 15.0
"""The server's limit for a statement. The longest statement takes a fraction of it."""
ANSWER_SECONDS = 5.0
"""The extra time for an answer to arrive before its connection is closed."""
CHECKOUT_SECONDS = 10.0
"""The limit for getting a free connection, and for opening a new one."""
MIGRATION_SECONDS = 3600.0
"""The limit for a statement of a migration, which may index a large table."""
MAINTENANCE_SECONDS = 300.0
"""The limit for a statement that prunes old rows or adds up all rows."""

_DIALECTS = {"postgresql", "postgres", "postgresql+psycopg"}

_SOCKET: Mapping[str, Any] = {
    "connect_timeout": 5,
    # A peer that vanished is noticed both while reading (keep-alive) and while writing (user timeout).
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_SESSION: Mapping[str, str] = {
    "timezone": "UTC",
    # Compilation would take longer than any of these statements runs.
    "jit": "off",
    # The default was measured on spinning disks. With it, the planner reads and sorts a whole list to return
    # one page of it.
    "random_page_cost": "1.1",
    "idle_in_transaction_session_timeout": "60s",
}


def database_url(url: str, name: str = "the database URL") -> URL:
    """Return the URL with the psycopg driver.

    Args:
        url: The URL.
        name: What an error calls it, such as its variable.

    Raises:
        InvalidInput: The URL cannot be parsed, or is for another database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput(f"{name} cannot be read; use postgresql://user:password@host:5432/name") from None
    if parsed.drivername not in _DIALECTS:
        raise InvalidInput(f"{name} is for {parsed.drivername}; Everstep needs postgresql://...")
    return parsed.set(drivername="postgresql+psycopg")


def create_engine(
    url: str,
    *,
    application_name: str = "everstep",
    pool_size: int = 10,
    max_overflow: int = 10,
    pool_timeout: float = CHECKOUT_SECONDS,
    statement_timeout: float = STATEMENT_SECONDS,
    lock_timeout: float = 10,
    answer_timeout: float = ANSWER_SECONDS,
    preparing: Preparing = "auto",
) -> AsyncEngine:
    """Create the engine of a `PostgresStore`. The caller disposes of it.

    Args:
        url: The database URL.
        application_name: The name in `pg_stat_activity`.
        pool_size: Connections that are kept open.
        max_overflow: Further connections under load.
        pool_timeout: Seconds to wait for a connection to become free.
        statement_timeout: Seconds that the server may spend on a statement.
        lock_timeout: Seconds that the server may wait for a lock.
        answer_timeout: Seconds beyond `statement_timeout` after which a connection that does not answer is
            closed.
        preparing: Whether statements are prepared on the server.
    """
    session = _session_settings(url, statement_timeout, lock_timeout)
    link = ServerLink(statement_timeout + answer_timeout, CHECKOUT_SECONDS, session, preparing)
    engine = create_async_engine(
        database_url(url),
        connect_args=_connect_args(url, application_name, link),
        poolclass=MeasuredPool,
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_timeout=pool_timeout,
        # A single statement is a transaction by itself and needs no BEGIN and COMMIT. `transaction` sends
        # these for several statements.
        isolation_level="AUTOCOMMIT",
        # Transactions end, or close their connection: there is nothing to roll back when it returns.
        pool_reset_on_return=None,
        # Prefer the connection that was used last: its server process is warm and has the statements
        # prepared.
        pool_use_lifo=True,
        # Recycle connections before load balancers drop them and server processes grow too large.
        pool_recycle=1800,
        # Errors are logged and recorded in workflow history, and bound parameters may contain user data.
        hide_parameters=True,
    )
    event.listen(engine.sync_engine, "checkout", _refuse_lost_connection)
    return engine


def _refuse_lost_connection(connection: Any, _record: object, _proxy: object) -> None:
    """Make the pool replace a connection that is known to be lost.

    A server sends a notice when it closes a connection. Without this check, the first call on each connection
    after a server restart would fail. A ping would cost a round trip per checkout. If one connection got no
    answer, connections of the same age are dead as well.
    """
    driver: ServerConnection = connection.driver_connection
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    if poll.poll(0):
        raise DisconnectionError("the server has closed the connection")
    if driver.link and driver.link.is_suspect(driver):
        raise DisconnectionError("the server does not answer on connections of this age")


async def describe_way(url: str, preparing: Preparing = "auto") -> str:
    """Return words about a pooler between this process and PostgreSQL; none without one."""
    engine = create_engine(url, preparing=preparing)
    try:
        with error_translation(engine.url):
            async with engine.connect() as connection:
                driver: Any = (await connection.get_raw_connection()).driver_connection
    finally:
        await engine.dispose()
    if not driver.is_pooled:
        return ""
    with_or_without = "with" if driver.statements.is_enabled else "without"
    return f" through a pooler, {with_or_without} prepared statements"


def create_upgrade_engine(url: str, statement_timeout: float = 0) -> AsyncEngine:
    """Create an engine for migrations: one connection at a time, and no statement timeout by default."""
    seconds = statement_timeout + ANSWER_SECONDS if statement_timeout else MIGRATION_SECONDS
    link = ServerLink(seconds, CHECKOUT_SECONDS, _session_settings(url, statement_timeout, 0))
    args = _connect_args(url, "everstep db upgrade", link)
    return create_async_engine(database_url(url), connect_args=args, poolclass=NullPool)


def _session_settings(url: str, statement_timeout: float, lock_timeout: float) -> Mapping[str, str]:
    """Return the settings of each session; those of the URL take precedence."""
    ours = {"statement_timeout": f"{statement_timeout:g}s", "lock_timeout": f"{lock_timeout:g}s"}
    return {**_SESSION, **ours, **parse_options(_given_options(url))}


def _given_options(url: str) -> str:
    return cast("str", database_url(url).query.get("options", ""))


def _connect_args(url: str, application_name: str, link: ServerLink) -> dict[str, Any]:
    given = database_url(url).query
    session = " ".join(f"-c {name}={value}" for name, value in link.session.items())
    # If a setting is given twice, the server uses the later one.
    options = f"{session} {_given_options(url)}".strip()
    args: dict[str, Any] = {**_SOCKET, "application_name": application_name}
    usual = {name: value for name, value in args.items() if name not in given}
    return {**usual, "options": options, "async_creator_fn": link.connect}
