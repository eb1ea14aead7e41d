"""Makes the SDK's workflow instances, which a worker makes otherwise."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.common import MetricMeter, Priority, TypedSearchAttributes
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import WORKFLOW

TASK_QUEUE: Final = "replay"
NAMESPACE: Final = "default"


def _accept_any(_activity: str) -> None:
    """Accept the name of a local activity; an unknown one is refused when it is scheduled."""


_EXTERN: dict[str, Callable[..., Any]] = {
    "__temporal_assert_local_activity_valid": _accept_any,
    "__temporal_get_metric_meter": lambda: MetricMeter.noop,
}
"""What a worker gives the workflow's thread."""


def make_instance(
    converter: DataConverter, workflow_id: str, parent: str | None, now: datetime
) -> WorkflowInstance:
    """An instance of the workflow of executions, in its first run.

    Args:
        converter: Encodes values.
        workflow_id: Its id.
        parent: The id of the workflow that starts it.
        now: When it starts.
    """
    details = WorkflowInstanceDetails(
        payload_converter_factory=converter.payload_converter_class,
        failure_converter_class=converter.failure_converter_class,
        interceptor_classes=[],
        defn=workflow._Definition.must_from_class(AgentExecution),  # noqa: SLF001 -- the SDK has no public way
        info=_info(workflow_id, parent, now),
        randomness_seed=0,
        extern_functions=_EXTERN,
        disable_eager_activity_execution=True,
        worker_level_failure_exception_types=[],
        patch_activation_callback=None,
        last_completion_result=Payloads(),
        last_failure=None,
    )
    return UnsandboxedWorkflowRunner().create_instance(details)


def _info(workflow_id: str, parent: str | None, now: datetime) -> workflow.Info:
    parents = workflow.ParentInfo(NAMESPACE, f"run/{parent}", parent) if parent else None
    return workflow.Info(
        attempt=1,
        continued_run_id=None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id=f"run/{workflow_id}",
        headers={},
        namespace=NAMESPACE,
        original_execution_run_id=f"run/{workflow_id}",
        parent=parents,
        root=None,
        priority=Priority.default,
        raw_memo={},
        retry_policy=None,
        run_id=f"run/{workflow_id}",
        run_timeout=None,
        search_attributes={},
        start_time=now,
        workflow_start_time=now,
        task_queue=TASK_QUEUE,
        task_timeout=timedelta(seconds=10),
        typed_search_attributes=TypedSearchAttributes.empty,
        workflow_id=workflow_id,
        workflow_type=WORKFLOW,
    )
