"""Subagents: calls that run as executions of their own, each as a child workflow.

A child's id is derived from its call, so a restarted workflow finds the child it started before. An execution
waits for all children of a step, even when it is cancelled: it cancels them first and ends after them.
"""

import asyncio
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from everstep.activities.contracts import CloseInput, ReportInput, SpawnInput, ToolOutput, settled
    from everstep.activities.subagents import SubagentActivities
    from everstep.agent_domain.agents.plan import ExecutionPlan
    from everstep.agent_domain.agents.spawning import child_ref
    from everstep.agent_domain.ids import ExecutionRef
    from everstep.agent_domain.loop.facts import StateInfo
    from everstep.agent_domain.loop.status import ExecutionStatus
    from everstep.agent_domain.loop.step_facts import CallFacts
    from everstep.workflows.activity_options import CHILD
    from everstep.workflows.contracts import (
        CHILD_STANDS,
        PARENT_STANDS,
        WORKFLOW,
        ChildStanding,
        ExecutionInput,
        ExecutionResult,
        workflow_id,
    )
    from everstep.workflows.execution_base import Standing, together
    from everstep.workflows.search_attributes import at_start

T = TypeVar("T")


class Children(Standing):
    """The part of an execution that runs child executions."""

    def __init__(self, start: ExecutionInput) -> None:
        super().__init__(start)
        self.children: dict[UUID, ExecutionStatus] = {}
        """The status of each child that has not ended."""
        self.paused_children: set[UUID] = set()
        """Children that were sent a pause because this execution was paused."""
        self.child_workflow_ids: dict[UUID, str] = {}
        """The workflow ids of the children that have started."""
        self.spent: dict[UUID, tuple[float, int]] = {}
        """Seconds and tokens of children that have ended, until the results of their calls include them."""

    async def run_subagents(self, calls: tuple[CallFacts, ...]) -> None:
        """Run these calls as child executions, concurrently."""
        number = self.step.number
        waiting = f"waiting for {', '.join(call.name for call in calls)} of step {number}"
        self.describe(waiting)
        # Not cancelled directly: each call watches `is_cancelled` itself and waits for its child to end.
        ending = asyncio.ensure_future(together(*(self.run_subagent(number, call) for call in calls)))
        passing = asyncio.ensure_future(self.pass_on_pauses(ending))
        await self.stand_as_they_do(ending, waiting)
        await passing
        try:
            outputs = await ending
        except ActivityError as error:
            self.charge()
            if not self.is_cancelled:
                await self.fail(error)
            return
        answered = [output for output in outputs if output]
        if answered and not self.is_cancelled:
            self.facts = self.facts.with_step(settled(self.step, answered))
            self.spent.clear()
        else:
            self.charge()

    def charge(self) -> None:
        """Add what children used to the facts when no call result will report it."""
        if self.spent:
            tokens = sum(tokens for _, tokens in self.spent.values())
            self.facts = self.facts.charged(tokens).worked(max(seconds for seconds, _ in self.spent.values()))
            self.spent.clear()

    async def stand_as_they_do(self, ending: asyncio.Future[Any], waiting: str) -> None:
        """Settle as paused while every child that is still running is paused."""

        def is_paused() -> bool:
            return bool(self.children) and set(self.children.values()) == {ExecutionStatus.PAUSED}

        while True:
            await workflow.wait_condition(lambda: ending.done() or is_paused())
            if ending.done():
                return
            self.describe(f"{waiting}, where people are asked")
            await self.settle(ExecutionStatus.PAUSED)
            await workflow.wait_condition(lambda: ending.done() or not is_paused())
            self.facts = self.facts.entered(workflow.now())
            self.describe(waiting)
            await self.settle(ExecutionStatus.RUNNING)

    async def pass_on_pauses(self, ending: asyncio.Future[Any]) -> None:
        """Send pauses and resumes of this execution on to its children, except to those that have ended."""

        def to_tell() -> set[UUID]:
            wanted = set(self.child_workflow_ids) if self.facts.is_paused else set[UUID]()
            return wanted ^ (self.paused_children & set(self.child_workflow_ids))

        while True:
            await workflow.wait_condition(lambda: ending.done() or bool(to_tell()))
            if ending.done():
                self.paused_children.clear()
                return
            for child in sorted(to_tell()):
                self.paused_children ^= {child}
                await self.tell_child(child, is_paused=child in self.paused_children)

    async def tell_child(self, child: UUID, *, is_paused: bool) -> None:
        """Signal a child to pause or to resume."""
        handle = workflow.get_external_workflow_handle(self.child_workflow_ids.get(child, ""))
        try:
            await handle.signal(PARENT_STANDS, is_paused)
        except FailureError as error:
            workflow.logger.info("a child ended before it was signalled: %s", type(error).__name__)

    async def run_subagent(self, number: int, call: CallFacts) -> ToolOutput | None:
        """Run one call: accept the child, wait for its end, record the result unless cancelled."""
        ref, agent = self.start.ref, self.plan.agent
        child, summary = child_ref(ref, call.id), f"step {number} · {call.name}"
        self.children[child.execution_id] = ExecutionStatus.RUNNING
        try:
            clocks = StateInfo(session_execution_seconds=self.session_seconds)
            spawn = SpawnInput(
                ref,
                agent,
                number,
                call.id,
                self.tokens_left,
                clocks.session_execution_seconds,
                self.plan.broadcast,
            )
            spawned = await self.unless_cancelled(
                workflow.start_activity_method(SubagentActivities.spawn, spawn, summary=summary, **CHILD)
            )
            if spawned and spawned.plan is None:
                return spawned.answered
            ended = await self.ended(child, spawned.plan if spawned else None, clocks)
            self.children[child.execution_id] = ExecutionStatus.RUNNING
            report = ReportInput(ref, agent, number, call.id, is_lost=ended is None)
            if ended:
                self.spent[child.execution_id] = (ended.seconds, ended.tokens)
                report = replace(report, seconds=ended.seconds, tokens=ended.tokens)
            if self.is_cancelled:
                return None
            summary = f"{summary} · report"
            return await self.unless_cancelled(
                workflow.start_activity_method(SubagentActivities.report, report, summary=summary, **CHILD)
            )
        finally:
            del self.children[child.execution_id]
            self.child_workflow_ids.pop(child.execution_id, None)

    async def ended(
        self, child: ExecutionRef, plan: ExecutionPlan | None, clocks: StateInfo
    ) -> ExecutionResult | None:
        """Return how a child ended. If it could not record its own end, an activity records it."""
        ended = await self.lived(child, plan, clocks) if plan and not self.is_cancelled else None
        if ended is None:
            status = ExecutionStatus.CANCELLED if self.is_cancelled else ExecutionStatus.FAILED
            await workflow.execute_activity_method(
                SubagentActivities.close, CloseInput(child, status), summary="end the child", **CHILD
            )
        return ended

    async def lived(
        self, child: ExecutionRef, plan: ExecutionPlan, clocks: StateInfo
    ) -> ExecutionResult | None:
        """Run a child workflow to its end; None if it was ended from outside."""
        start = ExecutionInput(child, plan, self.start.search_attributes, is_subagent=True, clocks=clocks)
        try:
            handle: ChildWorkflowHandle[Any, ExecutionResult] = await workflow.start_child_workflow(
                WORKFLOW,
                start,
                id=workflow_id(child),
                result_type=ExecutionResult,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                # If an operator terminates this workflow, the child still records its own end.
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                search_attributes=at_start(start),
                static_summary=plan.agent,
            )
            self.child_workflow_ids[child.execution_id] = handle.id
            return await self.unless_cancelled(handle)
        except (ChildWorkflowError, WorkflowAlreadyStartedError):
            return None

    async def unless_cancelled(self, work: asyncio.Task[T]) -> T | None:
        """Return the result of `work`, or None if the execution is cancelled first.

        A cancel is passed on to `work`, and this waits until it has ended.
        """
        await workflow.wait_condition(lambda: work.done() or self.is_cancelled)
        if not work.done():
            work.cancel()
        try:
            return await work
        except (FailureError, asyncio.CancelledError):
            if not self.is_cancelled:
                raise
            return None

    @workflow.signal(name=PARENT_STANDS)
    def parent_stands(self, is_paused: bool) -> None:
        """Pause or resume together with the parent execution."""
        if not self.facts.status.is_terminal:
            self.facts = self.facts.paused() if is_paused else self.facts.resumed(workflow.now())

    @property
    def tokens_left(self) -> int | None:
        """Tokens that this execution may still use; None if unlimited."""
        if self.plan.max_tokens is None:
            return None
        besides = self.step.besides
        under_way = (self.step.usage + besides.usage).total + besides.child_tokens
        return max(1, self.plan.max_tokens - self.facts.tokens - under_way)

    @property
    def session_seconds(self) -> float:
        """Seconds that the session has worked: earlier executions, this one, and the current step."""
        return self.facts.state_info.session_execution_seconds + self.facts.seconds_under_way

    @workflow.signal(name=CHILD_STANDS)
    def child_stands(self, standing: ChildStanding) -> None:
        """Record that a child was paused or resumed."""
        if standing.execution_id in self.children:
            self.children[standing.execution_id] = standing.status
