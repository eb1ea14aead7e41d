"""The in-process shell of the agent loop: no Temporal, no database, the same decisions.

It calls `decide`, carries out the decision, and folds the result into the state. It adds a clock, ids, events
and concurrency, but no policy. Waiting for people needs the durable runtime: here such calls fail, with a
text that explains it.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

from everstep.agent_domain.agents.call_limits import call_limits_of
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import (
    CanUseTools,
    Model,
    Reply,
    StepDriver,
    ToolCallingDriver,
    state_with_results,
)
from everstep.agent_domain.agents.processors import require_continued_state
from everstep.agent_domain.agents.spawning import needed_resources
from everstep.agent_domain.errors import HookFailed, InvalidInput, ListenerFailed, ToolFailed
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.loop.budget import BudgetExhausted, BudgetUnit
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.loop import (
    AwaitApproval,
    AwaitBudget,
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
from everstep.agent_domain.loop.usage import take_usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.state.events import EventBus
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.state.state_usage import with_usage_of
from everstep.agent_domain.storage.metadata_changes import apply_changes
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import ToolExecution
from everstep.agent_domain.tools.toolsets import Asker
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.local.clock import Clock, SystemClock
from everstep.local.executor import LocalExecutor
from everstep.local.inquiry import LocalInquiry, local_model_retry, model_lookup
from everstep.local.local_budgets import LocalBudgets, exhausted_in_process
from everstep.local.narrator import EventNarrator
from everstep.steps.budgeted_calls import BudgetedCalls, prices_unknown
from everstep.steps.compactor import Compactor, InputAnchor
from everstep.steps.hooks import failure_of, process_step
from everstep.steps.isolation import error_boundary
from everstep.steps.model_calls import ModelCall
from everstep.steps.outputs import with_output, with_requested_output
from everstep.steps.resource_lifetimes import open_resources
from everstep.steps.tool_runs import ToolRun
from everstep.steps.toolsets import ask_toolsets


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
        budgets: LocalBudgets | None = None,
    ) -> None:
        self.models = models
        self._parent_budgets = budgets
        self._budgets: dict[UUID | None, LocalBudgets] = {}
        self._has_listed = False
        self.definition = definition
        self.driver = self._find_driver(definition)
        self.rules = definition.rules
        self.resources = needed_resources([definition])
        self.clock = clock or SystemClock()
        self.new_id = new_id
        self.events = events or definition.events
        self.on_decision = on_decision
        self.model_retry = local_model_retry(definition.base_plan, self.clock)
        self.model_of = model_lookup(self.driver, models)
        self.executor = LocalExecutor(
            definition,
            self.clock,
            self.events,
            self.model_of,
            self._run_subagent,
            budgets_of=self._budgets_of,
        )
        self.narrator = EventNarrator(definition.tools.names, self.clock, self.events)
        if isinstance(self.driver, StepDriver):
            self.driver.executor = self.executor

    def _find_driver(self, definition: AgentDefinition) -> StepDriver | CanUseTools:
        """The agent's driver, with a preset's model if it needs one."""
        driver = definition.driver
        if self.models and (driver is None or (isinstance(driver, StepDriver) and driver.wants_model)):
            model = self.models(definition.model_choice)
            driver = definition.equipped_driver((driver or ToolCallingDriver()).with_model(model))
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

    async def _run_subagent(
        self, definition: AgentDefinition, state: AgentState, *, budgets: LocalBudgets | None = None
    ) -> AgentState:
        """Run a subagent with the same listeners, and within the same budgets."""
        runner = LocalRunner(
            definition,
            clock=self.clock,
            new_id=self.new_id,
            events=self.events,
            models=self.models,
            budgets=budgets,
        )
        return await runner.run(state)

    def _budgets_of(self, state: AgentState) -> LocalBudgets | None:
        """The budgets of a run; None without any."""
        if not (self.definition.base_plan.budgets or self._parent_budgets):
            return None
        identity = state.execution.execution_id
        if identity not in self._budgets:
            self._budgets[identity] = LocalBudgets(self.definition.base_plan, state, self._parent_budgets)
        return self._budgets[identity]

    def _inquiry(self, state: AgentState) -> LocalInquiry:
        """Asks models for a processor or a compaction, within the budgets of the run."""
        budgets = self._budgets_of(state)

        def calls() -> BudgetedCalls | None:
            return budgets.calls(self.clock, self.model_of) if budgets else None

        return LocalInquiry(self.model_of, self.model_retry, budgeted=calls)

    def _require_prices(self) -> None:
        """Refuse to start a run with a budget in money if the prices of the model are not known."""
        planned = {budget.unit for budget in self.definition.base_plan.budgets}
        model = self.driver.model if isinstance(self.driver, StepDriver) else None
        if BudgetUnit.USD in planned and not call_limits_of(model).has_prices:
            raise InvalidInput(str(prices_unknown(model or self.driver)))

    async def _list_tools(self) -> None:
        """Ask the toolsets for their tools, once per runner."""
        if not self.definition.toolsets or self._has_listed:
            return
        asker = Asker(self.new_id(), DEFAULT_TENANT)
        self.definition = self.definition.with_listed(await ask_toolsets(self.definition, asker))
        self.executor.definition = self.definition
        self.narrator.tools = self.definition.tools.names
        if isinstance(self.driver, StepDriver):
            self.driver = self.definition.equipped_driver(self.driver)
        self._has_listed = True

    async def run(self, state: AgentState) -> AgentState:
        """Run steps until a decision stops the run; the returned state has its final status."""
        given = state.execution.resources
        async with open_resources(self.resources, given) as resources:
            state = self._start_run(state).with_resources(resources)
            decision = self._decide_first(state)
            while not isinstance(decision, Stop | AwaitResume):
                (*_, state), decision = await self._step(state, decision)
            return self._finish(state, decision).with_resources(given)

    async def iterate(self, state: AgentState) -> AsyncGenerator[AgentState]:
        """Yield the state after each step; the last one has the final status."""
        given = state.execution.resources
        async with open_resources(self.resources, given) as resources:
            state = self._start_run(state).with_resources(resources)
            decision, taken_before = self._decide_first(state), state.step_count
            while not isinstance(decision, Stop | AwaitResume):
                (*earlier, state), decision = await self._step(state, decision)
                for each in earlier:
                    yield each.with_resources(given)
                # The final status is not an item by itself, unless an exception of a criterion adds a step.
                if not isinstance(decision, Stop) or decision.outcome.failure:
                    yield state.with_resources(given)
            if isinstance(decision, Stop):
                final = self._finish(state, decision)
                if final.step_count > taken_before:
                    yield final.with_resources(given)

    def has_next_step(self, state: AgentState) -> bool:
        """Whether `next_step` would run a step; emits nothing."""
        return not isinstance(self._next_decision(self._prepare_manual(state)), Stop)

    async def next_step(self, state: AgentState) -> AgentState:
        """Run one more step; a state that has ended is returned unchanged."""
        if state.status.is_terminal:
            return state
        given = state.execution.resources
        async with open_resources(self.resources, given) as resources:
            state = self._prepare_manual(state).with_resources(resources)
            decision = self._decide_first(state)
            if not isinstance(decision, Stop):
                (*_, state), decision = await self._step(state, decision)
            return self._finish(state, decision).with_resources(given)

    # Between steps.

    def _start_run(self, state: AgentState) -> AgentState:
        """Start a run; a state that had ended continues its conversation in a new run."""
        self._require_prices()
        state = state.for_continuation() if state.status.is_terminal else state
        return self._prepare(state).entered(self.clock.now())

    def _prepare_manual(self, state: AgentState) -> AgentState:
        """Prepare a manual step; the first one starts the wall clock."""
        self._require_prices()
        state = self._prepare(state)
        return state if state.execution_started_at else state.entered(self.clock.now())

    def _prepare(self, state: AgentState) -> AgentState:
        if state.is_paused:
            raise InvalidInput("the execution is paused; resume it first: state.resumed(now)")
        return state.identified(self.new_id(), self.new_id()).at(self.clock.now())

    def _next_decision(self, state: AgentState) -> Decision:
        return decide(state.facts, self.rules, self.clock.now(), state.with_facts)

    def _decide(self, state: AgentState) -> Decision:
        decision = self._next_decision(state)
        if self.on_decision:
            self.on_decision(decision)
        return decision

    def _decide_first(self, state: AgentState) -> Decision:
        """Decide before the first step; listeners are notified only if the decision is to stop."""
        decision = self._decide(state)
        if isinstance(decision, Stop):
            self.narrator.emit_evaluation(state, decision.outcome, self.rules.error_policy)
        return decision

    def _finish(self, state: AgentState, decision: Decision) -> AgentState:
        """Set the final status if the run has ended; a hook may have paused it instead."""
        if not isinstance(decision, Stop):
            return state
        self._budgets.pop(state.execution.execution_id, None)
        outcome, policy = decision.outcome, self.rules.error_policy
        final = state.ended(outcome, policy, self.clock.now())
        if outcome.failure:
            self.narrator.emit_failure_step(final, outcome, policy)
        self.narrator.emit_end(final, outcome)
        return final

    # One step.

    async def _step(self, state: AgentState, opening: Decision) -> tuple[list[AgentState], Decision]:
        """Run one step, decide what follows, and record the step with that decision.

        Returns the states and the decision. There are two states if an exception came after the step was
        complete, because the exception is recorded as another step.
        """
        step = _StepProgress(self._start_step(state, opening.hears if isinstance(opening, Infer) else 0))
        began, complete, decision = self.clock.seconds(), list[AgentState](), None
        ask = self._inquiry(step.state)
        try:
            with error_boundary():
                await self._run_phases(step, opening if isinstance(opening, Infer) else None)
                if step.state.facts.pending:
                    return [step.state], AwaitResume()
                decision = self._decide(step.state)
                if isinstance(decision, Process):
                    step.state, decision = await self._process(step.state, ask), None
            state = step.state
        except ListenerFailed:
            raise
        except BudgetExhausted as error:
            return self._without_step(state, error)
        except Exception as error:  # noqa: BLE001 -- the error policy handles it
            state, seconds, decision = step.state, self.clock.seconds() - began, None
            if state.facts.is_applied:
                state = self._record(state.spent(ask.usage), None)
                seconds -= state.execution.step_executions[-1].processing_seconds
                complete.append(state)
                self.narrator.emit_step_start(state)
            failure = failure_of(error)
            state = state.failed(failure, self.clock.now(), max(0.0, seconds), take_usage(error))
        decision = decision or self._decide(state)
        outcome = decision.outcome if isinstance(decision, Infer | Stop) else None
        return [*complete, self._record(state, outcome)], decision

    def _without_step(self, state: AgentState, error: BudgetExhausted) -> tuple[list[AgentState], Decision]:
        """Decide again before a step that a budget does not cover; it is not taken."""
        state = replace(state, facts=state.facts.budget_exhausted(exhausted_in_process(error)))
        decision = self._decide(state)
        if isinstance(decision, Stop):
            self.narrator.emit_evaluation(state, decision.outcome, self.rules.error_policy)
        return [state], decision

    def _start_step(self, state: AgentState, hears: int) -> AgentState:
        """Start the step, or continue it where it was paused among its calls."""
        is_continued = bool(state.facts.pending)
        if not is_continued:
            state = state.with_step_started(self.clock.now(), hears)
        elif state.execution.hook_context is None:
            state = state.with_hook_context(EMPTY)
        state = with_requested_output(self.definition, state)
        if not is_continued:
            self.narrator.emit_step_start(state)
        return state

    async def _run_phases(self, step: "_StepProgress", opening: Infer | None) -> None:
        """Ask the model, then run tools until every call has a result or a hook paused the run."""
        await self._list_tools()
        if step.state.facts.awaits_reply:
            await self._infer(step, opening)
        metadata = step.state.metadata
        while step.state.facts.pending:
            decision = self._decide(step.state)
            if isinstance(decision, AwaitResume):
                return
            await self._run_calls(step, decision, metadata)
        if not step.state.facts.is_applied:
            raise InvalidInput(
                f"{type(self.driver).__name__}.use_tools returned a state without a new step; "
                "return state.with_current_step(step)"
            )

    async def _infer(self, step: "_StepProgress", opening: Infer | None) -> None:
        """Run the hooks before the step, and ask the model; what the hooks changed is kept if it fails."""
        call = ModelCall(step.state, self.clock.seconds, is_free=True)
        if opening:
            call.prepare_turn(opening.reminder, is_last=opening.is_last_turn)
        await call.run_hooks(self.definition)
        step.state = call.state
        budgets = self._budgets_of(step.state)
        budgeted = budgets and budgets.calls(self.clock, self.model_of, steps=1)
        try:
            await self._ask_driver(step, call, budgeted)
        finally:
            if budgeted:
                await budgeted.settle()

    async def _ask_driver(
        self, step: "_StepProgress", call: ModelCall, budgeted: BudgetedCalls | None
    ) -> None:
        """Ask the model, or let a driver without phases take the step."""
        if not isinstance(self.driver, StepDriver):
            if budgeted:
                await budgeted.reserve_step(self.driver, step.state)
            state = require_continued_state(await self.driver.use_tools(step.state), self.driver, step.state)
            step.state = state.worked(call.elapsed)
            if budgeted and state.current_step:
                budgeted.used += state.current_step.usage
            return
        driver, text = self.driver, self.narrator.open_text(step.state)

        async def ask_model(state: AgentState) -> Reply:
            if budgeted:
                return await budgeted.infer(driver, state, text.write)
            return await driver.infer(state, text.write)

        async def infer(state: AgentState) -> Reply:
            # Not retried once listeners have received text, as they cannot take it back.
            return await self.model_retry.retry(
                driver.model,
                lambda: ask_model(state),
                partial(self.narrator.emit_model_delay, state),
                may_repeat=lambda: not text.wrote,
            )

        ask = self._inquiry(step.state)
        try:
            await call.ask(self.definition, driver, infer, compactor=self._compactor(step.state, ask))
        finally:
            # A compaction, and what it cost, is kept if the model fails after it.
            # A compaction is no part of the step.
            step.state = call.state.with_facts(call.state.facts.spent(ask.usage))
        text.close()

    def _compactor(self, state: AgentState, ask: LocalInquiry) -> Compactor | None:
        """Return what keeps the requests of a step within the model's window; None if that is off."""
        policy = self.definition.base_plan.compaction
        if policy is None:
            return None

        async def record(compaction: Compaction) -> Compaction:
            self.narrator.emit_compaction(state, compaction)
            return compaction

        return Compactor(
            policy,
            ask,
            self.model_of,
            record,
            redact=self.executor.redaction,
            seconds=self.clock.seconds,
            anchor=_input_anchor(state),
        )

    async def _run_calls(self, step: "_StepProgress", decision: Decision, metadata: FrozenDict) -> None:
        """Run the calls that the decision names; the tools receive this metadata."""
        state, driver = step.state, self.driver
        if not isinstance(driver, StepDriver) or state.current_step is None:
            raise InvalidInput(f"{type(driver).__name__}.use_tools left tool calls without a result")
        match decision:
            case RunTools(named) | RunSubagents(named) | AwaitApproval(named):
                """The executor refuses calls that need a person."""
            case AwaitInput(call):
                named = (call,)
            case Infer() | AwaitBudget() | AwaitResume() | Process() | Stop():
                raise InvalidInput(f"a step with unanswered calls cannot be followed by {decision}")
        calls = {call.id: call for call in state.current_step.pending_calls}
        began = self.clock.seconds()
        after, runs = await self.executor.run_calls([calls[each.id] for each in named], state, metadata)
        try:
            self.executor.raise_escaped(runs)
        except (HookFailed, ToolFailed):
            step.state = self._with_kept_results(driver, with_usage_of(state, after), runs)
            raise
        executions = (run.execution for run in runs)
        step.state = state_with_results(driver, after, executions, self.clock.seconds() - began)

    def _with_kept_results(
        self, driver: StepDriver, state: AgentState, runs: Sequence[ToolRun]
    ) -> AgentState:
        """Add the reply and its results to the conversation of a step that an exception ends.

        The tools have had their effects, so the model has to read of them.
        """
        if state.current_step is None:
            return state
        now, step = self.clock.now(), state.current_step.observed(run.execution for run in runs)
        step = step.observed(
            ToolExecution(call, CANCELLED_CALL, None, now, now) for call in step.pending_calls
        )
        metadata = apply_changes(state.metadata, (run.notes for run in runs))
        return replace(state, metadata=metadata).heard(*driver.outputs(step))

    async def _process(self, state: AgentState, ask: LocalInquiry) -> AgentState:
        began = self.clock.seconds()
        state = await process_step(self.definition, state, ask)
        return state.worked(self.clock.seconds() - began).spent(ask.usage).processed()

    def _record(self, state: AgentState, outcome: ContinuationOutcome | None) -> AgentState:
        state = state.recorded(outcome, self.clock.now())
        if outcome and not outcome.should_continue:
            state = with_output(self.definition, state)
        record = state.execution.step_executions[-1]
        self.narrator.emit_step_end(state, record)
        if outcome:
            self.narrator.emit_evaluation(state, outcome, self.rules.error_policy)
        self.narrator.emit_state(state, record)
        return state


def _input_anchor(state: AgentState) -> InputAnchor | None:
    """Return the input of the previous step as its provider counted it."""
    before = state.steps[-1] if state.steps else None
    if before is None or before.is_failure or before.inference_response is None:
        return None
    usage = before.inference_response.usage
    tokens = usage.input + usage.cached
    return InputAnchor(len(before.input_messages), tokens) if tokens else None


@dataclass
class _StepProgress:
    """The state of a step under way: what was done before an exception is kept."""

    state: AgentState
