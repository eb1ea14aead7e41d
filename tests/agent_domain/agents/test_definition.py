"""The definition that a builder makes."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.contracts import AgentDescriptor
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import CriterionRef, CriterionRegistry, ExecutionPlan
from everstep.agent_domain.capabilities.approvals import parse_approval
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision
from everstep.agent_domain.loop.criteria import (
    ErrorPolicyCriterion,
    RetryLimit,
    StepsLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.state.events import EventBus
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import ToolCall, ToolOptions
from everstep.agent_domain.values import frozen_map

NEVER = ContinuationCriteria.when(lambda _state: ContinuationDecision.FORBID)
RULES: list[dict[str, Any]] = [{"tool": "look", "args": {"at": "secret*"}, "approval": "always"}]


def a_definition(build: Callable[[DefinitionBuilder], object] | None = None) -> AgentDefinition:
    builder = DefinitionBuilder.new()
    if build:
        build(builder)
    return builder.definition()


def a_call(name: str, **args: Any) -> ToolCall:
    return ToolCall("c1", name, frozen_map(args))


def test_a_definition_does_not_change() -> None:
    """0.8."""
    definition = a_definition()
    with pytest.raises(FrozenInstanceError):
        definition.llm_preset = "fast"  # type: ignore[misc] -- that is the point


def test_a_definition_made_by_hand_has_only_its_plan() -> None:
    """11: two of them share no bus."""
    made = [AgentDefinition(AgentDescriptor("agent", "An agent"), ExecutionPlan()) for _ in range(2)]
    assert made[0] == made[1] == a_definition()
    assert made[0].events == EventBus()
    assert made[0].events is not made[1].events


def test_the_rules_are_the_base_set_and_then_what_was_added() -> None:
    """2.6.3: in this process criteria need not be registered."""
    policy = ErrorPolicy.retry_all()
    definition = a_definition(
        lambda b: (
            b.add_continuation_criteria(NEVER, RetryLimit(2))
            .with_max_steps(3)
            .with_error_policy(policy)
            .with_parallel_tools(False)
        )
    )
    rules = definition.rules
    assert rules.criteria.criteria == (
        StepsLimit(3),
        ErrorPolicyCriterion(policy),
        ToolCallPresenceCheck(policy),
        NEVER,
        RetryLimit(2),
    )
    assert (rules.error_policy, rules.parallel_tools) == (policy, False)


def test_the_plan_of_a_durable_execution_names_its_criteria() -> None:
    """2.6.3, 11."""
    definition = a_definition(lambda b: b.add_continuation_criteria(RetryLimit(2)).with_max_steps(3))
    plan = definition.plan()
    assert plan.criteria == (CriterionRef(name="RetryLimit", params={"max_failures": 2}),)
    assert plan.max_steps == 3
    assert definition.base_plan.criteria == ()


def test_a_criterion_that_is_not_registered_cannot_be_planned() -> None:
    """2.1.4: the given registry decides."""
    with pytest.raises(InvalidInput, match="not registered, so it can run in-process only"):
        a_definition(lambda b: b.add_continuation_criteria(NEVER)).plan()
    with pytest.raises(InvalidInput, match="not registered"):
        a_definition(lambda b: b.add_continuation_criteria(RetryLimit(2))).plan(CriterionRegistry())


def test_the_row_of_an_execution_keeps_data_that_may_not_travel() -> None:
    """11: prompt, schemas, model and approvals, as JSON."""
    definition = a_definition(
        lambda b: (
            b.with_name("helper")
            .with_system_prompt("You help.")
            .with_llm_preset("fast")
            .with_tools([MockTool("look"), MockTool("find")])
            .with_approval("look", RULES)
            .with_approval("find", "always")
        )
    )
    spec = definition.spec()
    assert (spec.agent, spec.llm_preset) == ("helper", "fast")
    assert [tool["function"]["name"] for tool in spec.cached_context["tools"]] == ["look", "find"]
    assert "You help." in str(spec.cached_context)
    assert parse_approval(spec.approvals["look"]) == parse_approval(RULES)
    assert parse_approval(spec.approvals["find"]) == parse_approval("always")


LOOK = MockTool("look", schema={"type": "object", "required": ["at"]})
ASK = MockTool("ask", options=ToolOptions(need=CallNeed.INPUT))
FIND = MockTool("find")
CHILD, DEAR_CHILD = (
    MockTool(name, options=ToolOptions(need=CallNeed.SUBAGENT)) for name in ("child", "dear_child")
)


@pytest.mark.parametrize(
    ("call", "need"),
    [
        (a_call("look", at="sky"), CallNeed.RUN),
        (a_call("look", at="secrets"), CallNeed.APPROVAL),
        (a_call("look"), CallNeed.RUN),
        (ToolCall("c1", "look", malformed="[1]"), CallNeed.RUN),
        (a_call("find"), CallNeed.APPROVAL),
        (a_call("gone"), CallNeed.RUN),
        (a_call("ask"), CallNeed.INPUT),
        (a_call("child"), CallNeed.SUBAGENT),
        (a_call("dear_child"), CallNeed.APPROVAL),
    ],
)
def test_the_needs_of_a_call(call: ToolCall, need: CallNeed) -> None:
    """8.6.1, 8.6.2, 5.4.3: no person is asked about a call that cannot run, and approval comes first."""
    definition = a_definition(
        lambda b: (
            b.with_tools([LOOK, FIND, ASK, CHILD, DEAR_CHILD])
            .with_approval("look", RULES)
            .with_approval("find", "always")
            .with_approval("dear_child", "always")
        )
    )
    assert definition.need_of(call) is need


@pytest.mark.parametrize(
    ("approval", "call", "needed"),
    [
        (None, a_call("look", at="secrets"), False),
        ("never", a_call("look", at="secrets"), False),
        ("always", a_call("look", at="sky"), True),
        ("always", a_call("find"), False),
        (RULES, a_call("look", at="secrets"), True),
        (RULES, a_call("look", at="sky"), False),
    ],
)
def test_which_calls_need_approval(approval: Any, call: ToolCall, needed: bool) -> None:
    """8.6.1: `never` by default."""
    definition = a_definition(
        lambda b: b if approval is None else b.with_tools([LOOK]).with_approval("look", approval)
    )
    assert (definition.approval_policy(call) is not None) == needed


def a_helper(builder: DefinitionBuilder) -> DefinitionBuilder:
    return builder.with_name("helper", "Helps").with_system_prompt("You help.").with_tools([LOOK])


CHANGES: dict[str, Callable[[DefinitionBuilder], DefinitionBuilder]] = {
    "prompt": lambda b: b.with_system_prompt("You help a lot."),
    "name": lambda b: b.with_name("helper-2"),
    "tool": lambda b: b.with_tools([FIND]),
    "schema": lambda b: b.with_tools([MockTool("look", schema={"type": "object"})]),
    "option": lambda b: b.with_tools([MockTool("look", schema=LOOK.schema, options=ToolOptions(quick=True))]),
    "preset": lambda b: b.with_llm_preset("fast"),
    "steps": lambda b: b.with_max_steps(7),
    "tokens": lambda b: b.with_max_tokens(7),
    "timeout": lambda b: b.with_timeout(7),
    "approval": lambda b: b.with_approval("look", "always"),
    "policy": lambda b: b.with_error_policy(ErrorPolicy.retry_all()),
    "criterion": lambda b: b.add_continuation_criteria(RetryLimit(2)),
    "own criterion": lambda b: b.add_continuation_criteria(NEVER),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_definition_has_another_hash(change: str) -> None:
    """10.2.4"""
    same = [a_definition(a_helper).digest for _ in range(2)]
    assert same[0] == same[1]
    assert len(same[0]) == 64
    assert a_definition(lambda b: CHANGES[change](a_helper(b))).digest != same[0]


def test_settings_of_a_model_are_in_the_hash_and_their_source_is_not() -> None:
    """10.2.4"""
    definition = a_definition(a_helper)
    assert replace(definition, source="agents/helper.md").digest == definition.digest
    assert replace(definition, model_settings=frozen_map({"model": "x"})).digest != definition.digest


class Bringing(MockTool):
    """A tool that brings agents."""

    declared_settings = frozen_map({"agents": {"other": "You help."}})


def test_additional_data_are_in_the_hash() -> None:
    """10.2.4"""
    definition = a_definition(a_helper)
    assert replace(definition, written=frozen_map({"skills": ["a"]})).digest != definition.digest
    bringing = a_definition(lambda b: b.with_tools([Bringing("look")]))
    assert bringing.digest != a_definition(lambda b: b.with_tools([MockTool("look")])).digest


def test_an_execution_keeps_the_hash_of_its_definition() -> None:
    """10.2.4"""
    definition = a_definition(a_helper)
    assert definition.spec().definition_hash == definition.digest
