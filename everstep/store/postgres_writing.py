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
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.agent_domain.stream.records import EventRecord
from everstep.store import bodies, parameters, rows, stream_statements, transcript_statements
from everstep.store.bodies import NewEnvelope
from everstep.store.errors import StoreError, error_translation
from everstep.store.parameters import execution_key
from everstep.store.reading import PostgresReader
from everstep.store.transaction import BoundStatement, QueryResult, Transaction, transaction
from everstep.store.transcripts import TranscriptLine

LOGGER = logging.getLogger(__name__)


class PostgresWriter(PostgresReader):
    """Transactions of a writer, and appending to streams and transcripts."""

    def __init__(self, engine: AsyncEngine, bus: EnvelopeBus = NULL_BUS) -> None:
        super().__init__(engine)
        self.bus = bus

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        with error_translation(self.engine.url):
            async with transaction(self.engine) as connection:
                yield connection

    async def _append_events(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        stream_id: UUID,
        events: Iterable[EventRecord],
        ledger: Sequence[BoundStatement] = (),
    ) -> None:
        """Append events to the stream as the last write, before the ledger: locks are held to the commit."""
        news = bodies.session_envelopes_from(ref.execution_id, events)
        await self._append_envelopes(connection, ref, stream_id, news, last=True, ledger=ledger)

    async def _append_envelopes(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        stream_id: UUID,
        envelopes: Sequence[NewEnvelope],
        *then: BoundStatement,
        last: bool = False,
        ledger: Sequence[BoundStatement] = (),
    ) -> Sequence[QueryResult]:
        """Append envelopes to the stream, and return the answers to the statements sent along.

        Without envelopes, only the ledger's entries are written.
        """
        if not envelopes:
            if ledger:
                await connection.together(*ledger, last=last)
            return ()
        values = execution_key(ref) | parameters.envelope_values(envelopes) | {"stream_id": stream_id}
        placed, *answers = await self._execute_with_append(
            connection, ref, (stream_statements.APPEND, values), *then, *ledger, last=last
        )
        self._push_after_commit(connection, ref, envelopes, placed)
        return answers[: len(then)]

    async def _execute_with_append(
        self, connection: Transaction, ref: ExecutionRef, *asked: BoundStatement, last: bool = False
    ) -> list[QueryResult]:
        """Execute statements of which one appends to the stream."""
        try:
            return await connection.together(*asked, last=last)
        except IntegrityError as error:
            if not isinstance(error.orig, NotNullViolation):
                raise
            raise StoreError(
                f"the stream of execution {ref.execution_id} is gone; its session was deleted while it ran"
            ) from None

    def _push_after_commit(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        envelopes: Sequence[NewEnvelope],
        placed: QueryResult,
    ) -> None:
        """Push the envelopes that were placed, after the commit; a repeated envelope has no place."""
        found = [row for row in placed.rows if row.seq is not None]
        if found:
            connection.call_after_commit(partial(self._push, ref.execution_id, envelopes, found))

    def _push(self, execution_id: UUID, envelopes: Sequence[NewEnvelope], placed: Sequence[Any]) -> None:
        """Push committed envelopes; a failure to push does not affect the committed data."""
        stream_id = placed[0].stream_id
        try:
            if self.bus.has_subscribers(stream_id):
                stored = [rows.placed_envelope(row, envelopes, execution_id) for row in placed]
                self.bus.publish(stream_id, stored)
        except Exception:
            LOGGER.exception("cannot push the stored envelopes of stream %s", stream_id)

    async def _append_lines(
        self, connection: Transaction, ref: ExecutionRef, said: Sequence[tuple[int, TranscriptLine]]
    ) -> None:
        """Append transcript lines of several steps."""
        if said:
            await connection.together(*transcript_writes(ref, said))


def require_execution(ref: ExecutionRef, row: Row[Any] | None) -> Row[Any]:
    """Return the row, or raise `NotFound` for the execution."""
    if row is None:
        raise NotFound("execution", ref.execution_id)
    return row


def require_active(ref: ExecutionRef, row: Row[Any]) -> None:
    """Raise `ExecutionEnded` if the execution has ended."""
    status = ExecutionStatus(row.status)
    if status.is_terminal:
        raise ExecutionEnded(ref.execution_id, status)


def transcript_writes(ref: ExecutionRef, said: Sequence[tuple[int, TranscriptLine]]) -> list[BoundStatement]:
    """Return the statement that appends transcript lines, if there are any."""
    if not said:
        return []
    return [(transcript_statements.APPEND_LINES, execution_key(ref) | parameters.step_line_values(*said))]
