"""Schedules in PostgreSQL."""

from collections.abc import AsyncGenerator, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Executable, Row, case, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.schedules import (
    MAX_SCHEDULES,
    REFUSED,
    Overlap,
    ScheduleRow,
    ScheduleSettings,
    TooManySchedules,
    cadence_data,
    cadence_from,
)
from everstep.store.cursors import Cursor, page_size
from everstep.store.errors import error_translation
from everstep.store.schedule_tables import schedules
from everstep.store.tables import executions

UNAPPLIED_AT_ONCE = 100
APPLIED_AT_ONCE = 500
FIRST_ID = UUID(int=0)


class PostgresSchedules:
    """Stores schedules."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def add_schedule(self, row: ScheduleRow) -> ScheduleRow:
        """Store a schedule; an existing one with the same id is returned unchanged."""
        values = {
            "id": row.id,
            "tenant_id": row.tenant_id,
            "user_id": row.user_id,
            "task_queue": row.task_queue,
            **_settings_values(row.settings),
        }
        mine = select(schedules).where(schedules.c.id == row.id)
        if known := await self._one(mine):
            return known
        # Requests that arrive together may exceed the limit by their number.
        counted = await self._all(select(func.count().label("number")).where(*_scope_conditions(row.scope)))
        if counted[0].number >= MAX_SCHEDULES:
            raise TooManySchedules
        stored = await self._one(
            insert(schedules).values(**values).on_conflict_do_nothing().returning(schedules)
        ) or await self._one(mine)
        assert stored is not None  # noqa: S101 -- rows are removed long after they were stored
        return stored

    async def schedule(self, scope: Scope, schedule_id: UUID) -> ScheduleRow | None:
        """One schedule, if it exists and the scope covers it."""
        return await self._one(
            select(schedules).where(*_scope_conditions(scope), schedules.c.id == schedule_id)
        )

    async def schedules(
        self, scope: Scope, *, cursor: str | None = None, limit: int = 50
    ) -> Page[ScheduleRow]:
        """Schedules, newest first."""
        limit = page_size(limit)
        wanted = select(schedules).where(*_scope_conditions(scope))
        if cursor is not None:
            last = Cursor.parse(cursor)
            place = tuple_(schedules.c.created_at, schedules.c.id)
            wanted = wanted.where(place < (last.created_at, last.id))
        newest = wanted.order_by(schedules.c.created_at.desc(), schedules.c.id.desc()).limit(limit + 1)
        found = [_row(each) for each in await self._all(newest)]
        rows = found[:limit]
        following = Cursor(rows[-1].created_at, rows[-1].id).text if len(found) > limit else None
        return Page(tuple(rows), following)

    async def change_schedule(self, row: ScheduleRow, settings: ScheduleSettings) -> ScheduleRow | None:
        """Store new settings; None if the schedule was changed or deleted since it was read."""
        mine = (*_scope_conditions(row.scope), schedules.c.id == row.id, schedules.c.revision == row.revision)
        return await self._one(
            update(schedules)
            .where(*mine)
            .values(**_settings_values(settings), **_CHANGED, last_error=_OTHER_ERROR)
            .returning(schedules)
        )

    async def delete_schedule(self, scope: Scope, schedule_id: UUID) -> ScheduleRow | None:
        """Delete a schedule for its user, with its text; None if there is none."""
        mine = update(schedules).where(*_scope_conditions(scope), schedules.c.id == schedule_id)
        return await self._one(
            mine.values(is_deleted=True, content="deleted", last_error=None, **_CHANGED).returning(schedules)
        )

    async def schedule_to_run(self, schedule_id: UUID) -> ScheduleRow | None:
        """A schedule of any tenant; None if it was deleted."""
        live = (schedules.c.id == schedule_id, schedules.c.is_deleted.is_(False))
        return await self._one(select(schedules).where(*live))

    async def acknowledge_revision(self, schedule_id: UUID, revision: int) -> None:
        """Record that Temporal has this revision."""
        older = (schedules.c.id == schedule_id, schedules.c.applied_revision < revision)
        await self._all(
            update(schedules).where(*older).values(applied_revision=revision).returning(schedules.c.id)
        )

    async def forget_schedule(self, schedule_id: UUID) -> None:
        """Remove the row of a deleted schedule."""
        gone = (schedules.c.id == schedule_id, schedules.c.is_deleted)
        await self._all(delete(schedules).where(*gone).returning(schedules.c.id))

    async def existing_executions(self, tenant_id: str, ids: Sequence[UUID]) -> Collection[UUID]:
        """Those of the executions that exist."""
        if not ids:
            return ()
        mine = (executions.c.tenant_id == tenant_id, executions.c.id.in_(ids))
        return {row.id for row in await self._all(select(executions.c.id).where(*mine))}

    async def note_outcome(self, schedule_id: UUID, error: str | None) -> None:
        """Record whether the last run could begin."""
        other = (schedules.c.id == schedule_id, schedules.c.last_error.is_distinct_from(error))
        await self._all(update(schedules).where(*other).values(last_error=error).returning(schedules.c.id))

    async def unapplied_schedules(
        self, task_queue: str, grace: float, *, with_refused: bool = False
    ) -> Sequence[ScheduleRow]:
        """Schedules with changes that Temporal does not have; see `ScheduleStore`."""
        since = func.clock_timestamp() - timedelta(seconds=grace)
        waiting = select(schedules).where(
            schedules.c.applied_revision < schedules.c.revision,
            schedules.c.task_queue == task_queue,
            schedules.c.updated_at < since,
            *(() if with_refused else (~_IS_REFUSED,)),
        )
        oldest = waiting.order_by(schedules.c.updated_at).limit(UNAPPLIED_AT_ONCE)
        return [_row(each) for each in await self._all(oldest)]

    async def applied_schedules(self, task_queue: str) -> AsyncGenerator[ScheduleRow]:
        """Yield the schedules that Temporal has, or had before its database was restored."""
        applied = select(schedules).where(
            schedules.c.applied_revision >= schedules.c.revision,
            schedules.c.task_queue == task_queue,
            schedules.c.is_deleted.is_(False),
        )
        page, after = applied.order_by(schedules.c.id).limit(APPLIED_AT_ONCE), FIRST_ID
        while rows := await self._all(page.where(schedules.c.id > after)):
            for each in rows:
                yield _row(each)
            after = rows[-1].id

    async def _one(self, statement: Executable) -> ScheduleRow | None:
        rows = await self._all(statement)
        return _row(rows[0]) if rows else None

    async def _all(self, statement: Executable) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement)).all()


_IS_REFUSED = func.coalesce(schedules.c.last_error, "").startswith(REFUSED)
_OTHER_ERROR = case((_IS_REFUSED, None), else_=schedules.c.last_error)
"""What is left of an error when the schedule is changed."""
_CHANGED = {"revision": schedules.c.revision + 1, "updated_at": func.clock_timestamp()}


def _scope_conditions(scope: Scope) -> tuple[ColumnElement[bool], ...]:
    own = () if scope.user_id is None else (schedules.c.user_id == scope.user_id,)
    return (schedules.c.tenant_id == scope.tenant_id, *own, schedules.c.is_deleted.is_(False))


def _settings_values(settings: ScheduleSettings) -> dict[str, Any]:
    return {
        "agent": settings.agent,
        "content": settings.content,
        "session_id": settings.session_id,
        "cadence": cadence_data(settings.cadence),
        "overlap": str(settings.overlap),
        "is_paused": settings.is_paused,
    }


def _row(row: Row[Any]) -> ScheduleRow:
    settings = ScheduleSettings(
        row.agent,
        row.content,
        cadence_from(row.cadence),
        Overlap(row.overlap),
        row.session_id,
        row.is_paused,
    )
    return ScheduleRow(
        row.id,
        row.tenant_id,
        row.user_id,
        settings,
        row.created_at,
        row.updated_at,
        row.revision,
        row.applied_revision,
        row.is_deleted,
        row.last_error,
        row.task_queue,
    )
