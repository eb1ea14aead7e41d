"""Ends workflows that no execution needs: what a restored database leaves in Temporal.

An execution is stored before its workflow starts, and is deleted only after it has ended. So an open
workflow without an execution, or whose execution has ended, belongs to a history that the database does not
have. If it waits for a person, it would wait forever.
"""

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client as TemporalClient, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.forced_end import closing_settlement
from everstep.client.sessions import Sessions
from everstep.workflows.contracts import ID_PREFIX, WORKFLOW, execution_id_of

log = logging.getLogger(__name__)

AT_ONCE: Final = 500
"""Open workflows whose executions are read by one statement."""
CLOSING_SECONDS: Final = 60.0
"""How long a workflow may stay open after its end is stored: it waits for handlers and reports."""

NO_EXECUTION: Final = "its execution is not in the database"
EXECUTION_ENDED: Final = "its execution has ended in the database"
WENT_ON: Final = "The database was restored to a time before its last steps"
"""The error message of an execution whose workflow went on after the backup of the database."""


@dataclass(frozen=True)
class StrayWorkflows:
    """Finds and ends the open workflows that have no open execution."""

    sessions: Sessions

    async def end_all(self) -> int:
        """End every workflow without an open execution; return how many were ended."""
        count = 0
        async for batch in self._open_workflows():
            stored = await self.sessions.store.stored_statuses(tuple(batch))
            for execution_id, workflow in batch.items():
                if execution_id not in stored:
                    count += await self._terminate(workflow, NO_EXECUTION)
                elif stored[execution_id][1].is_terminal and await self._has_ended_before(execution_id):
                    count += await self._terminate(workflow, EXECUTION_ENDED)
        return count

    async def end_later_than(self, moment: datetime) -> int:
        """End every open execution whose workflow went on after the moment; return how many were ended.

        The database has less than such a workflow has done: the execution cannot continue correctly.
        """
        count = 0
        async for batch in self._open_workflows():
            stored = await self.sessions.store.stored_statuses(tuple(batch))
            for execution_id, (ref, status) in stored.items():
                workflow = batch[execution_id]
                temporal = self.sessions.client.temporal
                if status.is_terminal or await last_event_at(temporal, workflow.id) <= moment:
                    continue
                await self._terminate(workflow, WENT_ON)
                row = await self.sessions.client.store.execution(ref)
                steps = row.step_count if row else 0
                end = closing_settlement(ref, ExecutionStatus.FAILED, step_count=steps, error_message=WENT_ON)
                count += await self.sessions.client.store.settle(end) is not None
        return count

    async def _open_workflows(self) -> AsyncGenerator[dict[UUID, WorkflowExecution]]:
        """Yield the open workflows of our task queue by the id of their execution, in batches."""
        query = (
            f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{ID_PREFIX}' "
            "AND ExecutionStatus = 'Running'"
        )
        batch = dict[UUID, WorkflowExecution]()
        async for workflow in self.sessions.client.temporal.list_workflows(query):
            execution_id = execution_id_of(workflow.id)
            if execution_id is not None and workflow.task_queue == self.sessions.client.task_queue:
                batch[execution_id] = workflow
            if len(batch) == AT_ONCE:
                yield batch
                batch = {}
        if batch:
            yield batch

    async def _has_ended_before(self, execution_id: UUID) -> bool:
        """Whether the end was stored so long ago that the workflow cannot be about to close."""
        stored = await self.sessions.store.stored_statuses((execution_id,))
        row = await self.sessions.client.store.execution(stored[execution_id][0]) if stored else None
        latest = datetime.now(UTC) - timedelta(seconds=CLOSING_SECONDS)
        return row is not None and row.completed_at is not None and row.completed_at < latest

    async def _terminate(self, workflow: WorkflowExecution, reason: str) -> bool:
        """Terminate a workflow; return False if it has closed in the meantime."""
        temporal = self.sessions.client.temporal
        try:
            await temporal.get_workflow_handle(workflow.id, run_id=workflow.run_id).terminate(reason=reason)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        log.warning("terminated the workflow %s: %s", workflow.id, reason)
        return True


async def last_event_at(temporal: TemporalClient, workflow_id: str) -> datetime:
    """Return the time of the last event of a workflow's last run."""
    request = GetWorkflowExecutionHistoryReverseRequest(namespace=temporal.namespace, maximum_page_size=1)
    request.execution.workflow_id = workflow_id
    found = await temporal.workflow_service.get_workflow_execution_history_reverse(request)
    return found.history.events[0].event_time.ToDatetime(UTC)
