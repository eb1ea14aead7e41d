"""The metadata scratchpad, in runs."""

from typing import Any

import pytest

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.capabilities.scratchpad import MetadataPolicy
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.capabilities.metadata import UseMetadataTools
from tests.everstep.capabilities.agent_words import builder_of, results, run

SMALL = UseMetadataTools(MetadataPolicy(max_keys=2, max_value_size_bytes=10))


def write_call(**values: Any) -> InferenceResponse:
    return calls(*(("metadata_write", {"key": key, "value": value}) for key, value in values.items()))


def read_call(*keys: Any) -> InferenceResponse:
    return calls(*(("metadata_read", {"key": key}) for key in keys))


async def test_a_written_value_can_be_read_from_the_next_step_on() -> None:
    """9.4.2, 9.4.3, 9.4.4"""
    state, _ = await run(
        write_call(colour="blue", seats=[1, "ä"], fare={"a/b": None}, paid=True, rest=None),
        read_call("colour", "seats", "fare", "paid", "rest", "x"),
        calls(("metadata_list", {})),
        "Done",
        having=[UseMetadataTools()],
    )

    assert results(state) == [
        "Stored 'colour': blue",
        "Stored 'seats': [1,\"ä\"]",
        "Stored 'fare': {\"a/b\":null}",
        "Stored 'paid': true",
        "Stored 'rest': null",
        "blue",
        '[1,"ä"]',
        '{"a/b":null}',
        "true",
        "null",
        "Error: Nothing is stored under 'x'. Stored keys: colour, seats, fare, paid, rest",
        '{"count":5,"keys":[{"key":"colour","type":"string"},{"key":"seats","type":"array[2]"},'
        '{"key":"fare","type":"object"},{"key":"paid","type":"boolean"},{"key":"rest","type":"null"}]}',
    ]
    assert state.metadata == {
        "colour": "blue",
        "seats": [1, "ä"],
        "fare": {"a/b": None},
        "paid": True,
        "rest": None,
    }


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_read_in_the_same_step_sees_the_old_value(parallel: bool) -> None:
    """9.4.2: with parallel and with sequential calls."""
    both = calls(
        ("metadata_write", {"key": "a", "value": 2}),
        ("metadata_read", {"key": "a"}),
        ("metadata_list", {}),
        ("metadata_write", {"key": "a", "value": 3}),
    )
    model = ScriptedModel(write_call(a="one"), both, read_call("a"), "Done")
    builder = builder_of(UseMetadataTools()).with_driver(ToolCallingDriver(model))

    state = await builder.with_parallel_tools(parallel).build().arun("Note it")

    assert results(state)[1:] == [
        "Stored 'a': 2",
        "one",
        '{"count":1,"keys":[{"key":"a","type":"string"}]}',
        "Stored 'a': 3",
        "3",
    ]


async def test_an_empty_scratchpad_says_how_to_fill_it() -> None:
    """9.4.3, 9.4.4"""
    state, _ = await run(calls(("metadata_list", {})), read_call("x"), "Done", having=[UseMetadataTools()])
    assert results(state) == [
        "There are no keys yet, metadata_write(key, value) adds one",
        "Error: Nothing is stored under 'x'. There are no keys yet",
    ]


@pytest.mark.parametrize("parallel", [True, False])
async def test_keys_written_earlier_in_the_step_count(parallel: bool) -> None:
    """9.4.2: refused ones do not count, and reserved ones never do."""
    model = ScriptedModel(write_call(a=1, tasks=1, big="x" * 10, b=2, c=3), write_call(a=4, d=5), "Done")
    builder = builder_of(SMALL).with_driver(ToolCallingDriver(model))

    state = await builder.with_parallel_tools(parallel).build().arun("Note it")

    assert results(state) == [
        "Stored 'a': 1",
        "Error: Metadata not stored: The key 'tasks' is reserved, choose another",
        "Error: Metadata not stored: The value is larger than 10 bytes",
        "Stored 'b': 2",
        "Error: Metadata not stored: Maximum of 2 keys reached",
        "Stored 'a': 4",
        "Error: Metadata not stored: Maximum of 2 keys reached",
    ]
    assert state.metadata == {"a": 4, "b": 2}


async def test_refusals_are_texts_and_not_failures() -> None:
    """9.4.2: the run continues."""
    state, _ = await run(write_call(**{" ": 1}), "Done", having=[UseMetadataTools()])
    assert results(state) == ["Error: Metadata not stored: The key is empty"]
    assert not state.steps[0].has_errors


@pytest.mark.parametrize(
    ("call", "failure"),
    [
        (("metadata_write", {"key": 5, "value": 1}), "Error: key must be text, not int"),
        (("metadata_write", {"key": None, "value": 1}), "Error: key must be text, not NoneType"),
        (("metadata_write", {"key": "a"}), "Error: Required arguments are missing: value"),
        (("metadata_read", {"key": ["a"]}), "Error: key must be text, not list"),
        (("metadata_read", dict[str, Any]()), "Error: Required arguments are missing: key"),
    ],
)
async def test_arguments_of_the_wrong_type_fail_with_a_message(call: Any, failure: str) -> None:
    """9.4.2, 9.4.3: the result says what to send."""
    state, _ = await run(calls(call), having=[UseMetadataTools()], max_steps=1)
    assert results(state) == [failure]
    assert state.metadata == {}


async def test_previews_are_cut_and_values_kept_whole() -> None:
    """9.4.2: strings to 50, any preview to 100."""
    state, _ = await run(
        write_call(text="ü" * 51, many=["🧳" * 200]), "Done", having=[UseMetadataTools()], max_steps=2
    )
    assert results(state) == [f"Stored 'text': {'ü' * 50}...", f"Stored 'many': [\"{'🧳' * 98}..."]
    assert state.metadata == {"text": "ü" * 51, "many": ["🧳" * 200]}


async def test_the_size_is_that_of_the_json_text_in_utf_8() -> None:
    """9.4.2: quotes and escapes count, characters count by their bytes."""
    policy = MetadataPolicy(max_value_size_bytes=6)
    state, _ = await run(
        write_call(a="ää", b="äää", c='"""'), "Done", having=[UseMetadataTools(policy)], max_steps=2
    )
    assert results(state) == [
        "Stored 'a': ää",
        "Error: Metadata not stored: The value is larger than 6 bytes",
        "Error: Metadata not stored: The value is larger than 6 bytes",
    ]


async def test_metadata_stay_in_the_next_execution_of_the_conversation() -> None:
    """4.1.4: metadata stay."""
    model = ScriptedModel(write_call(a=1), "Done", read_call("a"), "Done")
    agent = builder_of(UseMetadataTools()).with_driver(ToolCallingDriver(model)).build()

    state = await agent.arun("Note it")
    state = await agent.arun(state.with_user_message("What was it?"))

    assert results(state) == ["1"]
