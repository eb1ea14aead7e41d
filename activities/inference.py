"""Asks the model for a step: the reply is recorded once and paid for once."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from time import monotonic

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everstep.activities import execution_events
from everstep.activities.agents import AgentProvider, find_agent
from everstep.activities.budget_failure import exhausted_failure, reserved_failure
from everstep.activities.call_records import DEFAULT_DISCLOSURE, now
from everstep.activities.contracts import InferInput
from everstep.activities.deferred_start import DeferredStart
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.live_text import LiveText, LiveTexts
from everstep.activities.next_inputs import LoadedInput
from everstep.activities.snapshots import Snapshots
from everstep.activities.state_loading import load_state_before
from everstep.activities.step_compactions import StepCompaction
from everstep.activities.step_state import evaluation, step_state
from everstep.activities.store_retry import write_with_retry
from everstep.activities.text_checkpoints import TextCheckpoints
from everstep.activities.tool_runner import ToolRunner
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Reply, StepDriver
from everstep.agent_domain.agents.plan import Profile
from everstep.agent_domain.capabilities.approvals import ApprovalRule, args_digest
from everstep.agent_domain.capabilities.questions import request_data
from everstep.agent_domain.errors import RETRYABLE, ModelError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.budget import BudgetExhausted, BudgetReserved, OnExhausted
from everstep.agent_domain.loop.retries import DURABLE_SECONDS, GiveUp, budget_of, delay_text
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.messages.readable_parts import with_contents
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.storage.calls import Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import (
    BeginStep,
    BegunStep,
    CallToRecord,
    HookAdditions,
    RecordReply,
    RetryWait,
    StepInput,
)
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, frozen_map
from everstep.steps.budgeted_calls import BudgetedCalls
from everstep.steps.compactor import Compactor, state_for_model
from everstep.steps.hooks import find_hooks
from everstep.steps.model_calls import ModelCall
from everstep.steps.provider_retry import add_reason
from everstep.steps.toolsets import available_tool_names
from everstep.telemetry import metrics
from everstep.telemetry.model_requests import observing

RESERVED_PAUSE = timedelta(seconds=1)
"""How long an attempt waits for the model calls that have reserved the rest of a budget."""


def ignore_opening() -> None:
    """Do nothing when the step is opened."""


class InferenceRunner:
    """Asks the model, and runs those of its calls that need no activity of their own."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        tool_runner: ToolRunner,
        live_texts: LiveTexts,
        strike: Strike,
        *,
        start_delay: float,
        disclosure: Disclosure = DEFAULT_DISCLOSURE,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.tool_runner = tool_runner
        self.snapshots = Snapshots(store)
        self.live_texts = live_texts
        self.checkpoints = TextCheckpoints(store)
        self.strike = strike
        self.start_delay = start_delay

    async def infer(self, request: InferInput, on_opened: Callable[[], None] = ignore_opening) -> StepFacts:
        """Return the facts of the step's reply, or of the one that an earlier attempt recorded.

        Args:
            request: The step.
            on_opened: Called when the step is loaded; the content of its files is not.
        """
        try:
            return await self._infer(request, on_opened)
        except BudgetReserved:
            raise reserved_failure(RESERVED_PAUSE) from None
        except BudgetExhausted as error:
            if request.hears and error.budget.on_exhausted is not OnExhausted.ASK:
                await self.store.give_back_steering(request.ref, request.number)
            raise exhausted_failure(error.budget) from None

    async def _infer(self, request: InferInput, on_opened: Callable[[], None]) -> StepFacts:
        opened = await self._open_step(request)
        started, is_written = opened.started, opened.is_written
        begin = replace(opened.begin, known=started.material)
        spec = started.material.spec
        definition = find_agent(self.agents, spec.agent)
        if started.recorded:
            on_opened()
            return await self.tool_runner.run_quick_calls(request, started.material, started.recorded, {})
        await self.snapshots.store_before(request, started.material)
        self.strike(Failpoint.INFER_BEFORE_MODEL)
        driver = self.agents.driver(spec.agent, spec.llm_preset)
        budgeted = self._budgeted_calls(request, started)
        state = await self._load_state(request, started.material, definition)
        on_opened()
        state = state.with_resources(self.agents.resources)
        is_compacting = started.material.plan.get("compaction") is not None
        contents = await self._load_contents(request.ref, state_for_model(state) if is_compacting else state)
        with self.live_texts.open_text(
            begin, is_public=execution_events.is_text_public(started.material)
        ) as live:

            async def record_start() -> None:
                begun = await self.store.begin_step(begin)
                if request.profile is Profile.BURST and begun.previous_attempt == begin.attempt:
                    # Another worker has chosen the same number, and its viewers read its text.
                    live.stop()
                live.on_start(begun)

            if is_written:
                live.on_start(started)
            async with DeferredStart(record_start, self.start_delay, is_written=is_written) as start:
                compaction = StepCompaction(
                    self.store,
                    self.agents,
                    self.disclosure.redaction,
                    ref=request.ref,
                    number=request.number,
                    material=started.material,
                    files=contents,
                )
                call = ModelCall(state, monotonic)
                call.charged = started.wait.usage if started.wait else Usage()
                result = await self._ask_model(
                    live,
                    request,
                    driver,
                    definition,
                    call,
                    allowed=started.material.allowed,
                    compactor=compaction.compactor,
                    budgeted=budgeted,
                    contents=contents,
                )
            step = _current_step(result.state)
            if not step.is_failure:
                live.finish()
        self.strike(Failpoint.INFER_AFTER_RESPONSE)
        to_record = partial(_call_to_record, definition=definition, allowed=started.material.allowed)
        besides = Besides(compaction.usage, wishes=result.wishes)
        reply = _reply_to_record(begin, driver, result, self.disclosure, to_record, besides=besides)
        for error in reply.errors:
            activity.logger.warning("step %s: %s (ref %s)", request.number, error.message, error.ref)
        if not start.is_due:
            reply = replace(reply, begins=begin, events=begin.events(started))
        reply = replace(reply, first_text_seconds=live.first_text_seconds)
        if budgeted:
            reply = replace(reply, spending=budgeted.spending())
        keeps_input = not (definition.toolsets or compaction.has_recorded)
        facts = await self._record_reply(reply, opened, keeps_input=keeps_input)
        # If another attempt's reply is recorded, its calls may have the same ids as this one's.
        reservations = (
            _reservations(begin, started, step, result.added)
            if facts is reply.facts
            else dict[str, Reservation]()
        )
        facts = await self.tool_runner.run_quick_calls(request, started.material, facts, reservations)
        self.strike(Failpoint.INFER_BEFORE_REPORT)
        return facts

    async def _record_reply(
        self, reply: RecordReply, opened: "_OpenedStep", *, keeps_input: bool
    ) -> StepFacts:
        """Record the reply, and keep what the next step reads if nothing but the reply has changed it."""
        facts = await write_with_retry(partial(self.store.record_reply, reply))
        if facts is reply.facts:
            metrics.STEPS.add()
            if keeps_input:
                loaded = LoadedInput(opened.started.material, opened.read_at)
                self.tool_runner.next_inputs.keep_reply(reply, loaded, opened.began_at)
        return facts

    async def _open_step(self, request: InferInput) -> "_OpenedStep":
        """Return the start of the step, and the step as it is stored.

        Recorded with the start of a step: that the execution runs, which messages the step reads, and which
        attempt is void. Without any of these the start need not be recorded first.
        """
        attempt, known, began_at = activity.info().attempt, None, monotonic()
        is_first = request.number == 1
        followed = self.tool_runner.next_inputs.take(request.ref, request.number)
        if followed is not None and attempt == 1 and request.hears == 0:
            begin = self._step_start(request, attempt)
            begun = BegunStep(followed.material)
            return _OpenedStep(begin, begun, is_written=False, began_at=began_at, read_at=followed.read_at)
        if request.profile is Profile.BURST:
            # Each worker counts the attempts of a local activity from 1. And the first step of a brief
            # execution has as little time to be seen as any other.
            known = await self.store.preview_step(request.ref, request.number)
            attempt, is_first = max(attempt, (known.previous_attempt or 0) + 1), False
        begin = self._step_start(request, attempt)
        if known is not None and known.recorded:
            return _OpenedStep(begin, known, is_written=True, began_at=began_at, read_at=began_at)
        is_written = is_first or request.hears > 0 or attempt > 1
        if is_written:
            known = await self.store.begin_step(begin)
        known = known or await self.store.preview_step(request.ref, request.number)
        return _OpenedStep(begin, known, is_written=is_written, began_at=began_at, read_at=began_at)

    def _step_start(self, request: InferInput, attempt: int) -> BeginStep:
        def start_events(started: BegunStep) -> Sequence[EventRecord]:
            spec = started.material.spec
            tools = available_tool_names(find_agent(self.agents, spec.agent), spec)
            return execution_events.step_start_events(request, attempt, tools, started)

        return BeginStep(
            request.ref,
            request.number,
            attempt,
            outcome=evaluation(request.outcome),
            hears=request.hears,
            events=start_events,
            boundary=request.clock and Boundary(*request.clock, steered=request.hears),
        )

    def _budgeted_calls(self, request: InferInput, started: BegunStep) -> BudgetedCalls | None:
        """The reservation of the step's model calls; None without budgets."""
        terms = started.material.budget_terms(request.ref)
        if not terms.units:
            return None
        agent = started.material.spec.agent
        return BudgetedCalls(
            self.store,
            terms,
            f"step/{request.number}",
            steps=1,
            find_model=lambda name: self.agents.model(agent, name),
            used=started.wait.usage if started.wait else None,
        )

    async def _load_state(
        self, request: InferInput, material: StepInput, definition: AgentDefinition
    ) -> AgentState:
        """Load the state in which the step starts; the steps before it only if hooks read them."""
        if not find_hooks(definition, "before_step"):
            return step_state(request.ref, request.number, material)
        state = await load_state_before(self.store, request.ref, request.number, material)
        return state.with_facts(replace(state.facts, marks=request.marks))

    async def _load_contents(self, ref: ExecutionRef, state: AgentState) -> Mapping[str, bytes]:
        """Load the content of the files in the conversation, before the model is asked."""
        attachments = self.tool_runner.attachments
        return (
            EMPTY if attachments is None else await attachments.load_contents(ref.tenant_id, state.messages)
        )

    async def _ask_model(
        self,
        live: LiveText,
        request: InferInput,
        driver: StepDriver,
        definition: AgentDefinition,
        call: ModelCall,
        *,
        budgeted: BudgetedCalls | None,
        allowed: Sequence[ApprovalRule],
        compactor: Compactor | None,
        contents: Mapping[str, bytes],
    ) -> ModelCall:
        """Return the state after the model replied, or after it failed for good.

        Only the driver sees the content of files; the state does not keep it.
        """

        def add_text(content: str) -> None:
            live.add_text(content)
            self.strike(Failpoint.INFER_DURING_STREAM)

        async def infer(state: AgentState) -> Reply:
            if contents:
                state = state.with_messages(with_contents(state.messages, contents))
            live.on_request()
            with self.checkpoints.checkpoints(live):
                if budgeted:
                    return await budgeted.infer(driver, state, add_text)
                return await observing(driver).infer(state, add_text)

        try:
            definition, driver, call.state = await self._add_listed_tools(
                live.begin.ref, definition, driver, call.state
            )
            call.prepare_turn(request.reminder, is_last=request.is_last_turn)
            await call.run_hooks(definition)
            await call.ask(definition, driver, infer, allowed, compactor)
        except (BudgetExhausted, BudgetReserved):
            raise
        except Exception as error:  # noqa: BLE001 -- the error policy handles it, in the workflow
            # Hooks and toolsets may raise the same errors, but only the model call is retried.
            if call.is_waiting and isinstance(error, RETRYABLE):
                await self._raise_for_retry(
                    live, request, driver.model, error, budgeted=budgeted, charged=call.charged
                )
            call.fail(error, now())
        return call

    async def _add_listed_tools(
        self, ref: ExecutionRef, definition: AgentDefinition, driver: StepDriver, state: AgentState
    ) -> tuple[AgentDefinition, StepDriver, AgentState]:
        """Add the tools of the agent's toolsets to the definition, the driver and the state."""
        if not definition.toolsets:
            return definition, driver, state
        listed = await self.tool_runner.tool_lists.load_definition(ref, definition)
        cached = state.cached_context.with_tools(listed.tools.schemas)
        return listed, listed.equipped_driver(driver), state.with_cached_context(cached)

    async def _raise_for_retry(
        self,
        live: LiveText,
        request: InferInput,
        model: object,
        error: ModelError,
        *,
        budgeted: BudgetedCalls | None,
        charged: Usage,
    ) -> None:
        """Leave the next try to Temporal, after a pause; crashes do not count as failures.

        Returns only once the retry budget is exhausted.
        """
        # Text that is due is published now or not at all: the record below says whether the attempt was
        # silent.
        live.stop()
        begin = live.begin
        started = await self.store.begin_step(begin)
        if live.is_published:
            # The next attempt has to announce that this text is void: see `BegunStep.was_silent`.
            await live.record(self.store)
        failures = await self.store.note_failure(begin.ref, begin.number, begin.attempt)
        failed_at = now()
        since = started.wait.since if started.wait else failed_at
        budget = budget_of(request.retry_seconds, model, DURABLE_SECONDS, request.model_attempts)
        next_try = budget.after(error, failures, (failed_at - since).total_seconds(), random.random())  # noqa: S311 -- jitter
        if isinstance(next_try, GiveUp):
            add_reason(error, next_try.reason)
            return
        pause = timedelta(seconds=next_try.seconds)
        sentence, reason = delay_text(error, next_try.seconds), StepError.of(error).message
        reason = self.disclosure.redaction(reason)
        used = charged + take_usage(error)
        wait = RetryWait(begin.attempt, since, failed_at + pause, sentence, reason, used)
        await self.store.note_wait(
            begin.ref, begin.number, wait, [execution_events.retry_wait_event(begin.number, wait)]
        )
        if budgeted:
            await budgeted.keep_spent()
        activity.logger.warning("step %s: %s: %s", begin.number, sentence, reason)
        # The provider's message may quote the prompt, and this error is written to workflow history.
        raise ApplicationError(sentence, type=type(error).__name__, next_retry_delay=pause) from None


