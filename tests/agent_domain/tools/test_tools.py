"""Tools and their calls: the model's view, the results, and the refusals."""

import dataclasses
import enum
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput, ToolFailed, UnknownName
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.state.events import EventBus, ToolCallCompleted, ToolCallStarted
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import (
    MAX_SECONDS,
    Effect,
    Tool,
    Toolbox,
    ToolCall,
    ToolContext,
    ToolExecution,
    ToolOptions,
    missing_arguments,
    options_of,
    result_text,
    result_value,
    tool_schema,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, FrozenList, json_text
from tests.agent_domain.scripted_model import AT, ScriptedModel, a_call, calling, run

NEEDS_CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
LATER = AT + timedelta(seconds=1.5)


class Colour(enum.Enum):
    RED = "red"


class Weather(BaseModel):
    city: str
    degrees: float


@dataclasses.dataclass
class Place:
    name: str
    weather: Weather | None = None


class Ticket:
    """Has a text form."""

    def __str__(self) -> str:
        return "ticket #7"


class Opaque:
    """Has no form."""


# Results.


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("sunny", "sunny"),
        ("", ""),
        ("null", "null"),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (42, "42"),
        (-7, "-7"),
        (0.5, "0.5"),
        ([1, "ä", None], '[1,"ä",null]'),
        ((1, 2), "[1,2]"),
        ({"b": 1, "a": [True]}, '{"b":1,"a":[true]}'),
        ({}, "{}"),
        ({7}, "[7]"),
        ({1: "one"}, '{"1":"one"}'),
        (Ticket(), "ticket #7"),
        (Decimal("1.50"), "1.50"),
        (PurePosixPath("/a/b"), "/a/b"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (datetime(2026, 1, 16, tzinfo=UTC), "2026-01-16 00:00:00+00:00"),
        (ToolFailed("no"), "no"),
        (Weather(city="Bonn", degrees=3.5), '{"city":"Bonn","degrees":3.5}'),
        (
            Place("Bonn", Weather(city="Bonn", degrees=3)),
            '{"name":"Bonn","weather":{"city":"Bonn","degrees":3.0}}',
        ),
        ([Place("Bonn")], '[{"name":"Bonn","weather":null}]'),
        (Colour.RED, "red"),
        (b"bytes", "bytes"),
        (bytearray(b"bytes"), "bytes"),
    ],
)
def test_a_result_reads_as_its_text_or_as_json(result: object, text: str) -> None:
    """5.4.2"""
    assert result_text(result) == text
    assert ToolExecution(a_call(), result).text == text


def test_a_failure_reads_as_an_error() -> None:
    """5.4.2"""
    failed = ToolExecution(a_call(), "ignored", StepError("no such city"))

    assert failed.text == "Error: no such city"
    assert failed.has_error
    assert not ToolExecution(a_call(), "Error: not really").has_error


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (Opaque(), "the result of weather is of type Opaque, which cannot be stored as JSON; return text"),
        ([Opaque()], "the result of weather is of type list, which cannot be stored as JSON"),
        (lambda: 1, "the result of weather is of type function"),
        (float("nan"), "the result of weather is nan, which JSON cannot hold"),
        ({"a": ["\x00"]}, r"the result of weather.a\[0\] contains a NUL character"),
        ("\ud800", "the result of weather contains half of a surrogate pair"),
        (ENDLESS, "the result of weather is of type list, which cannot be stored as JSON"),
        (b"\xff", "the result of weather is of type bytes, which cannot be stored as JSON"),
        ([10**5000], r"the result of weather\[0\] is a number of thousands of digits"),
    ],
)
def test_a_result_that_cannot_be_stored_is_refused_with_the_tools_name(
    result: object, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        result_value(result, "weather")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
    )
)
def test_json_is_kept_as_the_same_json(result: Any) -> None:
    """5.4.2"""
    value = result_value(result)

    assert value == result
    assert result_text(result) == json_text(result)
    assert not isinstance(value, list | dict) or isinstance(value, FrozenList | FrozenDict)


# Calls.


@pytest.mark.parametrize("arguments", ["", "{}", " {} "])
def test_missing_arguments_are_an_empty_object(arguments: str) -> None:
    assert ToolCall.from_text("c1", "weather", arguments) == ToolCall("c1", "weather")


def test_arguments_are_read_in_the_form_of_the_provider() -> None:
    """5.4.1"""
    call = ToolCall.from_text("c1", "weather", '{"days": [1, 2], "city": "Zürich"}')

    assert call == a_call(days=[1, 2], city="Zürich")
    assert call.arguments == {"days": [1, 2], "city": "Zürich"}
    assert isinstance(call.args["days"], FrozenList)


