"""Failpoints that fire in workflow tests, and the recorded results and errors of calls."""

from temporalio import activity

from everstep.activities.failpoints import Failpoint
from everstep.activities.step_state import errors_of
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.client.client import Execution

FORGIVING = ErrorPolicy.ignore_tool_errors()


class AttemptDied(Exception):
    """The attempt ends in the middle, as if its worker had died."""


class FailpointStrike:
    """Fires at a failpoint, once; or at the failpoint of each workflow, once per execution."""

    def __init__(self, at: Failpoint | None = None) -> None:
        self.at = at
        self.each: dict[str, Failpoint] = {}
        """By workflow id."""

    def __call__(self, point: Failpoint) -> None:
        workflow = activity.info().workflow_id or ""
        if point is self.at:
            self.at = None
        elif self.each.get(workflow) is point:
            del self.each[workflow]
        else:
            return
        raise AttemptDied(point)


async def results(execution: Execution) -> list[str]:
    """The results of each call as the model read them."""
    return [c.record.text for step in await execution.steps() for c in step.calls if c.record]


async def errors(execution: Execution) -> list[tuple[str | None, str | None]]:
    """The kind and source of each error."""
    steps = await execution.steps()
    return [(e.type, e.tool_name) for step in steps for e in errors_of(step)]
