"""A model with a script, in any process."""

from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput, ModelError, ModelTimeout, ModelUnavailable, RateLimited
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext, InferenceRequest
from everstep.agent_domain.messages.messages import (
    Message,
    assistant,
    call_entry,
    tool_message,
    user,
)
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map
from everstep.inference.scripted import ScenarioModel, Script, ScriptedTurn
from tests.everstep.inference.asking import ChunkRecorder, a_request, ask, with_results

WEATHER = """
scenarios:
  - when: weather
    turns:
      - text: Let me look that up.
        calls: [{name: weather, args: {city: Paris}}]
        usage: {input: 30, output: 12, cache_read: 5}
      - text: It is sunny in Paris.
  - turns:
      - text: Good day.
      - text: I know only about the weather.
"""


def a_script(**turn: Any) -> Script:
    return Script.of(ScriptedTurn.model_validate(turn))


def model(script: str = WEATHER) -> ScenarioModel:
    return ScenarioModel(Script.from_yaml(script))


async def texts(model: ScenarioModel, *conversations: tuple[str | Message, ...]) -> list[str]:
    return [(await ask(model, *conversation)).text for conversation in conversations]


# Choosing the turn.


async def test_a_turn_has_text_calls_and_usage() -> None:
    response = await ask(model(), "How is the WEATHER?")

    assert response.text == "Let me look that up."
    assert response.tool_calls == (ToolCall("", "weather", frozen_map({"city": "Paris"})),)
    assert response.finish_reason == "tool_calls"
    assert response.usage == Usage(input=30, output=12, cache_read=5)


async def test_another_process_continues_where_the_first_was_lost() -> None:
    question = user("How is the weather?")
    first = await ask(model(), question)
    results = with_results(first, "sunny")

    second = await ask(model(), question, *results)
    again = await ask(model(), question, *results)

    assert second.text == again.text == "It is sunny in Paris."
    assert second.finish_reason == "stop"


async def test_the_last_turn_repeats() -> None:
    spoken = (user("Hello"), *(assistant(f"{n}") for n in range(5)))

    assert await texts(model(), spoken) == ["I know only about the weather."]


async def test_each_question_is_answered_by_its_scenario() -> None:
    conversation = (
        user("Hello"),
        assistant("Good day."),
        user("How is the weather?"),
        assistant("Let me look that up."),
        user("And the weather tomorrow?"),
    )

    assert await texts(model(), conversation[:1], conversation[:3], conversation[:4], conversation) == [
        "Good day.",
        "Let me look that up.",
        "It is sunny in Paris.",
        "Let me look that up.",
    ]


async def test_other_user_messages_do_not_select_a_scenario() -> None:
    """Reminders and critiques are user messages too."""
    entry = call_entry("c1", "weather", {})
    conversation = (
        user("How is the weather?"),
        assistant("", tool_calls=[entry]),
        tool_message("sunny", "c1", "weather"),
        user("<todo-reminder-nag>"),
    )

    assert await texts(model(), conversation) == ["It is sunny in Paris."]


async def test_messages_before_the_first_question_do_not_count() -> None:
    skill = (
        assistant("", tool_calls=[call_entry("c1", "load_skill", {})]),
        tool_message("x", "c1", "load_skill"),
    )
    context = CachedContext(messages=(user("Ping"), assistant("Pong")))
    request = InferenceRequest.compile((*skill, user("Hello")), context)

    assert (await model().respond(request, ChunkRecorder())).text == "Good day."


async def test_without_a_question_the_first_turn_is_played() -> None:
    assert await texts(model(), ()) == ["Good day."]


async def test_a_script_may_have_no_answer() -> None:
    only = "scenarios: [{when: weather, turns: [{text: Sunny}]}]"

    with pytest.raises(ModelError, match="no scenario for this conversation"):
        await ask(model(only), "Hello")


# Streaming.


