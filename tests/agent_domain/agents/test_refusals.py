"""Invalid arguments of public constructors are refused as invalid input."""

from collections.abc import Callable
from typing import Any

import pytest

from everstep.agent_domain.agents.contracts import AgentDescriptor
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion,
    ErrorPresenceCheck,
    ExecutionTimeLimit,
    FinishReasonCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorContext, ErrorPolicy, ErrorType, as_policy
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import Message, Role
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, SlimSerializationConfig
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution, ToolOptions
from everstep.agent_domain.values import FrozenDict, FrozenList

SPEC = AgentSpec("reviewer", "Reviews", "You review.")


def make_tool(function: Any = None, **options: Any) -> object:
    """A tool made with these options."""

    def look() -> None:
        """Look."""

    return tool(**options)(function or look)


def evaluation(*given: Any) -> ContinuationEvaluation:
    return ContinuationEvaluation(*given)


REFUSED: dict[str, Callable[[Any], object]] = {
    "AgentState.with_messages": lambda bad: AgentState.empty().with_messages(bad(5)),
    "AgentDescriptor": lambda bad: AgentDescriptor("a", "b", bad(5)),
    "CachedContext.messages": lambda bad: CachedContext(bad(5)),
    "CachedContext.tools": lambda bad: CachedContext(tools=bad(5)),
    "CachedContext.tools as text": lambda bad: CachedContext(tools=bad("look")),
    "CachedContext.with_tools": lambda bad: CachedContext().with_tools(bad(5)),
    "CachedContext.with_system_prompt": lambda bad: CachedContext().with_system_prompt(bad(5)),
    "AgentSpec.validate": lambda bad: SPEC.validate(bad(None)),
    "AgentSpec.validate with text": lambda bad: SPEC.validate(bad("bash")),
    "AgentSpec.from_markdown": lambda bad: AgentSpec.from_markdown(bad(5), lambda text: text),
    "AgentRegistry.register": lambda bad: AgentSpecRegistry().register(bad("x")),
    "FinishReasonCheck": lambda bad: FinishReasonCheck(bad(None)),
    "FinishReasonCheck with text": lambda bad: FinishReasonCheck(bad("stop")),
    "ErrorPolicyCriterion": lambda bad: ErrorPolicyCriterion(bad("stop")),
    "ExecutionTimeLimit": lambda bad: ExecutionTimeLimit(bad("5")),
    "ExecutionTimeLimit for ever": lambda _bad: ExecutionTimeLimit(float("inf")),
    "ExecutionTimeLimit by a flag": lambda _bad: ExecutionTimeLimit(True),
    "CumulativeExecutionTimeLimit": lambda _bad: CumulativeExecutionTimeLimit(10**400),
    "StopSignal": lambda bad: StopSignal(bad("nope")),
    "ContinuationEvaluation.decision": lambda bad: evaluation("x", bad("nope"), "r"),
    "ContinuationEvaluation.stop_reason": lambda bad: evaluation("x", "stop", "r", {}, bad("nope")),
    "ContinuationEvaluation.from_decision": lambda bad: ContinuationEvaluation.from_decision("x", bad("zz")),
    "ContinuationCriteria with a class": lambda bad: ContinuationCriteria(bad(ErrorPresenceCheck)),
    "ContinuationCriteria.when": lambda bad: ContinuationCriteria.when(bad(5)),
    "ToolOptions.timeout_seconds": lambda bad: ToolOptions(timeout_seconds=bad("5")),
    "ToolOptions.timeout_seconds, no number": lambda _bad: ToolOptions(timeout_seconds=float("nan")),
    "ToolOptions.wait_seconds": lambda _bad: ToolOptions(wait_seconds=-1),
    "ToolOptions.effect": lambda bad: ToolOptions(effect=bad("nope")),
    "tool(options)": lambda bad: make_tool(options=bad({"quick": True})),
    "tool(description)": lambda bad: make_tool(description=bad(5)),
    "MockTool(options)": lambda bad: MockTool("look", options=bad({"quick": True})),
    "calls with a name alone": lambda bad: calls(bad("add")),
    "calls with too much": lambda bad: calls(bad(("add", {}, 5))),
    "calls with a number": lambda bad: calls(bad((5, {}))),
    "InferenceResponse": lambda bad: InferenceResponse(tool_calls=bad(5)),
    "SlimAgentStateSerializer": lambda bad: SlimAgentStateSerializer(bad("minimal")),
}


def untyped(given: Any) -> Any:
    """An argument from untyped code."""
    return given


@pytest.mark.parametrize("construct", REFUSED.values(), ids=REFUSED)
def test_an_unusable_argument_is_invalid_input(construct: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput):
        construct(untyped)


def test_a_role_that_is_no_text_becomes_the_user() -> None:
    """5.1.1: like every unknown role."""
    assert Message(untyped([]), "Hi").role is Role.USER


def test_other_notations_are_accepted() -> None:
    assert SlimAgentStateSerializer(SlimSerializationConfig.minimal()).config.max_messages == 20
    assert evaluation("x", "stop", "r").decision is ContinuationDecision.STOP
    assert MockTool("look", options=ToolOptions(quick=True)).options.quick
    assert SPEC.validate(name for name in ("bash",)) == []


def test_a_policy_reads_back_without_unknown_fields() -> None:
    """0.6"""
    policy = ErrorPolicy.retry_all(2)
    assert as_policy({**policy.to_dict(), "on_moon_error": "retry"}) == policy


# Immutable values.


def test_the_metadata_of_an_error_cannot_be_changed() -> None:
    """0.8"""
    given: Any = {"left": 1}
    context = ErrorContext(ErrorType.TOOL, 1, 1, metadata=given)
    given["left"] = 0
    assert context.metadata == FrozenDict({"left": 1})


def test_the_result_of_a_call_cannot_be_changed() -> None:
    """0.8: plain JSON; any other object stays unchanged until it is written."""
    given: Any = {"rows": [1]}
    execution = ToolExecution(ToolCall("c1", "look"), given)
    given["rows"].append(2)
    assert execution.result == {"rows": [1]}
    with pytest.raises(TypeError, match="frozen"):
        execution.result["rows"].append(2)

    odd = [object()]
    assert ToolExecution(ToolCall("c1", "look"), odd).result is odd
    kept = FrozenList([1])
    assert ToolExecution(ToolCall("c1", "look"), kept).result is kept


def test_the_calls_of_a_response_cannot_be_changed() -> None:
    """0.8"""
    made: Any = [ToolCall("c1", "look")]
    items: Any = [{"id": 1}]
    response = InferenceResponse(tool_calls=made, items=items)
    made.clear()
    items.clear()
    assert response.tool_calls == (ToolCall("c1", "look"),)
    assert response.items == FrozenList([FrozenDict({"id": 1})])
    assert hash(response) == hash(response)
