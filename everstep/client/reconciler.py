"""Repairs inconsistencies between Temporal and the store, after crashes and interventions of operators.

Each repair can run twice, and in several processes at once: it is an idempotent write, or the start of a
workflow under a unique id. Repairs are counted and logged.

A failed repair is logged and counted, and does not prevent the others. Workflows of other applications are
ignored, even if they have the same type.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import EverstepError, StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import Command
from everstep.agent_domain.storage.forced_end import closing_settlement
from everstep.agent_domain.storage.sessions import ExecutionLaunch
from everstep.client.command_delivery import DELIVERY_SECONDS, TIMEOUTS
from everstep.client.errors import Ending, Refused
from everstep.client.execution import Execution
from everstep.client.outages import concerns_one_workflow, is_missing
from everstep.client.schedules import Schedules
from everstep.client.sessions import Sessions
from everstep.client.stray_workflows import StrayWorkflows, last_event_at
from everstep.telemetry import metrics
from everstep.workflows.contracts import ID_PREFIX, WORKFLOW, execution_id_of, workflow_id

log = logging.getLogger(__name__)

NAME: Final = "the reconciler"
"""The name in logs, metrics and the doctor's report."""

GRACE_SECONDS: Final = 30.0
"""Seconds for which an unfinished operation is left to the process that started it."""
MAX_LOGGED: Final = 10_000
"""Workflows, executions and commands each that the log is remembered to have named."""
INTERVAL: Final = 15.0
DELIVERIES_AT_ONCE: Final = 20
ENDS_AT_ONCE: Final = 500
"""Ended workflows whose executions are read by one statement."""
LOOK_BACK: Final = timedelta(minutes=10)
"""How far back ended workflows are checked again, as Temporal's visibility may lag."""

BEFORE_ALL: Final = datetime(1970, 1, 1, tzinfo=UTC)

ABNORMAL: Final = {
    WorkflowExecutionStatus.FAILED: (ExecutionStatus.FAILED, "Its workflow failed"),
    WorkflowExecutionStatus.TERMINATED: (ExecutionStatus.FAILED, "Its workflow was terminated"),
    WorkflowExecutionStatus.TIMED_OUT: (ExecutionStatus.FAILED, "Its workflow timed out"),
    WorkflowExecutionStatus.CANCELED: (ExecutionStatus.CANCELLED, None),
    WorkflowExecutionStatus.COMPLETED: (ExecutionStatus.FAILED, "Its workflow ended without writing it down"),
}
WORKFLOW_MISSING: Final = (ExecutionStatus.FAILED, "Its workflow is not there any more")


