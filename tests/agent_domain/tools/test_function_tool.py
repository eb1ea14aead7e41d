"""Functions and classes as tools: the model's view, and errors at definition instead of at the call."""

import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput, ToolFailed
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.tools.function_tool import BaseTool, FunctionTool, tool, valid_tool_name
from everstep.agent_domain.tools.tools import Tool, Toolbox, ToolContext, ToolOptions, tool_schema
from everstep.agent_domain.values import FrozenDict
from tests.agent_domain.scripted_model import (
    EXECUTION_ID,
    ScriptedModel,
    a_call,
    a_state_in_its_first_step,
    calling,
    run,
    runner,
)

CONTEXT = ToolContext(EXECUTION_ID, "c1", 1)


class Place(BaseModel):
    """A place."""

    city: str
    country: str = "DE"


@dataclass
class Days:
    first: int
    last: int


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


def forecast(city: str, days: int = 3) -> str:
    """Forecast the weather to come."""
    return f"{city}: {days} days of sun"


def detailed(
    place: Place,
    when: Days,
    unit: Unit = Unit.CELSIUS,
    more: list[Place] | None = None,
    *,
    detail: Literal["short", "long"] = "short",
    limit: Annotated[int, Field(ge=1, description="At most so many")] = 5,
) -> Any:
    """Forecast the weather of a place.

    In some detail.

    Args:
        place: Where,
            including the country
        when (Days): From when to when
        limit: Not used, the hint says it already

    Returns:
        Something: about the weather
    """
    return place, when, unit, more, detail, limit


# The model's view.


def test_a_function_gives_name_doc_text_and_schema() -> None:
    """9.9.2: parameters without a default are required."""
    made = FunctionTool.from_function(forecast)

    assert (made.name, made.description) == ("forecast", "Forecast the weather to come.")
    assert made.schema == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert isinstance(made.schema, FrozenDict)
    assert tool_schema(made)["function"] == {
        "name": "forecast",
        "description": "Forecast the weather to come.",
        "parameters": made.schema,
    }
    assert isinstance(made, Tool)


def test_a_function_without_parameters_has_an_empty_schema() -> None:
    """9.9.2"""

    def ping() -> str:
        """Answer."""
        return "pong"

    made = FunctionTool.from_function(ping)

    assert made.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert made.call({}, CONTEXT) == "pong"


def test_models_dataclasses_and_choices_are_described() -> None:
    """9.9.2"""
    schema = FunctionTool.from_function(detailed).schema

    assert schema["required"] == ["place", "when"]
    assert schema["properties"]["place"]["$ref"] == "#/$defs/Place"
    assert schema["$defs"]["Place"]["required"] == ["city"]
    assert schema["$defs"]["Place"]["properties"]["country"] == {"type": "string", "default": "DE"}
    assert schema["$defs"]["Days"]["required"] == ["first", "last"]
    assert schema["$defs"]["Unit"] == {"type": "string", "enum": ["C", "K"]}
    assert schema["properties"]["detail"]["enum"] == ["short", "long"]
    assert schema["properties"]["limit"]["minimum"] == 1


def test_the_docstring_describes_the_parameters() -> None:
    """9.9.2: its sections are no part of the description."""
    made = FunctionTool.from_function(detailed)
    properties = made.schema["properties"]

    assert made.description == "Forecast the weather of a place.\n\nIn some detail."
    assert properties["place"]["description"] == "Where, including the country"
    assert properties["when"]["description"] == "From when to when"
    assert properties["limit"]["description"] == "At most so many"
    assert "description" not in properties["detail"]


def test_titles_that_repeat_names_are_left_out_and_others_are_not() -> None:
    def search(title: str, options: dict[str, str] = {"title": "Any"}) -> None:  # noqa: B006 -- never changed
        """Search by title."""

    schema = FunctionTool.from_function(search).schema

    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["properties"]["options"]["default"] == {"title": "Any"}


def test_name_description_and_options_may_be_given() -> None:
    options = ToolOptions(quick=True, need=CallNeed.INPUT)
    made = FunctionTool.from_function(forecast, name="weather-1", description="  Mine.\n", options=options)

    assert (made.name, made.description, made.options) == ("weather-1", "Mine.", options)
    assert FunctionTool.from_function(forecast).options == ToolOptions()


