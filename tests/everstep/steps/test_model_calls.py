"""The model call of one step, as both shells make it."""

from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import Reply, ToolCallingDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import InvalidInput, RateLimited
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import ToolCall
from everstep.steps.model_calls import ModelCall
from tests.everstep.local.local_words import AT, WorkClock

STATE = AgentState.empty().with_messages("Go").identified(UUID(int=8), UUID(int=9)).with_step_started(AT)
DRIVER = ToolCallingDriver()


class Preparing(AgentHook):
    """Changes the state before the model is asked."""

    def __init__(self, *, drops: bool = False, error: Exception | None = None) -> None:
        self.drops = drops
        self.error = error

    def before_step(self, state: AgentState) -> AgentState:
        if self.error:
            raise self.error
        state = state.with_messages(()) if self.drops else state
        return state.heard(user("Be brief")).with_metadata("prepared", True).with_continuation_requested()


async def call_look(_state: AgentState) -> Reply:
    return Reply(InferenceResponse("", (ToolCall("c1", "look"),)))


async def test_the_reply_follows_the_hooks_and_says_what_its_calls_need() -> None:
    """4.5.2, 8.6.1"""
    builder = DefinitionBuilder.base().add_hook(Preparing()).with_tools([MockTool("look")])
    definition, clock = builder.with_approval("look", "always").definition(), WorkClock()
    call = ModelCall(STATE, clock.seconds)

    await call.run_hooks(definition)
    clock.advance(2)
    await call.ask(definition, DRIVER, call_look)

    assert [message.text for message in call.added.said] == ["Be brief"]
    assert call.wishes.another_step
    assert call.state.current_step is not None
    assert dict(call.state.current_step.needs) == {"c1": CallNeed.APPROVAL}
    assert (call.state.current_step.seconds, call.is_waiting) == (2.0, False)


async def test_the_changes_of_hooks_remain_if_the_model_fails() -> None:
    """4.5.8: in every shell."""
    definition, call = DefinitionBuilder.base().add_hook(Preparing()).definition(), ModelCall(STATE, float)

    async def fail(_state: AgentState) -> Reply:
        raise RateLimited("busy")

    await call.run_hooks(definition)
    with pytest.raises(RateLimited) as raised:
        await call.ask(definition, DRIVER, fail)
    assert call.is_waiting
    call.fail(raised.value, AT)

    assert [message.text for message in call.state.messages] == ["Go", "Be brief"]
    assert call.state.metadata == {"prepared": True}
    assert call.state.current_step is not None
    assert [error.type for error in call.state.current_step.errors] == [ErrorType.RATE_LIMIT]


async def test_an_error_of_a_hook_is_no_failure_of_the_model() -> None:
    """4.5.8: so it is not retried below the loop."""
    call = ModelCall(STATE, float)
    definition = DefinitionBuilder.base().add_hook(Preparing(error=RateLimited("busy"))).definition()

    with pytest.raises(RateLimited):
        await call.run_hooks(definition)

    assert not call.is_waiting


@pytest.mark.parametrize("is_free", [True, False])
async def test_only_a_run_in_this_process_lets_hooks_drop_messages(is_free: bool) -> None:
    """4.5.5"""
    definition = DefinitionBuilder.base().add_hook(Preparing(drops=True)).definition()
    call = ModelCall(STATE, float, is_free=is_free)

    if is_free:
        await call.run_hooks(definition)
        assert [message.text for message in call.state.messages] == ["Be brief"]
    else:
        with pytest.raises(InvalidInput, match="add new ones before or after the conversation instead"):
            await call.run_hooks(definition)
        assert call.state == STATE