@dataclass(frozen=True, slots=True)
class _OpenedStep:
    """A step that may begin, or its reply."""

    begin: BeginStep
    started: BegunStep
    is_written: bool
    """Whether the start is recorded."""
    began_at: float
    read_at: float
    """When its input was read from the store."""


def _call_to_record(
    call: ToolCall, need: CallNeed, definition: AgentDefinition, allowed: Sequence[ApprovalRule]
) -> CallToRecord:
    digest = args_digest(call.name, call.args)
    asked = request_data(call.args) if need is CallNeed.INPUT else None
    policy = definition.approval_policy(call, allowed) if need is CallNeed.APPROVAL else None
    return CallToRecord(call, need, digest, asked, policy)


def _reply_to_record(
    begin: BeginStep,
    driver: StepDriver,
    result: ModelCall,
    disclosure: Disclosure,
    to_record: Callable[[ToolCall, CallNeed], CallToRecord],
    *,
    besides: Besides,
) -> RecordReply:
    """Build the record of the model's reply or failure."""
    step = _current_step(result.state)
    response = step.inference_response or InferenceResponse()
    facts = step.facts(begin.number)
    return RecordReply(
        begin.ref,
        begin.number,
        begin.attempt,
        replace(facts, besides=facts.besides + besides),
        [disclosure.of(error, begin.ref.execution_id, f"step/{begin.number}") for error in step.errors],
        frozen_map(response.to_dict()),
        () if step.is_failure else driver.outputs(step),
        [to_record(call, CallNeed(step.needs[call.id])) for call in step.tool_calls],
        added=result.added,
    )


def _reservations(
    begin: BeginStep, started: BegunStep, step: AgentStep, added: HookAdditions
) -> Mapping[str, Reservation]:
    """Return the calls as they were recorded, except those that wait for people and are read again later."""
    material = started.material
    metadata = added.notes.apply_to(material.metadata)
    return {
        call.id: Reservation(
            call,
            begin.number,
            index,
            metadata,
            broadcast=material.broadcast,
            earlier=step.tool_calls[:index],
            allowed=material.allowed,
            run=material.run,
        )
        for index, call in enumerate(step.tool_calls)
        if step.needs[call.id] == CallNeed.RUN
    }


def _current_step(state: AgentState) -> AgentStep:
    if state.current_step is None:
        raise ApplicationError("the driver returned no step", non_retryable=True)
    return state.current_step
