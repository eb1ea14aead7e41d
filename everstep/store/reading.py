"""What is read from PostgreSQL, without changing anything."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from sqlalchemy import Executable, Row, Select, Table, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agent_domain.messages import Messages
from agent_domain.ports import (
    ExecutionRef,
    ExecutionRow,
    Material,
    NotFound,
    Page,
    RequestRow,
    RequestState,
    StepRow,
    StoredEnvelope,
)
from agent_domain.status import ExecutionStatus
from everstep.store import bodies, rows, statements
from everstep.store.cursors import Cursor, page_size
from everstep.store.errors import translated
from everstep.store.parameters import whose
from everstep.store.tables import envelopes, executions, requests, steps, tool_calls, transcript

# What each reader needs of a row: the others are long.
_ROW = [column for column in executions.c if column.name not in {"agent_config", "input", "plan"}]
_MATERIAL = [executions.c[name] for name in ("agent_config", "agent_metadata", "agent_id", "parent_agent_id")]
_STEP = [column for column in steps.c if column.name != "response"]


class PostgresReader:
    """Reads executions; a tenant sees its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        # One statement is a transaction by itself and needs no BEGIN and COMMIT around it.
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        # Several see the same moment.
        self._snapshot = engine.execution_options(isolation_level="REPEATABLE READ")

    async def material(self, ref: ExecutionRef) -> Material:
        """What the next step would be made from."""
        with translated(self.engine.url):
            async with self._snapshot.begin() as connection:
                row = (await connection.execute(_whose(select(*_MATERIAL), ref))).first()
                if row is None:
                    raise NotFound("execution", ref.execution_id)
                return rows.material(row, await conversation(connection, ref))

    async def transcript(self, ref: ExecutionRef) -> Messages:
        """The conversation of an execution, what it continues included."""
        return _messages(await self._all(statements.TRANSCRIPT, whose(ref)))

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """One execution, as it stands."""
        found = await self._all(_whose(select(*_ROW), ref))
        return rows.execution_row(found[0]) if found else None

    async def executions(
        self,
        tenant_id: str,
        *,
        status: ExecutionStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """Executions, newest first."""
        size = page_size(limit)
        wanted = select(*_ROW).where(executions.c.tenant_id == tenant_id)
        if status is not None:
            wanted = wanted.where(executions.c.status == str(status))
        if cursor is not None:
            last = Cursor.parse(cursor)
            wanted = wanted.where(
                tuple_(executions.c.created_at, executions.c.id) < (last.created_at, last.id)
            )
        newest_first = wanted.order_by(executions.c.created_at.desc(), executions.c.id.desc())
        found = await self._all(newest_first.limit(size + 1))
        page = tuple(map(rows.execution_row, found[:size]))
        more = len(found) > size
        return Page(page, Cursor(page[-1].created_at, page[-1].ref.execution_id).text if more else None)

    async def steps(self, ref: ExecutionRef, last: int | None = None) -> tuple[StepRow, ...]:
        """What an execution did, step by step; only its last steps, if so many are asked for."""
        latest = select(*_STEP).where(
            steps.c.execution_id == ref.execution_id, steps.c.tenant_id == ref.tenant_id
        )
        latest = latest.order_by(steps.c.number.desc()).limit(last)
        with translated(self.engine.url):
            async with self._snapshot.begin() as connection:
                found = (await connection.execute(latest)).all()[::-1]
                first: int = found[0].number if found else 1
                said = _by_step((await connection.execute(_since(transcript, ref, first))).all())
                called = _by_step((await connection.execute(_since(tool_calls, ref, first))).all())
        return tuple(
            rows.step_row(row, _messages(said.get(row.number, ())), called.get(row.number, ()))
            for row in found
        )

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """The questions that wait, oldest first."""
        wanted = _requests(ref).where(requests.c.state == str(RequestState.OPEN))
        found = await self._all(wanted.order_by(tool_calls.c.step, tool_calls.c.idx))
        return tuple(rows.request_row(row) for row in found)

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """One question."""
        found = await self._all(_requests(ref).where(requests.c.id == request_id))
        return rows.request_row(found[0]) if found else None

    async def envelopes(
        self, tenant_id: str, stream_id: UUID, after: int = 0, limit: int = 1000
    ) -> tuple[StoredEnvelope, ...]:
        """Stored envelopes of a stream in order, from after a position."""
        wanted = select(envelopes).where(
            envelopes.c.stream_id == stream_id, envelopes.c.tenant_id == tenant_id, envelopes.c.seq > after
        )
        found = await self._all(wanted.order_by(envelopes.c.seq).limit(page_size(limit)))
        return tuple(map(rows.stored_envelope, found))

    async def _all(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        with translated(self.engine.url):
            async with self._single.connect() as connection:
                return (await connection.execute(statement, parameters)).all()


async def found_execution(connection: AsyncConnection, ref: ExecutionRef) -> Row[Any] | None:
    """The execution, without what is long about it."""
    return (await connection.execute(_whose(select(*_ROW), ref))).first()


async def conversation(connection: AsyncConnection, ref: ExecutionRef) -> Messages:
    """All that was said, what the execution continues included."""
    return _messages((await connection.execute(statements.TRANSCRIPT, whose(ref))).all())


def _whose(wanted: Select[Any], ref: ExecutionRef) -> Select[Any]:
    return wanted.where(executions.c.id == ref.execution_id, executions.c.tenant_id == ref.tenant_id)


def _messages(said: Iterable[Row[Any]]) -> Messages:
    return tuple(bodies.message_read(row.role, row.content, row.metadata) for row in said)


def _since(table: Table, ref: ExecutionRef, step: int) -> Select[Any]:
    """What belongs to the steps from this one on, in order."""
    ours = (table.c.execution_id == ref.execution_id, table.c.tenant_id == ref.tenant_id)
    return select(table).where(*ours, table.c.step >= step).order_by(table.c.step, table.c.idx)


def _by_step(found: Iterable[Row[Any]]) -> dict[int, tuple[Row[Any], ...]]:
    return {step: tuple(group) for step, group in groupby(found, attrgetter("step"))}


def _requests(ref: ExecutionRef) -> Select[Any]:
    """Questions with the calls that ask them."""
    asked = requests.join(tool_calls).join(executions, executions.c.id == requests.c.execution_id)
    columns = (tool_calls.c.name, tool_calls.c.args, tool_calls.c.args_digest, executions.c.session_id)
    return (
        select(requests, *columns)
        .select_from(asked)
        .where(requests.c.execution_id == ref.execution_id, requests.c.tenant_id == ref.tenant_id)
    )
