"""Test doubles: scripted drivers and tools for tests and demos. They run in the real loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from everstep.agent_domain.agents.drivers import OnText, Reply, StepDriver, ignore_text
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Messages, assistant
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.tools.function_tool import valid_tool_name
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolOptions, as_options
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, valid_text


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """One scripted step."""

    response: str
    step_type: StepType
    usage: Usage = Usage()
    call: ToolCall | None = None
    execute_tools: bool = True

    @classmethod
    def final(cls, response: str, usage: Usage | None = None) -> "ScenarioStep":
        """An answer; the loop stops."""
        return cls(response, StepType.FINAL, usage or Usage())

    @classmethod
    def tool(cls, response: str, usage: Usage | None = None) -> "ScenarioStep":
        """A step of type tool_execution without calls; the loop stops."""
        return cls(response, StepType.TOOL_EXECUTION, usage or Usage())

    @classmethod
    def error(cls, response: str, usage: Usage | None = None) -> "ScenarioStep":
        """A step with an error whose message is the response."""
        return cls(response, StepType.ERROR, usage or Usage())

    @classmethod
    def tool_call(
        cls,
        name: str,
        args: Mapping[str, Any] = EMPTY,
        response: str = "",
        usage: Usage | None = None,
        execute_tools: bool = True,
    ) -> "ScenarioStep":
        """A step with one call, which the executor runs unless `execute_tools` is False."""
        call = ToolCall("", name, frozen_map(args))
        return cls(response, StepType.TOOL_EXECUTION, usage or Usage(), call, execute_tools)

    def reply(self) -> Reply:
        """The step as a model's reply."""
        calls = (self.call,) if self.call else ()
        errors = (StepError(self.response),) if self.step_type is StepType.ERROR else ()
        # With a call to run, the type depends on whether the call fails.
        own_type = None if self.call and self.execute_tools else self.step_type
        response = InferenceResponse(self.response, calls, usage=self.usage)
        return Reply(response, own_type, errors, runs_tools=self.execute_tools)


class DeterministicAgentDriver(StepDriver):
    """Replies with scripted steps in order; the last one repeats. Without steps the answer is `ok`."""

    def __init__(self, steps: Sequence[ScenarioStep] = ()) -> None:
        self.steps = tuple(steps)
        self._played = 0

    @classmethod
    def from_responses(cls, *texts: str) -> "DeterministicAgentDriver":
        """A driver that gives each text as a final answer."""
        return cls([ScenarioStep.final(text) for text in texts])

    @classmethod
    def from_steps(cls, *steps: ScenarioStep) -> "DeterministicAgentDriver":
        """A driver that plays these steps in order."""
        return cls(steps)

    async def infer(self, state: AgentState, on_text: OnText = ignore_text) -> Reply:
        """The next scripted step."""
        del state
        step = self._next()
        if step.response:
            on_text(step.response)
        return step.reply()

    def _next(self) -> ScenarioStep:
        if not self.steps:
            return ScenarioStep.final("ok")
        step = self.steps[min(self._played, len(self.steps) - 1)]
        self._played += 1
        return step

    def said(self, step: AgentStep) -> Messages:
        """The response text as the step's only message."""
        response = step.inference_response
        return (assistant(response.text if response else ""),)


def calls(
    *made: tuple[str, Mapping[str, Any]], text: str = "", usage: Usage | None = None
) -> InferenceResponse:
    """A response that calls tools: `calls(("add", {"a": 1}), ("add", {"a": 2}))`.

    Raises:
        InvalidInput: An entry is not a pair of a name and arguments.
    """
    for each in made:
        if not isinstance(cast("object", each), tuple) or len(each) != 2:  # noqa: PLR2004 -- a pair
            raise InvalidInput(f'{each!r} is not a call; pass pairs, such as calls(("add", {{"a": 1}}))')
    tool_calls = tuple(
        ToolCall("", valid_text(name, "a tool's name"), frozen_map(args, f"the arguments of {name}"))
        for name, args in made
    )
    return InferenceResponse(text, tool_calls, "tool_calls", usage or Usage())


def says(text: str, usage: Usage | None = None) -> InferenceResponse:
    """A response with an answer and no calls."""
    return InferenceResponse(text, (), "stop", usage or Usage())


class ScriptedModel:
    """A model that answers from a script, one entry per request; the last entry repeats.

    A text is returned as an answer, an exception is raised. `requests` holds the requests so far.
    """

    is_scripted = True

    def __init__(self, *script: InferenceResponse | str | Exception) -> None:
        self.script = script or (says("ok"),)
        self.requests: list[InferenceRequest] = []

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Return the next entry; its text is streamed in one chunk."""
        entry = self.script[min(len(self.requests), len(self.script) - 1)]
        self.requests.append(request)
        if isinstance(entry, Exception):
            raise entry
        response = says(entry) if isinstance(entry, str) else entry
        if response.text:
            on_text(response.text)
        return response


_NO_PARAMETERS = frozen_map({"type": "object", "properties": {}})


class MockTool:
    """A tool that calls a function with unchecked arguments."""

    def __init__(
        self,
        name: str,
        description: str = "A tool for tests",
        handler: Callable[..., Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        options: ToolOptions | None = None,
    ) -> None:
        self.name = valid_tool_name(name)
        self.description = description
        self.handler = handler
        self.schema: FrozenDict = frozen_map(schema or _NO_PARAMETERS, f"the schema of '{name}'")
        self.options = as_options(options)
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def returning(cls, name: str, description: str, value: Any) -> "MockTool":
        """A tool that always returns the same value."""

        def handler(**_args: Any) -> Any:
            return value

        return cls(name, description, handler)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Record the arguments and call the handler."""
        del context
        self.calls.append(args)
        return self.handler(**args) if self.handler else None
