"""Runs tool calls concurrently in this process, and emits events about each.

Every exception of a tool becomes the result of its call; every call has exactly one result.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.agents.spawning import CanSpawn, Spawn
from everstep.agent_domain.errors import InvalidInput, ListenerFailed, ToolFailed
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, CallNeed
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.state.events import EventBus, ToolCallCompleted, ToolCallStarted
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolExecution
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.local.children import RunChild, SubagentParent
from everstep.local.clock import Clock
from everstep.local.inquiry import LocalInquiry, local_model_retry
from everstep.local.local_budgets import LocalBudgets
from everstep.local.progress_events import ProgressEvents
from everstep.steps.hooks import ToolHooks, find_hooks
from everstep.steps.subagents import report_child, spawn_child
from everstep.steps.tool_calls import Outcome
from everstep.steps.tool_runs import ToolRun, redacted_execution, result_without_run, run_tool

NEEDS_RUNTIME = "Waiting for people needs the durable runtime, this run is in-process"


class LocalExecutor:
    """Executes the tool calls of one agent."""

    def __init__(
        self,
        definition: AgentDefinition,
        clock: Clock,
        events: EventBus,
        model_of: Callable[[ModelChoice], Model],
        run_child: RunChild | None = None,
        *,
        budgets_of: Callable[[AgentState], LocalBudgets | None] = lambda _: None,
    ) -> None:
        self.definition = definition
        self.clock = clock
        self.events = events
        self.model_of = model_of
        self.run_child = run_child
        self.budgets_of = budgets_of
        self.model_retry = local_model_retry(definition.base_plan, clock)
        self.redaction = Redaction()

    async def execute_tool(self, call: ToolCall, state: AgentState) -> ToolExecution:
        """Run one call and emit its events; runs no hooks.

        Raises:
            ToolFailed: The call failed, and the agent lets failures of tools escape.
        """
        run = await self._run_call(call, state)
        self.raise_escaped([run])
        return run.execution

    async def execute_tools(
        self, calls: Sequence[ToolCall], state: AgentState
    ) -> tuple[AgentState, tuple[ToolExecution, ...]]:
        """Run calls concurrently and return their executions in the order of the calls.

        If one raises, the others complete first, so that no call runs on after its step.

        Raises:
            HookFailed: A hook of a call raised.
            ToolFailed: A call failed, and the agent lets failures of tools escape.
        """
        state, runs = await self.run_calls(calls, state, state.metadata)
        self.raise_escaped(runs)
        return state, tuple(run.execution for run in runs)

    async def run_calls(
        self, calls: Sequence[ToolCall], state: AgentState, metadata: FrozenDict
    ) -> tuple[AgentState, tuple[ToolRun, ...]]:
        """Run calls concurrently, with the hooks around them.

        Args:
            calls: The calls.
            state: The state in which they run.
            metadata: The metadata that the tools receive: that of the beginning of the step.

        Returns:
            The state that the hooks left, with what the tools changed in the metadata, and the result of each
            call, in the order of the calls.
        """
        hooks = find_hooks(self.definition, "before_tool", "after_tool")
        tool_hooks = ToolHooks(hooks, state, is_free=True)
        running = (self._run_call(call, replace(state, metadata=metadata), tool_hooks) for call in calls)
        runs: list[ToolRun] = []
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            runs.append(result)
        state = tool_hooks.state
        for run in runs:
            state = state.with_metadata(run.execution.metadata) if run.execution.metadata else state
        return state, tuple(replace(run, execution=replace(run.execution, metadata=EMPTY)) for run in runs)

    async def _run_call(self, call: ToolCall, state: AgentState, hooks: ToolHooks | None = None) -> ToolRun:
        started = self.clock.now()
        self.events.emit(
            ToolCallStarted(
                at=started,
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                tool=call.name,
                args=call.args,
                started_at=started,
                tool_call_id=call.id,
            )
        )
        run = await self._run_tool(call, state, hooks)
        execution, error = run.execution, run.execution.error
        ended_at = execution.completed_at or self.clock.now()
        self.events.emit(
            ToolCallCompleted(
                at=ended_at,
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                tool=call.name,
                success=error is None,
                error=error.message if error else None,
                started_at=started,
                ended_at=ended_at,
                duration_ms=execution.seconds * 1000,
                tool_call_id=call.id,
                result=execution.result,
                attachments=tuple(each.without_data for each in execution.attachments),
            )
        )
        return run

    def raise_escaped(self, runs: Iterable[ToolRun]) -> None:
        """Raise the first exception that ends the step: of a hook, or of a tool if the agent wants that."""
        for run in runs:
            if run.hook_failure:
                raise run.hook_failure
            error = run.execution.error
            if error and self.definition.throw_on_tool_failure:
                raise ToolFailed(f"{run.execution.call.name}: {error.message}")

    async def _run_tool(self, call: ToolCall, state: AgentState, hooks: ToolHooks | None) -> ToolRun:
        budgets = self.budgets_of(state)
        ask = LocalInquiry(
            self.model_of,
            self.model_retry,
            budgeted=lambda: budgets and budgets.calls(self.clock, self.model_of),
        )
        context = _tool_context(call, state, ask)
        need, now = self.definition.need_of(call), self.clock.now
        needs_a_person = need in {CallNeed.APPROVAL, CallNeed.INPUT}
        refused = result_without_run(
            self.definition.tools, call, now, NEEDS_RUNTIME if needs_a_person else None
        )
        if refused:
            return ToolRun(refused)
        tool = self.definition.tools.get(call.name)
        if isinstance(tool, CanSpawn) and need is CallNeed.SUBAGENT and self.run_child:
            run_child = partial(self.run_child, budgets=budgets)
            parent = SubagentParent(self.definition, state, run_child)
            return await self._run_subagent(call, context, parent, hooks)
        reports = ProgressEvents(self.events, self.clock, state, call)
        context = replace(context, report=reports.report)
        run = await run_tool(tool, call, context, ask=ask, hooks=hooks, redaction=self.redaction, now=now)
        await reports.finish()
        return run

    async def _run_subagent(
        self, call: ToolCall, context: ToolContext, parent: SubagentParent, hooks: ToolHooks | None
    ) -> ToolRun:
        """Run a subagent; every error becomes the outcome of the call."""
        started, besides = self.clock.now(), NOTHING_BESIDES
        outcome = await spawn_child(self.definition.tools, call, context)
        if isinstance(outcome, Spawn):
            try:
                end, besides = await parent.run_child(outcome)
                outcome = await report_child(self.definition.tools, call, end)
            except ListenerFailed:
                raise
            except Exception as error:  # noqa: BLE001 -- the model reads the error
                outcome = Outcome(error=StepError.of(error, call.name))
        if hooks:
            await hooks.charge(besides)
        execution = outcome.execution(call, started, self.clock.now())
        return ToolRun(redacted_execution(execution, self.redaction), besides=besides)


def _tool_context(call: ToolCall, state: AgentState, ask: LocalInquiry) -> ToolContext:
    if state.execution.execution_id is None:
        raise InvalidInput("the state has no execution id yet; call identified(agent_id, execution_id) first")
    step = state.current_step
    step_calls = step.tool_calls if step and not state.facts.is_recorded else ()
    context = ToolContext(
        state.execution.execution_id,
        call.id,
        state.facts.recorded_steps + 1,
        state.metadata,
        earlier=tuple(takewhile(lambda each: each.id != call.id, step_calls)),
        ask=ask,
        resources=state.execution.resources,
    )
    return context.for_run(state.execution.run)
