"""Asks the model for a step: the hooks before it, its reply, and what each of its calls needs."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Reply, StepDriver, state_with_reply
from everstep.agent_domain.agents.last_turn import LAST_TURN, without_calls
from everstep.agent_domain.agents.processors import additions_between
from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.errors import ContextTooLong
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.repeated_calls import LoopReminder
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.messages.messages import Messages, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.steps import NO_ADDITIONS, HookAdditions
from everstep.steps.compactor import Compactor, state_for_model
from everstep.steps.hooks import failure_of, run_before_step
from everstep.steps.isolation import error_boundary
from everstep.steps.outputs import with_checked_result


class ModelCall:
    """The model call of a step. After an exception it has the state so far, with the changes of hooks.

    Args:
        state: The state in which the step starts.
        seconds: A monotonic clock.
        is_free: Whether the hooks may also change messages, which a durable execution could not record.
    """

    def __init__(self, state: AgentState, seconds: Callable[[], float], *, is_free: bool = False) -> None:
        self.initial_state = state
        self.state = state
        self.seconds = seconds
        self.is_free = is_free
        self.added: HookAdditions = NO_ADDITIONS
        """The messages and metadata that the hooks added."""
        self.is_waiting = False
        """Whether the model was asked and has not replied, also if it failed."""
        self.charged = Usage()
        """What earlier attempts at the call used."""
        self._began = seconds()

    def prepare_turn(self, reminder: LoopReminder | None, *, is_last: bool = False) -> None:
        """Add what the model reads before it is asked.

        Args:
            reminder: The reminder of the loop, if one is due.
            is_last: Whether the model has to answer without tools.
        """
        texts = [*([reminder.text] if reminder else ()), *([LAST_TURN] if is_last else ())]
        self.state = self.state.heard(*map(user, texts))
        if is_last:
            execution = replace(self.state.execution, is_last_turn=True)
            self.state = replace(self.state, execution=execution)
        if texts and not self.is_free:
            self.added = additions_between(self.initial_state, self.state)

    async def run_hooks(self, definition: AgentDefinition) -> None:
        """Run the hooks before the step.

        Raises:
            InvalidInput: They changed messages, and may only add some.
        """
        state = await run_before_step(definition, self.state)
        if not self.is_free:
            self.added = additions_between(self.initial_state, state)
        self.state = state

    async def ask(
        self,
        definition: AgentDefinition,
        driver: StepDriver,
        infer: Callable[[AgentState], Awaitable[Reply]],
        allowed: Sequence[ApprovalRule] = (),
        compactor: Compactor | None = None,
    ) -> None:
        """Ask the model, and add its reply to the state.

        Args:
            definition: The agent, with the tools that its toolsets listed.
            driver: Translates the reply into messages.
            infer: Asks the model through the driver.
            allowed: Rules of calls that a person has already approved for the execution.
            compactor: Keeps the request within the model's context window.

        Raises:
            ContextTooLong: What the model has to read does not fit.
        """
        if compactor is not None:
            compactor.openings = _openings(self.initial_state.messages, self.state.messages)
            self.state = await compactor.fit(self.state, driver)
        try:
            reply = await self._infer(infer, is_compacting=compactor is not None)
        except ContextTooLong as error:
            if compactor is None:
                raise
            self.is_waiting = False
            self.charged += take_usage(error)
            self.state = await compactor.fit_after(error, self.state, driver)
            reply = await self._infer(infer, is_compacting=True)
        if self.state.execution.is_last_turn:
            reply = without_calls(reply)
        reply = with_checked_result(definition, self.state, reply)
        need_of = partial(definition.need_of, allowed=allowed)
        self.state = state_with_reply(driver, self.state, reply, self.elapsed, need_of)

    async def _infer(self, infer: Callable[[AgentState], Awaitable[Reply]], *, is_compacting: bool) -> Reply:
        self.is_waiting = True
        with error_boundary():
            # An agent without compaction reads a conversation that another one compacted as a whole.
            reply = await infer(state_for_model(self.state) if is_compacting else self.state)
        self.is_waiting = False
        return reply.charged(self.charged)

    def fail(self, error: Exception, at: datetime) -> None:
        """Turn an exception into a failure step."""
        usage = self.charged + take_usage(error)
        self.state = self.state.failed(failure_of(error), at, self.elapsed, usage)

    @property
    def elapsed(self) -> float:
        """Seconds since the step began, to the microsecond."""
        return round(self.seconds() - self._began, 6)

    @property
    def wishes(self) -> Wishes:
        """The requests that the hooks made."""
        return Wishes.between(self.initial_state, self.state)


def _openings(before: Messages, after: Messages) -> int:
    """Return how many messages were put before the conversation; none if it was changed in another way."""
    more = range(len(after) - len(before) + 1)
    return next((count for count in more if after[count : count + len(before)] == before), 0)
