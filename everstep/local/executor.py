"""Runs tool calls concurrently in this process, and emits events about each.

Every exception of a tool becomes the result of its call; every call has exactly one result.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.agents.processors import AgentHook, require_continued_state
from everstep.agent_domain.agents.spawning import CanSpawn
from everstep.agent_domain.errors import InvalidInput, ListenerFailed, ToolFailed
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.state.events import EventBus, ToolCallCompleted, ToolCallStarted
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolExecution, options_of
from everstep.local.children import RunChild, SubagentParent
from everstep.local.clock import Clock
from everstep.local.inquiry import LocalInquiry
from everstep.local.patience import ModelRetry
from everstep.steps.isolation import error_boundary
from everstep.steps.tool_calls import Outcome, call_tool, report_child, spawn_child

NEEDS_RUNTIME = "Waiting for people needs the durable runtime, this run is in-process"


class HookObserver:
    """Holds the state while tools run, so that hooks of concurrent calls see each other's changes."""

    def __init__(self, hooks: Sequence[AgentHook], state: AgentState) -> None:
        self.hooks = hooks
        self.state = state
        self.began = state

    @property
    def tool_state(self) -> AgentState:
        """The state for tools, with the metadata from the start of the step."""
        return replace(self.state, metadata=self.began.metadata)

    def run_before(self, call: ToolCall) -> None:
        """Run `before_tool` of every hook."""
        with error_boundary():
            for hook in self.hooks:
                self.state = require_continued_state(hook.before_tool(self.state, call), hook, self.state)

    def run_after(self, execution: ToolExecution) -> None:
        """Run `after_tool` of every hook."""
        with error_boundary():
            for hook in self.hooks:
                self.state = require_continued_state(hook.after_tool(self.state, execution), hook, self.state)


class LocalExecutor:
    """Executes the tool calls of one agent."""

    def __init__(
        self,
        definition: AgentDefinition,
        clock: Clock,
        events: EventBus,
        model_of: Callable[[ModelChoice], Model],
        run_child: RunChild | None = None,
    ) -> None:
        self.definition = definition
        self.clock = clock
        self.events = events
        self.model_of = model_of
        self.run_child = run_child
        self.patience = ModelRetry(definition.base_plan, clock)
        self.redaction = Redaction()

    async def execute_tool(self, call: ToolCall, state: AgentState) -> ToolExecution:
        """Run one call and emit its events."""
        return await self._execute(call, state, LocalInquiry(self.model_of, self.patience))

    async def _execute(self, call: ToolCall, state: AgentState, ask: LocalInquiry) -> ToolExecution:
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
        tool_outcome = await self._run_tool(call, state, ask)
        result, error, ended_at = tool_outcome.result, tool_outcome.error, self.clock.now()
        model_text = tool_outcome.model_text
        if error and (redacted := self.redaction(error.message)) != error.message:
            model_text = redacted
        execution = ToolExecution(
            call, result, error, started, ended_at, "", model_text, tool_outcome.metadata
        )
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
                result=result,
            )
        )
        if error and self.definition.throw_on_tool_failure:
            raise ToolFailed(f"{call.name}: {error.message}")
        return execution

    async def execute_tools(
        self, calls: Sequence[ToolCall], state: AgentState
    ) -> tuple[AgentState, tuple[ToolExecution, ...]]:
        """Run calls concurrently and return their executions in the order of the calls.

        If one raises, the others complete first, so that no call runs on after its step.
        """
        observer = HookObserver(self.definition.hooks, state)
        running = (self._run_with_hooks(call, observer) for call in calls)
        executions: list[ToolExecution] = []
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            executions.append(result)
        return observer.state, tuple(executions)

    async def _run_with_hooks(self, call: ToolCall, observer: HookObserver) -> ToolExecution:
        observer.run_before(call)
        ask = LocalInquiry(self.model_of, self.patience)
        execution = await self._execute(call, observer.tool_state, ask)
        observer.state = observer.state.spent(ask.usage).charged(ask.child_tokens)
        observer.run_after(execution)
        return execution

    async def _run_tool(self, call: ToolCall, state: AgentState, ask: LocalInquiry) -> Outcome:
        explained = self.definition.tools.explained(call)
        if explained is not None:
            return Outcome(explained)
        refusal = self._refusal(call)
        if refusal is not None:
            return Outcome(error=StepError(refusal, tool_name=call.name))
        tool, context = self.definition.tools.get(call.name), _tool_context(call, state, ask)
        if isinstance(tool, CanSpawn) and options_of(tool).need is CallNeed.SUBAGENT and self.run_child:
            parent = SubagentParent(self.definition, state, self.run_child)
            return await self._run_subagent(call, context, parent, ask)
        return await call_tool(tool, call, context)

    async def _run_subagent(
        self, call: ToolCall, context: ToolContext, parent: SubagentParent, ask: LocalInquiry
    ) -> Outcome:
        """Run a subagent; every error becomes the outcome of the call."""
        spawn = await spawn_child(self.definition.tools, call, context)
        if isinstance(spawn, Outcome):
            return spawn
        try:
            end, ask.child_tokens = await parent.run_child(spawn)
        except ListenerFailed:
            raise
        except Exception as error:  # noqa: BLE001 -- the model reads the error
            return Outcome(error=StepError.of(error, call.name))
        return await report_child(self.definition.tools, call, end)

    def _refusal(self, call: ToolCall) -> str | None:
        """Why the call must not run: it cannot, or it needs a person."""
        refusal = self.definition.tools.refusal(call)
        needs_a_person = self.definition.need_of(call) in {CallNeed.APPROVAL, CallNeed.INPUT}
        return NEEDS_RUNTIME if refusal is None and needs_a_person else refusal


def _tool_context(call: ToolCall, state: AgentState, ask: LocalInquiry) -> ToolContext:
    if state.execution.execution_id is None:
        raise InvalidInput("the state has no execution id yet; call identified(agent_id, execution_id) first")
    step = state.current_step
    step_calls = step.tool_calls if step and not state.facts.is_recorded else ()
    return ToolContext(
        state.execution.execution_id,
        call.id,
        state.facts.recorded_steps + 1,
        state.metadata,
        earlier=tuple(takewhile(lambda each: each.id != call.id, step_calls)),
        ask=ask,
    )
