"""A transaction that sends statements straight to the driver, several of them in one round trip.

SQLAlchemy keeps the connections and renders composed statements. Statements in text form are prepared, and
sent in batches (`prepared_statements.py`): `BEGIN` travels with the first, and each has its own snapshot.
Every step of every execution passes through here, so SQLAlchemy's own connection is made for composed
statements only, and no task to return a connection that the pool keeps.

Only a connection that is known to be outside of any pipeline and any transaction returns to the pool. One
whose work was interrupted does not, regardless of its apparent state.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from sqlalchemy import Connection, Executable, PoolProxiedConnection, QueuePool, TextClause
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import greenlet_spawn

from everstep.store.deadline_connection import ServerConnection
from everstep.store.prepared_statements import Query

BEGIN = b"BEGIN"
BEGIN_SNAPSHOT = b"BEGIN ISOLATION LEVEL REPEATABLE READ"
"""Every statement sees the snapshot of the first one."""

_COMMIT = Query(b"COMMIT")
_ROLLBACK = Query(b"ROLLBACK")

BoundStatement: TypeAlias = tuple[TextClause, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a statement; columns are attributes."""

    rows: Sequence[Any]

    def all(self) -> Sequence[Any]:
        """Return every row."""
        return self.rows

    def first(self) -> Any:
        """Return the first row, or None."""
        return self.rows[0] if self.rows else None

    def one(self) -> Any:
        """Return the only row."""
        (row,) = self.rows
        return row

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        return self.rows[0][0] if self.rows else None

    def scalar_one(self) -> Any:
        """Return the first column of the only row."""
        return self.one()[0]


class Transaction:
    """An open transaction; it ends with its `transaction` block."""

    def __init__(self, engine: AsyncEngine, lease: PoolProxiedConnection, begin: bytes) -> None:
        self._engine = engine
        self._lease = lease
        self._driver: ServerConnection = cast("Any", lease.driver_connection)
        self._composing: AsyncConnection | None = None
        """Renders composed statements and reads their rows."""
        self._begin: bytes | None = begin
        self._is_open = False
        self._then: list[Callable[[], None]] = []

    async def execute(self, statement: Executable, values: Mapping[str, Any] | None = None) -> QueryResult:
        """Execute one statement."""
        if isinstance(statement, TextClause):
            (answer,) = await self.together((statement, values or {}))
            return answer
        if self._begin:
            await self.together()
        if self._composing is None:
            connection = Connection(self._engine.sync_engine, self._lease)
            self._composing = AsyncConnection(self._engine, connection)
        found = await self._composing.execute(statement, values)
        return QueryResult(found.all() if found.returns_rows else ())

    async def together(self, *asked: BoundStatement, last: bool = False) -> list[QueryResult]:
        """Execute statements in order, with one wait for all of their results.

        The last statements of a transaction take `COMMIT` along. If they are also the first ones, they need
        neither `BEGIN` nor `COMMIT`, unless they have to share a snapshot: a pipeline is committed as a
        whole.

        Args:
            asked: Statements with their parameters.
            last: Whether these are the last statements of the transaction.
        """
        begin, self._begin = self._begin, None
        settings = self._driver.settings if begin else None
        if last:
            # Take a pending cancellation before anything is committed.
            await asyncio.sleep(0)
        queries = [_bind(statement, values) for statement, values in asked]
        opens = begin is not None and (begin is not BEGIN or not last)
        if settings:
            queries.insert(0, settings)
        if begin and opens:
            self._is_open = True
            queries.insert(0, Query(begin))
        first = opens + (settings is not None)
        if last and self._is_open:
            queries.append(_COMMIT)
        try:
            found = await self._driver.statements.run(self._driver, queries)
        except psycopg.Error as error:
            raise _dbapi_error(error) from error
        self._is_open = self._is_open and not last
        return [QueryResult(rows) for rows in found[first : first + len(asked)]]

    def call_after_commit(self, then: Callable[[], None]) -> None:
        """Call a function after the commit, and never after a rollback."""
        self._then.append(then)

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._is_open:
            await self.together(last=True)
        for then in self._then:
            then()

    async def rollback(self) -> None:
        """Roll the transaction back; a connection that cannot is closed."""
        self._is_open = False
        self._then.clear()
        try:
            if self._driver.pgconn.pipeline_status != PipelineStatus.OFF:
                await self.abandon()
            elif self._driver.info.transaction_status is not TransactionStatus.IDLE:
                await self._driver.statements.run(self._driver, [_ROLLBACK])
        except psycopg.Error:
            await self.abandon()
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Close the connection; the server rolls back."""
        self._is_open = False
        self._then.clear()
        if self._composing is not None:
            await self._composing.invalidate()
        elif self._lease.is_valid:
            await greenlet_spawn(self._lease.invalidate)

    async def close(self) -> None:
        """Return the connection to the pool."""
        if self._composing is not None:
            await _complete(self._composing.close())
        elif self._lease.is_valid and _is_kept(self._engine):
            self._lease.close()
        elif self._lease.is_valid:
            await _complete(greenlet_spawn(self._lease.close))


def _is_kept(engine: AsyncEngine) -> bool:
    """Whether the pool keeps a connection that returns; otherwise it closes it, and waits for that."""
    pool = engine.pool
    return isinstance(pool, QueuePool) and pool.overflow() <= 0


async def _complete(closing: Coroutine[Any, Any, None]) -> None:
    """Wait until a connection is closed, also if this task is cancelled in between."""
    task = asyncio.create_task(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@asynccontextmanager
async def transaction(engine: AsyncEngine, begin: bytes = BEGIN) -> AsyncGenerator[Transaction]:
    """Open a transaction that is committed at the end of the block.

    The engine must be in autocommit mode, so that `BEGIN` is sent here.
    """
    try:
        lease = await engine.raw_connection()
    except psycopg.Error as error:
        raise _dbapi_error(error) from error
    current = Transaction(engine, lease, begin)
    try:
        try:
            yield current
            await current.commit()
        except Exception:
            await current.rollback()
            raise
        except BaseException:
            await current.abandon()
            raise
    finally:
        await current.close()


def _bind(statement: TextClause, values: Mapping[str, Any]) -> Query:
    sql, names = _compile(statement)
    return Query(sql, [values[name] for name in names])


@cache
def _compile(statement: TextClause) -> tuple[bytes, tuple[str, ...]]:
    """Return the statement in the server's syntax, which needs no conversion, and its parameter names."""
    names = dict[str, int]()

    def place(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    sql = re.sub(r"%\((\w+)\)s", place, str(statement.compile(dialect=_DIALECT)))
    return sql.replace("%%", "%").encode(), tuple(names)


_DIALECT = PGDialect_psycopg()


def _dbapi_error(error: psycopg.Error) -> DBAPIError:
    """Return the error in SQLAlchemy's form, without bound parameters, which may be user data."""
    wrapped = DBAPIError.instance(None, None, error, psycopg.Error, dialect=_DIALECT, hide_parameters=True)
    assert isinstance(wrapped, DBAPIError)  # noqa: S101
    return wrapped
