"""Where an execution stands, and how that is written down: what all parts of its workflow share."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from everstep.activities.agent import AgentActivities
    from everstep.activities.contracts import SettleInput
    from everstep.agent_domain.loop.continuation import ContinuationOutcome
    from everstep.agent_domain.loop.facts import ExecutionFacts
    from everstep.agent_domain.loop.status import ExecutionStatus, Situation, StopReason
    from everstep.agent_domain.loop.step_error import StepError
    from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
    from everstep.agent_domain.loop.stop_signal import StopSignal
    from everstep.workflows import search_attributes
    from everstep.workflows.activity_options import SETTLE
    from everstep.workflows.contracts import CHILD_STANDS, ChildStanding, ExecutionInput

CANCELLED = StopSignal(StopReason.USER_REQUESTED, "Cancelled", source="cancel")

T = TypeVar("T")


class Standing:
    """The facts of an execution, and its place in the store."""

    def __init__(self, start: ExecutionInput) -> None:
        self.start = start
        self.plan = start.plan
        self.tools = {tool.name: tool for tool in start.plan.tools}
        self.facts = start.facts or ExecutionFacts.begun(start.clocks, workflow.now())
        self.settlements = start.settlements
        self.status = ExecutionStatus.RUNNING
        self.work: asyncio.Task[None] | None = None
        """What a cancel interrupts."""

    @property
    def step(self) -> StepFacts:
        """The step under way, where there has to be one."""
        if self.facts.current_step is None:
            raise ApplicationError("there are calls, and no step that made them", non_retryable=True)
        return self.facts.current_step

    def let(self, call_id: str, need: CallNeed) -> None:
        """A call has what it waited for; this is what it needs now."""
        step = self.facts.current_step
        if step and not self.facts.is_recorded:
            self.facts = self.facts.with_step(step.needing(call_id, need))

    # Writing down.

    async def settle(self, status: ExecutionStatus, **told: Any) -> None:
        """Write down where the execution stands; tries until it is written."""
        self.settlements += 1
        before, self.status = self.status, status
        # A worker may be lost after it wrote and before it could say so. What then comes in this place need
        # not be the same, if people were quicker: so the key says not only how many came before.
        about = (str(self.settlements), status, str(self.facts.step_count), *told.get("waiting", ()))
        request = SettleInput(
            ref=self.start.ref,
            agent=self.plan.agent,
            key=f"settlement/{'/'.join(about)}",
            status=status,
            agent_status=self.facts.status,
            step_count=self.facts.step_count,
            usage=self.facts.usage,
            info=self.facts.at(workflow.now()).state_info,
            seconds_under_way=self.facts.seconds_under_way,
            **told,
        )
        await workflow.execute_local_activity_method(
            AgentActivities.settle, request, summary=f"settle · {status}", **SETTLE
        )
        if status is not before:
            await self.tell(status, told.get("stop_reason"))

    async def tell(self, status: ExecutionStatus, reason: StopReason | None) -> None:
        """Let those know who look for executions, and the parent of this one."""
        if self.start.search_attributes:
            updates = search_attributes.changed(status, reason)
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] -- the SDK's
        parent = workflow.info().parent
        if parent is None or not self.start.is_subagent or reason:
            return
        standing = ChildStanding(self.start.ref.execution_id, status)
        try:
            await workflow.get_external_workflow_handle(parent.workflow_id).signal(CHILD_STANDS, standing)
        except FailureError as error:
            workflow.logger.warning("the parent is gone: %s", type(error).__name__)

    async def fail(self, error: ActivityError) -> None:
        """An activity gave up without a result: the error policy decides about that too."""
        cause = error.cause or error
        self.facts = self.facts.failed(StepError("", None, None, type(cause).__name__))
        self.describe(f"step {self.facts.step_count} failed: {type(cause).__name__}")
        await self.settle(ExecutionStatus.RUNNING, step=self.facts.current_step, failure=str(cause))

    def describe(self, activity: str) -> None:
        """Show in the Temporal UI what goes on, until something else does."""
        facts = self.facts
        workflow.set_current_details(
            f"**{self.plan.agent}**: {activity}\n\n"
            f"- steps: {facts.step_count} of {self.plan.max_steps or 'any number'}\n"
            f"- tokens: {facts.usage.total} of {self.plan.max_tokens or 'any number'}\n"
            f"- last decision: {facts.last_outcome.resolved_by if facts.last_outcome else 'none yet'}"
        )

    def describe_end(self, situation: Situation, outcome: ContinuationOutcome) -> None:
        """Show how the execution ended; closed workflows show this for good."""
        facts, step = self.facts, self.facts.current_step
        # The kinds of the last step's errors, as their words may quote a prompt; or what to mend.
        found = step.errors if step else ()
        errors = [error.advice or error.exception or error.type or "unknown" for error in found]
        failed = [f"- errors: {', '.join(errors)}"] if errors else []
        lines = [
            f"**{self.plan.agent}**: {situation.execution} ({outcome.stop_reason})",
            "",
            f"- steps: {facts.step_count}",
            f"- tokens: {facts.usage.total}",
            f"- seconds of work: {facts.state_info.cumulative_execution_seconds:.1f}",
            f"- decided by: {outcome.source}",
        ]
        workflow.set_current_details("\n".join([*lines, *failed]))

    # Being cancelled.

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody cancelled."""
        return self.facts.stop_signal == CANCELLED

    def stop_now(self) -> None:
        """Somebody cancels: give up what is under way, or waited for."""
        self.facts = self.facts.signalled(CANCELLED)
        if self.work:
            self.work.cancel()
        else:
            self.give_up()

    def give_up(self) -> None:
        """The step under way is void."""
        self.facts = self.facts.abandoned()


async def together(*works: Awaitable[T]) -> list[T]:
    """All of them at once. Whatever becomes of one, the others come to their end first."""
    results = await asyncio.gather(*works, return_exceptions=True)
    ended: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        ended.append(result)
    return ended
