"""Recorded executions, read from PostgreSQL in bulk."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.marks import former_marks
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.recorded_executions import (
    RecordedCall,
    RecordedExecution,
    RecordedProcessing,
    RecordedStep,
    RecordFilter,
)
from everstep.store import bodies, recorded_statements, rows
from everstep.store.cursors import Cursor, page_size
from everstep.store.errors import error_translation
from everstep.store.transaction import BEGIN_SNAPSHOT, transaction

LAST_CURSOR = Cursor(datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1))
"""A cursor after every row."""


class PostgresRecords:
    """Reads recorded executions."""

    engine: AsyncEngine

    async def count_records(self, scope: Scope, wanted: RecordFilter) -> int:
        """Return how many executions of a scope the filter matches."""
        with error_translation(self.engine.url):
            async with transaction(self.engine) as connection:
                found = await connection.execute(
                    recorded_statements.COUNT_RECORDS, _filter_values(scope, wanted)
                )
                return found.scalar_one()

    async def load_records(
        self,
        scope: Scope,
        wanted: RecordFilter,
        *,
        cursor: str | None = None,
        limit: int = 200,
        with_models: bool = False,
    ) -> Page[RecordedExecution]:
        """Return a page of executions of a scope, newest first, with all of their steps."""
        size, before = page_size(limit), Cursor.parse(cursor) if cursor is not None else LAST_CURSOR
        values = _filter_values(scope, wanted) | {
            "before_at": before.created_at,
            "before_id": before.id,
            "limit": size + 1,
        }
        with error_translation(self.engine.url):
            async with transaction(self.engine, BEGIN_SNAPSHOT) as connection:
                found = (await connection.execute(recorded_statements.RECORDED, values)).all()
                page = found[:size]
                within = {"ids": [row.id for row in page], "tenant_id": scope.tenant_id}
                steps, calls = await connection.together(
                    (recorded_statements.RECORDED_STEPS, within | {"with_models": with_models}),
                    (recorded_statements.RECORDED_CALLS, within),
                    last=True,
                )
        read = _steps_by_execution(steps.all(), calls.all())
        executions = tuple(_execution(row, scope, read.get(row.id, ())) for row in page)
        more = len(found) > size
        return Page(executions, Cursor(page[-1].created_at, page[-1].id).text if more else None)


def _filter_values(scope: Scope, wanted: RecordFilter) -> dict[str, Any]:
    return {
        "tenant_id": scope.tenant_id,
        "user_id": scope.user_id,
        "agent": wanted.agent,
        "status": wanted.status and str(wanted.status),
        "since": wanted.since,
        "until": wanted.until,
        "execution_id": wanted.execution_id,
    }


def _execution(row: Row[Any], scope: Scope, steps: Sequence[RecordedStep]) -> RecordedExecution:
    ref = ExecutionRef(row.id, scope.tenant_id, row.session_id)
    return RecordedExecution(
        ref,
        row.agent_type,
        ExecutionStatus(row.status),
        StopReason(row.stop_reason) if row.stop_reason else None,
        bodies.document(row.plan, "the plan"),
        tuple(steps),
        row.created_at,
        row.started_at,
        row.completed_at,
        row.step_count,
        rows.clocks(row),
        row.preset,
        rows.run_context(ref, row).ids,
        row.parent_execution_id,
    )


def _steps_by_execution(
    steps: Sequence[Row[Any]], calls: Sequence[Row[Any]]
) -> dict[UUID, list[RecordedStep]]:
    by_step = defaultdict[tuple[UUID, int], list[RecordedCall]](list)
    for row in calls:
        by_step[row.execution_id, row.step].append(_call(row))
    found = defaultdict[UUID, list[RecordedStep]](list)
    for row in steps:
        found[row.execution_id].append(_step(row, tuple(by_step.get((row.execution_id, row.number), ()))))
    return found


def _step(row: Row[Any], calls: tuple[RecordedCall, ...]) -> RecordedStep:
    return RecordedStep(
        row.number,
        None if row.facts is None else bodies.parse_facts_text(row.facts),
        calls,
        bodies.optional_document(row.outcome, "the outcome"),
        bodies.parse_boundary(row.boundary),
        None if row.processed is None else recorded_processing(row.processed, row.raised),
        row.started_at,
        row.completed_at,
        row.model,
    )


def recorded_processing(facts: Any, raised: Any) -> RecordedProcessing:
    """Return what processors did, from their stored result."""
    besides = bodies.parse_side_results(facts.get("besides"))
    if former := former_marks(facts):
        besides = replace(besides, wishes=replace(besides.wishes or Wishes(), marks=former))
    error = None if raised is None else StepError.from_dict(raised)
    return RecordedProcessing(float(facts.get("seconds") or 0.0), besides, error)


def _call(row: Row[Any]) -> RecordedCall:
    error = bodies.parse_error(row.error)
    return RecordedCall(
        row.call_id,
        row.name,
        row.state == "done",
        error and replace(error, message="", tool_name=row.name),
        row.seconds or 0.0,
        bodies.parse_side_results(row.besides),
        row.digest,
        row.need == CallNeed.SUBAGENT,
    )
