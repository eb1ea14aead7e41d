"""People: what they may ask of a running execution, what is refused, and waiting for them.

What people say is in the store before the workflow hears of it. An update only points at it.
"""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from everstep.agent_domain.loop.loop import AwaitApproval, AwaitInput, Decision
    from everstep.agent_domain.loop.status import ExecutionStatus
    from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed
    from everstep.workflows.contracts import Answered, ExecutionProgress
    from everstep.workflows.execution_base import Standing


class People(Standing):
    """The part of an execution that people take."""

    async def wait_while(self, decision: Decision, ask: Callable[[], Decision]) -> None:
        """Hold still, without a worker, until something else is to be done."""
        calls = _waiting(decision)
        asks = isinstance(decision, AwaitInput)
        self.describe(f"waiting for people: {', '.join(call.name for call in calls) or 'paused'}")
        await self.settle(ExecutionStatus.PAUSED, waiting=tuple(call.id for call in calls), asks=asks)
        try:
            await workflow.wait_condition(lambda: ask() != decision, timeout=self.patience(decision))
        except TimeoutError:
            # The tool itself knows what holds without an answer.
            self.let(calls[0].id, CallNeed.RUN)
        self.facts = self.facts.entered(workflow.now())
        self.describe("goes on")
        await self.settle(ExecutionStatus.RUNNING)

    def patience(self, decision: Decision) -> timedelta | None:
        """How long an answer may take; None for any time, which approvals and pauses always have."""
        tool = self.tools.get(decision.call.name) if isinstance(decision, AwaitInput) else None
        return timedelta(seconds=tool.wait_seconds) if tool and tool.wait_seconds is not None else None

    @workflow.query
    def state(self) -> ExecutionProgress:
        """Where the execution stands."""
        return ExecutionProgress(self.status, self.facts)

    # What they say.

    @workflow.update
    async def submit_input(self, answered: Answered) -> None:
        """A person has answered; the answer is in the store."""
        await self.until_asked(answered.call_id, CallNeed.INPUT)
        self.let(answered.call_id, CallNeed.RUN)

    @submit_input.validator
    def check_input(self, answered: Answered) -> None:
        """Refuse an answer to nothing."""
        self.require_waiting_soon(answered.call_id, CallNeed.INPUT)

    @workflow.update
    async def resolve_approval(self, answered: Answered) -> None:
        """A person has decided about a call; the decision is in the store."""
        await self.until_asked(answered.call_id, CallNeed.APPROVAL)
        self.let(answered.call_id, CallNeed.RUN if answered.denied else self.own_need(answered.call_id))

    @resolve_approval.validator
    def check_approval(self, answered: Answered) -> None:
        """Refuse a decision about nothing."""
        self.require_waiting_soon(answered.call_id, CallNeed.APPROVAL)

    @workflow.update
    def steer(self) -> None:
        """A message waits in the store for the next step boundary."""
        self.facts = self.facts.steered_by()

    @workflow.update
    def pause(self) -> None:
        """Hold still once the work under way is done."""
        self.facts = self.facts.paused()

    @workflow.update
    def resume(self) -> None:
        """Go on."""
        self.facts = self.facts.resumed(workflow.now())

    @workflow.update
    def cancel(self) -> None:
        """Stop now; the step under way is given up."""
        self.stop_now()

    # What is refused.

    @steer.validator
    def check_steer(self) -> None:
        """Refuse what an execution that has ended could not hear."""
        self.require_open()

    @pause.validator
    def check_pause(self) -> None:
        """Refuse to pause what has ended."""
        self.require_open()

    @resume.validator
    def check_resume(self) -> None:
        """Refuse to resume what is not paused."""
        if not self.facts.is_paused:
            raise ApplicationError("nobody has paused the execution", type="NotPaused", non_retryable=True)

    @cancel.validator
    def check_cancel(self) -> None:
        """Refuse to cancel what has ended."""
        self.require_open()

    def require_open(self) -> None:
        """Updates come too late once the final status is decided."""
        if self.facts.status.is_terminal:
            raise ApplicationError("the execution has ended", type="AlreadyEnded", non_retryable=True)

    def require_waiting_soon(self, call_id: str, need: CallNeed) -> None:
        """Only a call that waits for people can be answered; which ones do, only the model's answer says."""
        if not self.facts.awaits_reply:
            self.require_waiting(call_id, need)

    def require_waiting(self, call_id: str, need: CallNeed) -> None:
        """Refuse to settle what nobody asks."""
        waiting = {call.id for call in self.facts.pending if call.need is need}
        if call_id not in waiting:
            kind = "question" if need is CallNeed.INPUT else "approval"
            raise ApplicationError(f"no {kind} is open for this call", type="NotWaiting", non_retryable=True)

    async def until_asked(self, call_id: str, need: CallNeed) -> None:
        """A person has spoken, maybe before we know that they were asked.

        When the worker is lost that has just asked them, what they say and what the model answered arrive in
        one workflow task, and updates come first in it.
        """
        await workflow.wait_condition(lambda: not self.facts.awaits_reply)
        self.require_waiting(call_id, need)

    def own_need(self, call_id: str) -> CallNeed:
        """What a call needs that a person has allowed."""
        called = (call.name for call in self.facts.pending if call.id == call_id)
        tools = (self.tools.get(name) for name in called)
        return next((tool.need for tool in tools if tool), CallNeed.RUN)


def _waiting(decision: Decision) -> tuple[CallFacts, ...]:
    match decision:
        case AwaitApproval(calls):
            return calls
        case AwaitInput(call):
            return (call,)
        case _:
            return ()
