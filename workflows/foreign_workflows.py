"""Fails workflows of Everstep's types that Everstep did not start.

A Temporal namespace is shared, and any client can start any workflow type. Without this check Temporal would
retry such a workflow forever, with a stack trace for every attempt.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from everstep.workflows.contracts import ExecutionInput, workflow_id

FOREIGN_WORKFLOW = "ForeignWorkflow"
"""The failure type, by which operators can find these workflows."""


NO_ARGUMENTS = "its arguments are not those of an execution"


def foreign_workflow_error(reason: str) -> ApplicationError:
    """Return the failure of a workflow that is not an execution."""
    return ApplicationError(
        f"This workflow is not an Everstep execution: {reason}. Start executions with Everstep's client, its "
        "HTTP API or the activity everstep.start",
        type=FOREIGN_WORKFLOW,
        non_retryable=True,
    )


class ForeignWorkflow:
    """A stand-in for a workflow that was not started as an execution."""

    def __init__(self, why: str) -> None:
        self.why = why


def find_foreign_workflow(arguments: Sequence[object]) -> ForeignWorkflow | None:
    """Return a stand-in for a workflow that is not an execution; None for an execution.

    The workflow id is checked only outside of replay: a history may be replayed under any id.
    """
    match arguments:
        case [ExecutionInput() as start]:
            expected = workflow_id(start.ref)
        case _:
            return ForeignWorkflow(NO_ARGUMENTS)
    if not workflow.unsafe.is_replaying() and workflow.info().workflow_id != expected:
        return ForeignWorkflow(f"the workflow of the execution it names is {expected}")
    return None
