"""Schedules, for services, the HTTP API and the command line.

A schedule is stored first. Then Temporal's schedule is made to be like it; if the process is lost or Temporal
is away, the reconciler does it later. Each run starts the workflow `ScheduledMessage`, whose id contains the
time of the run: the ids of the message and of the execution derive from it, so a run that is repeated, also
by a backfill, sends its message once.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from temporalio.client import (
    Client as TemporalClient,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import Priority
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import InvalidInput, NotFound, UnknownName
from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.schedules import (
    CATCH_UP,
    REFUSED,
    Cadence,
    Overlap,
    ScheduleRow,
    ScheduleSettings,
    ScheduleStore,
    TooManySchedules,
)
from everstep.agent_domain.values import truncate
from everstep.client.client import Client
from everstep.client.errors import SettingRefused
from everstep.client.message_ids import message_id
from everstep.client.outages import ErrorMeaning, concerns_one_workflow, meaning_of
from everstep.client.schedule_specs import (
    YEARS_BEFORE,
    is_due,
    require_timezone,
    schedule_spec,
    time_without_jitter,
    times_digest,
)
from everstep.workflows.scheduled_message import SCHEDULED_MESSAGE, ScheduledRun

log = logging.getLogger(__name__)

ID_PREFIX: Final = "everstep-schedule/"
"""The prefix of the ids of Temporal's schedules, and of the workflows that they start."""

MAX_BACKFILL: Final = 1000
"""The limit of runs in one backfill. Temporal lists no more times of a period than this."""

GRACE_SECONDS: Final = 10.0
"""Seconds for which a change is left to the process that stored it."""

_POLICIES: Final = {
    Overlap.SKIP: ScheduleOverlapPolicy.SKIP,
    Overlap.QUEUE: ScheduleOverlapPolicy.BUFFER_ONE,
    Overlap.ALLOW: ScheduleOverlapPolicy.ALLOW_ALL,
    Overlap.CANCEL: ScheduleOverlapPolicy.CANCEL_OTHER,
}


def schedule_name(schedule_id: UUID) -> str:
    """Return the id of Temporal's schedule."""
    return f"{ID_PREFIX}{schedule_id}"


def run_execution_id(tenant_id: str, user_id: str, workflow_id: str) -> UUID:
    """Return the id of the execution that a run of a schedule starts.

    Args:
        tenant_id: The tenant.
        user_id: The user of the schedule.
        workflow_id: The id of the run's workflow.
    """
    return message_id(tenant_id, user_id, workflow_id, "execution")