class SleepRecorder(list[float]):
    """Records the delays, and does not wait."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.mark.parametrize(
    ("turn", "pieces", "sleeps"),
    [
        ({"text": "abcdefg"}, ["abcdefg"], []),
        ({"text": "abcdefg", "pace": {"characters": 3}}, ["abc", "def", "g"], []),
        ({"text": "abcd", "pace": {"characters": 2, "seconds": 0.5}}, ["ab", "cd"], [0.5, 0.5]),
        ({"text": "abcd", "pace": {"seconds": 2}}, ["abcd"], [2]),
        ({"calls": [{"name": "clock"}], "pace": {"seconds": 2}}, [], [2]),
        ({}, [], []),
    ],
)
async def test_the_pace_follows_the_script(
    turn: dict[str, Any], pieces: list[str], sleeps: list[float]
) -> None:
    heard, slept = ChunkRecorder(), SleepRecorder()

    await ScenarioModel(a_script(**turn), slept).respond(a_request("Hello"), heard)

    assert (heard, slept) == (pieces, sleeps)


async def test_arguments_may_be_any_value() -> None:
    script = a_script(calls=[{"name": "clock", "id": "c1", "arguments": "nonsense"}])

    (call,) = (await ask(ScenarioModel(script), "Hello")).tool_calls

    assert call == ToolCall("c1", "clock", malformed="nonsense")


async def test_a_finish_reason_may_be_scripted() -> None:
    assert (
        await ask(ScenarioModel(a_script(text="x", finish_reason="length")), "Hello")
    ).finish_reason == "length"


# Errors.


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("rate_limit", RateLimited),
        ("timeout", ModelTimeout),
        ("unavailable", ModelUnavailable),
        ("refused", ModelError),
    ],
)
async def test_a_turn_may_fail_always(kind: str, error: type[ModelError]) -> None:
    model = ScenarioModel(a_script(text="Never", error={"type": kind, "message": "As told"}))

    for _ in range(3):
        with pytest.raises(ModelError, match="As told") as failed:
            await ask(model, "Hello")
        assert type(failed.value) is error


@pytest.mark.parametrize("kind", ["rate_limit", "unavailable"])
async def test_an_error_may_have_a_delay(kind: str) -> None:
    model = ScenarioModel(a_script(error={"type": kind, "retry_after": 7}))

    with pytest.raises((RateLimited, ModelUnavailable)) as failed:
        await ask(model, "Hello")

    assert failed.value.retry_after == 7


async def test_a_turn_may_fail_a_few_times_in_each_conversation() -> None:
    model = ScenarioModel(a_script(text="Hello", error={"type": "unavailable", "times": 2}))

    for question in ("One", "Another"):
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await ask(model, question)
        assert (await ask(model, question)).text == "Hello"


async def test_a_turn_may_break_off() -> None:
    script = a_script(text="abcdefgh", pace={"characters": 3}, error={"type": "unavailable", "after": 4})
    heard = ChunkRecorder()

    with pytest.raises(ModelUnavailable):
        await ScenarioModel(script).respond(a_request("Hello"), heard)

    assert heard == ["abc", "d"]


# Reading scripts.


def test_a_file_may_be_a_single_scenario() -> None:
    assert Script.from_yaml("turns: [{text: Hello}]") == Script.of("Hello")
    assert Script.from_yaml("{when: x, turns: [{text: Hello}]}").scenarios[0].when == "x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("turns: [", "is not valid YAML: "),
        ("hello", "is not a valid script: Input should be a valid dictionary"),
        ("turns: []", "a scenario needs at least one turn"),
        ("scenarios: []", "a script needs at least one scenario"),
        ("turns: [{txt: Hello}]", "scenarios.0.turns.0.txt: there is no such key"),
        ("turns: [{usage: {input: -1}}]", "input is -1, pass 0 or more"),
        ("turns: [{error: {type: bored}}]", "scenarios.0.turns.0.error.type: Input should be"),
        ("turns: [{pace: {seconds: -1}}]", "scenarios.0.turns.0.pace.seconds: "),
        ("turns: [{calls: [{name: x, args: {day: 2026-01-16}}]}]", "is of type date"),
    ],
)
def test_an_invalid_script_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Script.from_yaml(text, "demo.yaml")

    assert str(refused.value).startswith("demo.yaml is not ")
    assert problem in str(refused.value)


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text("turns: [{text: Grüße}]", encoding="utf-8")

    assert Script.load(file) == Script.of("Grüße")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("Grüße".encode("latin-1"))

    with pytest.raises(InvalidInput, match=r"none\.yaml cannot be read: No such file"):
        Script.load(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match=r"latin\.yaml cannot be read: save it as UTF-8"):
        Script.load(tmp_path / "latin.yaml")