def test_the_decorator_makes_tools_that_still_are_functions() -> None:
    """9.9.2"""

    @tool
    def double(n: int) -> int:
        """Double it."""
        return 2 * n

    @tool(name="triple", description="Triple it.", options=ToolOptions(quick=True))
    def three_times(n: int) -> int:
        return 3 * n

    assert isinstance(double, FunctionTool)
    assert (double.name, double.description, double.options.quick) == ("double", "Double it.", False)
    assert (three_times.name, three_times.description) == ("triple", "Triple it.")
    assert three_times.options.quick
    assert (double(4), double(n=5), three_times(4)) == (8, 10, 12)


class Station:
    """Knows the weather."""

    def __call__(self, city: str) -> str:
        """Not what the model reads."""
        return f"cloudy in {city}"

    def report(self, city: str) -> str:
        """Report."""
        return f"rain in {city}"

    @staticmethod
    def ask(city: str) -> str:
        """Ask."""
        return f"snow in {city}"

    @classmethod
    def guess(cls, city: str) -> str:
        """Guess."""
        return f"{cls.__name__}: fog in {city}"


@pytest.mark.parametrize(
    ("fn", "described", "result"),
    [
        (Station().report, "Report.", "rain in Bonn"),
        (Station.ask, "Ask.", "snow in Bonn"),
        (Station.guess, "Guess.", "Station: fog in Bonn"),
        (Station(), "Knows the weather.", "cloudy in Bonn"),
    ],
)
def test_any_callable_can_be_a_tool(fn: Callable[..., Any], described: str, result: str) -> None:
    """9.9.2"""
    made = FunctionTool.from_function(fn, name="station")

    assert made.description == described
    assert made.schema["required"] == ["city"]
    assert made.call({"city": "Bonn"}, CONTEXT) == result


def test_a_function_with_arguments_filled_in_is_a_tool() -> None:
    partly = functools.partial(functools.partial(forecast), days=1)
    made = FunctionTool.from_function(partly, name="tomorrow", description="Tomorrow.")

    assert made.schema["required"] == ["city"]
    assert made.call({"city": "Bonn"}, CONTEXT) == "Bonn: 1 days of sun"


def test_a_wrapped_function_keeps_its_parameters() -> None:
    @functools.wraps(forecast)
    def loud(*args: Any, **kwargs: Any) -> str:
        return forecast(*args, **kwargs).upper()

    made = FunctionTool.from_function(loud)

    assert made.name == "forecast"
    assert made.call({"city": "Bonn"}, CONTEXT) == "BONN: 3 DAYS OF SUN"


# Calls.


