"""Subagents: calls that run as executions of their own, each as a child workflow.

A child's id is derived from its call, so a workflow that was reset finds the child it started before, and
waits for its end. An execution waits for all children of a step, even when it is cancelled: it cancels them
first and ends after them.
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
from temporalio.workflow import (
    ActivityHandle,
    ChildWorkflowCancellationType,
    ChildWorkflowHandle,
    ParentClosePolicy,
)

with workflow.unsafe.imports_passed_through():
    from everstep.activities.contracts import (
        CloseInput,
        ReportInput,
        SpawnInput,
        SpawnOutput,
        ToolOutput,
        step_with_outputs,
    )
    from everstep.activities.subagents import SubagentActivities
    from everstep.agent_domain.agents.spawning import child_ref, tokens_left
    from everstep.agent_domain.ids import ExecutionRef
    from everstep.agent_domain.loop.budget import inherited_budgets
    from everstep.agent_domain.loop.facts import StateInfo
    from everstep.agent_domain.loop.status import ExecutionStatus
    from everstep.agent_domain.loop.step_facts import CallFacts
    from everstep.workflows.activity_options import CHILD
    from everstep.workflows.contracts import (
        CHILD_STATUS_SIGNAL,
        PARENT_PAUSE_SIGNAL,
        WORKFLOW,
        ChildStatus,
        ExecutionInput,
        ExecutionResult,
        workflow_id,
    )
    from everstep.workflows.execution_base import ExecutionBase, gather_all
    from everstep.workflows.listing import details_of, memo_of, summary_of
    from everstep.workflows.search_attributes import initial_attributes
    from everstep.workflows.workflow_closing import carried_result

T = TypeVar("T")

WAITS_FOR_FOUND_CHILDREN = "waits-for-found-children"
"""Patch id. Under the older rule a parent that was reset closed the child that it found running.

