"""The connections to PostgreSQL.

A connection that hangs is worse than one that fails, so every wait has an end: for a connection out of
the pool, for the server to accept one, for a statement, for a lock, for an answer on a dead network.
What the URL itself says (`?connect_timeout=1&options=...`) has precedence.
"""

import select
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from agent_domain.errors import InvalidInput

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
    pool_timeout: float = 10,
    statement_timeout: float = 30,
    lock_timeout: float = 10,
) -> AsyncEngine:
    """An engine for a `PostgresStore`; times are in seconds. Whoever creates it disposes of it."""
    engine = create_async_engine(
        database_url(url),
        connect_args=_connect_args(url, application_name, statement_timeout, lock_timeout),
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
    event.listen(engine.sync_engine, "checkout", _refuse_if_spoken_to)
    return engine


def _refuse_if_spoken_to(connection: Any, _record: object, _proxy: object) -> None:
    """A server says something unasked when it closes a connection: the pool then makes another one.

    Without that, the first call on each connection after a restart of the server would fail. To ask whether
    it still answers would be a round trip for each use of a connection.
    """
    poll = select.poll()
    poll.register(connection.driver_connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise DisconnectionError("the server has closed the connection")


def create_upgrade_engine(url: str) -> AsyncEngine:
    """An engine for a migration: one connection at a time, and as long as it takes."""
    args = _connect_args(url, "everstep db upgrade", 0, 0)
    return create_async_engine(database_url(url), connect_args=args, poolclass=NullPool)


def _connect_args(
    url: str, application_name: str, statement_timeout: float, lock_timeout: float
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
    return {name: value for name, value in args.items() if name not in given} | {"options": options}
