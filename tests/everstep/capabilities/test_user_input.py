"""The tool with which an agent asks its user a question."""

from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.tools.tools import ToolCall, ToolContext
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.user_input import UseUserInput

CONTEXT = ToolContext(UUID(int=1), "c1", 1)


def agent_and_call(
    capability: UseUserInput | None = None, /, **args: object
) -> tuple[AgentDefinition, ToolCall]:
    builder = DefinitionBuilder.new().with_capability(capability or UseUserInput())
    return builder.definition(), ToolCall("c1", "user_input", frozen_map(args))


def test_a_question_waits_for_an_answer() -> None:
    """8.5.1"""
    definition, call = agent_and_call(prompt="Which day?")

    assert definition.need_of(call) is CallNeed.INPUT
    assert definition.plan().tools[0].need is CallNeed.INPUT
    assert definition.plan().tools[0].wait_seconds is None


@pytest.mark.parametrize(
    ("args", "failure"),
    [
        ({"prompt": " "}, "prompt is required"),
        ({}, "Required arguments are missing: prompt"),
    ],
)
def test_an_invalid_question_fails_without_asking_the_user(args: dict[str, object], failure: str) -> None:
    """8.5.1"""
    definition, call = agent_and_call(**args)

    assert definition.need_of(call) is CallNeed.RUN
    assert definition.tools.refusal(call) == failure


def test_after_the_timeout_the_default_answer_is_the_result() -> None:
    """8.5.5"""
    definition, call = agent_and_call(
        UseUserInput(30, "Monday"), prompt="Which day?", choices=["Monday", "Friday"]
    )

    assert definition.plan().tools[0].wait_seconds == 30
    assert definition.tools.get("user_input").call(dict(call.args), CONTEXT) == "Monday"


@pytest.mark.parametrize(("default", "fits"), [({"day": "Monday"}, True), ({"night": 1}, False)])
def test_a_default_has_to_match_the_form(default: dict[str, object], fits: bool) -> None:
    """8.5.5"""
    form = {"type": "object", "required": ["day"]}
    definition, call = agent_and_call(UseUserInput(30, default), prompt="Which day?", schema=form)

    def evaluate() -> object:
        return definition.tools.get("user_input").call(dict(call.args), CONTEXT)

    if fits:
        assert evaluate() == default
    else:
        with pytest.raises(TimeoutError, match=r"^No answer within 30s$"):
            evaluate()


@pytest.mark.parametrize("default", [None, "Sunday"])
def test_without_a_matching_default_the_call_fails(default: str | None) -> None:
    """8.5.5"""
    definition, call = agent_and_call(
        UseUserInput(2.5, default), prompt="Which day?", choices=["Monday", "Friday"]
    )

    with pytest.raises(TimeoutError, match=r"^No answer within 2\.5s$"):
        definition.tools.get("user_input").call(dict(call.args), CONTEXT)
