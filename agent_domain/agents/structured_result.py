"""How a model is asked for a structured result, and what it reads if the result does not fit.

A model with a structured output of its own gets the response format. Any other model gets a tool,
`final_result`, whose arguments are the result. A call of that tool alone ends the work, as an answer does: it
becomes the answer's text. Beside other calls it does not count, because the model has not read their results.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast, runtime_checkable

from everstep.agent_domain.errors import InvalidModelOutput
from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.agent_domain.values import FrozenDict, FrozenList, frozen_map, json_text, truncate

RESULT_TOOL: Final = "final_result"

VALIDATION_STAGE: Final = "output_validation"
"""The name under which a result that does not fit is reported, as if it were a tool."""

INVALID_RESULT: Final = "The result does not fit its schema"
"""What every viewer may read about it; the model also reads what does not fit."""

MAX_PROBLEM: Final = 1000
"""Characters of the description of what does not fit; names from the result in it have any length."""


@runtime_checkable
class HasNativeOutput(Protocol):
    """A model whose provider may enforce a response format."""

    def has_native_output(self, response_format: ResponseFormat) -> bool:
        """Whether the provider keeps answers to this format while the model may still call tools."""
        ...


def has_native_output(model: object, response_format: ResponseFormat) -> bool:
    """Whether a model gives results of this format by itself, without a tool for them."""
    return isinstance(model, HasNativeOutput) and model.has_native_output(response_format)


@dataclass(frozen=True, slots=True)
class ResultTool:
    """The tool by which a model gives the result."""

    name: str
    response_format: ResponseFormat

    @classmethod
    def of(cls, response_format: ResponseFormat, tools: Collection[str]) -> "ResultTool":
        """The tool for this format beside other tools; a name that one of them has gets underscores."""
        name = RESULT_TOOL
        while name in tools:
            name += "_"
        return cls(name, response_format)

    @property
    def schema(self) -> Mapping[str, Any]:
        """The tool for the model."""
        function: dict[str, Any] = {
            "name": self.name,
            "description": "Give the final result. Call this alone, once everything else is done: "
            "only its arguments count, no other text.",
            "parameters": self.response_format.schema,
        }
        return {"type": "function", "function": function}

    @property
    def choice(self) -> FrozenDict:
        """The tool choice that leaves the model only this tool."""
        return frozen_map({"type": "function", "function": {"name": self.name}})

    def request(self, request: InferenceRequest) -> InferenceRequest:
        """The request with this tool instead of the response format."""
        return replace(request, tools=(*request.tools, self.schema), response_format=None)

    def answer(self, response: InferenceResponse) -> InferenceResponse:
        """The response with the result as its text; beside other calls the result is left out."""
        results = [call for call in response.tool_calls if call.name == self.name]
        if not results:
            return response
        # The items of the provider belong to the calls as the model made them.
        response = replace(response, items=FrozenList())
        others = tuple(call for call in response.tool_calls if call.name != self.name)
        if others:
            return replace(response, tool_calls=others)
        text, reason = _text(results[0]), response.finish_reason
        stopped = FinishReason.STOP.value if reason == FinishReason.TOOL_CALLS.value else reason
        return replace(response, text=text, tool_calls=(), finish_reason=stopped)


def _text(call: ToolCall) -> str:
    return json_text(call.args) if call.malformed is None else call.malformed


def tool_names(request: InferenceRequest) -> frozenset[str]:
    """The names of the tools in a request."""
    functions = (cast("object", schema.get("function")) for schema in request.tools)
    named = (cast("Mapping[str, Any]", each) for each in functions if isinstance(each, Mapping))
    return frozenset(str(each.get("name")) for each in named)


def result_refusal(call_id: str, problem: str, finish_reason: str | None = None) -> ToolExecution:
    """The report of a result that does not fit, which the model reads."""
    cut_off = "it was cut off; " if finish_reason == FinishReason.LENGTH.value else ""
    text = (
        f"{INVALID_RESULT}: {cut_off}{truncate(problem, MAX_PROBLEM)}. Give it again, complete and corrected"
    )
    error = StepError.of(InvalidModelOutput(text, advice=INVALID_RESULT), VALIDATION_STAGE)
    return ToolExecution(ToolCall(call_id, VALIDATION_STAGE), error=error)


def is_result_refusal(execution: ToolExecution) -> bool:
    """Whether it is the report of a result that does not fit."""
    return execution.call.name == VALIDATION_STAGE


def result_instructions(response_format: ResponseFormat) -> str:
    """What a model reads about the result whose answer is a text in another format."""
    schema: FrozenDict = frozen_map(response_format.schema)
    return f"The answer is a JSON value that satisfies this schema, and nothing else:\n{json_text(schema)}"
