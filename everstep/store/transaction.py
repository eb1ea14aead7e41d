"""A transaction whose statements go straight to the driver, several of them with one wait.

SQLAlchemy keeps the connections and writes the statements that are put together from parts. Those that stand
as text are sent by psycopg in pipeline mode: `BEGIN` travels with the first, and each has a snapshot of its
own. That takes a third of the time, which counts because every step of every execution comes through here.

Only a connection that is known to be outside of any pipeline and any transaction goes back to the pool. One
whose work was interrupted does not, whatever state it seems to be in.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import namedtuple_row
from sqlalchemy import Executable, TextClause
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

BEGIN = b"BEGIN"
ONE_MOMENT = b"BEGIN ISOLATION LEVEL REPEATABLE READ"
"""Every statement sees what the first one saw."""

COMMIT = b"COMMIT"

Asked: TypeAlias = tuple[TextClause, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement returned; columns are attributes of its rows."""

    rows: Sequence[Any]
    rowcount: int

    def all(self) -> Sequence[Any]:
        """Every row."""
        return self.rows

    def first(self) -> Any:
        """The first row, or None."""
        return self.rows[0] if self.rows else None

    def one(self) -> Any:
        """The only row."""
        (row,) = self.rows
        return row

    def scalar(self) -> Any:
        """What stands first in the first row, or None."""
        return self.rows[0][0] if self.rows else None

    def scalar_one(self) -> Any:
        """What stands first in the only row."""
        return self.one()[0]


class Transaction:
    """A transaction under way; it ends with the block that it was made for."""

    def __init__(self, connection: AsyncConnection, begin: bytes) -> None:
        self._connection = connection
        self._driver = _driver(connection)
        self._begin: bytes | None = begin
        self._is_open = False
        self._then: list[Callable[[], None]] = []

    async def execute(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Answer:
        """One statement, and what it returned."""
        if isinstance(statement, TextClause):
            (answer,) = await self.together((statement, values or {}))
            return answer
        if self._begin:
            await self.together()
        found = await self._connection.execute(statement, values)
        return Answer(found.all() if found.returns_rows else (), found.rowcount)

    async def together(self, *asked: Asked, last: bool = False) -> list[Answer]:
        """Statements one after the other, and one wait for what all of them returned.

        The last ones of a transaction take its end along. If they are the first ones too, they need neither
        `BEGIN` nor `COMMIT`, unless they are to see one moment: what is sent together is kept together.
        """
        begin, self._begin = self._begin, None
        if last:
            # A cancel that was asked for by now is heard before anything is kept.
            await asyncio.sleep(0)
        try:
            async with self._driver.pipeline():
                if begin and (begin is not BEGIN or not last):
                    self._is_open = True
                    await self._driver.execute(begin)
                cursors = [await self._sent(statement, values) for statement, values in asked]
                if last and self._is_open:
                    await self._driver.execute(COMMIT)
            answers = [Answer(await _rows(cursor), cursor.rowcount) for cursor in cursors]
        except psycopg.Error as error:
            raise _wrapped(error) from error
        self._is_open = self._is_open and not last
        return answers

    async def _sent(self, statement: TextClause, values: Mapping[str, Any]) -> psycopg.AsyncCursor[Any]:
        sql, names = _written(statement)
        cursor = psycopg.AsyncRawCursor(self._driver, row_factory=namedtuple_row)
        return await cursor.execute(sql, [values[name] for name in names])

    def once_kept(self, then: Callable[[], None]) -> None:
        """Call this once what was done is kept, and never if it is forgotten."""
        self._then.append(then)

    async def commit(self) -> None:
        """Keep what was done."""
        if self._is_open:
            await self.together(last=True)
        for then in self._then:
            then()

    async def rollback(self) -> None:
        """Forget what was done; a connection that cannot is given up."""
        self._is_open = False
        self._then.clear()
        try:
            if self._driver.pgconn.pipeline_status != PipelineStatus.OFF:
                await self.give_up()
            elif self._driver.info.transaction_status is not TransactionStatus.IDLE:
                await self._driver.rollback()
        except psycopg.Error:
            await self.give_up()
        except BaseException:
            await self.give_up()
            raise

    async def give_up(self) -> None:
        """Close the connection; the server forgets what was done."""
        self._is_open = False
        self._then.clear()
        await self._connection.invalidate()


@asynccontextmanager
async def transaction(engine: AsyncEngine, begin: bytes = BEGIN) -> AsyncGenerator[Transaction]:
    """Kept if the block comes to its end; the engine's connections have to leave `BEGIN` to us."""
    async with engine.connect() as connection:
        current = Transaction(connection, begin)
        try:
            yield current
            await current.commit()
        except Exception:
            await current.rollback()
            raise
        except BaseException:
            await current.give_up()
            raise


def _driver(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    proxy: Any = connection.sync_connection
    return proxy.connection.driver_connection


async def _rows(cursor: psycopg.AsyncCursor[Any]) -> list[Any]:
    return await cursor.fetchall() if cursor.rownumber is not None else []


@cache
def _written(statement: TextClause) -> tuple[bytes, tuple[str, ...]]:
    """The statement as the server reads it, and what its places are for: there is nothing left to convert."""
    names = dict[str, int]()

    def place(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    sql = re.sub(r"%\((\w+)\)s", place, str(statement.compile(dialect=_DIALECT)))
    return sql.replace("%%", "%").encode(), tuple(names)


_DIALECT = PGDialect_psycopg()


def _wrapped(error: psycopg.Error) -> DBAPIError:
    """As SQLAlchemy would say it; without what was bound, which may be what people wrote."""
    wrapped = DBAPIError.instance(None, None, error, psycopg.Error, dialect=_DIALECT, hide_parameters=True)
    assert isinstance(wrapped, DBAPIError)  # noqa: S101
    return wrapped
