"""The activities of a run of a schedule: they send its message as its user would, and check its execution."""

from dataclasses import dataclass, replace

from temporalio import activity
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import EverstepError, NotFound, StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.schedules import Overlap, ScheduleRow
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.values import frozen_map, parse_uuid
from everstep.client.errors import Refused
from everstep.client.execution import now
from everstep.client.schedules import ID_PREFIX, Schedules, run_execution_id, schedule_name
from everstep.client.sessions import Sessions
from everstep.client.user_messages import SendResult, UserMessage
from everstep.workflows.scheduled_message import CANCEL, HAS_ENDED, SEND, SentMessage

SCHEDULER = "everstep:schedule"
"""The subject that is recorded where a schedule cancels an execution."""

MAX_PAUSED = 50
"""The limit of executions that are searched for an open question."""


@dataclass(frozen=True)
class ScheduleEntry:
    """Runs schedules."""

    sessions: Sessions
    schedules: Schedules

    @activity.defn(name=SEND)
    async def send(self, schedule_id: str) -> SentMessage:
        """Send the message of a schedule; return the execution to wait for.

        A message that is refused is an outcome of the run, which the schedule shows.
        """
        row = await self.schedules.store.schedule_to_run(parse_uuid(schedule_id, "schedule_id"))
        if row is None:
            await self._remove_leftover(schedule_id)
            return SentMessage()
        sent = await self._try_to_send(row)
        try:
            await self.schedules.renew(row.id)
        except RPCError as error:
            activity.logger.warning("the times of the schedule %s are renewed later: %s", row.id, error)
        return sent

    async def _try_to_send(self, row: ScheduleRow) -> SentMessage:
        try:
            sent = await self._send(row, activity.info().workflow_id or "")
        except StoreUnavailable:
            raise
        except EverstepError as error:
            activity.logger.warning("the schedule %s did not run: %s", row.id, error)
            await self.schedules.store.note_outcome(row.id, str(error))
            return SentMessage()
        await self.schedules.store.note_outcome(row.id, None)
        if row.settings.overlap is Overlap.ALLOW:
            return SentMessage()
        return SentMessage(ExecutionRef(sent.execution_id, row.tenant_id, sent.message.session_id))

    @activity.defn(name=HAS_ENDED)
    async def has_ended(self, ref: ExecutionRef) -> bool:
        """Return whether the execution of this run has ended, or was deleted.

        A run has nothing to wait for in an execution that is not its own.
        """
        row = await self.sessions.client.store.execution(ref)
        return row is None or row.status.is_terminal or not _is_of_this_run(row)

    @activity.defn(name=CANCEL)
    async def cancel(self, ref: ExecutionRef) -> None:
        """Cancel an execution, as the next run of its schedule begins or an operator cancelled the run.

        Only the execution of this run is cancelled.
        """
        row = await self.sessions.client.store.execution(ref)
        if row is None or not _is_of_this_run(row):
            activity.logger.warning(
                "the execution %s is not cancelled: it is not of this run", ref.execution_id
            )
            return
        try:
            await self._sessions_of(ref.tenant_id).cancel(ref, SCHEDULER, sent_by=Decider(SCHEDULER, now()))
        except (Refused, NotFound) as error:
            activity.logger.info("the execution %s is not cancelled: %s", ref.execution_id, error)

    async def _send(self, row: ScheduleRow, key: str) -> SendResult:
        settings, sessions = row.settings, self._sessions_of(row.tenant_id)
        message = UserMessage(
            settings.content,
            row.user_id,
            agent=settings.agent,
            metadata=frozen_map({"schedule_id": str(row.id)}),
            key=key,
        )
        if settings.session_id is None:
            return await sessions.begin(row.scope, message)
        await self._require_no_question(row)
        return await sessions.send(row.scope, settings.session_id, message)

    async def _require_no_question(self, row: ScheduleRow) -> None:
        """Refuse to send a message that would answer a question of the session."""
        paused = ExecutionFilter(row.settings.session_id, status=ExecutionStatus.PAUSED)
        page = await self.sessions.store.executions_of(row.scope, paused, limit=MAX_PAUSED)
        for each in page.rows:
            requests = await self.sessions.client.store.open_requests(each.ref)
            if any(request.kind is CallNeed.INPUT for request in requests):
                raise Refused("The session waits for the answer to a question, which the message would be")

    async def _remove_leftover(self, schedule_id: str) -> None:
        """Delete Temporal's schedule of a row that is gone, such as after a restored backup."""
        handle = self.schedules.temporal.get_schedule_handle(
            schedule_name(parse_uuid(schedule_id, "schedule_id"))
        )
        try:
            await handle.delete()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    def _sessions_of(self, tenant_id: str) -> Sessions:
        client = replace(self.sessions.client, tenant_id=tenant_id)
        return replace(self.sessions, client=client)


def _is_of_this_run(row: ExecutionRow) -> bool:
    """Whether this run started the execution. Any client of the namespace can start runs."""
    run = activity.info().workflow_id or ""
    started = run_execution_id(row.ref.tenant_id, row.user_id or "", run)
    return run.startswith(ID_PREFIX) and started == row.ref.execution_id