@dataclass(frozen=True, slots=True)
class RecentRun:
    """A run of a schedule."""

    scheduled_at: datetime
    started_at: datetime
    execution_id: UUID | None
    """The execution; None if the message was not sent, or if the execution was deleted."""


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule with its runs, as far as Temporal could be reached."""

    row: ScheduleRow
    next_runs: tuple[datetime, ...] = ()
    recent_runs: tuple[RecentRun, ...] = ()
    """The last ten, newest first."""


@dataclass(frozen=True)
class Schedules:
    """Creates, changes and runs schedules."""

    client: Client
    store: ScheduleStore

    @property
    def temporal(self) -> TemporalClient:
        """The client of Temporal."""
        return self.client.temporal

    async def create(
        self, schedule_id: UUID, scope: Scope, user_id: str, settings: ScheduleSettings, now: datetime
    ) -> ScheduleView:
        """Store a schedule and start it; repeating the call with the same id changes nothing.

        Raises:
            InvalidInput: The schedule would never run, or a name is unknown.
            SettingRefused: The user has as many as are allowed.
        """
        self._check(settings, now)
        row = ScheduleRow(
            schedule_id, scope.tenant_id, user_id, settings, now, now, task_queue=self.client.task_queue
        )
        try:
            stored = await self.store.add_schedule(row)
        except TooManySchedules as error:
            raise SettingRefused("schedule", str(error)) from None
        return await self._apply_and_view(stored)

    async def get(self, scope: Scope, schedule_id: UUID) -> ScheduleView:
        """Return a schedule with its runs.

        Raises:
            NotFound: There is none.
        """
        return await self._view(await self._require(scope, schedule_id))

    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = 50) -> Page[ScheduleRow]:
        """Return schedules, newest first."""
        return await self.store.schedules(scope, cursor=cursor, limit=limit)

    async def change(
        self, scope: Scope, schedule_id: UUID, changes: dict[str, Any], now: datetime
    ) -> ScheduleView:
        """Change a schedule; settings of the cadence may be among the changes.

        Raises:
            NotFound: There is none.
            InvalidInput: It would never run, or a name is unknown.
            SettingRefused: It was changed by another process at the same moment.
        """
        row = await self._require(scope, schedule_id)
        settings = changed_settings(row.settings, changes)
        if settings == row.settings:
            return await self._view(row)
        self._check(settings, now)
        stored = await self.store.change_schedule(row, settings)
        if stored is None:
            raise SettingRefused(
                "schedule", "The schedule was changed at the same moment; read it and try again"
            )
        return await self._apply_and_view(stored)

    async def delete(self, scope: Scope, schedule_id: UUID) -> None:
        """Delete a schedule; executions that it started stay.

        Raises:
            NotFound: There is none.
        """
        row = await self.store.delete_schedule(scope, schedule_id)
        if row is None:
            raise NotFound("schedule", schedule_id)
        await self._try_to_apply(row)

    async def trigger(self, scope: Scope, schedule_id: UUID, trigger_id: UUID) -> ScheduleView:
        """Run a schedule now, also if it is paused; return it.

        Args:
            scope: Whose schedules may be run.
            schedule_id: The schedule.
            trigger_id: Repeating the call with the same id runs it once.

        Raises:
            NotFound: There is none.
            SettingRefused: It has not started yet.
        """
        row = await self._require(scope, schedule_id)
        from temporalio.api.enums.v1 import ScheduleOverlapPolicy as OverlapPolicy  # noqa: PLC0415 -- see below
        from temporalio.api.schedule.v1 import (  # noqa: PLC0415 -- only a trigger needs them
            SchedulePatch,
            TriggerImmediatelyRequest,
        )
        from temporalio.api.workflowservice.v1 import PatchScheduleRequest  # noqa: PLC0415 -- likewise

        policy = OverlapPolicy.ValueType(_POLICIES[row.settings.overlap].value)
        # The SDK's own method has a new id for each call, so that Temporal would run a repeated one again.
        await self.temporal.workflow_service.patch_schedule(
            PatchScheduleRequest(
                namespace=self.temporal.namespace,
                schedule_id=self._handle_of(row).id,
                patch=SchedulePatch(trigger_immediately=TriggerImmediatelyRequest(overlap_policy=policy)),
                identity=self.temporal.identity,
                request_id=str(trigger_id),
            )
        )
        return await self._view(row)

    async def backfill(self, scope: Scope, schedule_id: UUID, begin: datetime, end: datetime) -> int:
        """Run a schedule for each of its times in a period, one after the other; return how many runs begin.

        A time at which it ran already is not run again, and not counted.

        Raises:
            NotFound: There is none.
            InvalidInput: The period is empty, in the future, too long ago or has too many times.
            SettingRefused: It has not started yet, or is of an earlier release and about to run.
        """
        if not begin < end <= datetime.now(UTC):
            raise InvalidInput("a backfill needs a period that begins before it ends, in the past")
        if begin.year < (earliest := datetime.now(UTC).year - YEARS_BEFORE):
            raise InvalidInput(f"a backfill makes up for times since {earliest}; choose a later start_at")
        row = await self._require(scope, schedule_id)
        if not await self.renew(row.id):
            raise SettingRefused("schedule", "A run is about to begin; try again after it")
        # Temporal leaves out a time that is the begin of the period.
        begin -= timedelta(microseconds=1)
        times = await self._matching_times(row, begin, end)
        if len(times) >= MAX_BACKFILL and await self._matching_times(row, times[MAX_BACKFILL - 1], end):
            raise InvalidInput(
                f"the period has more than {MAX_BACKFILL} times; choose a shorter one, several times"
            )
        executions = {_execution_at(row, at) for at in times}
        missing = executions - {*await self.store.existing_executions(row.tenant_id, [*executions])}
        if missing:
            period = ScheduleBackfill(begin, end, ScheduleOverlapPolicy.BUFFER_ALL)
            await self._handle_of(row).backfill(period)
        return len(missing)

    async def apply(self, row: ScheduleRow) -> None:
        """Make Temporal's schedule like the stored one; repeating it changes nothing.

        Raises:
            RPCError: Temporal could not do it.
        """
        handle = self._handle(row)
        if row.is_deleted:
            try:
                await handle.delete()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            await self.store.forget_schedule(row.id)
            return
        wanted = self._schedule(row)
        try:
            await self.temporal.create_schedule(handle.id, wanted)
        except ScheduleAlreadyRunningError:

            def replace_schedule(_found: ScheduleUpdateInput) -> ScheduleUpdate:
                return ScheduleUpdate(wanted)

            await handle.update(replace_schedule)
        await self.store.acknowledge_revision(row.id, row.revision)

    async def renew(self, schedule_id: UUID) -> bool:
        """Apply a schedule again if its times were computed by an earlier release, or in another year.

        If Temporal does not accept that, the schedule stays as it is.

        Returns:
            False if a run is about to begin, which Temporal would drop, so that the schedule is not applied.
        """
        row = await self.store.schedule_to_run(schedule_id)
        # It may be changed at the same moment, so that the change has to be applied again.
        while row is not None and row.settings.cadence.cron and row.is_applied:
            found = await self._describe(row)
            if found is not None and found.schedule.state.note == _revision_note(row):
                break
            times = found.info.next_action_times if found and not row.settings.is_paused else ()
            if times and is_due(row.settings.cadence, times[0], datetime.now(UTC)):
                return False
            if await self._apply_row(row) is not None:
                break
            row = await self.store.schedule_to_run(schedule_id)
        return True

    async def reconcile(self, *, thorough: bool = False) -> int:
        """Apply the changes that lost processes left behind; return how many there were.

        Args:
            thorough: Also apply the schedules that Temporal does not have, or has as they were, although it
                had them once: its database was restored, or is new.
        """
        queue = self.client.task_queue
        rows = [*await self.store.unapplied_schedules(queue, GRACE_SECONDS, with_refused=thorough)]
        if thorough:
            applied = self.store.applied_schedules(queue)
            rows += [row async for row in applied if not await self._is_current(row)]
        count = 0
        for row in rows:
            try:
                count += await self._apply_row(row) is None
            except RPCError as error:
                if not concerns_one_workflow(error):
                    raise
                log.warning("the schedule %s is applied later: %s", row.id, error)
        return count

    async def _require(self, scope: Scope, schedule_id: UUID) -> ScheduleRow:
        row = await self.store.schedule(scope, schedule_id)
        if row is None:
            raise NotFound("schedule", schedule_id)
        return row

    def _check(self, settings: ScheduleSettings, now: datetime) -> None:
        settings.cadence.require_future(now)
        require_timezone(settings.cadence.timezone)
        if settings.agent not in self.client.agents:
            raise UnknownName("agent", settings.agent, self.client.agents)

    async def _apply_and_view(self, row: ScheduleRow) -> ScheduleView:
        """Apply a row, unless Temporal is away; return it as it is then."""
        return await self._view(row if row.is_applied else await self._try_to_apply(row))

    async def _try_to_apply(self, row: ScheduleRow) -> ScheduleRow:
        """Apply a row; return it as it is then."""
        try:
            refusal = await self._apply_row(row)
        except RPCError as error:
            log.warning("the schedule %s is applied later: %s", row.id, error)
            return row
        if refusal is not None:
            return replace(row, last_error=refusal)
        return replace(row, applied_revision=row.revision)

    async def _apply_row(self, row: ScheduleRow) -> str | None:
        """Apply a row; return why Temporal refuses it, if it does. Other rows are independent of that."""
        try:
            await self.apply(row)
        except RPCError as error:
            if meaning_of(error) is not ErrorMeaning.FAULT:
                raise
            refusal = f"{REFUSED}: {truncate(error.message, 300)}; change it or delete it"
            log.warning("the schedule %s is not applied: %s", row.id, refusal)
            await self.store.note_outcome(row.id, refusal)
            return refusal
        return None

    async def _is_current(self, row: ScheduleRow) -> bool:
        """Whether Temporal has this revision of a schedule."""
        found = await self._describe(row)
        return found is not None and found.schedule.state.note == _revision_note(row)

    async def _describe(self, row: ScheduleRow) -> ScheduleDescription | None:
        """Temporal's schedule, if it has one."""
        try:
            return await self._handle(row).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND or meaning_of(error) is ErrorMeaning.DENIED:
                raise
            return None

    async def _view(self, row: ScheduleRow) -> ScheduleView:
        """Return a schedule with its runs; without them if Temporal is away."""
        if not row.applied_revision:
            return ScheduleView(row)
        try:
            description = await self._handle(row).describe()
        except RPCError as error:
            log.warning("the runs of the schedule %s are not known: %s", row.id, error)
            return ScheduleView(row)
        info = description.info
        runs = _runs_of(row, info.recent_actions)
        existing = await self.store.existing_executions(row.tenant_id, [*runs])
        recent = tuple(
            run if execution_id in existing else replace(run, execution_id=None)
            for execution_id, run in runs.items()
        )
        return ScheduleView(row, tuple(info.next_action_times), recent)

    async def _matching_times(self, row: ScheduleRow, begin: datetime, end: datetime) -> Sequence[datetime]:
        from temporalio.api.workflowservice.v1 import (  # noqa: PLC0415 -- only a backfill needs it
            ListScheduleMatchingTimesRequest,
        )

        request = ListScheduleMatchingTimesRequest(
            namespace=self.temporal.namespace, schedule_id=self._handle_of(row).id
        )
        request.start_time.FromDatetime(begin)
        request.end_time.FromDatetime(end)
        found = await self.temporal.workflow_service.list_schedule_matching_times(request)
        return [each.ToDatetime(UTC) for each in found.start_time]

    def _handle(self, row: ScheduleRow) -> ScheduleHandle:
        return self.temporal.get_schedule_handle(schedule_name(row.id))

    def _handle_of(self, row: ScheduleRow) -> ScheduleHandle:
        if not row.applied_revision:
            raise SettingRefused(
                "schedule", "The schedule has not started yet, as Temporal was away; try again in a moment"
            )
        return self._handle(row)

    def _schedule(self, row: ScheduleRow) -> Schedule:
        settings, cadence = row.settings, row.settings.cadence
        name = schedule_name(row.id)
        return Schedule(
            ScheduleActionStartWorkflow(
                SCHEDULED_MESSAGE,
                ScheduledRun(row.id),
                id=name,
                task_queue=row.task_queue or self.client.task_queue,
                static_summary=settings.agent,
                priority=Priority(fairness_key=fairness_key(row.tenant_id, row.user_id)),
            ),
            schedule_spec(cadence, datetime.now(UTC).year),
            SchedulePolicy(overlap=_POLICIES[settings.overlap], catchup_window=CATCH_UP),
            ScheduleState(note=_revision_note(row), paused=settings.is_paused),
        )


