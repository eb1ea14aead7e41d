"""Finds executions that do not continue for a reason that only Temporal knows, for `everstep doctor`."""

from collections.abc import AsyncGenerator, Iterator

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError

from everstep.activities.subagents import SUBAGENT_IS_RUNNING
from everstep.agent_domain.errors import RETRYABLE, UnreadableAnswer
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.client.outages import is_missing
from everstep.runtime.installation import Installation
from everstep.workflows.contracts import workflow_id

MIN_FAILED_ATTEMPTS = 3
"""Most transient failures succeed after fewer attempts."""
_OUTAGES = frozenset(error.__name__ for error in (*RETRYABLE, UnreadableAnswer))
SEE_THE_LOG = "the worker's log says why; `everstep cancel` ends it"
MAX_CHECKED_EXECUTIONS = 50
"""The newest executions of each status that has not ended: each costs a query."""


async def find_failures(installation: Installation) -> AsyncGenerator[str]:
    """Find executions that fail repeatedly, which Temporal retries without end, or that it does not run."""
    lost = list[ExecutionRow]()
    for status in (each for each in ExecutionStatus if not each.is_terminal):
        for row in await installation.overview.newest(status, MAX_CHECKED_EXECUTIONS):
            described = await describe_workflow(installation, row)
            if described:
                for failure in _failures_of(described):
                    yield f"{row.ref.execution_id}: {failure}"
            elif status is not ExecutionStatus.PENDING:
                lost.append(row)
    if lost:
        which = f"{lost[0].ref.execution_id}" + (" and others" if len(lost) > 1 else "")
        yield (
            f"{len(lost)} running or paused execution(s) have no workflow in Temporal ({which}): "
            "`everstep doctor --repair` starts them again from their records, `everstep cancel` ends one"
        )


async def describe_workflow(
    installation: Installation, row: ExecutionRow
) -> WorkflowExecutionDescription | None:
    """Return Temporal's description of the execution, or None if Temporal does not have it."""
    try:
        return await installation.temporal.get_workflow_handle(workflow_id(row.ref)).describe()
    except RPCError as error:
        if not is_missing(error):
            raise
        return None


def _failures_of(described: WorkflowExecutionDescription) -> Iterator[str]:
    task = described.raw_description.pending_workflow_task
    if task.attempt > MIN_FAILED_ATTEMPTS:
        yield (
            f"its workflow cannot continue, as its task has failed {task.attempt - 1} times: the worker's "
            f"log says why; `temporal workflow terminate -w {described.id}` ends it"
        )
    for each in described.raw_description.pending_activities:
        if each.paused:
            yield (
                f"{each.activity_type.name} is paused in Temporal{_paused_by(each)}: "
                f"`temporal activity unpause -w {described.id} -a {each.activity_id}` continues it"
            )
        elif each.attempt > MIN_FAILED_ATTEMPTS and not _is_waiting(each):
            yield _failure_of(each)


def _is_waiting(activity: PendingActivityInfo) -> bool:
    """Whether its attempts fail in order to wait for a subagent."""
    return activity.last_failure.application_failure_info.type == SUBAGENT_IS_RUNNING


def _paused_by(activity: PendingActivityInfo) -> str:
    manual = activity.pause_info.manual
    by = f" by {manual.identity}" if manual.identity else ""
    return f"{by} ({manual.reason})" if manual.reason else by


def _failure_of(activity: PendingActivityInfo) -> str:
    failure = activity.last_failure
    why = failure.application_failure_info.type or failure.message
    failed = f"{activity.activity_type.name} has failed {activity.attempt - 1} times, last with {why}"
    if why in _OUTAGES:
        return f"{failed} ({failure.message}): `everstep show` says more; `everstep cancel` ends it"
    return f"{failed}: {SEE_THE_LOG}"
