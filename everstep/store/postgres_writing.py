"""Writing to PostgreSQL: transactions, and appending to streams and transcripts."""

import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

from psycopg.errors import NotNullViolation
from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.stream.bus import NOBODY, EnvelopeBus
from everstep.agent_domain.stream.records import EventRecord
from everstep.store import bodies, parameters, rows, stream_statements, transcript_statements
from everstep.store.bodies import TERMINAL, News
from everstep.store.errors import StoreError, translated
from everstep.store.parameters import whose
from everstep.store.reading import PostgresReader
from everstep.store.transaction import Answer, Asked, Transaction, transaction
from everstep.store.transcripts import Line

LOGGER = logging.getLogger(__name__)


class PostgresWriter(PostgresReader):
    """Transactions of a writer, and appending to streams and transcripts."""

    def __init__(self, engine: AsyncEngine, bus: EnvelopeBus = NOBODY) -> None:
        super().__init__(engine)
        self.bus = bus

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        with translated(self.engine.url):
            async with transaction(self.engine) as connection:
                yield connection

    async def _append(
        self, connection: Transaction, ref: ExecutionRef, stream_id: UUID, events: Iterable[EventRecord]
    ) -> None:
        """Append events to the stream as the last write: its lock is held until the commit."""
        news = bodies.session_news(ref.execution_id, events)
        await self._publish(connection, ref, stream_id, news, last=True)

    async def _publish(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        stream_id: UUID,
        news: Sequence[News],
        *then: Asked,
        last: bool = False,
    ) -> Sequence[Answer]:
        """Append envelopes to the stream, and return the answers to the statements sent along."""
        if not news:
            return ()
        values = whose(ref) | parameters.told(news) | {"stream_id": stream_id}
        placed, *answers = await self._telling(
            connection, ref, (stream_statements.APPEND, values), *then, last=last
        )
        self._placed(connection, ref, news, placed)
        return answers

    async def _telling(
        self, connection: Transaction, ref: ExecutionRef, *asked: Asked, last: bool = False
    ) -> list[Answer]:
        """Execute statements of which one appends to the stream."""
        try:
            return await connection.together(*asked, last=last)
        except IntegrityError as error:
            if not isinstance(error.orig, NotNullViolation):
                raise
            raise StoreError(
                f"the stream of execution {ref.execution_id} is gone; its session was deleted while it ran"
            ) from None

    def _placed(
        self, connection: Transaction, ref: ExecutionRef, news: Sequence[News], placed: Answer
    ) -> None:
        """Push the envelopes that were placed, after the commit; a repeated envelope has no place."""
        found = [row for row in placed.rows if row.seq is not None]
        if found:
            connection.once_kept(partial(self._push, ref.execution_id, news, found))

    def _push(self, execution_id: UUID, news: Sequence[News], placed: Sequence[Any]) -> None:
        """Push committed envelopes; a failure to push does not affect the committed data."""
        stream_id = placed[0].stream_id
        try:
            if self.bus.wants(stream_id):
                told = [rows.placed_envelope(row, news, execution_id) for row in placed]
                self.bus.publish(stream_id, told)
        except Exception:
            LOGGER.exception("cannot push the stored envelopes of stream %s", stream_id)

    async def _say(
        self, connection: Transaction, ref: ExecutionRef, said: Sequence[tuple[int, Line]]
    ) -> None:
        """Append transcript lines of several steps."""
        if said:
            await connection.together(*saying(ref, said))


def existing_execution(ref: ExecutionRef, row: Row[Any] | None) -> Row[Any]:
    """Return the row, or raise `NotFound` for the execution."""
    if row is None:
        raise NotFound("execution", ref.execution_id)
    return row


def require_active(ref: ExecutionRef, row: Row[Any]) -> None:
    """Raise `ExecutionEnded` if the execution has ended."""
    status = ExecutionStatus(row.status)
    if status in TERMINAL:
        raise ExecutionEnded(ref.execution_id, status)


def saying(ref: ExecutionRef, said: Sequence[tuple[int, Line]]) -> list[Asked]:
    """Return the statement that appends transcript lines, if there are any."""
    if not said:
        return []
    return [(transcript_statements.SAY, whose(ref) | parameters.said_in_steps(*said))]