def _revision_note(row: ScheduleRow) -> str:
    """The note on Temporal's schedule, by which an older one is recognised.

    Also one whose times were computed by an earlier release, in another year or by other tables of zones.
    """
    return f"revision {row.revision}, times {times_digest(row.settings.cadence, datetime.now(UTC).year)}"


def changed_settings(settings: ScheduleSettings, changes: dict[str, Any]) -> ScheduleSettings:
    """Return the settings with these changes.

    An interval replaces a cron expression, and the other way round.
    """
    names = set(Cadence.__dataclass_fields__)
    timing = {name: value for name, value in changes.items() if name in names}
    others = {name: value for name, value in changes.items() if name not in names}
    for given, replaced in (("interval_seconds", "cron"), ("cron", "interval_seconds")):
        if timing.get(given) is not None:
            timing.setdefault(replaced, None)
    return replace(settings, cadence=replace(settings.cadence, **timing), **others)


def _execution_at(row: ScheduleRow, at: datetime) -> UUID:
    """The id of the execution of a time, which Temporal adds, without the jitter, to the workflow's id."""
    time = time_without_jitter(row.settings.cadence, at)
    workflow_id = f"{schedule_name(row.id)}-{time:%Y-%m-%dT%H:%M:%SZ}"
    return run_execution_id(row.tenant_id, row.user_id, workflow_id)


def _runs_of(row: ScheduleRow, actions: Sequence[ScheduleActionResult]) -> dict[UUID, RecentRun]:
    """The runs by their executions, newest first. A time that was run again, by a backfill, is one run."""
    runs: dict[UUID, RecentRun] = {}
    for each in actions:
        if isinstance(each.action, ScheduleActionExecutionStartWorkflow):
            execution_id = run_execution_id(row.tenant_id, row.user_id, each.action.workflow_id)
            runs.setdefault(execution_id, RecentRun(each.scheduled_at, each.started_at, execution_id))
    return dict(reversed(runs.items()))
