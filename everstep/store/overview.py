"""What runs now, in PostgreSQL: over all tenants, for operators."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select
from sqlalchemy.dialects.postgresql import distinct_on

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.overview import AgentLoad, CurrentStep, OpenExecution, Overview
from everstep.agent_domain.storage.requests import RequestState
from everstep.store import bodies, rows
from everstep.store.cursors import page_size
from everstep.store.errors import error_translation
from everstep.store.reading import ROW, PostgresReader, select_requests
from everstep.store.tables import executions, requests, steps, tool_calls
from everstep.store.tenant_tables import places
from everstep.store.transaction import BEGIN_SNAPSHOT, Transaction, transaction

_UNDER_WAY = tuple(str(status) for status in ExecutionStatus if not status.is_terminal)


class PostgresOverview(PostgresReader):
    """Reads the executions that have not ended."""

    async def overview(
        self,
        *,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: ExecutionStatus | None = None,
        limit: int = 100,
    ) -> Overview:
        """Return the counts of all tenants, or of one, and the oldest executions."""
        wanted: list[ColumnElement[bool]] = [executions.c.status.in_(_UNDER_WAY)]
        if status is not None:
            wanted.append(executions.c.status == str(status))
        if tenant_id is not None:
            wanted.append(executions.c.tenant_id == tenant_id)
        if agent is not None:
            wanted.append(executions.c.agent_type == agent)
        place = (executions.c.tenant_id, executions.c.agent_type)
        counts = select(*place, executions.c.status, func.count().label("executions"))
        oldest = select(*ROW).where(*wanted).order_by(executions.c.created_at, executions.c.id)
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                counted = await connection.execute(
                    counts.where(*wanted).group_by(*place, executions.c.status).order_by(*place)
                )
                found = (await connection.execute(oldest.limit(page_size(limit)))).all()
                parts = await _parts_of(connection, [row.id for row in found])
        return Overview(_loads(counted.all()), tuple(_open_execution(row, parts) for row in found))

    async def newest(self, status: ExecutionStatus, limit: int) -> Sequence[ExecutionRow]:
        """Return the newest executions with a status, of all tenants."""
        newest = select(*ROW).where(executions.c.status == str(status))
        ordered = newest.order_by(executions.c.created_at.desc(), executions.c.id.desc())
        return [rows.execution_row(row) for row in await self._fetch_all(ordered.limit(page_size(limit)))]


async def _parts_of(connection: Transaction, ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Return the latest step, the calls without a result and the open requests of executions."""
    parts: dict[UUID, dict[str, Any]] = defaultdict(
        lambda: {"step": None, "calls": [], "requests": [], "needs_place": False}
    )
    if not ids:
        return parts
    columns = (steps.c.execution_id, steps.c.number, steps.c.attempt, steps.c.started_at, steps.c.wait)
    latest = (
        select(*columns, steps.c.facts.is_not(None).label("has_reply"))
        .ext(distinct_on(steps.c.execution_id))
        .where(steps.c.execution_id.in_(ids))
        .order_by(steps.c.execution_id, steps.c.number.desc())
    )
    for row in (await connection.execute(latest)).all():
        parts[row.execution_id]["step"] = row
    calls = (
        select(tool_calls.c.execution_id, tool_calls.c.name)
        .where(tool_calls.c.execution_id.in_(ids), tool_calls.c.state != "done")
        .order_by(tool_calls.c.execution_id, tool_calls.c.step, tool_calls.c.idx)
    )
    for row in (await connection.execute(calls)).all():
        parts[row.execution_id]["calls"].append(row.name)
    queued = select(places.c.execution_id).where(
        places.c.execution_id.in_(ids), places.c.admitted_at.is_(None)
    )
    for row in (await connection.execute(queued)).all():
        parts[row.execution_id]["needs_place"] = True
    asked = (
        select_requests()
        .where(requests.c.execution_id.in_(ids), requests.c.state == str(RequestState.OPEN))
        .order_by(requests.c.created_at, requests.c.id)
    )
    for row in (await connection.execute(asked)).all():
        parts[row.execution_id]["requests"].append(rows.request_row(row))
    return parts


def _loads(counted: Sequence[Row[Any]]) -> tuple[AgentLoad, ...]:
    loads: dict[tuple[str, str], dict[ExecutionStatus, int]] = defaultdict(dict)
    for row in counted:
        loads[row.tenant_id, row.agent_type][ExecutionStatus(row.status)] = row.executions
    return tuple(AgentLoad(tenant_id, agent, counts) for (tenant_id, agent), counts in loads.items())


def _open_execution(row: Row[Any], parts: dict[UUID, dict[str, Any]]) -> OpenExecution:
    part = parts[row.id]
    step = part["step"]
    is_queued = row.status == ExecutionStatus.PENDING and row.released_at is None
    return OpenExecution(
        rows.execution_row(row),
        is_queued,
        None if step is None else _current_step(step),
        tuple(part["calls"]),
        tuple(part["requests"]),
        part["needs_place"],
    )


def _current_step(row: Row[Any]) -> CurrentStep:
    wait = None if row.has_reply else bodies.parse_wait(row.wait)
    # A later attempt has begun: the wait is over.
    is_over = wait is not None and wait.attempt != row.attempt
    return CurrentStep(row.number, row.attempt, row.started_at, row.has_reply, None if is_over else wait)
