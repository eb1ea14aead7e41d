"""The workflow of one run of a schedule: it sends the message, and stays open while its execution runs.

Temporal's schedule starts it. As long as it is open, the schedule's overlap policy applies: the next run is
left out, waits, or cancels this one.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy

with workflow.unsafe.imports_passed_through():
    from everstep.agent_domain.ids import ExecutionRef
    from everstep.workflows.activity_options import LOCAL_RETRY_THRESHOLD, ROLL_OVER_EVENTS
    from everstep.workflows.foreign_workflows import NO_ARGUMENTS, ForeignWorkflow

SCHEDULED_MESSAGE = "EverstepScheduledMessage"
"""The type of the workflow. It has the name of the product, as it may share a namespace with others."""

SEND, HAS_ENDED, CANCEL = "everstep.send_scheduled", "everstep.has_ended", "everstep.cancel_scheduled"
"""The activities."""

FIRST_CHECK, LAST_CHECK = timedelta(seconds=1), timedelta(seconds=30)
"""The pauses between two checks whether the execution has ended grow from the first to the last."""

_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """The input of the workflow."""

    schedule_id: UUID
    execution: ExecutionRef | None = None
    """The execution that the message started; carried over by continue-as-new."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What became of the message."""

    execution: ExecutionRef | None = None
    """The execution to wait for; None if the message was not sent, or if runs may overlap."""


@workflow.defn(name=SCHEDULED_MESSAGE)
class ScheduledMessage:
    """Sends the message of a schedule once."""

    # The arguments are unchecked: any client of the namespace can start a workflow of this type.
    def __new__(cls, *arguments: object) -> Any:
        """Return this workflow, or a stand-in that fails if the arguments are not those of a run."""
        is_run = len(arguments) == 1 and isinstance(arguments[0], ScheduledRun)
        return super().__new__(cls) if is_run else ForeignWorkflow(NO_ARGUMENTS)

    @workflow.init
    def __init__(self, run: ScheduledRun) -> None:  # pyright: ignore[reportInconsistentConstructor]
        del run

    @workflow.run
    async def run(self, run: ScheduledRun) -> str:
        """Send the message and wait for the end of its execution; return the id of the execution."""
        execution = run.execution
        try:
            if execution is None:
                execution = await self._send(run)
            if execution is None:
                return ""
            await self._wait(run, execution)
        except asyncio.CancelledError:
            if execution is not None:
                await asyncio.shield(self._cancel(execution))
            raise
        return str(execution.execution_id)

    async def _send(self, run: ScheduledRun) -> ExecutionRef | None:
        """Send the message; return the execution to wait for, if any."""
        sent = await workflow.execute_activity(
            SEND,
            run.schedule_id,
            result_type=SentMessage,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=_RETRY,
            priority=_priority(),
        )
        return sent.execution

    async def _wait(self, run: ScheduledRun, execution: ExecutionRef) -> None:
        pause = FIRST_CHECK
        while not await workflow.execute_local_activity(
            HAS_ENDED,
            execution,
            result_type=bool,
            start_to_close_timeout=timedelta(seconds=20),
            local_retry_threshold=LOCAL_RETRY_THRESHOLD,
            retry_policy=_RETRY,
        ):
            await workflow.sleep(pause)
            pause = min(2 * pause, LAST_CHECK)
            if workflow.info().get_current_history_length() >= ROLL_OVER_EVENTS:
                workflow.continue_as_new(ScheduledRun(run.schedule_id, execution))

    async def _cancel(self, execution: ExecutionRef) -> None:
        await workflow.execute_activity(
            CANCEL,
            execution,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=_RETRY,
            priority=_priority(),
        )


def _priority() -> Priority:
    """Return the key of the tenant and the user, which the server does not name to workers if inherited."""
    return Priority(fairness_key=workflow.info().priority.fairness_key)
