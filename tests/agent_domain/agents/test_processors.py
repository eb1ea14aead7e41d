"""The users' code around steps and tool calls."""

from typing import Any

import pytest

from everstep.agent_domain.agents.processors import (
    MAX_ADDED_MESSAGES,
    AgentHook,
    additions_between,
    require_continued_state,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.state.state import AgentState
from tests.agent_domain.state_words import a_call, a_state, a_step, a_success, after_steps

STATE = a_state("Hello")


def test_a_hook_changes_nothing_by_default() -> None:
    """2.4.1: each method can be overridden separately."""
    hook = AgentHook()
    assert hook.before_step(STATE) is STATE
    assert hook.before_tool(STATE, a_call()) is STATE
    assert hook.after_tool(STATE, a_success(a_call())) is STATE
    assert hook.after_step(STATE) is STATE


def test_a_state_is_returned() -> None:
    """4.5.2."""
    assert require_continued_state(STATE, AgentHook(), STATE) is STATE


class Processor:
    """A callable object."""

    def __call__(self) -> None: ...


def forgets() -> None: ...


@pytest.mark.parametrize(
    ("result", "by", "complaint"),
    [
        (None, forgets, "forgets returned NoneType; return the state to go on with"),
        ({"status": "failed"}, Processor(), "Processor returned dict; return the state to go on with"),
        (5, AgentHook(), "AgentHook returned int; return the state to go on with"),
    ],
)
def test_any_other_value_is_reported_with_the_name_of_its_hook(
    result: Any, by: object, complaint: str
) -> None:
    """4.3.4: it becomes the text of a failure step."""
    with pytest.raises(InvalidInput) as refused:
        require_continued_state(result, by, STATE)
    assert str(refused.value) == complaint


@pytest.mark.parametrize(
    "elsewhere",
    [
        AgentState.empty(),
        STATE.for_continuation(),
        STATE.with_user_message("More"),
        after_steps(a_step("one"), state=STATE),
    ],
)
def test_a_state_that_does_not_continue_the_previous_one_is_refused(elsewhere: AgentState) -> None:
    """4.3.4: with advice."""
    with pytest.raises(
        InvalidInput, match=r"returned a state of another execution; change the state that it"
    ):
        require_continued_state(elsewhere, forgets, STATE)
    more = STATE.with_user_message("More", reset=False)
    assert require_continued_state(more, forgets, STATE) is more


@pytest.mark.parametrize("is_before", [True, False])
def test_additions_at_one_place_must_be_valid(is_before: bool) -> None:
    """4.5.4: otherwise they could not be stored, and would be retried without end."""
    many = tuple(user(f"{number}") for number in range(MAX_ADDED_MESSAGES))
    said = STATE.messages

    def adding(*more: Message) -> AgentState:
        added = (*many, *more)
        return STATE.with_messages((*added, *said) if is_before else (*said, *added))

    added = additions_between(STATE, adding())
    assert (added.opening if is_before else added.said) == many
    with pytest.raises(InvalidInput, match="added 1001 messages to a step; add at most 1000"):
        additions_between(STATE, adding(user("One more")))
