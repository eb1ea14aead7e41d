"""Keeps the requests of a step within the context window of the model, for both shells.

A compaction is made before the model is asked, recorded once, and then part of the state. Whoever asks the
model gives the driver `state_for_model(state)`, in which the conversation is the compacted one.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from everstep.agent_domain.agents.compaction_policy import CompactionPolicy
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.agents.token_counting import provider_count, readable_files_of, window_of
from everstep.agent_domain.errors import ContextTooLong
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.compaction_planning import (
    FIRST,
    FURTHER,
    SUMMARY,
    CompactionPlan,
    Room,
    chunks,
    compacted_messages,
    fitting_text,
    mechanical_summary,
    plan_compaction,
    summary_rules,
    transcript_of,
)
from everstep.agent_domain.messages.leak_guard import calls_in, without_repeated_arguments
from everstep.agent_domain.messages.messages import Message, Messages, system, user
from everstep.agent_domain.messages.readable_parts import described_messages, with_contents
from everstep.agent_domain.messages.token_estimate import (
    estimate_message,
    estimate_messages,
    estimate_request,
    estimate_text,
    is_surely_within,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.inquiry import AskModel, ModelChoice
from everstep.agent_domain.values import EMPTY

CHUNK_OVERHEAD = 80
"""What a request for a summary has in addition to the rules and the text."""

LEAST_CHUNK = 100


@dataclass(frozen=True, slots=True)
class InputAnchor:
    """The input tokens that the provider reported for the previous request of the conversation."""

    messages: int
    """How many messages of the conversation there were."""
    tokens: int


FindAnchor: TypeAlias = Callable[[], Awaitable[InputAnchor | None]]


def state_for_model(state: AgentState) -> AgentState:
    """The state with the conversation as the model reads it."""
    compaction = state.message_store.compaction
    if compaction is None:
        return state
    shown = compacted_messages(state.messages, compaction)
    return _with_compaction(state, None).with_messages(shown)


def _with_compaction(state: AgentState, compaction: Compaction | None) -> AgentState:
    return state.with_message_store(state.message_store.with_compaction(compaction))


class Compactor:
    """Compacts the conversation of a step where its request would not fit.

    Args:
        policy: When and how.
        ask: Asks the model for a summary, and adds its usage to the execution.
        model_of: Looks up the model of the summary, whose window may be smaller.
        record: Stores a compaction, and returns the one that is stored.
        redact: Removes secrets from a summary.
        seconds: A monotonic clock.
        choice: The model of summaries where the policy names none: that of the execution.
        anchor: What is known of the previous request.
        find_anchor: Reads what is known of it where that is not at hand, if the estimate does not fit.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        ask: AskModel,
        model_of: Callable[[ModelChoice], object],
        record: Callable[[Compaction], Awaitable[Compaction]],
        *,
        redact: Callable[[str], str],
        seconds: Callable[[], float],
        choice: ModelChoice = None,
        anchor: InputAnchor | None = None,
        find_anchor: FindAnchor | None = None,
    ) -> None:
        self.policy = policy
        self.ask = ask
        self.model_of = model_of
        self.record = record
        self.redact = redact
        self.seconds = seconds
        self.choice = choice if policy.model is None else policy.model
        self.anchor = anchor
        self.find_anchor = find_anchor
        self.files: Mapping[str, bytes] = EMPTY
        """The content of attached files by their ids, where the conversation has references only."""
        self.openings = 0
        """How many messages hooks put before the conversation in this step; the store has them elsewhere."""

    async def fit(self, state: AgentState, driver: StepDriver) -> AgentState:
        """The state, compacted if its request has too many tokens for the model.

        Args:
            state: The state in which the step starts, with the additions of hooks.
            driver: Builds the request.

        Raises:
            ContextTooLong: The messages that the model has to read do not fit.
        """
        window = window_of(driver.model)
        if window is None:
            return state
        given, state = state, self._measurable_state(state, driver)
        request = driver.request(state_for_model(state))
        limit = int(window.input_tokens * self.policy.at)
        if is_surely_within(request, limit):
            return given
        tokens = self._measured(request, state)
        if tokens > limit and self.anchor is None and self.find_anchor is not None:
            self.anchor = await self.find_anchor()
            tokens = self._measured(request, state)
        if tokens > limit:
            tokens = await provider_count(driver.model, request) or tokens
        if tokens <= limit:
            return given
        compaction = await self._compact(state, driver, window.input_tokens, tokens)
        return given if compaction is None else _with_compaction(given, compaction)

    async def fit_after(self, error: ContextTooLong, state: AgentState, driver: StepDriver) -> AgentState:
        """The state, compacted after the provider refused its request as too long.

        The window is not known, or the estimate was wrong: half of the request is taken for what fits.
        """
        window, given, state = window_of(driver.model), state, self._measurable_state(state, driver)
        estimate = estimate_request(driver.request(state_for_model(state)))
        fits = estimate // 2 if window is None else min(window.input_tokens, estimate // 2)
        try:
            # The provider accepted requests that were only a little shorter.
            compaction = await self._compact(state, driver, fits, estimate, max(fits, estimate * 2 // 3))
        except ContextTooLong:
            raise error from None
        if compaction is None:
            raise error
        return _with_compaction(given, compaction)

    def _measurable_state(self, state: AgentState, driver: StepDriver) -> AgentState:
        """The state with its files as the model reads them, which is only there to be measured."""
        messages = with_contents(state.messages, self.files)
        messages = described_messages(messages, readable_files_of(driver.model))
        # The positions of messages are the same, although some have another content.
        return _with_compaction(state.with_messages(messages), state.message_store.compaction)

    def _measured(self, request: InferenceRequest, state: AgentState) -> int:
        """The estimate; the provider's number for the messages that it has counted before."""
        estimate, anchor = estimate_request(request), self.anchor
        if anchor is None or anchor.messages > len(state.messages):
            return estimate
        added = estimate_messages(state.messages[anchor.messages :])
        # Some servers do not report the tokens that they had cached.
        is_plausible = anchor.tokens * 4 >= estimate - added
        return min(estimate, anchor.tokens + added) if is_plausible else estimate

    async def _compact(
        self, state: AgentState, driver: StepDriver, fits: int, tokens: int, asks: int = 0
    ) -> Compaction | None:
        """Compact the conversation; return the compaction, or None if there is nothing to remove.

        Args:
            state: The state in which the step starts.
            driver: Builds the request.
            fits: How many tokens the request may have.
            tokens: How many it has.
            asks: How many tokens a request for a summary may have, if that is more.
        """
        began = self.seconds()
        request = driver.request(state_for_model(state))
        messages, last = state.messages[self.openings :], state.message_store.compaction
        if last is not None:
            last = last.without(range(self.openings))
        shown = estimate_messages(compacted_messages(messages, last))
        fixed = estimate_request(request) - shown
        room = Room(fits - fixed, max(int(fits * self.policy.to) - fixed, (fits - fixed) // 2))
        plan = plan_compaction(messages, last, room)
        if _planned_size(messages, plan) > room.fits:
            plan = plan_compaction(messages, last, room, is_last_resort=True)
            await self._require_fit(plan, state, driver, fits, fixed)
        compaction, usage = plan.compaction, Usage()
        if plan.segment or plan.earlier:
            summary, usage = await self._summarize(plan, max(fits, asks))
            compaction = replace(compaction, summaries=(*compaction.summaries, summary))
        compaction = replace(
            compaction,
            step=state.facts.recorded_steps + 1,
            tokens_before=tokens,
            tokens_after=fixed + estimate_messages(compacted_messages(messages, compaction)),
            usage=usage,
            seconds=round(self.seconds() - began, 6),
        )
        if compaction.summaries == (last.summaries if last else ()) and not compaction.results:
            # The request fits as it is, above the share where it is compacted.
            return None
        stored = await self.record(compaction)
        self.anchor = None
        return stored.shifted(self.openings)

    async def _require_fit(
        self,
        plan: CompactionPlan,
        state: AgentState,
        driver: StepDriver,
        fits: int,
        fixed: int,
    ) -> None:
        """Raise `ContextTooLong` if even this plan leaves too much."""
        planned = _with_compaction(state, plan.compaction.shifted(self.openings))
        needed = fixed + _planned_size(state.messages[self.openings :], plan)
        if needed <= fits:
            return
        counted = await provider_count(driver.model, driver.request(state_for_model(planned)))
        if counted is None or counted + plan.summary_tokens > fits:
            text = _refusal(fits, fixed, needed)
            raise ContextTooLong(text, advice=text)

    async def _summarize(self, plan: CompactionPlan, fits: int) -> tuple[str, Usage]:
        """The summary, and its usage; in smaller pieces if its model refuses one as too long."""
        window = window_of(self.model_of(self.choice))
        available = min(fits, window.input_tokens) if window else fits
        rules = system(summary_rules(plan))
        room = available - estimate_message(rules) - plan.summary_tokens - CHUNK_OVERHEAD
        pieces = _Pieces(self, plan, rules)
        while room >= LEAST_CHUNK:
            try:
                return await pieces.summarize(room), pieces.usage
            except ContextTooLong:
                room //= 2
        # There is no room for a request that could do better.
        return self._cut(mechanical_summary(plan.segment, plan.summary_tokens), plan), pieces.usage

    def _cut(self, text: str, plan: CompactionPlan) -> str:
        return fitting_text(self.redact(text), plan.summary_tokens)


class _Pieces:
    """Asks for a summary piece by piece; the usage of all requests is kept."""

    def __init__(self, compactor: Compactor, plan: CompactionPlan, rules: Message) -> None:
        self.compactor = compactor
        self.plan = plan
        self.rules = rules
        self.usage = Usage()

    async def summarize(self, room: int) -> str:
        """The summary, by requests whose messages have at most this many tokens."""
        plan, compactor = self.plan, self.compactor
        summary = fitting_text("\n\n".join(plan.earlier), room // 2)
        room -= max(0, estimate_text(summary) - plan.summary_tokens)
        for chunk in chunks(transcript_of(plan.segment), max(LEAST_CHUNK // 2, room)) or [""]:
            text = FURTHER.format(summary, chunk) if summary else FIRST.format(chunk)
            request = InferenceRequest((self.rules, user(text)), 1)
            response = await compactor.ask(request, compactor.choice)
            self.usage += response.usage
            # As with any answer, arguments of calls that the model only repeats are no text.
            said = without_repeated_arguments(response.text, calls_in(plan.segment)).strip()
            given = said or mechanical_summary(plan.segment, plan.summary_tokens)
            summary = fitting_text(compactor.redact(given), plan.summary_tokens)
        return summary


def _planned_size(messages: Messages, plan: CompactionPlan) -> int:
    size = estimate_messages(compacted_messages(messages, plan.compaction))
    if plan.segment or plan.earlier:
        size += estimate_message(user(SUMMARY.format(""))) + plan.summary_tokens
    return size


def _refusal(fits: int, fixed: int, needed: int) -> str:
    if fixed * 2 > fits:
        return (
            f"The agent's prompt and tools have about {fixed} tokens, and a request to its model may have "
            f"{fits}: use a model with a larger context window, or fewer tools."
        )
    return (
        f"The message is too long for the model: it has about {needed - fixed} tokens, and there is room for "
        f"{fits - fixed}. Send a shorter one, or use a model with a larger context window."
    )
