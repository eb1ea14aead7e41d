"""Structured results of runs in this process."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.messages.cached_context import CachedContext, InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.events import AgentFinished, EventBus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.capabilities.subagents import UseSubagents
from everstep.inference.scripted import Pace, ScenarioModel, Script, ScriptedTurn
from everstep.runtime.builder import AgentBuilder

LOOK = MockTool.returning("look", "Looks around", "a train at 8:25")
LOOKS = calls(("look", {}))
BAD = '{"city":"Oslo","days":"many"}'
GOOD = '{"city":"Oslo","days":2}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Trip(BaseModel):
    city: str
    days: int = 1

    @field_validator("city")
    @classmethod
    def _known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("there is no such city")
        return city


@dataclass
class Stay:
    city: str


OSLO = Trip(city="Oslo", days=2)


class NativeModel(ScriptedModel):
    """A model with a structured output of its own."""

    def has_native_output(self, response_format: ResponseFormat) -> bool:
        return response_format.is_checked


def builder(model: ScriptedModel, output: Any = Trip, **given: Any) -> AgentBuilder[Any]:
    return AgentBuilder.base().with_model(model).with_tools([LOOK]).with_output(output, **given)


def says_as_react(**decision: Any) -> InferenceResponse:
    return says(json.dumps({"thought": "Hm", **decision}))


@pytest.mark.parametrize(
    ("output", "script", "result", "data"),
    [
        (Trip, [GOOD], OSLO, {"city": "Oslo", "days": 2}),
        (Trip, [LOOKS, GOOD], OSLO, {"city": "Oslo", "days": 2}),
        (Trip, ['```json\n{"city":"Oslo"}\n```'], Trip(city="Oslo"), {"city": "Oslo", "days": 1}),
        (Trip, [LOOKS, calls(("final_result", {"city": "Oslo", "days": 2}))], OSLO, json.loads(GOOD)),
        (Trip, ["Hm", BAD, GOOD], OSLO, {"city": "Oslo", "days": 2}),
        (Trip, ['{"city":"Atlantis"}', GOOD], OSLO, {"city": "Oslo", "days": 2}),
        (Stay, ['{"city":"Oslo"}'], Stay("Oslo"), {"city": "Oslo"}),
        (list[int], ['{"result":[1,2]}'], [1, 2], [1, 2]),
        (list[int], ["[1,2]"], [1, 2], [1, 2]),
        (bool, [calls(("final_result", {"result": False}))], False, False),
        (SCHEMA, ['{"city":3}', '{"city":"Oslo"}'], {"city": "Oslo"}, {"city": "Oslo"}),
        (
            SCHEMA | {"$schema": "https://json-schema.org/draft/2020-12/schema"},
            ['{"city":""}'],
            {"city": ""},
            {"city": ""},
        ),
    ],
    ids=str,
)
async def test_a_run_ends_with_its_result(output: Any, script: list[Any], result: Any, data: Any) -> None:
    """9.8.4 and 9.8.5: after tools, after corrections, in the type that was asked for."""
    ended = list[AgentFinished]()
    bus = EventBus()
    bus.on_event(AgentFinished, ended.append)

    state = await builder(ScriptedModel(*script), output).with_events(bus).build().arun("Plan a trip")

    assert (state.status, state.output) == (AgentStatus.COMPLETED, result)
    assert (ended[0].output, ended[0].to_dict()["output"]) == (data, data)
    assert AgentState.from_dict(state.to_dict()).output == data
    assert state.with_user_message("And now?").output is None


async def test_a_model_reads_why_its_result_does_not_fit() -> None:
    """3.3.3 and 9.8.6: a step fails with an error of type validation under any policy."""
    model = ScriptedModel(BAD, GOOD)

    state = await builder(model).build().arun("Plan a trip")

    refusal = model.requests[1].messages[-1]
    assert refusal.is_user
    assert refusal.text.startswith(
        "Error: The result does not fit its schema: days: Input should be a valid int"
    )
    assert [step.errors[0].type if step.errors else None for step in state.steps] == [
        ErrorType.VALIDATION,
        None,
    ]
    votes = state.execution.step_executions[0].outcome
    vote = votes and votes.evaluation_for("ErrorPolicyCriterion")
    assert vote is not None
    assert vote.reason == "Validation error leads to a retry (failures in a row: 1, max_retries: 3)"


@pytest.mark.parametrize(
    ("retries", "policy", "steps", "status", "reason"),
    [
        (0, ErrorPolicy(), 1, AgentStatus.FAILED, StopReason.ERROR),
        (2, ErrorPolicy(), 3, AgentStatus.FAILED, StopReason.ERROR),
        (1, ErrorPolicy.retry_all(4), 4, AgentStatus.FAILED, StopReason.ERROR),
        (1, ErrorPolicy.ignore_tool_errors(), 2, AgentStatus.COMPLETED, StopReason.COMPLETED),
    ],
)
async def test_corrections_are_bounded(
    retries: int, policy: ErrorPolicy, steps: int, status: AgentStatus, reason: StopReason
) -> None:
    """9.8.6: then the error policy decides, and there is no result."""
    builder_ = builder(ScriptedModel(BAD), max_retries=retries).with_error_policy(policy)

    state = await builder_.build().arun("Plan a trip")

    assert state.last_outcome is not None
    assert (state.step_count, state.status, state.last_outcome.stop_reason) == (steps, status, reason)
    assert (state.output, "output" in state.to_dict()) == (None, False)


async def test_a_model_is_asked_in_its_own_way_or_by_a_tool() -> None:
    """9.8.5: a provider's own structured output comes first."""
    native, other = NativeModel(GOOD), ScriptedModel(GOOD)
    for model in (native, other):
        await builder(model).build().arun("Plan a trip")

    def asked(request: InferenceRequest) -> tuple[list[str], str | None]:
        names = [schema["function"]["name"] for schema in request.tools]
        return names, request.response_format and request.response_format.name

    assert asked(native.requests[0]) == (["look"], "Trip")
    assert asked(other.requests[0]) == (["look", "final_result"], None)


