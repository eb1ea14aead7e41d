"""The statements that a connection has prepared, and how several of them are sent together.

psycopg's own pipeline waits for the socket after each statement, and keeps a cursor for each. Here a batch is
written at once and read at once, through psycopg's interface to libpq. A statement is prepared when it is
first sent, so that the server parses it once for each connection.
"""

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName, error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

RowMaker: TypeAlias = Callable[[Sequence[Any]], Any]

UNKNOWN: Final = 0
"""The type of texts and of NULL, which the server infers from the statement."""


_PROBE: Final = b"everstep_probe"


@dataclass(frozen=True, slots=True)
class Query:
    """A statement in the server's syntax, with a value for each placeholder."""

    sql: bytes
    values: Sequence[Any] = ()


@dataclass(slots=True)
class _Prepared:
    """A statement with parameters of these types, which the server knows by a name."""

    name: bytes | None
    """None: it is sent with each execution."""
    types: tuple[int, ...]
    make_row: RowMaker | None = None
    """Makes its rows, whose columns never change."""

    def accepts(self, types: tuple[int, ...]) -> bool:
        return types == self.types or all(
            given in {known, UNKNOWN} for given, known in zip(types, self.types, strict=True)
        )


class _Batch:
    """What is sent together, and which result belongs to which statement."""

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.sends = list[Callable[[], None]]()
        self.added = list[tuple[int, bytes, _Prepared]]()
        self.executed = list[tuple[int, _Prepared]]()

    def prepare(self, name: bytes, sql: bytes, statement: _Prepared) -> None:
        self.added.append((len(self.sends), sql, statement))
        self.sends.append(partial(self.pgconn.send_prepare, name, sql, statement.types))

    def execute(self, sql: bytes, statement: _Prepared, values: Sequence[Any], formats: Any) -> None:
        self.executed.append((len(self.sends), statement))
        if statement.name is None:
            send = partial(self.pgconn.send_query_params, sql, values, statement.types, formats)
        else:
            send = partial(self.pgconn.send_query_prepared, statement.name, values, formats)
        self.sends.append(send)


class PreparedStatements:
    """The prepared statements of one connection.

    They do not refer to the connection, which would then live on until the garbage collector finds both.
    """

    def __init__(self, adapters: AdaptersMap) -> None:
        self.is_enabled = False
        """Whether statements are prepared. A pooler may send the next transaction to another server process,
        which does not know them."""
        self._transformer = Transformer(adapters)
        self._known = dict[bytes, list[_Prepared]]()
        self._count = 0

    async def run(
        self, connection: psycopg.AsyncConnection[Any], queries: Sequence[Query]
    ) -> list[list[Any]]:
        """Execute statements in order, and wait once for the rows of all of them.

        Outside of a transaction they are committed together, or not at all.

        Raises:
            psycopg.Error: A statement failed; those after it were not executed.
        """
        if not queries:
            return []
        batch = _Batch(connection.pgconn)
        for query in queries:
            self._add(batch, query)
        results = list[PGresult]()
        try:
            results = await connection.wait(_exchange(batch))
        finally:
            self._forget_failed(batch, results)
        failed = next((each for each in results if each.status == ExecStatus.FATAL_ERROR), None)
        if failed is not None:
            error = error_from_result(failed)
            if isinstance(error, InvalidSqlStatementName):
                # A pooler, or an operator, has discarded them.
                self._known.clear()
            raise error
        return [self._rows(statement, results[index]) for index, statement in batch.executed]

    async def can_prepare(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Whether a pooler lets statements be prepared.

        One that does (PgBouncer from 1.21 on, with `max_prepared_statements`) gives them names of its own, so
        that the server does not know them by ours.
        """
        batch = _Batch(connection.pgconn)
        batch.sends += [
            partial(connection.pgconn.send_prepare, _PROBE, b"SELECT 1"),
            partial(connection.pgconn.send_query_params, b"DEALLOCATE " + _PROBE, None),
        ]
        results = await connection.wait(_exchange(batch))
        failed = next((each for each in results if each.status == ExecStatus.FATAL_ERROR), None)
        if failed is None:
            return False
        error = error_from_result(failed)
        if isinstance(error, DuplicatePreparedStatement):
            return False
        if isinstance(error, InvalidSqlStatementName):
            return True
        raise error

    def _add(self, batch: _Batch, query: Query) -> None:
        values, transformer = query.values, self._transformer
        dumped = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        types = transformer.types or ()
        known = self._known.setdefault(query.sql, [])
        statement = next((each for each in known if each.accepts(types)), None)
        if statement is None:
            statement = _Prepared(None, types)
            known.append(statement)
            if self.is_enabled:
                self._count += 1
                statement.name = b"everstep_%d" % self._count
                batch.prepare(statement.name, query.sql, statement)
        batch.execute(query.sql, statement, dumped, transformer.formats)

    def _forget_failed(self, batch: _Batch, results: Sequence[PGresult]) -> None:
        """Forget the statements that were not prepared."""
        for index, sql, statement in batch.added:
            if index >= len(results) or results[index].status != ExecStatus.COMMAND_OK:
                self._known[sql].remove(statement)

    def _rows(self, statement: _Prepared, result: PGresult) -> list[Any]:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        if statement.make_row is None:
            statement.make_row = _row_maker(*(result.fname(column) for column in range(result.nfields)))
        return self._transformer.load_rows(0, result.ntuples, statement.make_row)


@cache
def _row_maker(*names: bytes) -> RowMaker:
    columns = [name.decode() for name in names]
    row = namedtuple("Row", columns, rename=True)  # pyright: ignore[reportUntypedNamedTuple] -- any statement's
    return row._make


def _exchange(batch: _Batch) -> PQGen[list[PGresult]]:
    """Send a batch, and return the result of each part.

    A generator for psycopg's `wait`: it yields what it waits for.
    """
    pgconn = batch.pgconn
    pgconn.enter_pipeline_mode()
    for send in batch.sends:
        send()
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            # The server may wait for us to read before it reads on.
            pgconn.consume_input()
    results = list[PGresult]()
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError(pgconn.get_error_message())
        elif result.status == ExecStatus.PIPELINE_SYNC:
            break
        else:
            results.append(result)
    pgconn.exit_pipeline_mode()
    return results