@pytest.mark.parametrize(
    "arguments", ["[1]", '"Bonn"', "null", "7", "{", "city=Bonn", '{"a": NaN}', '{"a":"\\u0000"}']
)
def test_arguments_that_are_no_json_object_are_kept_unchanged(arguments: str) -> None:
    """5.4.3"""
    call = ToolCall.from_text("c1", "weather", arguments)

    assert call.args == EMPTY
    assert call.arguments == call.malformed == arguments


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ([1], "the arguments of weather must be a map, not list"),
        ({"a": {1}}, "the arguments of weather.a is of type set"),
    ],
)
def test_a_call_with_other_arguments_is_refused(args: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        ToolCall("c1", "weather", args)


@pytest.mark.parametrize("call", [a_call(city="Bonn"), ToolCall("c1", "weather", malformed="[1")])
def test_a_call_reads_back_as_it_was_written(call: ToolCall) -> None:
    """4.1.7"""
    assert ToolCall.from_dict(call.to_dict()) == call


@pytest.mark.parametrize(
    "execution",
    [
        ToolExecution(a_call(city="Bonn"), {"degrees": [3]}, None, AT, LATER),
        ToolExecution(a_call(), None, StepError("no such city", tool_name="weather"), AT, LATER),
        ToolExecution(a_call()),
    ],
)
def test_an_execution_reads_back_as_it_was_written(execution: ToolExecution) -> None:
    """4.1.7"""
    assert ToolExecution.from_dict(execution.to_dict()) == execution


def test_an_execution_is_written_with_the_storable_part_of_its_result() -> None:
    """4.1.7: an object reads back as its text."""
    written = ToolExecution(a_call(), Ticket()).to_dict()

    assert written["result"] == "ticket #7"
    assert ToolExecution.from_dict(written).text == "ticket #7"


def test_the_duration_of_a_call_follows_from_its_times() -> None:
    """2.7.4: with fractions."""
    assert ToolExecution(a_call(), None, None, AT, LATER).seconds == 1.5
    assert ToolExecution(a_call(), None, None, AT).seconds == 0.0
    assert ToolExecution(a_call(), None, None, None, LATER).seconds == 0.0


# Tools and tool boxes.


class Schemed(MockTool):
    """Gives the model other values than its attributes."""

    def to_tool_schema(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name, "description": "Mine", "parameters": {}}}


def test_the_model_gets_name_description_and_schema() -> None:
    """9.9.2: or the tool's own definition."""
    schema = tool_schema(MockTool("weather", "Tells the weather", schema=NEEDS_CITY))

    assert schema == {
        "type": "function",
        "function": {"name": "weather", "description": "Tells the weather", "parameters": NEEDS_CITY},
    }
    assert tool_schema(Schemed("weather"))["function"]["description"] == "Mine"
    assert Toolbox.of([Schemed("weather")]).schemas == (tool_schema(Schemed("weather")),)


class Bare:
    """A minimal tool."""

    name = "bare"
    description = "Bare"
    schema: Mapping[str, Any] = EMPTY

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        return args, context


class Odd(Bare):
    options = "quick"


def test_a_tool_is_any_object_with_a_name_a_description_a_schema_and_a_call() -> None:
    """9.9.2: of any class."""
    assert isinstance(Bare(), Tool)
    assert not isinstance(Opaque(), Tool)


def test_a_tool_declares_how_it_is_run_or_is_run_by_the_defaults() -> None:
    options = ToolOptions(quick=True, effect=Effect.AT_MOST_ONCE, timeout_seconds=5, need=CallNeed.INPUT)

    assert options_of(MockTool("weather", options=options)) is options
    assert options_of(Bare()) == options_of(Odd()) == ToolOptions()
    assert ToolOptions() == ToolOptions(False, Effect.IDEMPOTENT, None, CallNeed.RUN)


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_is_a_duration(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds must be a number greater than zero"):
        ToolOptions(timeout_seconds=seconds)


@pytest.mark.parametrize("name", ["timeout_seconds", "wait_seconds"])
def test_a_timeout_must_be_a_valid_duration(name: str) -> None:
    for seconds in (MAX_SECONDS + 1, 1e300, float("inf")):
        given: dict[str, Any] = {name: seconds}
        with pytest.raises(InvalidInput, match=f"{name} must be at most {MAX_SECONDS}"):
            ToolOptions(**given)
    longest: dict[str, Any] = {name: MAX_SECONDS}
    assert getattr(ToolOptions(**longest), name) == MAX_SECONDS


def test_a_box_keeps_tools_by_name_and_a_later_one_replaces_an_earlier() -> None:
    """11: in the order of the names (`with_tools` merges by name)."""
    weather, news, better = MockTool("weather"), MockTool("news"), MockTool("weather", "Better")
    box = Toolbox.of([weather, news])
    merged = box.merged([better])

    assert box.names == merged.names == ("weather", "news")
    assert list(merged) == [better, news]
    assert (len(merged), len(Toolbox())) == (2, 0)
    assert box.get("weather") is weather
    assert merged.get("weather") is better


def test_two_tools_of_one_name_at_once_are_a_mistake() -> None:
    with pytest.raises(InvalidInput, match="two tools are named 'weather'; rename one of them"):
        Toolbox.of([MockTool("weather"), MockTool("news"), MockTool("weather")])


def test_an_unknown_tool_is_reported_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"No tool named 'x'\. Choose from: weather, news"):
        Toolbox.of([MockTool("weather"), MockTool("news")]).get("x")


