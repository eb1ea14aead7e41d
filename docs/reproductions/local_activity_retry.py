"""A local activity that is retried inside a worker keeps the timer of its first attempt (temporalio 1.35).

Run it with `python docs/reproductions/local_activity_retry.py PATH_OF_THE_TEMPORAL_CLI`. Attempts may take
3 seconds. In the first workflow the second attempt needs 2.5 seconds, and the timer of the first one cancels
it. After the second workflow the worker closes, the timer of attempt 1 fires, and the SDK prints
"receive half not dropped". With `local_retry_threshold=timedelta(milliseconds=1)` neither happens.
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker


@activity.defn
async def fail_first(seconds: float) -> int:
    """Fail the first attempt; the next one takes some seconds."""
    if activity.info().attempt == 1:
        raise RuntimeError("the first attempt fails")
    await asyncio.sleep(seconds)
    return activity.info().attempt


@workflow.defn
class Retry:
    """Runs the local activity."""

    @workflow.run
    async def run(self, seconds: float) -> int:
        """The number of the attempt that succeeded."""
        return await workflow.execute_local_activity(
            fail_first, seconds, start_to_close_timeout=timedelta(seconds=3)
        )


async def main() -> None:
    """Show the cancelled attempt, and then the panic."""
    async with (
        await WorkflowEnvironment.start_local(dev_server_existing_path=sys.argv[1]) as environment,
        Worker(
            environment.client,
            task_queue="retry",
            workflows=[Retry],
            activities=[fail_first],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        for name, seconds in (("cancelled", 2.5), ("panic", 0.0)):
            result = await environment.client.execute_workflow(
                Retry.run, seconds, id=name, task_queue="retry"
            )
            print(f"{name}: attempt {result} succeeded, and attempt 2 should have")  # noqa: T201
    await asyncio.sleep(4)


asyncio.run(main())
