"""The in-process shell of the agent loop: no Temporal, no database, the same decisions.

It calls `decide`, carries out the decision, and folds the result into the state. It adds a clock, ids, events
and concurrency, but no policy. Waiting for people needs the durable runtime: here such calls fail, with a
text that explains it.
"""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from uuid import UUID, uuid4

from everstep.activities.isolation import contained
from everstep.activities.toolsets import asked
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import (
    CanUseTools,
    Model,
    StepDriver,
    ToolCallingDriver,
    observed,
    replied,
)
from everstep.agent_domain.agents.processors import given_back, processed
from everstep.agent_domain.errors import InvalidInput, ListenerFailed
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.loop import (
    AwaitApproval,
    AwaitInput,
    AwaitResume,
    Decision,
    Infer,
    Process,
    RunSubagents,
    RunTools,
    Stop,
    decide,
)
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.state.events import EventBus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.toolsets import Asker
from everstep.agent_domain.values import EMPTY
from everstep.local.clock import Clock, SystemClock
from everstep.local.executor import LocalExecutor
from everstep.local.inquiry import Inquiry, models_beside
from everstep.local.narrator import Narrator
from everstep.local.patience import Patience


class LocalRunner:
    """Runs one agent's executions in this process."""

    def __init__(
        self,
        definition: AgentDefinition,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], UUID] = uuid4,
        events: EventBus | None = None,
        on_decision: Callable[[Decision], object] | None = None,
        models: Callable[[ModelChoice], Model] | None = None,
    ) -> None:
        self.models = models
        self._has_listed = False
        self.definition = definition
        self.driver = self._driver(definition)
        self.rules = definition.rules
        self.clock = clock or SystemClock()
        self.new_id = new_id
        self.events = events or definition.events
        self.on_decision = on_decision
        self.patience = Patience(definition.base_plan, self.clock)
        self.model_of = models_beside(self.driver, models)
        self.executor = LocalExecutor(definition, self.clock, self.events, self.model_of, self._child)
        self.narrator = Narrator(definition.tools.names, self.clock, self.events)
        if isinstance(self.driver, StepDriver):
            self.driver.executor = self.executor

    def _driver(self, definition: AgentDefinition) -> StepDriver | CanUseTools:
        """The agent's driver, with a preset's model if it needs one."""
        driver, wanted = definition.driver, definition.model_settings or definition.llm_preset
        if self.models and (driver is None or (isinstance(driver, StepDriver) and driver.wants_model)):
            driver = (driver or ToolCallingDriver()).with_model(self.models(wanted))
            driver.equip(definition.tools, parallel_tools=definition.base_plan.parallel_tools)
        if driver is None:
            raise InvalidInput(
                "the agent has no driver; give it one: AgentBuilder.with_driver(...), "
                "or presets whose models it can ask: build(models=...)"
            )
        if isinstance(driver, StepDriver) and type(driver).use_tools is not StepDriver.use_tools:
            raise InvalidInput(
                f"{type(driver).__name__}.use_tools would never be called; override infer, said and "
                "answered, or do not derive the driver from StepDriver"
            )
        return driver

    async def _child(self, definition: AgentDefinition, state: AgentState) -> AgentState:
        """Run a subagent with the same listeners."""
        runner = LocalRunner(
            definition, clock=self.clock, new_id=self.new_id, events=self.events, models=self.models
        )
        return await runner.run(state)

    async def _listed(self) -> None:
        """Ask the toolsets for their tools, once per runner."""
        if not self.definition.toolsets or self._has_listed:
            return
        asker = Asker(self.new_id(), DEFAULT_TENANT)
        self.definition = self.definition.with_listed(await asked(self.definition, asker))
        self.executor.definition = self.definition
        self.narrator.tools = self.definition.tools.names
        if isinstance(self.driver, StepDriver):
            self.driver.equip(self.definition.tools, parallel_tools=self.rules.parallel_tools)
        self._has_listed = True

    async def run(self, state: AgentState) -> AgentState:
        """Run steps until a decision stops the run; the returned state has its final status."""
        state = self._entered(state)
        decision = self._opening(state)
        while not isinstance(decision, Stop | AwaitResume):
            (*_, state), decision = await self._step(state, decision)
        return self._ended(state, decision)

    async def iterate(self, state: AgentState) -> AsyncGenerator[AgentState]:
        """Yield the state after each step; the last one has the final status."""
        state = self._entered(state)
        decision, taken_before = self._opening(state), state.step_count
        while not isinstance(decision, Stop | AwaitResume):
            (*earlier, state), decision = await self._step(state, decision)
            for each in earlier:
                yield each
            # The final status is not an item by itself, unless an exception of a criterion adds a step.
            if not isinstance(decision, Stop) or decision.outcome.failure:
                yield state
        if isinstance(decision, Stop):
            ended = self._ended(state, decision)
            if ended.step_count > taken_before:
                yield ended

    def has_next_step(self, state: AgentState) -> bool:
        """Whether `next_step` would run a step; emits nothing."""
        return not isinstance(decide(self._ready(state), self.rules, self.clock.now()), Stop)

    async def next_step(self, state: AgentState) -> AgentState:
        """Run one more step; a state that has ended is returned unchanged."""
        if state.status.is_terminal:
            return state
        state = self._ready(state)
        decision = self._opening(state)
        if not isinstance(decision, Stop):
            (*_, state), decision = await self._step(state, decision)
        return self._ended(state, decision)

    # Between steps.

    def _entered(self, state: AgentState) -> AgentState:
        """Start a run; a state that had ended continues its conversation in a new run."""
        state = state.for_continuation() if state.status.is_terminal else state
        return self._prepared(state).entered(self.clock.now())

    def _ready(self, state: AgentState) -> AgentState:
        """Prepare a manual step; the first one starts the wall clock."""
        state = self._prepared(state)
        return state if state.execution_started_at else state.entered(self.clock.now())

    def _prepared(self, state: AgentState) -> AgentState:
        if state.is_paused:
            raise InvalidInput("the execution is paused; resume it first: state.resumed(now)")
        return state.identified(self.new_id(), self.new_id()).at(self.clock.now())

    def _decide(self, state: AgentState) -> Decision:
        decision = decide(state, self.rules, self.clock.now())
        if self.on_decision:
            self.on_decision(decision)
        return decision

    def _opening(self, state: AgentState) -> Decision:
        """Decide before the first step; listeners are notified only if the decision is to stop."""
        decision = self._decide(state)
        if isinstance(decision, Stop):
            self.narrator.evaluated(state, decision.outcome, self.rules.error_policy)
        return decision

    def _ended(self, state: AgentState, decision: Decision) -> AgentState:
        """Set the final status if the run has ended; a hook may have paused it instead."""
        if not isinstance(decision, Stop):
            return state
        outcome, policy = decision.outcome, self.rules.error_policy
        ended = state.ended(outcome, policy, self.clock.now())
        if outcome.failure:
            self.narrator.failure_step(ended, outcome, policy)
        self.narrator.finished(ended, outcome)
        return ended

    # One step.

    async def _step(self, state: AgentState, opening: Decision) -> tuple[list[AgentState], Decision]:
        """Run one step, decide what follows, and record the step with that decision.

        Returns the states and the decision. There are two states if an exception came after the step was
        complete, because the exception is recorded as another step.
        """
        state = self._begun(state, opening.hears if isinstance(opening, Infer) else 0)
        began, complete, following = self.clock.seconds(), list[AgentState](), None
        ask = Inquiry(self.model_of, self.patience)
        try:
            with contained():
                state = await self._worked(state)
                if state.pending:
                    return [state], AwaitResume()
                following = self._decide(state)
                if isinstance(following, Process):
                    state, following = await self._processed(state, ask), None
        except ListenerFailed:
            raise
        except Exception as error:  # noqa: BLE001 -- the error policy handles it
            seconds, following = self.clock.seconds() - began, None
            if state.is_applied:
                state = self._recorded(state.spent(ask.usage), None)
                seconds -= state.execution.step_executions[-1].processing_seconds
                complete.append(state)
                self.narrator.step_started(state)
            state = state.failed(StepError.of(error), self.clock.now(), max(0.0, seconds))
        following = following or self._decide(state)
        outcome = following.outcome if isinstance(following, Infer | Stop) else None
        return [*complete, self._recorded(state, outcome)], following

    def _begun(self, state: AgentState, hears: int) -> AgentState:
        """Start the step, or continue it where it was paused among its calls."""
        goes_on = bool(state.pending)
        if not goes_on:
            state = state.with_step_started(self.clock.now(), hears)
        elif state.execution.hook_context is None:
            state = state.with_hook_context(EMPTY)
        if state.cached_context.is_empty:
            state = state.with_cached_context(self.definition.cached_context)
        if not goes_on:
            self.narrator.step_started(state)
        return state

    async def _worked(self, state: AgentState) -> AgentState:
        """Ask the model, then run tools until every call has a result or a hook paused the run."""
        await self._listed()
        if state.awaits_reply:
            for hook in self.definition.hooks:
                state = given_back(hook.before_step(state), hook, state)
            state = await self._inferred(state)
        while state.pending:
            decision = self._decide(state)
            if isinstance(decision, AwaitResume):
                return state
            state = await self._settled(state, decision)
        if not state.is_applied:
            raise InvalidInput(
                f"{type(self.driver).__name__}.use_tools returned a state without a new step; "
                "return state.with_current_step(step)"
            )
        return state

    async def _inferred(self, state: AgentState) -> AgentState:
        began = self.clock.seconds()
        if not isinstance(self.driver, StepDriver):
            state = given_back(await self.driver.use_tools(state), self.driver, state)
            return state.worked(self.clock.seconds() - began)
        driver, heard = self.driver, self.narrator.stream(state)
        # Not retried once listeners have received text, as they cannot take it back.
        reply = await self.patience.within(
            driver.model,
            lambda: driver.infer(state, heard.text),
            partial(self.narrator.model_delayed, state),
            may_repeat=lambda: not heard.wrote,
        )
        heard.close()
        return replied(self.driver, state, reply, self.clock.seconds() - began, self.definition.need_of)

    async def _settled(self, state: AgentState, decision: Decision) -> AgentState:
        """Run the calls that the decision names."""
        if not isinstance(self.driver, StepDriver) or state.current_step is None:
            raise InvalidInput(f"{type(self.driver).__name__}.use_tools left tool calls without a result")
        match decision:
            case RunTools(named) | RunSubagents(named) | AwaitApproval(named):
                """The executor refuses calls that need a person."""
            case AwaitInput(call):
                named = (call,)
            case Infer() | AwaitResume() | Process() | Stop():
                raise InvalidInput(f"a step with unanswered calls cannot be followed by {decision}")
        calls = {call.id: call for call in state.current_step.pending_calls}
        began = self.clock.seconds()
        state, executions = await self.executor.execute_tools([calls[each.id] for each in named], state)
        return observed(self.driver, state, executions, self.clock.seconds() - began)

    async def _processed(self, state: AgentState, ask: Inquiry) -> AgentState:
        began = self.clock.seconds()
        for processor in self.definition.processors:
            state = await processed(processor, state, ask)
        for hook in self.definition.hooks:
            state = given_back(hook.after_step(state), hook, state)
        return state.worked(self.clock.seconds() - began).spent(ask.usage).processed()

    def _recorded(self, state: AgentState, outcome: ContinuationOutcome | None) -> AgentState:
        state = state.recorded(outcome, self.clock.now())
        record = state.execution.step_executions[-1]
        self.narrator.step_completed(state, record)
        if outcome:
            self.narrator.evaluated(state, outcome, self.rules.error_policy)
        self.narrator.state_updated(state, record)
        return state