# Refusals.


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({}, "Required arguments are missing: city, days"),
        ({"days": 1}, "Required arguments are missing: city"),
        ({"city": "Bonn", "more": 1}, "Required arguments are missing: days"),
        ({"city": None, "days": None}, None),
        ({"city": 5, "days": "no"}, None),
    ],
)
def test_required_arguments_must_be_present_but_may_be_null(
    args: dict[str, Any], complaint: str | None
) -> None:
    """5.4.3"""
    assert missing_arguments(NEEDS_CITY, args) == complaint
    assert missing_arguments({}, args) is None
    assert missing_arguments({"required": None}, args) is None


REFUSED = [
    (ToolCall("c1", "wether", malformed="["), "No tool named 'wether'. Choose from: weather, news"),
    (ToolCall("c1", "weather", malformed='["Bonn"]'), "Pass the arguments as a JSON object"),
    (ToolCall("c1", "weather"), "Required arguments are missing: city, days"),
    (a_call(days=3), "Required arguments are missing: city"),
]


@pytest.mark.parametrize(("call", "complaint"), REFUSED)
def test_a_call_that_cannot_run_is_refused(call: ToolCall, complaint: str) -> None:
    """5.4.3: an unknown name before its arguments."""
    box = Toolbox.of([MockTool("weather", schema=NEEDS_CITY), MockTool("news")])

    assert box.refusal(call) == complaint
    assert box.refusal(a_call(city="Bonn", days=None)) is None


class Careful(MockTool):
    """Explains text that cannot be stored in its city argument."""

    def unstorable(self, args: Mapping[str, Any]) -> str | None:
        return "Error: no such letters" if "\0" in args.get("city", "") else None


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("weather", '{"city": "a\\u0000"}', "Error: no such letters"),
        ("weather", '{"city": "Bonn"}', None),
        ("weather", '{"city": "Bonn", "days": "\\u0000"}', None),
        ("weather", "{", None),
        ("weather", "[" * 100_000, None),
        ("weather", '["\\u0000"]', None),
        ("news", '{"city": "a\\u0000"}', None),
        ("gone", '{"city": "a\\u0000"}', None),
    ],
)
def test_a_tool_may_explain_text_that_cannot_be_stored(
    name: str, arguments: str, message: str | None
) -> None:
    """5.4.3, 9.2.1: as a result; all other calls that cannot run are failures as before."""
    box = Toolbox.of([Careful("weather", schema=NEEDS_CITY), MockTool("news")])
    assert box.explained(ToolCall.from_text("c1", name, arguments)) == message


@pytest.mark.parametrize(("call", "complaint"), REFUSED)
async def test_the_model_reads_why_a_call_was_refused(call: ToolCall, complaint: str) -> None:
    """5.4.3: with both events, and without calling the tool."""
    weather, events, received = MockTool("weather", schema=NEEDS_CITY), EventBus(), list[object]()
    events.on_event(ToolCallStarted, received.append)
    events.on_event(ToolCallCompleted, received.append)

    state = await run(
        ToolCallingDriver(ScriptedModel(calling(call))),
        [weather, MockTool("news")],
        lambda builder: builder.with_events(events),
    )

    assert state.messages[-1].to_dict() == {
        "role": "tool",
        "content": f"Error: {complaint}",
        "metadata": {"tool_call_id": "c1", "tool_name": call.name},
    }
    started, completed = received
    assert isinstance(started, ToolCallStarted)
    assert isinstance(completed, ToolCallCompleted)
    assert (completed.success, completed.error) == (False, complaint)
    assert weather.calls == []


def failing(**_args: Any) -> Any:
    raise RuntimeError("the station is closed")


async def test_an_exception_in_a_tool_is_a_failure_with_its_message() -> None:
    """5.4.3"""
    driver = ToolCallingDriver(ScriptedModel(calling(a_call())))

    state = await run(driver, [MockTool("weather", handler=failing)])

    assert state.messages[-1].text == "Error: the station is closed"
    assert [(e.message, e.tool_name, e.exception) for e in state.steps[0].errors] == [
        ("the station is closed", "weather", "RuntimeError")
    ]
    assert not state.steps[0].is_failure


async def test_a_result_that_cannot_be_stored_is_a_failure() -> None:
    """5.4.3"""
    driver = ToolCallingDriver(ScriptedModel(calling(a_call())))

    state = await run(driver, [MockTool.returning("weather", "Tells the weather", Opaque())])

    assert state.messages[-1].text.startswith("Error: the result of weather is of type Opaque")


@pytest.mark.parametrize("handler", [failing, None])
async def test_failing_tools_throw_only_on_request(handler: Any) -> None:
    """5.4.3: the exception becomes a failure step; the calls keep their results in the conversation."""

    def build(builder: DefinitionBuilder) -> None:
        builder.with_throw_on_tool_failure()

    tool = MockTool("weather", handler=handler, schema=NEEDS_CITY if handler is None else None)

    state = await run(ToolCallingDriver(ScriptedModel(calling(a_call()))), [tool], build)

    assert state.steps[-1].is_failure
    assert state.steps[-1].errors[0].exception == "ToolFailed"
    assert [message.text[:6] for message in state.messages if message.is_tool] == ["Error:"]
