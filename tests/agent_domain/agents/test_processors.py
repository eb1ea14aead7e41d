"""What users put around steps and tool calls."""

from typing import Any

import pytest

from everstep.agent_domain.agents.processors import MOST_ADDED, AgentHook, added_between, given_back
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.state.state import AgentState
from tests.agent_domain.state_words import a_call, a_state, a_step, answered, having_taken

STATE = a_state("Hello")


def test_a_hook_changes_nothing_until_it_is_told_to() -> None:
    """2.4.1: each method can be overridden by itself."""
    hook = AgentHook()
    assert hook.before_step(STATE) is STATE
    assert hook.before_tool(STATE, a_call()) is STATE
    assert hook.after_tool(STATE, answered(a_call())) is STATE
    assert hook.after_step(STATE) is STATE


def test_a_state_is_given_back() -> None:
    """4.5.2."""
    assert given_back(STATE, AgentHook(), STATE) is STATE


class Processor:
    """An object that can be called."""

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
def test_anything_else_is_told_by_the_name_of_who_returned_it(
    result: Any, by: object, complaint: str
) -> None:
    """4.3.4: it becomes the text of a failure step."""
    with pytest.raises(InvalidInput) as refused:
        given_back(result, by, STATE)
    assert str(refused.value) == complaint


@pytest.mark.parametrize(
    "elsewhere",
    [
        AgentState.empty(),
        STATE.for_continuation(),
        STATE.with_user_message("More"),
        having_taken(a_step("one"), state=STATE),
    ],
)
def test_a_state_that_does_not_go_on_from_the_one_before_is_refused(elsewhere: AgentState) -> None:
    """4.3.4: and what to do instead is said."""
    with pytest.raises(
        InvalidInput, match=r"returned a state of another execution; change the state that it"
    ):
        given_back(elsewhere, forgets, STATE)
    more = STATE.with_user_message("More", reset=False)
    assert given_back(more, forgets, STATE) is more


@pytest.mark.parametrize("is_before", [True, False])
def test_what_is_added_at_one_place_has_to_fit(is_before: bool) -> None:
    """4.5.4: else it could not be written down, and would be tried again for ever."""
    many = tuple(user(f"{number}") for number in range(MOST_ADDED))
    said = STATE.messages

    def adding(*more: Message) -> AgentState:
        added = (*many, *more)
        return STATE.with_messages((*added, *said) if is_before else (*said, *added))

    added = added_between(STATE, adding())
    assert (added.opening if is_before else added.said) == many
    with pytest.raises(InvalidInput, match="added 1001 messages to a step; add at most 1000"):
        added_between(STATE, adding(user("One more")))
