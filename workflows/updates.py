"""Updates: the requests that people send to a running execution, their validators, and the waiting for them.

Answers and messages are stored before the workflow is notified; an update only refers to them.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from everstep.activities.agent import AgentActivities
    from everstep.activities.contracts import ExpiryInput
    from everstep.agent_domain.loop.loop import AwaitApproval, AwaitBudget, AwaitInput, Decision
    from everstep.agent_domain.loop.status import ExecutionStatus
    from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed
    from everstep.workflows.activity_options import SETTLE
    from everstep.workflows.contracts import CallReply, ExecutionProgress
    from everstep.workflows.execution_base import ExecutionBase


class UpdateHandlers(ExecutionBase):
    """The part of an execution that waits for people and handles their updates."""

    async def wait_while(self, decision: Decision, decide_again: Callable[[], Decision]) -> None:
        """Record a pause and wait until the next decision is a different one. Waiting occupies no worker."""
        calls = _waiting_calls(decision)
        asks = isinstance(decision, AwaitInput)
        self.describe(f"waiting for people: {_awaited(decision, calls)}")
        budget = decision.budget if isinstance(decision, AwaitBudget) else None
        await self.settle(
            ExecutionStatus.PAUSED, waiting=tuple(call.id for call in calls), asks=asks, budget=budget
        )
        expiring: Mapping[str, float] = {} if asks else await self.check_expiry(calls)
        try:
            await workflow.wait_condition(
                lambda: decide_again() != decision,
                timeout=self.answer_timeout(decision) or _first_expiry(expiring),
                timeout_summary="the answer is due" if asks else "an approval expires",
            )
        except TimeoutError:
            if asks:
                # Unanswered in time: run the tool, which supplies its own default.
                self.set_need(calls[0].id, CallNeed.RUN)
            else:
                await self.check_expiry(calls, _due_calls(expiring))
        self.facts = self.facts.entered(workflow.now())
        self.describe("running again")
        await self.settle(ExecutionStatus.RUNNING)

    def answer_timeout(self, decision: Decision) -> timedelta | None:
        """How long to wait for an answer; None for no limit, as for pauses and most approvals."""
        tool = self.tools.get(decision.call.name) if isinstance(decision, AwaitInput) else None
        return timedelta(seconds=tool.wait_seconds) if tool and tool.wait_seconds is not None else None

    async def check_expiry(
        self, calls: tuple[CallFacts, ...], due: tuple[str, ...] = ()
    ) -> Mapping[str, float]:
        """Deny the calls that are due; return the seconds until the approvals of the others expire."""
        if not self.plan.approvals_expire or not calls:
            return {}
        request = ExpiryInput(self.start.ref, tuple(call.id for call in calls), due)
        output = await workflow.execute_local_activity_method(
            AgentActivities.expire, request, summary="approvals", **SETTLE
        )
        # Where a decision was stored first, its update arrives.
        for call_id in output.denied:
            self.set_need(call_id, CallNeed.RUN)
        return output.seconds_left

    @workflow.query
    def state(self) -> ExecutionProgress:
        """The status and the facts of the execution, and the signals that it refused."""
        return ExecutionProgress(self.status, self.facts, self.refused)

    # Updates.

    @workflow.update
    async def submit_input(self, reply: CallReply) -> None:
        """Continue with a call that was answered; the answer is in the store."""
        await self.await_request(reply.call_id, CallNeed.INPUT)
        self.set_need(reply.call_id, CallNeed.RUN)

    @submit_input.validator
    def check_input(self, reply: CallReply) -> None:
        """Reject an answer to a call that asks no question."""
        self.require_waiting_soon(reply.call_id, CallNeed.INPUT)

    @workflow.update
    async def resolve_approval(self, reply: CallReply) -> None:
        """Continue with a call that was allowed or denied; the decision is in the store."""
        await self.await_request(reply.call_id, CallNeed.APPROVAL)
        self.set_need(
            reply.call_id, CallNeed.RUN if reply.denied else self.need_after_approval(reply.call_id)
        )

    @resolve_approval.validator
    def check_approval(self, reply: CallReply) -> None:
        """Reject a decision about a call that needs no approval."""
        self.require_waiting_soon(reply.call_id, CallNeed.APPROVAL)

    @workflow.update
    def steer(self) -> None:
        """Read a steering message from the store at the next step boundary."""
        self.facts = self.facts.steered_by()

    @workflow.update
    def pause(self) -> None:
        """Pause once the work in progress is done."""
        self.facts = self.facts.paused()

    @workflow.update
    def resume(self) -> None:
        """Resume a paused execution."""
        self.facts = self.facts.resumed(workflow.now())

    @workflow.update
    def raise_budget(self) -> None:
        """Ask the model again: the budget that the execution waits for was raised; it is in the store."""
        self.facts = self.facts.budget_raised()

    @workflow.update
    def cancel(self) -> None:
        """Cancel the execution now; the current step is abandoned."""
        self.cancel_now()

    # Validators.

    @steer.validator
    def check_steer(self) -> None:
        """Reject steering an execution that has ended."""
        self.require_open()

    @pause.validator
    def check_pause(self) -> None:
        """Reject pausing an execution that has ended."""
        self.require_open()

    @resume.validator
    def check_resume(self) -> None:
        """Reject resuming an execution that is not paused."""
        if not self.facts.is_paused:
            raise ApplicationError("the execution is not paused", type="NotPaused", non_retryable=True)

    @raise_budget.validator
    def check_raise(self) -> None:
        """Reject a raised budget if the execution waits for none."""
        if self.facts.has_begun and self.facts.exhausted is None:
            raise ApplicationError("no budget is waited for", type="NotWaiting", non_retryable=True)

    @cancel.validator
    def check_cancel(self) -> None:
        """Reject cancelling an execution that has ended."""
        self.require_open()

    def require_open(self) -> None:
        """Raise if the final status is already decided."""
        if self.facts.status.is_terminal:
            raise ApplicationError("the execution has ended", type="AlreadyEnded", non_retryable=True)

    def require_waiting_soon(self, call_id: str, need: CallNeed) -> None:
        """Raise unless the call waits for this need, or may do so once a reply of the model is known."""
        if self.facts.has_begun and not self.facts.awaits_reply:
            self.require_waiting(call_id, need)

    def require_waiting(self, call_id: str, need: CallNeed) -> None:
        """Raise unless the call waits for this need."""
        waiting = {call.id for call in self.facts.pending if call.need is need}
        if call_id not in waiting:
            kind = "question" if need is CallNeed.INPUT else "approval"
            raise ApplicationError(f"no {kind} is open for this call", type="NotWaiting", non_retryable=True)

    async def await_request(self, call_id: str, need: CallNeed) -> None:
        """Wait until the model's reply is known, then raise unless the call waits for this need.

        If the worker crashes right after the model asked the question, the answer and the model's reply
        arrive in one workflow task, and updates are handled first in it. After a reset, Temporal delivers all
        answers with the first task, before the steps are read again from their records.
        """
        if not self.facts.has_begun:
            await workflow.wait_condition(lambda: self.has_reached(call_id))
        await workflow.wait_condition(lambda: not self.facts.awaits_reply)
        self.require_waiting(call_id, need)

    def has_reached(self, call_id: str) -> bool:
        """Whether the model has made this call, the execution waits for something else, or this run ends."""
        step = self.facts.current_step
        is_made = step is not None and any(call.id == call_id for call in step.calls)
        is_over = self.facts.status.is_terminal or self.is_rolling_over
        return is_made or is_over or self.status is ExecutionStatus.PAUSED

    def need_after_approval(self, call_id: str) -> CallNeed:
        """Return the need that a call has after it was approved."""
        names = (call.name for call in self.facts.pending if call.id == call_id)
        tools = (self.tools.get(name) for name in names)
        return next((tool.need for tool in tools if tool), CallNeed.RUN)


def _first_expiry(seconds_left: Mapping[str, float]) -> timedelta | None:
    """How long until the first approval expires; None if none does."""
    first = min(seconds_left.values(), default=None)
    return None if first is None else timedelta(seconds=max(0.0, first))


def _due_calls(seconds_left: Mapping[str, float]) -> tuple[str, ...]:
    """The calls whose approvals expire first."""
    first = max(0.0, min(seconds_left.values()))
    return tuple(call_id for call_id, seconds in seconds_left.items() if seconds <= first)


def _awaited(decision: Decision, calls: tuple[CallFacts, ...]) -> str:
    if isinstance(decision, AwaitBudget):
        return f"the {decision.budget.scope}'s budget is exhausted"
    return ", ".join(call.name for call in calls) or "paused"


def _waiting_calls(decision: Decision) -> tuple[CallFacts, ...]:
    match decision:
        case AwaitApproval(calls):
            return calls
        case AwaitInput(call):
            return (call,)
        case _:
            return ()
