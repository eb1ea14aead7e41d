"""Asks the model for a step: the reply is recorded once and paid for once."""

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from time import monotonic

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everstep.activities import execution_events
from everstep.activities.agents import Agents, known
from everstep.activities.call_records import USUAL, now
from everstep.activities.contracts import InferInput
from everstep.activities.deferred_start import begun
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.hooks import before_step, hooks_of
from everstep.activities.isolation import contained
from everstep.activities.live_text import LiveText, LiveTexts
from everstep.activities.provider_retry import explain
from everstep.activities.snapshots import Snapshots
from everstep.activities.state_loading import state_before
from everstep.activities.step_state import evaluation, step_state
from everstep.activities.store_retry import until_written
from everstep.activities.text_checkpoints import PartialText
from everstep.activities.tool_runner import Running
from everstep.activities.toolsets import offered
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver, replied
from everstep.agent_domain.agents.processors import added_between
from everstep.agent_domain.capabilities.approvals import ApprovalRule, args_digest
from everstep.agent_domain.capabilities.questions import request_of
from everstep.agent_domain.errors import RETRYABLE
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.retries import DURABLE_SECONDS, GiveUp, announced, budget_of
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides, CallNeed, StepFacts
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.storage.calls import Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import (
    NOTHING_ADDED,
    Added,
    BeginStep,
    BegunStep,
    CallToRecord,
    Material,
    RecordReply,
    RetryWait,
)
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map


class Asking:
    """Asks the model, and runs those of its calls that need no activity of their own."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: Agents,
        running: Running,
        live_texts: LiveTexts,
        strike: Strike,
        *,
        moment: float,
        disclosure: Disclosure = USUAL,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.tool_runner = running
        self.snapshots = Snapshots(store)
        self.live_texts = live_texts
        self.strike = strike
        self.start_delay = moment

    async def answered(self, request: InferInput) -> StepFacts:
        """Return the facts of the step's reply, or of the one that an earlier attempt recorded."""
        begin = self._beginning(request)
        # Recorded with the start of the step: that the execution runs, which messages the step reads, and
        # which attempt is void. Without any of these the start need not be recorded first.
        is_written = request.number == 1 or request.hears > 0 or begin.attempt > 1
        if is_written:
            found = await self.store.begin_step(begin)
        else:
            found = await self.store.preview_step(request.ref, request.number)
        begin = replace(begin, messages=found.material.messages)
        spec = found.material.spec
        definition = known(self.agents, spec.agent)
        if found.recorded:
            return await self.tool_runner.with_quick(request, found.material, found.recorded, {})
        await self.snapshots.keep_before(request, found.material)
        self.strike(Failpoint.INFER_BEFORE_MODEL)
        driver = self.agents.driver(spec.agent, spec.llm_preset)
        state = await self._state(request, found.material, definition)
        with self.live_texts.told(begin, is_public=execution_events.tells_text(found.material)) as live:

            async def write() -> None:
                live.begun(await self.store.begin_step(begin))

            if is_written:
                live.begun(found)
            async with begun(write, self.start_delay, is_written=is_written) as is_begun:
                asked = await self._asked(
                    live, request, driver, definition, state, allowed=found.material.allowed
                )
            step = _current(asked.state)
            if not step.is_failure:
                live.ended()
        self.strike(Failpoint.INFER_AFTER_RESPONSE)
        reply = _reply(begin, driver, asked, self.disclosure)
        for error in reply.errors:
            activity.logger.warning("step %s: %s (ref %s)", request.number, error.message, error.ref)
        if not is_begun.is_set():
            reply = replace(reply, begins=begin, events=begin.events(found))
        facts = await until_written(partial(self.store.record_reply, reply))
        # If another attempt's reply is recorded, its calls may have the same ids as this one's.
        made = _made(begin, found, step, asked.added) if facts is reply.facts else dict[str, Reservation]()
        facts = await self.tool_runner.with_quick(request, found.material, facts, made)
        self.strike(Failpoint.INFER_BEFORE_REPORT)
        return facts

    def _beginning(self, request: InferInput) -> BeginStep:
        def told(begun: BegunStep) -> Sequence[EventRecord]:
            spec = begun.material.spec
            tools = offered(known(self.agents, spec.agent), spec)
            return execution_events.step_begins(request, activity.info().attempt, tools, begun)

        return BeginStep(
            request.ref,
            request.number,
            activity.info().attempt,
            outcome=evaluation(request.outcome),
            hears=request.hears,
            events=told,
        )

    async def _state(
        self, request: InferInput, material: Material, definition: AgentDefinition
    ) -> AgentState:
        """Load the state in which the step starts; the steps before it only if hooks read them."""
        if hooks_of(definition, "before_step"):
            return await state_before(self.store, request.ref, request.number, material)
        return step_state(request.ref, request.number, material)

    async def _asked(
        self,
        live: LiveText,
        request: InferInput,
        driver: StepDriver,
        definition: AgentDefinition,
        began: AgentState,
        *,
        allowed: Sequence[ApprovalRule],
    ) -> "_Asked":
        """Return the state after the model replied, or after it failed for good."""
        text, since = PartialText(self.store, live, self.strike), monotonic()
        state, added = began, NOTHING_ADDED
        try:
            definition, driver, state = await self._equipped(live.begin.ref, definition, driver, state)
            shown = await before_step(hooks_of(definition, "before_step"), state)
            added, state = added_between(state, shown), shown
            async with text.kept():
                with contained():
                    reply = await driver.infer(state, text.heard)
            need_of = partial(definition.need_of, allowed=allowed)
            state = replied(driver, state, reply, _since(since), need_of)
        except RETRYABLE as error:
            await self._again_unless_exhausted(live, request, driver.model, error)
            state = state.failed(StepError.of(error), now(), _since(since))
        except Exception as error:  # noqa: BLE001 -- the error policy handles it, in the workflow
            state = state.failed(StepError.of(error), now(), _since(since))
        return _Asked(state, added, Wishes.between(began, state))

    async def _equipped(
        self, ref: ExecutionRef, definition: AgentDefinition, driver: StepDriver, state: AgentState
    ) -> tuple[AgentDefinition, StepDriver, AgentState]:
        """Add the tools of the agent's toolsets to the definition, the driver and the state."""
        if not definition.toolsets:
            return definition, driver, state
        equipped = await self.tool_runner.tool_lists.definition(ref, definition)
        driver = copy.copy(driver)
        driver.equip(equipped.tools, parallel_tools=definition.base_plan.parallel_tools)
        cached = state.cached_context.with_tools(equipped.tools.schemas)
        return equipped, driver, state.with_cached_context(cached)

    async def _again_unless_exhausted(
        self, live: LiveText, request: InferInput, model: object, error: Exception
    ) -> None:
        """Leave the next try to Temporal, after a pause; crashes do not count as failures.

        Returns only once the retry budget is exhausted.
        """
        # Text that is due is published now or not at all: the record below says whether the attempt was
        # silent.
        live.stop()
        begin = live.begin
        begun = await self.store.begin_step(begin)
        if live.was_told:
            # The next attempt has to announce that this text is void: see `BegunStep.was_silent`.
            await live.keep(self.store)
        failures = await self.store.note_failure(begin.ref, begin.number, begin.attempt)
        failed_at = now()
        since = begun.wait.since if begun.wait else failed_at
        budget = budget_of(request.retry_seconds, model, DURABLE_SECONDS, request.model_attempts)
        follows = budget.after(error, failures, (failed_at - since).total_seconds(), random.random())  # noqa: S311 -- jitter
        if isinstance(follows, GiveUp):
            explain(error, follows.reason)
            return
        pause = timedelta(seconds=follows.seconds)
        told, reason = announced(error, follows.seconds), StepError.of(error).message
        reason = self.disclosure.redaction(reason)
        wait = RetryWait(begin.attempt, since, failed_at + pause, told, reason)
        await self.store.note_wait(
            begin.ref, begin.number, wait, [execution_events.waits(begin.number, wait)]
        )
        activity.logger.warning("step %s: %s: %s", begin.number, told, reason)
        # The provider's message may quote the prompt, and this error is written to workflow history.
        raise ApplicationError(told, type=type(error).__name__, next_retry_delay=pause) from None


