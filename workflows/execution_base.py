"""The state that all parts of an execution's workflow share, and how its status is recorded."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from everstep.activities.agent import AgentActivities
    from everstep.activities.contracts import SettleInput, StoredEnd
    from everstep.agent_domain.loop.continuation import ContinuationOutcome
    from everstep.agent_domain.loop.explanations import explain_end
    from everstep.agent_domain.loop.facts import ExecutionFacts
    from everstep.agent_domain.loop.status import ExecutionStatus, Situation, StopReason
    from everstep.agent_domain.loop.step_error import ErrorType, StepError
    from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts
    from everstep.agent_domain.loop.stop_signal import StopSignal
    from everstep.workflows import search_attributes
    from everstep.workflows.activity_options import SETTLE
    from everstep.workflows.contracts import CHILD_STATUS_SIGNAL, ChildStatus, ExecutionInput
    from everstep.workflows.listing import console_url

CANCELLED = StopSignal(StopReason.USER_REQUESTED, "Cancelled", source="cancel")

INTERRUPTED_STEP_IS_CHARGED = "interrupted-step-is-charged"
"""Patch id. Under the older rule a step that failed after its reply counted no usage."""

FAILED_CALL_IS_TOOL_ERROR = "failed-call-is-tool-error"
"""Patch id. Under the older rule the failed activity of a call was a model error for the error policy."""

T = TypeVar("T")


def first_facts(start: ExecutionInput) -> ExecutionFacts:
    """Return the facts of an execution that begins."""
    facts = ExecutionFacts.begun(start.clocks, workflow.now(), start.run)
    return facts.paused() if start.is_paused else facts


class ExecutionBase:
    """The facts of an execution, and the methods that record its status in the store."""

    def __init__(self, start: ExecutionInput) -> None:
        self.start = start
        self.plan = start.plan
        self.tools = {tool.name: tool for tool in start.plan.tools}
        self.facts = start.facts or first_facts(start)
        self.settlements = start.settlements
        self.refused = start.refused
        self.status = ExecutionStatus.RUNNING
        self.stored_end: StoredEnd | None = None
        """The end that another process has recorded of this execution, if it is another one."""
        self.is_rolling_over = False
        """Whether this run waits for its handlers to finish, to continue as new."""
        self.because = ""
        """Why the execution ended, in one sentence without texts of people or models."""
        self.failed_calls: dict[ActivityError, str] = {}
        """The tools of activities that failed without a result, until the failure is recorded."""
        self.work: asyncio.Task[None] | None = None
        """The task that a cancel interrupts."""

    @property
    def step(self) -> StepFacts:
        """The current step. The caller must know that there is one."""
        if self.facts.current_step is None:
            raise ApplicationError("there are calls, and no step that made them", non_retryable=True)
        return self.facts.current_step

    def set_need(self, call_id: str, need: CallNeed) -> None:
        """Set the need of a call that has received what it waited for."""
        step = self.facts.current_step
        if step and not self.facts.is_recorded:
            self.facts = self.facts.with_step(step.needing(call_id, need))

    # Recording the status.

    async def settle(self, status: ExecutionStatus, **details: Any) -> bool:
        """Record the status of the execution in the store; retried until the write succeeds.

        Returns:
            False if this is an end, and a cancel was stored before it: then nothing is recorded.
        """
        self.settlements += 1
        before, self.status = self.status, status
        # The idempotency key names the situation as well as the count. A worker may crash after the write and
        # before reporting it; on replay an update may come first, and the settlement with the same count is
        # then another one.
        situation = (str(self.settlements), status, str(self.facts.step_count), *details.get("waiting", ()))
        request = SettleInput(
            ref=self.start.ref,
            agent=self.plan.agent,
            key=f"settlement/{'/'.join(situation)}",
            status=status,
            agent_status=self.facts.status,
            step_count=self.facts.step_count,
            usage=self.facts.usage,
            info=self.facts.at(workflow.now()).state_info,
            seconds_under_way=self.facts.seconds_under_way,
            marks=self.facts.marks,
            **details,
        )
        recorded = await workflow.execute_local_activity_method(
            AgentActivities.settle, request, summary=f"settle · {status}", **SETTLE
        )
        if isinstance(recorded, StoredEnd):
            self.stored_end, self.status = recorded, recorded.status
        elif recorded:
            self.status = before
            return False
        if self.status is not before:
            reason = self.stored_end.stop_reason if self.stored_end else details.get("stop_reason")
            await self.publish_status(self.status, reason)
        return True

    async def publish_status(self, status: ExecutionStatus, reason: StopReason | None) -> None:
        """Update the search attributes, and signal the parent execution."""
        if self.start.search_attributes:
            updates = search_attributes.status_updates(status, reason)
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] -- the SDK's type
        if not reason:
            await self.signal_parent(ChildStatus(self.start.ref.execution_id, status))

    async def signal_parent(self, child: ChildStatus) -> None:
        """Send the status of this execution to the execution that waits for it, if there is one."""
        parent = workflow.info().parent
        if parent is None or not self.start.is_subagent:
            return
        try:
            await workflow.get_external_workflow_handle(parent.workflow_id).signal(CHILD_STATUS_SIGNAL, child)
        except FailureError as error:
            workflow.logger.warning("the parent workflow cannot be signalled: %s", type(error).__name__)

    async def record_failure(self, error: ActivityError) -> None:
        """Record an activity that failed without a result as a failed step."""
        cause = error.cause or error
        step = self.facts.current_step if self.facts.pending else None
        failure, tool = StepError("", exception=type(cause).__name__), self.failed_calls.get(error)
        self.failed_calls.clear()
        if tool is not None and workflow.patched(FAILED_CALL_IS_TOOL_ERROR):
            failure = replace(failure, type=ErrorType.TOOL, tool_name=tool)
        self.fail_step(failure, step)
        self.describe(f"step {self.facts.step_count} failed: {type(cause).__name__}")
        await self.settle(ExecutionStatus.RUNNING, step=self.facts.current_step, failure=str(cause))

    async def await_call(self, call: CallFacts, work: Awaitable[T]) -> T:
        """Await a call, and note its tool if its activity fails: the exception does not name it."""
        try:
            return await work
        except ActivityError as error:
            if not is_cancelled_exception(error):
                self.failed_calls[error] = call.name
            raise

    def fail_step(self, error: StepError, step: StepFacts | None, seconds: float = 0.0) -> None:
        """Turn an exception into a failure step, with all that the step had used.

        Args:
            error: The exception.
            step: The step with what is known of its calls; None if the model had not replied.
            seconds: The working time of the step that counted under the older rule.
        """
        if step is not None and workflow.patched(INTERRUPTED_STEP_IS_CHARGED):
            self.facts = self.facts.interrupted(step, error)
        else:
            self.facts = self.facts.failed(error, seconds)

    def describe(self, activity: str) -> None:
        """Show the current activity in the Temporal UI."""
        facts = self.facts
        workflow.set_current_details(
            f"**{self.plan.agent}**: {activity}\n\n{self.link}"
            f"- steps: {facts.step_count} of {self.plan.max_steps or 'any number'}\n"
            f"- tokens: {facts.usage.total} of {self.plan.max_tokens or 'any number'}\n"
            f"- last decision: {facts.last_outcome.resolved_by if facts.last_outcome else 'none yet'}"
        )

    def describe_end(self, situation: Situation, reason: StopReason, outcome: ContinuationOutcome) -> None:
        """Show how the execution ended; the Temporal UI keeps this for closed workflows."""
        facts, step = self.facts, self.facts.current_step
        # Only the kinds of the last step's errors, or their advice: error messages may quote a prompt.
        step_errors = step.errors if step else ()
        errors = [error.advice or error.exception or error.type or "unknown" for error in step_errors]
        failed = [f"- errors: {', '.join(errors)}"] if errors else []
        ending = f"{situation.execution} ({reason})"
        self.because = explain_end(outcome, facts)
        if self.stored_end:
            self.because = f"{ending}: its end was recorded by another process"
        lines = [
            f"**{self.plan.agent}**: {ending}",
            "",
            self.because,
            "",
            f"{self.link}- steps: {facts.step_count}",
            f"- tokens: {facts.usage.total}",
            f"- seconds of work: {facts.state_info.cumulative_execution_seconds:.1f}",
            f"- decided by: {outcome.source}",
        ]
        workflow.set_current_details("\n".join([*lines, *failed]))

    @property
    def link(self) -> str:
        """A paragraph with the link to the execution's page; empty if there is none."""
        console = console_url(self.start)
        return f"[Open in the console]({console})\n\n" if console else ""

    # Cancellation.

    @property
    def is_cancelled(self) -> bool:
        """Whether the execution has been cancelled."""
        return self.facts.stop_signal == CANCELLED

    def cancel_now(self) -> None:
        """Cancel the execution: interrupt the work in progress, or abandon what the step waits for."""
        self.facts = self.facts.signalled(CANCELLED)
        if self.work:
            self.work.cancel()
        else:
            self.abandon_step()

    def abandon_step(self) -> None:
        """Abandon the current step."""
        self.facts = self.facts.abandoned()


async def gather_all(*works: Awaitable[T]) -> list[T]:
    """Await all of them; if one raises, the others complete before its error is raised."""
    results = await asyncio.gather(*works, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
