"""How the workflow of an execution closes in Temporal: as failed or cancelled, if the execution is.

By then the end is in the store. The failure, or the cancel, has the `ExecutionResult` as its details, which
`carried_result` reads. Temporal's SDK does less for a cancel than for a failure:

- It closes a workflow as Canceled only after Temporal's own cancel request. An execution that was cancelled
  in another way sends this request to itself, by an activity.
- It closes a cancelled workflow without details. `ClosingRunner` adds them.
- It passes no details of a cancelled child to its parent. The child sends its result by a signal.
"""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError, CancelledError, FailureError
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

with workflow.unsafe.imports_passed_through():
    from everstep.activities.agent import AgentActivities
    from everstep.agent_domain.loop.status import ExecutionStatus, final_situation
    from everstep.workflows.activity_options import CANCEL_REQUEST
    from everstep.workflows.contracts import ChildStatus, ExecutionResult
    from everstep.workflows.execution_base import ExecutionBase
    from everstep.workflows.instance_memory import detached_details, dissolve, release_activation

CLOSES_LIKE_ITS_EXECUTION = "closes-like-its-execution"
"""Patch id. Under the older rule every workflow whose end was recorded closed as Completed."""

EXECUTION_FAILED = "ExecutionFailed"
"""The type of the failure with which the workflow of a failed execution closes."""

CANCEL_SECONDS = 10
"""How long the workflow waits for a cancel request that Temporal has accepted; it comes at once."""

_RESULT = TypeAdapter(ExecutionResult)


@dataclass(slots=True)
class _CancelDetails:
    """The details with which a cancelled workflow closes."""

    payloads: Sequence[Payload] = ()


_cancel_details: ContextVar[_CancelDetails | None] = ContextVar("cancel_details", default=None)
"""Those of the workflow whose code runs. Tasks of a workflow inherit the context of its first activation."""


class ClosingExecution(ExecutionBase):
    """The part of an execution that closes its workflow."""

    async def close(self, result: ExecutionResult) -> ExecutionResult:
        """Return the result of a completed execution; raise it as the details of another end.

        Raises:
            ApplicationError: The execution failed.
            CancelledError: It was cancelled.
        """
        end = final_situation(result.status, result.stop_reason).execution
        if end is ExecutionStatus.COMPLETED or not workflow.patched(CLOSES_LIKE_ITS_EXECUTION):
            return result
        if end is ExecutionStatus.FAILED:
            raise ApplicationError(self.because, result, type=EXECUTION_FAILED, non_retryable=True)
        if not await self.request_cancel():
            return result
        await self.signal_parent(ChildStatus(self.start.ref.execution_id, end, result))
        await workflow.wait_condition(workflow.all_handlers_finished)
        if (details := _cancel_details.get()) is not None:
            details.payloads = workflow.payload_converter().to_payloads([result, self.because])
        raise CancelledError(self.because, result)

    async def request_cancel(self) -> bool:
        """Request the cancel from Temporal, unless it was requested; return whether the request is there.

        It is missing only if Temporal refuses it to this worker.
        """
        try:
            if not _is_cancel_requested():
                await workflow.execute_local_activity_method(
                    AgentActivities.request_cancel,
                    self.start.ref,
                    summary="cancel in Temporal",
                    **CANCEL_REQUEST,
                )
            await workflow.wait_condition(
                _is_cancel_requested,
                timeout=timedelta(seconds=CANCEL_SECONDS),
                timeout_summary="the cancel request of Temporal",
            )
        except asyncio.CancelledError:
            # The request itself, which may arrive at any time.
            if not _is_cancel_requested():
                raise
        except (FailureError, TimeoutError) as error:
            # The SDK reports a failed local activity as the bare failure of its last attempt.
            workflow.logger.warning(
                "the workflow of a cancelled execution closes as Completed: %s", type(error).__name__
            )
            return False
        return True


def _is_cancel_requested() -> bool:
    return workflow.cancellation_reason() is not None


def carried_result(cause: BaseException | None) -> ExecutionResult | None:
    """Return the result of an execution from the failure of its workflow.

    Args:
        cause: The cause of a `WorkflowFailureError` or a `ChildWorkflowError`.

    Returns:
        The result; None if the workflow was ended in another way, for example terminated.
    """
    if not isinstance(cause, ApplicationError | CancelledError) or not cause.details:
        return None
    if isinstance(cause, ApplicationError) and cause.type != EXECUTION_FAILED:
        return None
    try:
        return _RESULT.validate_python(cause.details[0])
    except ValidationError:
        return None


class ClosingRunner(WorkflowRunner):
    """A runner of workflows that adds the details to the cancel with which a workflow closes.

    Its instances keep no activation in memory.
    """

    def __init__(self, runner: WorkflowRunner) -> None:
        self.runner = runner

    def prepare_workflow(self, defn: Any) -> None:
        """Prepare a workflow definition."""
        self.runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return an instance of a workflow."""
        return _ClosingInstance(self.runner.create_instance(detached_details(det)))

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Pass on the exceptions that fail workflows."""
        self.runner.set_worker_level_failure_exception_types(types)


class _ClosingInstance(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance) -> None:
        self.instance = instance
        self.details = _CancelDetails()

    def activate(self, act: Any) -> Any:
        token = _cancel_details.set(self.details)
        try:
            completion = self.instance.activate(act)
        finally:
            _cancel_details.reset(token)
            release_activation(self.instance)
        for command in completion.successful.commands:
            if command.HasField("cancel_workflow_execution"):
                command.cancel_workflow_execution.details.payloads.extend(self.details.payloads)
        if any(job.HasField("remove_from_cache") for job in act.jobs):
            dissolve(self.instance)
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        return self.instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self.instance.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        return self.instance.get_info()

    def get_thread_id(self) -> int | None:
        return self.instance.get_thread_id()
