"""The workflow of an agent execution. It carries out the decisions of the loop and keeps no state but facts.

`decide` is the only source of decisions. Every method that does something folds its result into `self.facts`,
and the loop then asks for the next decision. Updates from users (`updates.py`) and signals from children
(`children.py`) change the facts as well. Signals from users (`people_signals.py`) become updates.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from everstep.activities.agent import AgentActivities
    from everstep.activities.budget_failure import find_exhausted_budget
    from everstep.activities.contracts import (
        InferInput,
        ProcessInput,
        ToolInput,
        ToolOutput,
        step_with_outputs,
    )
    from everstep.agent_domain.agents.plan import PlannedTool, Profile
    from everstep.agent_domain.errors import HookFailed
    from everstep.agent_domain.loop.compact_outcomes import compact
    from everstep.agent_domain.loop.continuation import (
        ContinuationDecision,
        ContinuationEvaluation,
        ContinuationOutcome,
    )
    from everstep.agent_domain.loop.loop import (
        AwaitApproval,
        AwaitBudget,
        AwaitInput,
        AwaitResume,
        Infer,
        Process,
        RunSubagents,
        RunTools,
        Stop,
        decide,
    )
    from everstep.agent_domain.loop.status import ExecutionStatus, StopReason, final_situation
    from everstep.agent_domain.loop.step_error import StepError
    from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
    from everstep.workflows.activity_options import (
        BRIEF_MODEL,
        LONGEST_TASK,
        MODEL,
        QUICK_TOOL,
        ROLL_OVER_EVENTS,
        SHORTEST_TIMER,
        TOOL,
    )
    from everstep.workflows.children import ChildExecutions
    from everstep.workflows.contracts import WORKFLOW, ExecutionInput, ExecutionResult
    from everstep.workflows.execution_base import gather_all
    from everstep.workflows.foreign_workflows import find_foreign_workflow
    from everstep.workflows.people_signals import SignalHandlers
    from everstep.workflows.updates import UpdateHandlers
    from everstep.workflows.workflow_closing import ClosingExecution


HOOK_FAILED = HookFailed.__name__

BURST_PROFILE = "burst-profile"
"""Patch id. Executions that a worker of an older release began run their model calls as activities."""

UNKNOWN_EFFECT_IS_TOOL_ERROR = "unknown-effect-is-tool-error"
"""Patch id. Executions that met an unknown effect under the older rule keep that rule on replay."""


@workflow.defn(name=WORKFLOW)
class AgentExecution(UpdateHandlers, SignalHandlers, ChildExecutions, ClosingExecution):
    """One execution, from its first step to its stop reason."""

    # The arguments are unchecked: any client of the namespace can start a workflow of this type.
    def __new__(cls, *arguments: object) -> Any:
        """Return this workflow, or a stand-in that fails if the arguments are not an execution's."""
        return find_foreign_workflow(arguments) or super().__new__(cls)

    @workflow.init
    def __init__(self, start: ExecutionInput) -> None:  # pyright: ignore[reportInconsistentConstructor]
        super().__init__(start)
        self.brief_time = timedelta()
        """How long local model calls have kept the current workflow task open."""

    @workflow.run
    async def run(self, start: ExecutionInput) -> ExecutionResult:
        """Run the execution to its end. Cancelling the workflow cancels the execution.

        Raises:
            ApplicationError: The execution failed; its details are the result.
            CancelledError: It was cancelled.
        """
        del start
        work = asyncio.create_task(self.carry_out())
        while not work.done():
            try:
                await workflow.wait([work])
            except asyncio.CancelledError:
                # Cancelled through Temporal: keep running so that the final status is recorded.
                self.cancel_now()
        return await self.close(work.result())

    async def carry_out(self) -> ExecutionResult:
        """Run the loop; end the execution as failed if it raises.

        Temporal retries a workflow task that raises forever, so an unexpected exception has to end the
        execution.
        """
        try:
            return await self.loop()
        except Exception as error:  # noqa: BLE001 -- see above
            return await self.crash(error)

    async def loop(self) -> ExecutionResult:
        """Ask for a decision and carry it out, until the decision is to stop."""
        rules = self.plan.rules()
        while True:
            decision = decide(self.facts, rules, workflow.now())
            match decision:
                case Infer():
                    await self.interruptible(self.infer(decision))
                case RunTools(calls):
                    await self.interruptible(self.run_tools(calls))
                case RunSubagents(calls):
                    await self.run_subagents(calls)
                case AwaitApproval() | AwaitInput() | AwaitBudget() | AwaitResume():
                    await self.wait_while(decision, lambda: decide(self.facts, rules, workflow.now()))
                case Process(number):
                    await self.interruptible(self.process(number))
                case Stop():
                    if result := await self.stop(decision):
                        return result
            await self.roll_over()

    # Carrying out decisions.

    async def infer(self, decision: Infer) -> None:
        """Start the step, unless it has started already, and ask the model."""
        if decision.outcome is not None:
            facts = self.facts.recorded(decision.outcome) if self.facts.is_applied else self.facts
            self.facts = facts.step_started(workflow.now(), decision.hears)
        outcome, clock = decision.outcome, self.facts.clock
        if outcome is None and self.facts.decision_clock:
            # The step has waited for a budget, and the decision to take it is recorded with its reply.
            outcome, clock = self.facts.last_outcome, self.facts.decision_clock
        has_outcome = outcome is not None and decision.number > 1
        request = InferInput(
            ref=self.start.ref,
            number=decision.number,
            outcome=compact(outcome) if outcome and has_outcome else None,
            hears=decision.hears,
            model_attempts=self.plan.model_attempts,
            info=self.facts.state_info if self.plan.debug else None,
            retry_seconds=self.plan.retry_seconds,
            marks=self.facts.marks,
            reminder=decision.reminder,
            is_last_turn=decision.is_last_turn,
            clock=clock if has_outcome else None,
            profile=self.profile,
        )
        self.describe(f"asking the model for step {decision.number}")
        try:
            step = await self.ask_model(request)
        except ActivityError as error:
            exhausted = find_exhausted_budget(error)
            if exhausted is None:
                raise
            self.facts = self.facts.budget_exhausted(exhausted, decision.hears, decision.reminder)
            self.describe(f"{exhausted.scope} budget exhausted before step {decision.number}")
            return
        await self.fold_in_step(step)

    async def ask_model(self, request: InferInput) -> StepFacts:
        """Ask the model: with the profile `burst` as a local activity, for as long as that is short."""
        summary = f"step {request.number}"
        if request.profile is Profile.BURST:
            if self.brief_time >= LONGEST_TASK:
                # Ends the workflow task, so that messages from people arrive.
                await workflow.sleep(SHORTEST_TIMER)
                self.brief_time = timedelta()
            began = workflow.now()
            step = await workflow.execute_local_activity_method(
                AgentActivities.infer_briefly, request, summary=summary, **BRIEF_MODEL
            )
            self.brief_time += workflow.now() - began
            if step is not None:
                return step
            self.brief_time = timedelta()
        return await workflow.execute_activity_method(
            AgentActivities.infer, request, summary=summary, priority=self.priority, **MODEL
        )

    @property
    def profile(self) -> Profile:
        """Where model calls are run; as before in a history in which an older release did not know."""
        is_burst = self.plan.profile is Profile.BURST and workflow.patched(BURST_PROFILE)
        return Profile.BURST if is_burst else Profile.REGULAR

    async def run_tools(self, calls: tuple[CallFacts, ...]) -> None:
        """Run these calls concurrently."""
        number = self.step.number
        self.describe(f"running {', '.join(call.name for call in calls)} for step {number}")
        outputs = await gather_all(*(self.await_call(call, self.run_tool(number, call)) for call in calls))
        # Read `self.step` only now: an update may have decided about another call of it during the await.
        await self.fold_in_step(step_with_outputs(self.step, outputs))

    async def fold_in_step(self, step: StepFacts) -> None:
        """Fold in new facts of the current step; an exception that escaped one of its calls ends the step."""
        if step.has_unknown_effect and not workflow.patched(UNKNOWN_EFFECT_IS_TOOL_ERROR):
            self.facts = replace(self.facts, unknown_effects_apart=True)
        error = step.escaped_error(throws_tool_failures=self.plan.throws_tool_failures)
        if error is None:
            self.facts = self.facts.with_step(step)
            return
        self.fail_step(error, step, step.seconds)
        failed = "a hook" if error.exception == HOOK_FAILED else "a tool"
        failure = f"{failed} failed; the error of its call has the details"
        await self.settle(ExecutionStatus.RUNNING, step=self.facts.current_step, failure=failure)

    async def run_tool(self, number: int, call: CallFacts) -> ToolOutput:
        """Run one call, as a local activity if the tool is declared quick."""
        tool = self.tools.get(call.name) or PlannedTool(name=call.name)
        request = ToolInput(
            ref=self.start.ref,
            agent=self.plan.agent,
            number=number,
            call_id=call.id,
            effect=tool.effect,
            need=tool.need,
            marks=self.facts.marks,
        )
        summary = f"step {number} · {call.name}"
        if tool.quick:
            return await workflow.execute_local_activity_method(
                AgentActivities.run_tool, request, summary=summary, **QUICK_TOOL
            )
        return await workflow.execute_activity_method(
            AgentActivities.run_tool, request, summary=summary, priority=self.priority, **TOOL
        )

    @property
    def priority(self) -> Priority:
        """The tenant and the user, for the places of workers.

        Activities inherit it in Temporal's queues, but the server does not name an inherited priority to a
        worker that receives an activity with the answer to its workflow task. The weight is always inherited.
        """
        return Priority(fairness_key=workflow.info().priority.fairness_key)

    async def process(self, number: int) -> None:
        """Run the processors on the completed step."""
        request = ProcessInput(self.start.ref, self.plan.agent, number, self.facts.usage, self.facts.marks)
        self.describe(f"processing step {number}")
        output = await workflow.execute_activity_method(
            AgentActivities.process,
            request,
            summary=f"step {number} · processors",
            priority=self.priority,
            **MODEL,
        )
        facts = self.facts.processed().spent(output.besides.usage).wished(output.besides.wishes)
        self.facts = (
            facts.failed(output.error, output.seconds) if output.error else facts.worked(output.seconds)
        )

    async def stop(self, decision: Stop) -> ExecutionResult | None:
        """Record the final status, then wait until every update handler has finished.

        Returns None, with the execution cancelled, if a cancel was stored before this end. Its update may
        come later, or another worker may have accepted it in a later attempt of this workflow task.
        """
        outcome, before, step = decision.outcome, self.facts, self.facts.current_step
        completes_step = step is not None and self.facts.is_applied
        self.facts = self.facts.ended(outcome, self.plan.error_policy)
        situation = final_situation(self.facts.status, outcome.stop_reason)
        step = self.facts.current_step
        self.describe(f"{situation.execution}; recording the end")
        is_recorded = await self.settle(
            situation.execution,
            step=step if outcome.failure else None,
            failure=outcome.failure.message if outcome.failure else None,
            completes_step=completes_step,
            outcome=compact(outcome),
            stop_reason=outcome.stop_reason,
            budget=self.facts.exhausted,
            elapsed_seconds=self.facts.at(workflow.now()).clock[0],
            steered=self.facts.steered,
        )
        if not is_recorded:
            self.facts = before
            self.cancel_now()
            return None
        status, reason = self.facts.status, outcome.stop_reason
        if self.stored_end:
            # Its row was closed by another process, or another cancel. Temporal shows the same.
            status, reason = self.stored_end.agent_status, self.stored_end.stop_reason
        self.describe_end(final_situation(status, reason), reason, outcome)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return ExecutionResult(
            status,
            reason,
            self.facts.step_count,
            self.facts.usage,
            self.facts.steered,
            self.facts.state_info.cumulative_execution_seconds,
            self.facts.child_tokens,
            self.facts.child_cost_usd,
        )

    # Cancellation.

    async def interruptible(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it completes or the execution is cancelled.

        An activity that failed without reporting a result becomes a failed step.
        """
        self.work = asyncio.create_task(work)
        try:
            await self.work
        except asyncio.CancelledError:
            if not self.is_cancelled:
                raise
        except ActivityError as error:
            if not is_cancelled_exception(error):
                await self.record_failure(error)
        finally:
            self.work = None
        # Also when the work completed before the cancel reached it: whatever the step still waits for is
        # void.
        if self.is_cancelled:
            self.abandon_step()

    # Unexpected errors, and long histories.

    async def crash(self, error: Exception) -> ExecutionResult:
        """End the execution after an unexpected exception, as if a criterion had raised it."""
        workflow.logger.error("the execution ends: %s", type(error).__name__, exc_info=error)
        result = None
        try:
            # The second time as cancelled, if a cancel was stored before the first.
            while result is None:
                result = await self.stop(self.crash_decision(error))
        except Exception as again:  # noqa: BLE001 -- Temporal would retry this forever, too
            # The end cannot be recorded either, for example because the row has been deleted.
            workflow.logger.error("the end cannot be recorded: %s", type(again).__name__, exc_info=again)
            self.describe(f"ended by {type(error).__name__}; the end could not be recorded")
            raise ApplicationError(
                f"ended by {type(error).__name__}; the end could not be recorded", non_retryable=True
            ) from None
        return result

    def crash_decision(self, error: Exception) -> Stop:
        """Return the decision that ends the execution; a cancel outweighs the exception."""
        name, forbid = type(self).__name__, ContinuationDecision.FORBID
        reason = StopReason.USER_REQUESTED if self.is_cancelled else StopReason.ERROR
        vote = ContinuationEvaluation.from_decision(name, forbid)
        vote = replace(vote, stop_reason=reason, error=None if self.is_cancelled else StepError.of(error))
        return Stop(ContinuationOutcome(forbid, False, name, reason, (vote,)))

    async def roll_over(self) -> None:
        """Continue as new at a step boundary once the history is long; only the facts are carried over."""
        info = workflow.info()
        is_long = info.get_current_history_length() >= ROLL_OVER_EVENTS
        if self.facts.pending or not (is_long or info.is_continue_as_new_suggested()):
            return
        self.describe("continues in the next run of this workflow")
        self.is_rolling_over = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            replace(self.start, facts=self.facts, settlements=self.settlements, refused=self.refused)
        )
