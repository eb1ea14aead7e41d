"""Which workflows of our type are executions: Temporal's namespaces are shared, where anyone starts any type.

One that is none fails, once. Left to itself, it would be tried again for ever, with a stack trace each time.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from everstep.workflows.contracts import ExecutionInput, workflow_id

NOT_OURS = "ForeignWorkflow"
"""The type of the failure, by which the others can be found."""


def not_ours(why: str) -> ApplicationError:
    """The end of a workflow that is no execution."""
    return ApplicationError(
        f"This workflow is no execution of Everstep's: {why}. Start executions with Everstep's client, its "
        "HTTP API or the activity everstep.start",
        type=NOT_OURS,
        non_retryable=True,
    )


class Foreign:
    """Stands in for a workflow that was not begun as executions are, until it fails."""

    def __init__(self, why: str) -> None:
        self.why = why


def foreign(arguments: Sequence[object]) -> Foreign | None:
    """What a workflow is that was begun with these; None for an execution.

    Its id is looked at when it begins and not when it is replayed: a history may be replayed under any id.
    """
    match arguments:
        case [ExecutionInput() as start]:
            expected = workflow_id(start.ref)
        case _:
            return Foreign("its arguments are not those of an execution")
    if not workflow.unsafe.is_replaying() and workflow.info().workflow_id != expected:
        return Foreign(f"the execution that it names has the workflow {expected}")
    return None