It is asked for only where such a parent is paused or cancelled, or its child is paused: without that, the
commands are the same under both rules.
"""


class ChildExecutions(ExecutionBase):
    """The part of an execution that runs child executions."""

    def __init__(self, start: ExecutionInput) -> None:
        super().__init__(start)
        self.children: dict[UUID, ExecutionStatus] = {}
        """The status of each child that has not ended."""
        self.paused_children: set[UUID] = set()
        """Children that were sent a pause because this execution was paused."""
        self.child_workflow_ids: dict[UUID, str] = {}
        """The workflow ids of the children that have started."""
        self.found_children: set[UUID] = set()
        """Children that run, and were started by this workflow before it was reset."""
        self.paused_before: set[UUID] = set()
        """Children that were paused before this workflow was reset."""
        self.cancelled_children: dict[UUID, ExecutionResult] = {}
        """The results of children whose workflows close as cancelled."""
        self.spent: dict[UUID, ExecutionResult] = {}
        """The ends of children until the results of their calls include their seconds, tokens and costs."""

    async def run_subagents(self, calls: tuple[CallFacts, ...]) -> None:
        """Run these calls as child executions, concurrently."""
        number = self.step.number
        waiting = f"waiting for {', '.join(call.name for call in calls)} of step {number}"
        self.describe(waiting)
        # Not cancelled directly: each call watches `is_cancelled` itself and waits for its child to end.
        works = (self.await_call(call, self.run_subagent(number, call)) for call in calls)
        all_calls = asyncio.ensure_future(gather_all(*works))
        forwarding = asyncio.ensure_future(self.forward_pauses(all_calls))
        await self.mirror_child_pauses(all_calls, waiting)
        await forwarding
        try:
            outputs = await all_calls
        except ActivityError as error:
            self.charge_children()
            if not self.is_cancelled:
                await self.record_failure(error)
            return
        completed = [output for output in outputs if output]
        if completed and not self.is_cancelled:
            self.facts = self.facts.with_step(step_with_outputs(self.step, completed))
            self.spent.clear()
        else:
            self.charge_children()

    def charge_children(self) -> None:
        """Add what children used to the facts when no call result will report it."""
        if self.spent:
            for child in self.spent.values():
                self.facts = self.facts.charged(child.tokens, child.cost_usd)
            self.facts = self.facts.worked(max(child.seconds for child in self.spent.values()))
            self.spent.clear()

    async def mirror_child_pauses(self, all_calls: asyncio.Future[Any], waiting: str) -> None:
        """Settle as paused while every child that is still running is paused."""

        def is_paused() -> bool:
            return bool(self.children) and set(self.children.values()) == {ExecutionStatus.PAUSED}

        while True:
            await workflow.wait_condition(lambda: all_calls.done() or is_paused())
            if all_calls.done():
                return
            self.describe(f"{waiting}, where people are asked")
            await self.settle(ExecutionStatus.PAUSED)
            await workflow.wait_condition(lambda: all_calls.done() or not is_paused())
            self.facts = self.facts.entered(workflow.now())
            self.describe(waiting)
            await self.settle(ExecutionStatus.RUNNING)

    async def forward_pauses(self, all_calls: asyncio.Future[Any]) -> None:
        """Send pauses and resumes of this execution on to its children, except to those that have ended."""

        def children_to_signal() -> set[UUID]:
            wanted = set(self.child_workflow_ids) if self.facts.is_paused else set[UUID]()
            return wanted ^ (self.paused_children & set(self.child_workflow_ids))

        while True:
            await workflow.wait_condition(lambda: all_calls.done() or bool(children_to_signal()))
            if all_calls.done():
                self.paused_children.clear()
                return
            for child in sorted(children_to_signal()):
                self.paused_children ^= {child}
                await self.signal_child(child, is_paused=child in self.paused_children)

    async def signal_child(self, child: UUID, *, is_paused: bool) -> None:
        """Signal a child to pause or to resume."""
        if child in self.found_children and not workflow.patched(WAITS_FOR_FOUND_CHILDREN):
            return
        handle = workflow.get_external_workflow_handle(self.child_workflow_ids.get(child, ""))
        try:
            await handle.signal(PARENT_PAUSE_SIGNAL, is_paused)
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
                self.remaining_tokens,
                clocks.session_execution_seconds,
                self.plan.broadcast,
                inherited_budgets(self.plan.budgets, ref.execution_id),
            )
            spawned = await self.await_or_cancel(
                workflow.start_activity_method(SubagentActivities.spawn, spawn, summary=summary, **CHILD)
            )
            if spawned and spawned.plan is None:
                return spawned.answered
            result = await self.run_child(child, spawned or SpawnOutput(), clocks)
            self.children[child.execution_id] = ExecutionStatus.RUNNING
            report = ReportInput(ref, agent, number, call.id, is_lost=result is None)
            if result:
                self.spent[child.execution_id] = result
                report = replace(
                    report, seconds=result.seconds, tokens=result.tokens, cost_usd=result.cost_usd
                )
            if self.is_cancelled:
                return None
            summary = f"{summary} · report"
            return await self.await_or_cancel(
                workflow.start_activity_method(SubagentActivities.report, report, summary=summary, **CHILD)
            )
        finally:
            del self.children[child.execution_id]
            self.child_workflow_ids.pop(child.execution_id, None)

    async def run_child(
        self, child: ExecutionRef, spawned: SpawnOutput, clocks: StateInfo
    ) -> ExecutionResult | None:
        """Return how a child ended; None if only the store has its end."""
        result = None
        if spawned.plan and not self.is_cancelled:
            start = ExecutionInput(
                child,
                spawned.plan,
                self.start.search_attributes,
                is_subagent=True,
                clocks=clocks,
                run=spawned.run,
                public_url=self.start.public_url,
            )
            result = await self.run_child_workflow(start)
        if result is None:
            await self.close_child(child)
        return result

    async def close_child(self, child: ExecutionRef) -> None:
        """Wait for the end of a child that is running; record the end of one that could not do so itself."""
        if not self.is_cancelled:
            closing = self.start_closing(child, ExecutionStatus.FAILED)
            await workflow.wait_condition(lambda: closing.done() or self.is_cancelled)
            if closing.done() or not workflow.patched(WAITS_FOR_FOUND_CHILDREN):
                await closing
                return
            await self.await_or_cancel(closing)
        await self.start_closing(child, ExecutionStatus.CANCELLED)

    def start_closing(self, child: ExecutionRef, status: ExecutionStatus) -> ActivityHandle[None]:
        """Start the activity that records this end of a child once its workflow is not running."""
        return workflow.start_activity_method(
            SubagentActivities.close,
            CloseInput(child, status, workflow_id(child)),
            summary="end the child",
            **CHILD,
        )

    async def run_child_workflow(self, start: ExecutionInput) -> ExecutionResult | None:
        """Run a child workflow to its end; None if it was ended from outside, or is running already."""
        try:
            handle: ChildWorkflowHandle[Any, ExecutionResult] = await workflow.start_child_workflow(
                WORKFLOW,
                start,
                id=workflow_id(start.ref),
                result_type=ExecutionResult,
                cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                # If an operator terminates this workflow, the child still records its own end.
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                memo=memo_of(start),
                search_attributes=initial_attributes(start),
                static_summary=summary_of(start),
                static_details=details_of(start),
            )
            self.child_workflow_ids[start.ref.execution_id] = handle.id
            result = await self.await_or_cancel(handle)
        except ChildWorkflowError as error:
            result = carried_result(error.cause)
        except WorkflowAlreadyStartedError as error:
            self.on_child_found(start.ref.execution_id, error.workflow_id)
            return None
        return result or self.cancelled_children.pop(start.ref.execution_id, None)

    def on_child_found(self, child: UUID, workflow_id: str) -> None:
        """Note a child that is running, and was started before this workflow was reset."""
        self.found_children.add(child)
        self.child_workflow_ids[child] = workflow_id
        if child in self.paused_before and workflow.patched(WAITS_FOR_FOUND_CHILDREN):
            self.children[child] = ExecutionStatus.PAUSED

    async def await_or_cancel(self, work: asyncio.Task[T]) -> T | None:
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

    @workflow.signal(name=PARENT_PAUSE_SIGNAL)
    def on_parent_status(self, is_paused: bool) -> None:
        """Pause or resume together with the parent execution."""
        if not self.facts.status.is_terminal:
            self.facts = self.facts.paused() if is_paused else self.facts.resumed(workflow.now())

    @property
    def remaining_tokens(self) -> int | None:
        """Tokens that this execution may still use; None if unlimited."""
        extras = self.step.besides
        in_progress = (self.step.usage + extras.usage).total + extras.child_tokens
        return tokens_left(self.plan.max_tokens, self.facts.tokens + in_progress)

    @property
    def session_seconds(self) -> float:
        """Seconds that the session has worked: earlier executions, this one, and the current step."""
        return self.facts.state_info.session_execution_seconds + self.facts.seconds_under_way

    @workflow.signal(name=CHILD_STATUS_SIGNAL)
    def on_child_status(self, child: ChildStatus) -> None:
        """Record that a child was paused, resumed or cancelled."""
        # Temporal delivers the signals of before a reset again, at the beginning of the new run.
        if child.status is ExecutionStatus.PAUSED:
            self.paused_before.add(child.execution_id)
        else:
            self.paused_before.discard(child.execution_id)
        if child.execution_id not in self.children:
            return
        if child.result is not None:
            self.cancelled_children[child.execution_id] = child.result
        else:
            self.children[child.execution_id] = child.status