def test_arguments_are_converted_to_the_hinted_types() -> None:
    """9.9.2"""
    args = {
        "place": {"city": "Bonn"},
        "when": {"first": 1, "last": "2"},
        "unit": "K",
        "more": [{"city": "Rome", "country": "IT"}],
    }

    assert FunctionTool.from_function(detailed).call(args, CONTEXT) == (
        Place(city="Bonn"),
        Days(1, 2),
        Unit.KELVIN,
        [Place(city="Rome", country="IT")],
        "short",
        5,
    )


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"place": {}}, "place.city: Field required; when: Missing required"),
        (
            {"place": {"city": 5}, "when": {"first": "a", "last": 1}},
            "place.city: Input should be a valid string",
        ),
        (
            {"place": {"city": "B"}, "when": {"first": 1, "last": 2}, "limit": 0},
            "limit: Input should be greater",
        ),
        (
            {"place": {"city": "B"}, "when": {"first": 1, "last": 2}, "unit": "F"},
            "unit: Input should be 'C' or 'K'",
        ),
        (
            {"place": {"city": "B"}, "when": {"first": 1, "last": 2}, "mood": 1},
            "mood: Unexpected keyword argument",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_a_failure_that_the_model_understands(
    args: dict[str, Any], complaint: str
) -> None:
    """5.4.3: neither links to documentation nor the arguments are repeated."""
    with pytest.raises(ToolFailed) as caught:
        FunctionTool.from_function(detailed).call(args, CONTEXT)

    assert str(caught.value).startswith("The arguments do not fit: ")
    assert complaint in str(caught.value)
    assert "http" not in str(caught.value)


def test_errors_raised_by_a_function_keep_their_text() -> None:
    """5.4.3: also when it checks data itself."""

    def strict(city: str) -> Place:
        """Be strict."""
        return Place.model_validate({"town": city})

    with pytest.raises(ValueError, match="1 validation error for Place"):
        FunctionTool.from_function(strict).call({"city": "Bonn"}, CONTEXT)


def ask_about(city: str, context: ToolContext) -> str:
    """Ask about a city."""
    return f"{city} for {context.tool_call_id} in step {context.step_number}"


def test_a_tool_that_wants_its_context_gets_it() -> None:
    """1.1.3: the ids are its idempotency key. The model does not see it and cannot pass it."""
    made = FunctionTool.from_function(ask_about)

    assert list(made.schema["properties"]) == made.schema["required"] == ["city"]
    assert made.call({"city": "Bonn"}, CONTEXT) == "Bonn for c1 in step 1"
    with pytest.raises(ToolFailed, match="context: Unexpected keyword argument"):
        made.call({"city": "Bonn", "context": {}}, CONTEXT)


def test_the_context_may_be_optional_and_have_any_name() -> None:
    def nosy(one: ToolContext, *, other: Optional[ToolContext] = None) -> bool:  # noqa: UP045 -- users' notation
        """Compare."""
        return one is other

    def returns(city: str) -> ToolContext:
        """Return one."""
        return ToolContext(EXECUTION_ID, city, 2)

    assert FunctionTool.from_function(nosy).call({}, CONTEXT) is True
    assert FunctionTool.from_function(nosy).schema["properties"] == {}
    assert FunctionTool.from_function(returns).call({"city": "c2"}, CONTEXT).tool_call_id == "c2"


def test_a_tool_with_any_arguments_gets_the_context_of_the_shell() -> None:
    """9.9.4: never one that the model made up."""

    class Forwards(BaseTool):
        """Forward everything."""

        def __call__(self, context: ToolContext, **arguments: Any) -> Any:
            return context, arguments

    given = Forwards().call({"context": {"user_id": "bob"}, "a": 1}, CONTEXT)

    assert given == (CONTEXT, {"a": 1})


def test_a_module_may_postpone_its_annotations() -> None:
    """9.9.4: also an optional context is found behind a text."""
    source = """
from __future__ import annotations
from typing import Optional
from everstep import ToolContext, tool
@tool
def own(n: int, one: ToolContext, two: Optional[ToolContext] = None, three: ToolContext | None = None):
    \"\"\"Compare.\"\"\"
    return one is two is three
"""
    module: dict[str, Any] = {"__name__": "postponed"}
    exec(source, module)  # noqa: S102 -- the import decides how a whole module is compiled

    assert list(module["own"].schema["properties"]) == ["n"]
    assert module["own"].call({"n": 1}, CONTEXT) is True


async def test_the_context_names_the_call_that_the_tool_answers() -> None:
    """1.1.3: also in a real run; metadata are those of the step's start."""
    contexts: list[ToolContext] = []

    def listen(context: ToolContext) -> None:
        """Listen."""
        contexts.append(context)

    driver = ToolCallingDriver(ScriptedModel(calling(a_call("c7", "listen")), "Done"))
    state = a_state_in_its_first_step().with_metadata("mood", "calm")
    await runner(driver, [FunctionTool.from_function(listen)]).run(state)

    assert contexts == [ToolContext(EXECUTION_ID, "c7", 1, state.metadata)]


async def wait_for(city: str) -> Place:
    """Wait for the weather."""
    return Place(city=city)


async def test_coroutine_functions_are_awaited() -> None:
    """5.4.2: a model's data reads as JSON text."""
    made = FunctionTool.from_function(wait_for)
    call = made.call({"city": "Bonn"}, CONTEXT)
    assert inspect.isawaitable(call)
    assert await call == Place(city="Bonn")

    driver = ToolCallingDriver(ScriptedModel(calling(a_call(name="wait_for", city="Bonn")), "Done"))
    state = await run(driver, [made])

    assert state.messages[-2].text == '{"city":"Bonn","country":"DE"}'


async def test_a_result_that_cannot_be_stored_fails_the_call() -> None:
    """5.4.3"""

    def opaque() -> object:
        """Return something."""
        return object()

    driver = ToolCallingDriver(ScriptedModel(calling(a_call(name="opaque")), "Done"))
    state = await run(driver, [FunctionTool.from_function(opaque)])

    assert state.messages[-1].text.startswith(
        "Error: the result of opaque is of type object, which cannot be"
    )


# Functions that cannot be tools.


def unhinted(city: str) -> None:
    """Report."""


del unhinted.__annotations__["city"]


def starred(*cities: str) -> None:
    """Report."""


def keyworded(**cities: str) -> None:
    """Report."""


def positional(city: str, /) -> None:
    """Report."""


def undocumented(city: str) -> str:
    return city


def only_sections(city: str) -> str:
    """Args:
    city: Where
    """
    return city


class Opaque:
    """Nothing that JSON can hold."""


def opaque_argument(thing: Opaque) -> None:
    """Report."""


def callable_argument(thing: Callable[[int], int]) -> None:
    """Report."""


def endless_default(limit: float = float("inf")) -> None:
    """Report."""


@pytest.mark.parametrize(
    ("fn", "complaint"),
    [
        (
            unhinted,
            "the parameter 'city' of the tool 'unhinted' has no type hint; add one, such as city: str",
        ),
        (starred, "the tool 'starred' takes *cities: str; models pass arguments by name, so name each one"),
        (keyworded, "the tool 'keyworded' takes **cities: str; models pass arguments by name"),
        (positional, "the tool 'positional' takes city: str; models pass arguments by name"),
        (undocumented, "the tool 'undocumented' has no description; write a docstring, models choose by it"),
        (only_sections, "the tool 'only_sections' has no description"),
        (
            opaque_argument,
            "a parameter of the tool 'opaque_argument' cannot be described: Unable to generate",
        ),
        (callable_argument, "a parameter of the tool 'callable_argument' has no JSON form: Cannot generate"),
        (endless_default, "the schema of 'endless_default'.properties.limit.default is inf"),
        (lambda: None, "'<lambda>' is not a tool name; use 1 to 64 letters, digits, _ or -"),
        (Station.report, "the parameter 'self' of the tool 'report' has no type hint"),
        (int, "the parameters of the tool 'int' are unknown to Python; wrap it in a function"),
        (len, "the tool 'len' takes obj; models pass arguments by name"),
        (Station(), "'' is not a tool name"),
        ("forecast", "'forecast' is not callable; pass a function"),
        (None, "None is not callable; pass a function"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_at_definition(fn: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        FunctionTool.from_function(fn)

    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        ("Nowhere", "name 'Nowhere' is not defined"),
        ("enum.Nothing", "module 'enum' has no attribute 'Nothing'"),
        ("int int", "Forward reference must be an expression"),
        ("Any[int]", "is not subscriptable"),
    ],
)
def test_a_hint_that_cannot_be_resolved_is_refused(hint: str, problem: str) -> None:
    def guess(city: object) -> None:
        """Guess."""

    guess.__annotations__["city"] = hint

    with pytest.raises(InvalidInput, match="a type hint of the tool 'guess' cannot be resolved: ") as caught:
        FunctionTool.from_function(guess)
    assert problem in str(caught.value)
    assert "import what it names at run time" in str(caught.value)


@pytest.mark.parametrize("name", ["a", "read_file", "Read-File-2", "x" * 64])
def test_valid_names_are_accepted_by_every_provider(name: str) -> None:
    assert valid_tool_name(name) == name
    assert FunctionTool.from_function(forecast, name=name).name == name


@pytest.mark.parametrize("name", ["", "read file", "x" * 65, "é", "a\n", "a.b", "🙂", None, 5])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a tool name; use 1 to 64 letters, digits, _ or -"):
        valid_tool_name(name)


def test_two_functions_of_one_name_are_refused_in_one_list() -> None:
    one, other = FunctionTool.from_function(forecast), FunctionTool.from_function(ask_about, name="forecast")

    with pytest.raises(InvalidInput, match="two tools are named 'forecast'; rename one of them"):
        Toolbox.of([one, other])
    assert Toolbox.of([one]).merged([other]).get("forecast") is other


# Classes as tools.


class Weather(BaseTool):
    """Forecast the weather."""

    name = "weather"
    options = ToolOptions(quick=True)

    def __init__(self, station: str = "here") -> None:
        self.station = station

    def __call__(self, city: str, context: ToolContext, days: int = 1) -> str:
        """Not what the model reads."""
        return f"{city} from {self.station} for {days} ({context.tool_call_id})"


class Described(Weather):
    name = "described"
    description = "Report more."


class Unnamed(BaseTool):
    def __call__(self, city: str) -> str:
        """Report the city."""
        return city


class Free(BaseTool):
    """Takes the given value."""

    def __call__(self, **facts: Any) -> dict[str, Any]:
        return facts

    def to_tool_schema(self) -> dict[str, Any]:
        parameters = {"type": "object", "required": ["city"], "additionalProperties": True}
        return {
            "type": "function",
            "function": {"name": self.name, "description": "Note facts", "parameters": parameters},
        }


def test_a_class_defines_the_tool_by_its_call() -> None:
    """9.9.2"""
    made = Weather("Bonn station")

    assert isinstance(made, Tool)
    assert made.to_tool_schema() == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Forecast the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    assert made.schema == made.to_tool_schema()["function"]["parameters"]
    assert tool_schema(made) == made.to_tool_schema()
    assert made.call({"city": "Bonn", "days": "2"}, CONTEXT) == "Bonn from Bonn station for 2 (c1)"
    with pytest.raises(ToolFailed, match="city: Missing required"):
        made.call({}, CONTEXT)


def test_a_class_may_describe_itself_or_leave_that_to_its_call() -> None:
    assert Described().to_tool_schema()["function"]["description"] == "Report more."
    assert Unnamed().to_tool_schema()["function"]["description"] == "Report the city."


def test_a_class_without_a_name_uses_the_class_name() -> None:
    class Renamed(Unnamed):
        def __init__(self) -> None:
            self.name = "renamed"

    class Abstract(BaseTool):
        """Has no `__call__`."""

    class Concrete(Abstract):
        def __call__(self) -> None:
            """Do."""

    assert Unnamed.name == Unnamed().to_tool_schema()["function"]["name"] == "Unnamed"
    assert Renamed().to_tool_schema()["function"]["name"] == "renamed"
    assert Concrete().name == "Concrete"

    class Derived(Concrete):
        def __call__(self) -> None:
            """Do otherwise."""

    class Relying(Concrete):
        """Does what its base does."""

    class Forecast(Weather):
        def __call__(self, city: str, context: ToolContext, days: int = 1) -> str:
            """Report what comes."""
            return "sun"

    assert (Derived().name, Relying().name) == ("Derived", "Relying")
    assert (Forecast().name, Concrete().name) == ("weather", "Concrete")


@pytest.mark.parametrize("title", ["Args", "Arguments", "Parameters"])
def test_parameter_docs_may_have_any_of_three_titles(title: str) -> None:
    """9.9.2: as in the `Args:` section."""

    def look(place: str) -> str:
        return place

    look.__doc__ = f"Look.\n\n{title}:\n    place: Where to look.\n\nReturns:\n    place: What is there.\n"
    made = tool(look)

    assert made.description == "Look."
    assert made.schema["properties"]["place"]["description"] == "Where to look."


async def test_a_class_may_write_its_own_schema_and_take_any_arguments() -> None:
    """9.9.2: the arguments are checked against the schema that the model got."""
    free = Free()
    assert free.schema == {"type": "object", "required": ["city"], "additionalProperties": True}

    calls = calling(a_call("c1", "Free", city="Bonn", mood="calm"), a_call("c2", "Free", mood="calm"))
    state = await run(ToolCallingDriver(ScriptedModel(calls, "Done")), [free])

    assert [message.text for message in state.messages if message.is_tool] == [
        '{"city":"Bonn","mood":"calm"}',
        "Error: Required arguments are missing: city",
    ]


class Callless(BaseTool):
    name = "callless"


class Loose(BaseTool):
    """Takes anything, but does not say what."""

    def __call__(self, **facts: Any) -> None: ...


class Odd(Free):
    def to_tool_schema(self) -> dict[str, Any]:
        return {"name": "odd"}


class Listed(Free):
    def to_tool_schema(self) -> dict[str, Any]:
        return {"function": {"parameters": ["city"]}}


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (Callless(), "Callless has no __call__; define what the tool does"),
        (Loose(), r"the tool 'Loose' takes \*\*facts: Any; models pass arguments by name"),
        (Odd(), "the schema of Odd cannot be read: 'function' is missing"),
        (Listed(), "the schema of Listed cannot be read: 'parameters' must be a map, not list"),
    ],
)
def test_a_class_that_cannot_be_a_tool_is_refused(made: BaseTool, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        _ = made.schema
    with pytest.raises(InvalidInput, match=complaint):
        runner(ToolCallingDriver(ScriptedModel()), [made])


async def test_a_class_may_be_asynchronous() -> None:
    class Slow(BaseTool):
        name = "slow"

        async def __call__(self, city: str) -> str:
            """Take its time."""
            return f"finally in {city}"

    driver = ToolCallingDriver(ScriptedModel(calling(a_call(name="slow", city="Bonn")), "Done"))
    state = await run(driver, [Slow()])

    assert state.messages[-2].text == "finally in Bonn"
