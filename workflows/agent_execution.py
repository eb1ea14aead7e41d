"""An agent execution: carries out what the loop decides, and remembers nothing but facts.

The only source of decisions is `decide`. Every method that does something folds its result into
`self.facts`, and the loop asks again. People act through updates, which change the facts too.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.agent import AgentActivities
    from activities.contracts import InferInput, PreviousStep, SettleInput, ToolInput, ToolOutput
    from agent_domain.continuation import (
        ContinuationDecision,
        ContinuationEvaluation,
        ContinuationOutcome,
        compact,
    )
    from agent_domain.facts import ExecutionFacts
    from agent_domain.loop import (
        AwaitApproval,
        AwaitInput,
        AwaitResume,
        Decision,
        Infer,
        RunSubagents,
        RunTools,
        Stop,
        decide,
    )
    from agent_domain.plan import PlannedTool
    from agent_domain.status import ExecutionStatus, StopReason, ended
    from agent_domain.step_error import StepError
    from agent_domain.step_facts import CallFacts, CallNeed, StepFacts
    from agent_domain.stop_signal import StopSignal
    from workflows.activity_options import MODEL, QUICK_TOOL, ROLL_OVER_EVENTS, SETTLE, TOOL
    from workflows.contracts import WORKFLOW, Answered, ExecutionInput, ExecutionProgress, ExecutionResult

CANCELLED = StopSignal(StopReason.USER_REQUESTED, "Cancelled", source="cancel")


@workflow.defn(name=WORKFLOW)
class AgentExecution:
    """One execution, from its first step to its stop reason."""

    @workflow.init
    def __init__(self, start: ExecutionInput) -> None:
        self.start = start
        self.plan = start.plan
        self.tools = {tool.name: tool for tool in start.plan.tools}
        self.facts = start.facts or ExecutionFacts().entered(workflow.now())
        self.settlements = start.settlements
        self.status = ExecutionStatus.RUNNING
        self.work: asyncio.Task[None] | None = None

    @workflow.run
    async def run(self, start: ExecutionInput) -> ExecutionResult:
        """Carry out until it ends; whoever cancels the workflow cancels the execution."""
        del start
        work = asyncio.create_task(self.carry_out())
        while not work.done():
            try:
                await workflow.wait([work])
            except asyncio.CancelledError:
                # Temporal's own cancel is no reason to leave without writing down how it ended.
                self.stop_now()
        return work.result()

    async def carry_out(self) -> ExecutionResult:
        """Decide, carry out, fold in, until something says stop.

        A workflow that raises is tried again for ever. So what nobody foresaw ends the execution.
        """
        try:
            return await self.loop()
        except Exception as error:  # noqa: BLE001 -- see above
            return await self.crash(error)

    async def loop(self) -> ExecutionResult:
        """Ask for a decision, carry it out, ask again."""
        rules = self.plan.rules()
        while True:
            decision = decide(self.facts, rules, workflow.now())
            match decision:
                case Infer():
                    await self.interruptible(self.infer(decision))
                case RunTools(calls) | RunSubagents(calls):
                    await self.interruptible(self.run_tools(calls))
                case AwaitApproval() | AwaitInput() | AwaitResume():
                    await self.wait_while(decision, lambda: decide(self.facts, rules, workflow.now()))
                case Stop():
                    return await self.stop(decision)
            await self.roll_over()

    # Carrying out.

    async def infer(self, decision: Infer) -> None:
        """Begin the step, if it has not begun, and ask the model."""
        previous = self.previous_step()
        if decision.outcome is not None:
            facts = self.facts.recorded(decision.outcome) if self.facts.is_applied else self.facts
            self.facts = facts.step_started(workflow.now(), decision.hears)
        request = InferInput(
            ref=self.start.ref,
            agent=self.plan.agent,
            number=decision.number,
            previous=previous,
            outcome=compact(decision.outcome) if decision.outcome and decision.number > 1 else None,
            hears=decision.hears,
            model_attempts=self.plan.model_attempts,
        )
        self.describe(f"asking the model for step {decision.number}")
        step = await workflow.execute_activity_method(
            AgentActivities.infer, request, summary=f"step {decision.number} · model", **MODEL
        )
        self.facts = self.facts.with_step(step)

    async def run_tools(self, calls: tuple[CallFacts, ...]) -> None:
        """Run these calls, all at once."""
        number = self.step.number
        self.describe(f"running {', '.join(call.name for call in calls)} for step {number}")
        outputs = await asyncio.gather(*(self.run_tool(number, call) for call in calls))
        # Looked at anew: meanwhile people may have decided about another call of this step.
        settled = self.step.settled(
            (output.call for output in outputs), max(output.seconds for output in outputs)
        )
        self.facts = self.facts.with_step(settled)

    @property
    def step(self) -> StepFacts:
        """The step under way, where there has to be one."""
        if self.facts.current_step is None:
            raise ApplicationError("there are calls, and no step that made them", non_retryable=True)
        return self.facts.current_step

    async def run_tool(self, number: int, call: CallFacts) -> ToolOutput:
        """Run one call: as a local activity if its tool returns at once."""
        tool = self.tools.get(call.name) or PlannedTool(name=call.name)
        request = ToolInput(
            ref=self.start.ref,
            agent=self.plan.agent,
            number=number,
            call_id=call.id,
            effect=tool.effect,
            need=tool.need,
        )
        summary = f"step {number} · {call.name}"
        if tool.quick:
            return await workflow.execute_local_activity_method(
                AgentActivities.run_tool, request, summary=summary, **QUICK_TOOL
            )
        return await workflow.execute_activity_method(
            AgentActivities.run_tool, request, summary=summary, **TOOL
        )

    def previous_step(self) -> PreviousStep | None:
        """The step that the evaluation now under way judged, if there was one."""
        step, began = self.facts.current_step, self.facts.step_started_at
        if step is None or began is None or not self.facts.is_applied:
            return None
        duration = (workflow.now() - began) / timedelta(milliseconds=1)
        return PreviousStep(step.has_tool_calls, len(step.errors), step.finish_reason, step.usage, duration)

    async def wait_while(self, decision: Decision, ask: Callable[[], Decision]) -> None:
        """Hold still, without a worker, until something else is to be done."""
        calls = _waiting(decision)
        await self.settle(ExecutionStatus.PAUSED, waiting=tuple(call.id for call in calls))
        self.describe(f"waiting for people: {', '.join(call.name for call in calls) or 'paused'}")
        try:
            await workflow.wait_condition(lambda: ask() != decision, timeout=self.patience(decision))
        except TimeoutError:
            # The tool itself knows what holds without an answer.
            self.let_run(calls[0].id)
        self.facts = self.facts.entered(workflow.now())
        await self.settle(ExecutionStatus.RUNNING)

    def patience(self, decision: Decision) -> timedelta | None:
        """How long an answer may take; None for any time, which approvals and pauses always have."""
        tool = self.tools.get(decision.call.name) if isinstance(decision, AwaitInput) else None
        return timedelta(seconds=tool.wait_seconds) if tool and tool.wait_seconds is not None else None

    async def stop(self, decision: Stop) -> ExecutionResult:
        """Write down how it ended, once every update has had its answer."""
        outcome, previous = decision.outcome, self.previous_step()
        self.facts = self.facts.ended(outcome, self.plan.error_policy)
        situation = ended(self.facts.status, outcome.stop_reason)
        step = self.facts.current_step
        await self.settle(
            situation.execution,
            step=step if outcome.failure else None,
            failure=outcome.failure.message if outcome.failure else None,
            previous=previous,
            outcome=compact(outcome),
            stop_reason=outcome.stop_reason,
        )
        await workflow.wait_condition(workflow.all_handlers_finished)
        return ExecutionResult(
            self.facts.status,
            outcome.stop_reason,
            self.facts.step_count,
            self.facts.usage,
            self.facts.steered,
        )

    async def settle(self, status: ExecutionStatus, **told: Any) -> None:
        """Write down where the execution stands; tries until it is written."""
        self.settlements += 1
        self.status = status
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
            **told,
        )
        await workflow.execute_local_activity_method(
            AgentActivities.settle, request, summary=f"settle · {status}", **SETTLE
        )

    # Being interrupted.

    async def interruptible(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this unless somebody cancels; what no activity could report becomes a failure step."""
        self.work = asyncio.create_task(work)
        try:
            await self.work
        except asyncio.CancelledError:
            if not self.is_cancelled:
                raise
        except ActivityError as error:
            if not is_cancelled_exception(error):
                await self.fail(error)
        finally:
            self.work = None
        # Also when the work was done before the cancel reached it: what it still waits for is void.
        if self.is_cancelled:
            self.give_up()

    async def fail(self, error: ActivityError) -> None:
        """An activity gave up without a result: the error policy decides about that too."""
        cause = error.cause or error
        self.facts = self.facts.failed(StepError("", None, None, type(cause).__name__))
        await self.settle(ExecutionStatus.RUNNING, step=self.facts.current_step, failure=str(cause))

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

    async def crash(self, error: Exception) -> ExecutionResult:
        """Nobody foresaw this: it ends the execution like a criterion that raised."""
        workflow.logger.error("the execution ends: %s", type(error).__name__, exc_info=error)
        name, forbid, reason = type(self).__name__, ContinuationDecision.FORBID, StopReason.ERROR
        vote = ContinuationEvaluation.from_decision(name, forbid)
        vote = replace(vote, stop_reason=reason, error=StepError.of(error))
        try:
            return await self.stop(Stop(ContinuationOutcome(forbid, False, name, reason, (vote,))))
        except Exception as again:  # noqa: BLE001 -- it must not be tried again for ever either
            # Nor could it be written down, such as when its row is gone.
            workflow.logger.error("its end cannot be written: %s", type(again).__name__, exc_info=again)
            raise ApplicationError(
                f"ended by {type(error).__name__}, which could not be written down", non_retryable=True
            ) from None

    async def roll_over(self) -> None:
        """Cut the history at a step boundary, before it gets long; the facts are all there is to carry."""
        info = workflow.info()
        is_long = info.get_current_history_length() >= ROLL_OVER_EVENTS
        if self.facts.pending or not (is_long or info.is_continue_as_new_suggested()):
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(replace(self.start, facts=self.facts, settlements=self.settlements))

    def describe(self, activity: str) -> None:
        """What the Temporal UI shows while this is going on."""
        facts = self.facts
        workflow.set_current_details(
            f"**{self.plan.agent}**: {activity}\n\n"
            f"- steps: {facts.step_count} of {self.plan.max_steps or 'any number'}\n"
            f"- tokens: {facts.usage.total} of {self.plan.max_tokens or 'any number'}\n"
            f"- last decision: {facts.last_outcome.resolved_by if facts.last_outcome else 'none yet'}"
        )

    # People.

    @workflow.query
    def state(self) -> ExecutionProgress:
        """Where the execution stands."""
        return ExecutionProgress(self.status, self.facts)

    @workflow.update
    async def submit_input(self, answered: Answered) -> None:
        """A person has answered; the answer is in the store."""
        await self.resolve(answered.call_id, CallNeed.INPUT)

    @submit_input.validator
    def check_input(self, answered: Answered) -> None:
        """Refuse an answer to nothing."""
        self.require_waiting_soon(answered.call_id, CallNeed.INPUT)

    @workflow.update
    async def resolve_approval(self, answered: Answered) -> None:
        """A person has decided about a call; the decision is in the store."""
        await self.resolve(answered.call_id, CallNeed.APPROVAL)

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
            raise ApplicationError("the execution is not paused", type="NotPaused", non_retryable=True)

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

    async def resolve(self, call_id: str, need: CallNeed) -> None:
        """A person has spoken.

        People may know more than we do: when the worker is lost that has just asked them, what they say and
        what the model answered arrive in one workflow task, and updates come first in it.
        """
        await workflow.wait_condition(lambda: not self.facts.awaits_reply)
        self.require_waiting(call_id, need)
        self.let_run(call_id)

    def require_waiting(self, call_id: str, need: CallNeed) -> None:
        """Refuse to settle what nobody asks."""
        waiting = {call.id for call in self.facts.pending if call.need is need}
        if call_id not in waiting:
            kind = "question" if need is CallNeed.INPUT else "approval"
            raise ApplicationError(f"no {kind} is open for this call", type="NotWaiting", non_retryable=True)

    def let_run(self, call_id: str) -> None:
        """A call has what it waited for."""
        step = self.facts.current_step
        if step and not self.facts.is_recorded:
            self.facts = self.facts.with_step(step.needing(call_id, CallNeed.RUN))


def _waiting(decision: Decision) -> tuple[CallFacts, ...]:
    match decision:
        case AwaitApproval(calls):
            return calls
        case AwaitInput(call):
            return (call,)
        case _:
            return ()