@dataclass
class Repairs:
    """The number of repairs of each kind."""

    launched: int = 0
    """Accepted executions whose workflow was never started, or is gone."""
    released: int = 0
    """Sessions with a queued message although no execution was running."""
    closed: int = 0
    """Executions that were running in the store although their workflow had ended."""
    delivered: int = 0
    """Stored commands of users that were not delivered to workflows."""
    handed_over: int = 0
    """Ended executions with messages that were not delivered."""
    admitted: int = 0
    """Executions that waited for a place of their tenant although one was free."""
    charged: int = 0
    """Model calls for titles, in budgets, whose process was lost."""
    scheduled: int = 0
    """Changes of schedules that Temporal did not have."""
    repeated: int = 0
    """Commands that had been delivered to workflows which Temporal, once restored, has without them."""
    ended: int = 0
    """Open workflows without an open execution, which a restored database left in Temporal."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in vars(self).items())

    def add(self, other: "Repairs") -> None:
        """Add the counts of other repairs."""
        for kind, count in vars(other).items():
            setattr(self, kind, getattr(self, kind) + count)


@dataclass
class Reconciler:
    """Looks for inconsistencies periodically, and repairs them."""

    sessions: Sessions
    grace: float = GRACE_SECONDS
    schedules: Schedules | None = None
    total: Repairs = field(default_factory=Repairs)
    """All repairs of this process."""
    last_pass_at: datetime | None = None
    logged: set[UUID] = field(default_factory=set[UUID])
    """The workflows without an execution that the log has named."""
    stuck: set[UUID] = field(default_factory=set[UUID])
    """The executions that take no command, which the log has named."""
    delivered: set[tuple[UUID, str]] = field(default_factory=set[tuple[UUID, str]])
    """The commands that were delivered; only the end of its execution marks a cancel."""

    @property
    def task_queue(self) -> str:
        """The task queue whose executions are repaired."""
        return self.sessions.client.task_queue

    async def run(self, stop: asyncio.Event, interval: float = INTERVAL) -> None:
        """Run until `stop` is set; errors are logged and retried in the next pass."""
        while not stop.is_set():
            try:
                await self.once()
            except (EverstepError, RPCError) as error:
                log.warning("nothing was reconciled: %s", error)
            except Exception as error:  # noqa: BLE001 -- the process has other work, and the next pass may succeed
                note_failure(NAME, error, log)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), interval)

    async def once(self, *, thorough: bool = False) -> Repairs:
        """Run one pass.

        Args:
            thorough: Also check the workflow of every running execution in Temporal, the execution of every
                open workflow, and every schedule.
        """
        repairs = Repairs()
        async for launch in self._repair_launches(repairs):
            with _isolation(launch.ref):
                await self._launch(launch, repairs)
        for tenant_id in await self.sessions.client.store.waiting_tenants():
            with _isolation(f"the queue of the tenant {tenant_id}"):
                repairs.admitted += await self.sessions.admit(tenant_id, is_repair=True)
        if thorough:
            await self._repair_lost_workflows(repairs)
            with _isolation("a workflow without an execution"):
                repairs.ended += await StrayWorkflows(self.sessions).end_all()
        await self._deliver(repairs)
        for ref in await self.sessions.store.with_undelivered_messages(self.task_queue, self.grace):
            with _isolation(ref):
                repairs.handed_over += await self.sessions.advance(ref)
        async for ref in self._abnormal_ends():
            with _isolation(ref):
                await self._close_orphan(ref, repairs)
        with _isolation("a budget with a lost reservation"):
            repairs.charged += await self.sessions.store.charge_lost_holds()
        if self.schedules:
            with _isolation("a schedule"):
                repairs.scheduled += await self.schedules.reconcile(thorough=thorough)
        if repairs:
            log.warning("reconciled: %s", repairs)
        self.total.add(repairs)
        for kind, count in vars(repairs).items():
            metrics.REPAIRS.add(kind, amount=count)
        return repairs

    async def _repair_launches(self, repairs: Repairs) -> AsyncIterator[ExecutionLaunch]:
        seen, cursor = set[UUID](), None
        while True:
            stranded = await self.sessions.store.repair_candidates(self.task_queue, self.grace, cursor)
            for launch in stranded.launches:
                if launch.ref.session_id:
                    seen.add(launch.ref.session_id)
                yield launch
            for ref in stranded.orphans:
                with _isolation(ref):
                    repairs.closed += await self.sessions.store.cancel_pending(ref)
            for ref in stranded.queued:
                if ref.session_id and ref.session_id not in seen:
                    seen.add(ref.session_id)
                    with _isolation(ref):
                        repairs.released += await self.sessions.advance(ref)
            cursor = stranded.cursor
            if cursor is None:
                return

    async def _launch(self, launch: ExecutionLaunch, repairs: Repairs) -> None:
        status = await self._workflow_status(launch.ref)
        if status is None:
            await self.sessions.launch(launch)
            log.warning("started the execution %s", launch.ref.execution_id)
            repairs.launched += 1
        elif status is not WorkflowExecutionStatus.RUNNING:
            await self._close(launch.ref, status, repairs)

    async def _deliver(self, repairs: Repairs) -> None:
        """Deliver commands that the processes which accepted them did not deliver."""
        after: int | None = 0
        while after is not None:
            commands, after = await self.sessions.store.commands(self.task_queue, self.grace, after)
            by_execution = defaultdict[UUID, list[Command]](list)
            for command in commands:
                by_execution[command.ref.execution_id].append(command)
            # Several at once, because each waits for a worker that may not exist.
            at_once = asyncio.Semaphore(DELIVERIES_AT_ONCE)
            deliveries = [self._deliver_commands(each, repairs, at_once) for each in by_execution.values()]
            for outcome in await asyncio.gather(*deliveries, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _deliver_commands(
        self, commands: Sequence[Command], repairs: Repairs, at_once: asyncio.Semaphore
    ) -> None:
        """Deliver the commands of one execution in the order in which they were accepted."""
        for command in commands:
            try:
                async with at_once, asyncio.timeout(DELIVERY_SECONDS):
                    await self.sessions.carry_out(command)
            except (Refused, Ending) as error:
                log.info("the command %s was not carried out: %s", command.key, error)
            except TIMEOUTS:
                # No worker is available. The next pass retries in the same order.
                return
            except StoreUnavailable:
                raise
            except RPCError as error:
                if not concerns_one_workflow(error):
                    raise
                # The next pass retries in the same order.
                is_known = command.ref.execution_id in self.stuck
                self.stuck.add(command.ref.execution_id)
                level = logging.INFO if is_known else logging.WARNING
                log.log(level, "the execution %s takes no command: %s", command.ref.execution_id, error)
                return
            except Exception as error:  # noqa: BLE001 -- the other commands are independent
                note_failure(NAME, error, log)
            else:
                self._note_delivery(command, repairs)

    def _note_delivery(self, command: Command, repairs: Repairs) -> None:
        execution_id = command.ref.execution_id
        self.stuck.discard(execution_id)
        if (execution_id, command.key) in self.delivered:
            log.info("the execution %s has a %s and has not ended", execution_id, command.kind)
            return
        self.delivered.add((execution_id, command.key))
        log.warning("delivered to the execution %s: %s", execution_id, command.kind)
        repairs.delivered += 1

    async def _repair_lost_workflows(self, repairs: Repairs) -> None:
        """Start the missing workflows of running executions again, and close the others.

        The new workflow reads what is recorded instead of doing it a second time. A subagent's is started by
        that of its parent.
        """
        restarted, subagents = set[UUID](), dict[UUID, tuple[UUID, ExecutionRef]]()
        async for launch in self._running_executions():
            with _isolation(launch.ref):
                status = await self._workflow_status(launch.ref)
                row = await self.sessions.client.store.execution(launch.ref) if status is None else None
                if status is WorkflowExecutionStatus.RUNNING:
                    # Temporal may have it from a backup, without the commands that it received later.
                    last = await last_event_at(self.sessions.client.temporal, workflow_id(launch.ref))
                    repairs.repeated += await self.sessions.store.deliver_again(launch.ref, last)
                elif row is None:
                    await self._close_unless_running(launch.ref, status, repairs)
                elif row.parent_execution_id is not None:
                    subagents[launch.ref.execution_id] = (row.parent_execution_id, launch.ref)
                else:
                    repairs.repeated += await self.sessions.store.deliver_again(launch.ref, BEFORE_ALL)
                    await self.sessions.launch(launch)
                    log.warning("started the execution %s again", launch.ref.execution_id)
                    repairs.launched += 1
                    restarted.add(launch.ref.execution_id)
        for ancestor, ref in subagents.values():
            while ancestor in subagents:
                ancestor = subagents[ancestor][0]  # noqa: PLW2901 -- up to the first with a workflow
            if ancestor not in restarted:
                with _isolation(ref):
                    await self._close_orphan(ref, repairs)

    async def _running_executions(self) -> AsyncIterator[ExecutionLaunch]:
        cursor = None
        while True:
            stranded = await self.sessions.store.repair_candidates(
                self.task_queue, self.grace, cursor, pending_only=False
            )
            for launch in stranded.open:
                yield launch
            cursor = stranded.cursor
            if cursor is None:
                return

    async def _abnormal_ends(self) -> AsyncIterator[ExecutionRef]:
        """Open executions whose workflow did not close as completed since a little before the last pass."""
        now = datetime.now(UTC)
        since = (self.last_pass_at or now - timedelta(days=1)) - LOOK_BACK
        query = (
            f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{ID_PREFIX}' "
            f"AND CloseTime > '{since.isoformat()}' "
            "AND ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut', 'Canceled')"
        )
        ended = dict[UUID, WorkflowExecutionStatus | None]()
        async for found in self.sessions.client.temporal.list_workflows(query):
            execution_id = execution_id_of(found.id)
            if found.task_queue == self.task_queue and execution_id is not None:
                ended[execution_id] = found.status
            if len(ended) == ENDS_AT_ONCE:
                for ref in await self._still_open(ended):
                    yield ref
                ended.clear()
        for ref in await self._still_open(ended):
            yield ref
        for named in (self.logged, self.stuck, self.delivered):
            if len(named) > MAX_LOGGED:
                named.clear()
        self.last_pass_at = now

    async def _still_open(
        self, ended: Mapping[UUID, WorkflowExecutionStatus | None]
    ) -> Sequence[ExecutionRef]:
        """Those executions that the store does not know to have ended; most have, as failed or cancelled."""
        if not ended:
            return ()
        stored = await self.sessions.store.stored_statuses(tuple(ended))
        # Usually the execution was deleted.
        for execution_id in ended.keys() - stored.keys() - self.logged:
            status = ended[execution_id]
            name = status.name.lower() if status else "unknown"
            log.info(
                "the workflow %s%s is %s, and there is no execution of it", ID_PREFIX, execution_id, name
            )
            self.logged.add(execution_id)
        return [ref for ref, status in stored.values() if not status.is_terminal]

    async def _close_orphan(self, ref: ExecutionRef, repairs: Repairs) -> None:
        await self._close_unless_running(ref, await self._workflow_status(ref), repairs)

    async def _close_unless_running(
        self, ref: ExecutionRef, status: WorkflowExecutionStatus | None, repairs: Repairs
    ) -> None:
        if status is not WorkflowExecutionStatus.RUNNING:
            await self._close(ref, status, repairs)

    async def _close(
        self, ref: ExecutionRef, status: WorkflowExecutionStatus | None, repairs: Repairs
    ) -> None:
        store = self.sessions.client.store
        ends, why = WORKFLOW_MISSING if status is None else ABNORMAL.get(status, (None, None))
        if ends is None:
            # It continued as a new run.
            return
        row = await store.execution(ref)
        if row and await store.settle(
            closing_settlement(ref, ends, step_count=row.step_count, error_message=why)
        ):
            log.warning("closed the execution %s as %s: %s", ref.execution_id, ends, why)
            repairs.closed += 1
            await self.sessions.advance(ref)

    async def _workflow_status(self, ref: ExecutionRef) -> WorkflowExecutionStatus | None:
        """The status of its workflow; None if there is none."""
        try:
            described = await Execution(self.sessions.client, ref).workflow.describe()
        except RPCError as error:
            if is_missing(error):
                return None
            raise
        return described.status


@contextmanager
def _isolation(what: ExecutionRef | str) -> Generator[None]:
    """Log one failed repair; an outage affects all, so it ends the pass."""
    name = what if isinstance(what, str) else f"the execution {what.execution_id}"
    try:
        yield
    except StoreUnavailable:
        raise
    except RPCError as error:
        if not concerns_one_workflow(error):
            raise
        log.warning("%s is not repaired: %s", name, error)
    except Exception as error:  # noqa: BLE001 -- the other repairs are independent
        log.warning("%s is not repaired", name)
        note_failure(NAME, error, log)