def _to_record(call: ToolCall, need: CallNeed) -> CallToRecord:
    digest = args_digest(call.name, call.args)
    return CallToRecord(call, need, digest, request_of(call.args) if need is CallNeed.INPUT else None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The result of asking the model."""

    state: AgentState
    added: Added
    """The additions of hooks before the model was asked."""
    wishes: Wishes


def _reply(begin: BeginStep, driver: StepDriver, asked: _Asked, disclosure: Disclosure) -> RecordReply:
    """Build the record of the model's reply or failure."""
    step = _current(asked.state)
    response = step.inference_response or InferenceResponse()
    facts = step.facts(begin.number)
    return RecordReply(
        begin.ref,
        begin.number,
        begin.attempt,
        replace(facts, besides=facts.besides + Besides(wishes=asked.wishes)) if asked.wishes else facts,
        [disclosure.of(error, begin.ref.execution_id, f"step/{begin.number}") for error in step.errors],
        frozen_map(response.to_dict()),
        () if step.is_failure else driver.outputs(step),
        [_to_record(call, CallNeed(step.needs[call.id])) for call in step.tool_calls],
        added=asked.added,
    )


def _made(begin: BeginStep, found: BegunStep, step: AgentStep, added: Added) -> Mapping[str, Reservation]:
    """Return the calls as they were recorded, except those that wait for people and are read again later."""
    material = found.material
    metadata = added.notes.added_to(material.metadata)
    return {
        call.id: Reservation(
            call,
            begin.number,
            index,
            metadata,
            broadcast=material.broadcast,
            earlier=step.tool_calls[:index],
            allowed=material.allowed,
        )
        for index, call in enumerate(step.tool_calls)
        if step.needs[call.id] == CallNeed.RUN
    }


def _current(state: AgentState) -> AgentStep:
    if state.current_step is None:
        raise ApplicationError("the driver returned no step", non_retryable=True)
    return state.current_step


def _since(began: float) -> float:
    return round(monotonic() - began, 6)
