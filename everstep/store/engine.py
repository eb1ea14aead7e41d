"""The connections to PostgreSQL.

A connection that hangs is worse than one that fails, so every wait has an end: for a connection out of
the pool, for the server to accept one, for a statement, for a lock, for an answer on a dead network, for an
answer on a network that swallows it (`connection.py`).
What the URL itself says (`?connect_timeout=1&options=...`) has precedence.
"""

import select
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from everstep.agent_domain.errors import InvalidInput
from everstep.store.connection import Connection, Link

STATEMENT_SECONDS = 15.0
"""So long the server works on a statement. The longest of ours takes a fraction of it."""
ANSWER_SECONDS = 5.0
"""So much longer an answer may take to arrive, before its connection is given up."""
CHECKOUT_SECONDS = 10.0
"""So long a connection may take: to get a free one, and to make a new one."""
MIGRATION_SECONDS = 3600.0
"""So long the answer to a statement of a migration may take: it may build an index over all that ever was."""
MAINTENANCE_SECONDS = 300.0
"""So long a statement may take that removes what is old, or adds up all there is."""

_DIALECTS = {"postgresql", "postgres", "postgresql+psycopg"}

_SOCKET: Mapping[str, Any] = {
    "connect_timeout": 5,
    # A peer that vanished without a word is noticed while we wait (keep-alive) and while we write.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_SESSION: Mapping[str, str] = {
    "timezone": "UTC",
    # Compiling a statement takes longer than any of ours runs.
    "jit": "off",
    # The default was measured on disks that turn. With it, a page of a long list is found by reading all of
    # the list and sorting it.
    "random_page_cost": "1.1",
    "idle_in_transaction_session_timeout": "60s",
}


def database_url(url: str) -> URL:
    """The URL, for the driver that we use; `InvalidInput` says what is wrong with it."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput(
            "the database URL cannot be read; use postgresql://user:password@host:5432/name"
        ) from None
    if parsed.drivername not in _DIALECTS:
        raise InvalidInput(f"the database URL is for {parsed.drivername}; Everstep needs postgresql://...")
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
) -> AsyncEngine:
    """An engine for a `PostgresStore`. The caller disposes of it.

    Args:
        url: Where PostgreSQL is.
        application_name: What its administrator sees.
        pool_size: Connections that are kept.
        max_overflow: Connections beyond those.
        pool_timeout: Seconds to wait for a connection to become free.
        statement_timeout: Seconds that the server works on a statement.
        lock_timeout: Seconds that the server waits for a lock.
        answer_timeout: Seconds beyond `statement_timeout` after which a connection that does not answer is
            closed.
    """
    link = Link(statement_timeout + answer_timeout, CHECKOUT_SECONDS)
    engine = create_async_engine(
        database_url(url),
        connect_args=_connect_args(url, application_name, statement_timeout, lock_timeout, link),
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_timeout=pool_timeout,
        # One statement is a transaction by itself and needs no BEGIN and COMMIT around it. Where there are
        # more of them, `transaction` sends these.
        isolation_level="AUTOCOMMIT",
        # The connection that was used last: its server process is warm and has our statements prepared.
        pool_use_lifo=True,
        # Before load balancers and server processes that grew get tired of it.
        pool_recycle=1800,
        # Errors are logged and end up in workflow history; what was bound may be what people wrote.
        hide_parameters=True,
    )
    event.listen(engine.sync_engine, "checkout", _refuse_if_lost)
    return engine


def _refuse_if_lost(connection: Any, _record: object, _proxy: object) -> None:
    """Has the pool make another connection in place of one that is known to be lost.

    A server says something unasked when it closes a connection. Without a look at that, the first call on
    each connection after a restart of the server would fail. To ask whether it still answers would be a round
    trip for each use of a connection. Where one got no answer, those as old as it would get none either.
    """
    driver: Connection = connection.driver_connection
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    if poll.poll(0):
        raise DisconnectionError("the server has closed the connection")
    if driver.link and driver.link.suspects(driver):
        raise DisconnectionError("the server does not answer on connections of that time")


def create_upgrade_engine(url: str, statement_timeout: float = 0) -> AsyncEngine:
    """An engine for a migration: one connection at a time, and by default as long as the server takes."""
    seconds = statement_timeout + ANSWER_SECONDS if statement_timeout else MIGRATION_SECONDS
    link = Link(seconds, CHECKOUT_SECONDS)
    args = _connect_args(url, "everstep db upgrade", statement_timeout, 0, link)
    return create_async_engine(database_url(url), connect_args=args, poolclass=NullPool)


def _connect_args(
    url: str, application_name: str, statement_timeout: float, lock_timeout: float, link: Link
) -> dict[str, Any]:
    given = database_url(url).query
    session = {
        **_SESSION,
        "statement_timeout": f"{statement_timeout:g}s",
        "lock_timeout": f"{lock_timeout:g}s",
    }
    ours = " ".join(f"-c {name}={value}" for name, value in session.items())
    # Of a setting that is given twice, the server takes the later one.
    options = f"{ours} {cast('str', given.get('options', ''))}".strip()
    args: dict[str, Any] = {**_SOCKET, "application_name": application_name}
    usual = {name: value for name, value in args.items() if name not in given}
    return {**usual, "options": options, "async_creator_fn": link.connect}
