"""Protection of Everstep's workflows against input of other Temporal clients.

A workflow of Everstep's type that is no execution fails, once. A signal that its handler cannot decode is
dropped: it is part of the history, and the workflow would fail on it at each attempt.
"""

import inspect
from typing import Any, cast

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from everstep.workflows.foreign_workflows import ForeignWorkflow, foreign_workflow_error
from everstep.workflows.instance_memory import detach_input


class WorkflowGuard(Interceptor):
    """Intercepts the input of workflows."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 -- the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """Return the interceptor class of a workflow."""
        del input
        return _Guard


class _Guard(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 -- the SDK's name
        instance = workflow.instance()
        if isinstance(instance, ForeignWorkflow):
            raise foreign_workflow_error(instance.why)
        detach_input(input)
        return await super().execute_workflow(input)

    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002 -- the SDK's name
        if isinstance(workflow.instance(), ForeignWorkflow):
            return
        handler = cast("Any", workflow).get_signal_handler(input.signal)
        if handler is not None:
            try:
                inspect.signature(handler).bind(*input.args)
            except TypeError as error:
                workflow.logger.warning("the signal %s is dropped: %s", input.signal, error)
                return
        await super().handle_signal(input)