async def test_a_result_is_streamed_as_the_model_writes_it() -> None:
    """9.8.5: also by an agent with tools; the result of the tool comes as one text."""

    async def pieces_of(model: Any) -> list[str]:
        pieces = list[str]()
        agent = builder(model).build()
        driver = agent.runner.driver
        state = AgentState.empty().with_messages("Plan").with_cached_context(agent.definition.cached_context)
        await driver.infer(state, pieces.append)  # type: ignore[union-attr]
        return pieces

    paced = ScenarioModel(Script.of(ScriptedTurn(text=GOOD, pace=Pace(characters=8))))
    assert len(await pieces_of(paced)) == 3
    assert await pieces_of(ScriptedModel(calls(("final_result", json.loads(GOOD))))) == [GOOD]
    assert "".join(await pieces_of(ScriptedModel(GOOD))) == GOOD


async def test_react_gives_results_too() -> None:
    """9.8.5: its answer is the result, as an object or as text; the second call of an answer is left out."""
    script = (
        says_as_react(type="call_tool", tool="look", args={}),
        says_as_react(type="final_answer", answer="Oslo"),
        says_as_react(type="final_answer", answer=json.loads(GOOD)),
    )
    model = ScriptedModel(*script)
    driver = ReActDriver(model, final_via_inference=True)

    state = (
        await AgentBuilder.base()
        .with_driver(driver)
        .with_tools([LOOK])
        .with_output(Trip)
        .build()
        .arun("Plan")
    )

    assert state.output == OSLO
    assert '"required":["city"]' in model.requests[0].messages[0].text
    assert model.requests[2].messages[-2].text == "Oslo"
    assert model.requests[2].messages[-1].text.startswith("Observation: Error: The result does not fit")


async def test_the_parent_of_a_subagent_reads_its_result() -> None:
    """9.8.4: an agent of a file has the schema under `output`."""
    spec = AgentSpec("scout", "Finds a city", "Find a city.", output=SCHEMA)
    spawn = calls(("spawn_subagent", {"subagent": "scout", "prompt": "Where?"}))
    model = ScriptedModel(spawn, '{"town": 1}', '{ "city": "Oslo" }', "To Oslo.")

    agent = AgentBuilder.base().with_model(model).with_capability(UseSubagents(AgentSpecRegistry([spec])))
    state = await agent.build().arun("Go")

    assert state.final_response == "To Oslo."
    assert state.steps[0].tool_executions[0].text == '[Subagent: scout] {"city":"Oslo"}'
    assert state.output is None


async def test_a_state_keeps_its_own_context_and_gets_the_format() -> None:
    """9.8.4: the context of a state is applied before that of the agent."""
    model = NativeModel(GOOD)
    own = AgentState.empty().with_messages([user("Plan")]).with_cached_context(CachedContext((user("Hi"),)))

    state = await builder(model).build().arun(own)

    assert state.output == OSLO
    assert model.requests[0].messages[0].text == "Hi"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "elephant"}, 'the output schema cannot be used: "elephant" is not valid'),
        ({"type": "string", "pattern": "(?=a)"}, "the output schema cannot be used"),
        ({"$ref": "#"}, "the output schema refers to itself"),
    ],
)
def test_a_schema_that_no_result_can_fit_is_refused_at_once(schema: Any, problem: str) -> None:
    """9.8.7"""
    with pytest.raises(InvalidInput, match=problem):
        AgentBuilder.base().with_output(schema)


class _Silent:
    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request, on_text
        return InferenceResponse("{", finish_reason="length")


async def test_a_result_that_was_cut_off_says_so() -> None:
    """9.8.6"""
    state = (
        await AgentBuilder.base().with_model(_Silent()).with_output(Trip, max_retries=0).build().arun("Plan")
    )

    assert "it was cut off" in state.steps[0].errors_as_text
