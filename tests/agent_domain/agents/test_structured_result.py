"""How models are asked for results."""

from dataclasses import replace
from typing import Any

import pytest

from everstep.agent_domain.agents.structured_result import (
    MAX_PROBLEM,
    ResultTool,
    has_native_output,
    is_result_refusal,
    result_refusal,
    tool_names,
)
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.response_format import ResponseFormat, output_format
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenList, frozen_map

FORMAT = output_format({"type": "object", "properties": {"city": {"type": "string"}}})
TOOL = ResultTool.of(FORMAT, ())
LOOK = ToolCall("c1", "look")
RESULT = ToolCall("c2", "final_result", frozen_map({"city": "Oslo"}))


def test_the_tool_replaces_the_format_in_the_request() -> None:
    """9.8.5"""
    request = TOOL.request(InferenceRequest((), response_format=FORMAT))

    assert (tool_names(request), request.response_format) == ({"final_result"}, None)
    assert request.tools[0]["function"]["parameters"] == FORMAT.schema


def test_the_tool_has_a_name_of_its_own() -> None:
    """9.8.5"""
    assert ResultTool.of(FORMAT, {"final_result", "final_result_"}).name == "final_result__"


@pytest.mark.parametrize(
    ("calls", "text", "left", "reason"),
    [
        ((), "Hm", (), "tool_calls"),
        ((LOOK,), "Hm", (LOOK,), "tool_calls"),
        ((RESULT,), '{"city":"Oslo"}', (), "stop"),
        ((RESULT, replace(RESULT, id="c3", args=frozen_map({}))), '{"city":"Oslo"}', (), "stop"),
        ((LOOK, RESULT), "Hm", (LOOK,), "tool_calls"),
        ((ToolCall("c4", "final_result", malformed="[1"),), "[1", (), "stop"),
    ],
)
def test_a_result_alone_is_the_answer(calls: Any, text: str, left: Any, reason: str) -> None:
    """9.8.5: beside other calls it does not count, because the model has not read their results."""
    answer = TOOL.answer(InferenceResponse("Hm", calls, "tool_calls", items=FrozenList(["kept"])))

    assert (answer.text, answer.tool_calls, answer.finish_reason) == (text, left, reason)
    assert bool(answer.items) is (RESULT.name not in {call.name for call in calls})


def test_a_result_that_was_cut_off_stays_cut_off() -> None:
    """9.8.5: so the finish reason can still end the execution."""
    assert TOOL.answer(InferenceResponse("", (RESULT,), "length")).finish_reason == "length"


def test_a_model_says_whether_it_gives_results_by_itself() -> None:
    """9.8.5"""

    class Native:
        def has_native_output(self, response_format: ResponseFormat) -> bool:
            return response_format.name == "result"

    assert has_native_output(Native(), FORMAT)
    assert not has_native_output(Native(), replace(FORMAT, name="other"))
    assert not has_native_output(object(), FORMAT)


def test_the_model_reads_what_does_not_fit() -> None:
    """9.8.6: as an error of type validation, in a bounded text."""
    refusal = result_refusal("c1", "x" * 5000, "length")

    assert refusal.error is not None
    assert refusal.error.type is ErrorType.VALIDATION
    assert is_result_refusal(refusal)
    assert refusal.text.startswith("Error: The result does not fit its schema: it was cut off; xxx")
    assert len(refusal.text) < MAX_PROBLEM + 150
