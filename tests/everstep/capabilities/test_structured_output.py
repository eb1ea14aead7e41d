"""`extract_data`, in runs."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.capabilities.extraction import (
    SchemaDefinition,
    SchemaRegistry,
    StructuredOutputPolicy,
)
from everstep.agent_domain.capabilities.scratchpad import MetadataPolicy
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls, says
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.structured_output import UseStructuredOutputs
from tests.everstep.capabilities.agent_words import Presets, builder_of, results


class Person(BaseModel):
    name: str
    age: int | None = None


class Place(BaseModel):
    city: str


SCHEMAS = {"person": Person, "place": SchemaDefinition(Place, "Where somebody lives", max_retries=1)}
ADA = json.dumps({"value": {"name": "Ada", "age": 36}})
STORED = 'Extracted person: {"name":"Ada","age":36}'


def extract_call(**args: Any) -> InferenceResponse:
    return calls(("extract_data", {"input": "Ada is 36", "schema": "person", **args}))


async def run_extraction(
    *answers: InferenceResponse | str | Exception,
    call: InferenceResponse | None = None,
    policy: StructuredOutputPolicy | None = None,
    schemas: Any = SCHEMAS,
    notes: MetadataPolicy | None = None,
) -> tuple[AgentState, ScriptedModel]:
    """A run of one call, and the model that extracts."""
    extractor = ScriptedModel(*answers)
    use = UseStructuredOutputs(schemas, policy or StructuredOutputPolicy(llm_preset="extractor"))
    builder = builder_of(use, *([UseMetadataTools(notes)] if notes else []), max_steps=1)
    builder.with_driver(ToolCallingDriver(ScriptedModel(call or extract_call())))
    return await builder.build(models=Presets(extractor=extractor)).arun("Who?"), extractor


def prompt(request: InferenceRequest) -> str:
    return request.messages[0].text


async def test_data_are_extracted() -> None:
    """9.8.1, 9.8.2"""
    state, model = await run_extraction(ADA)

    assert results(state) == [STORED]
    assert dict(state.metadata) == {}
    (request,) = model.requests
    assert [message.role.value for message in request.messages] == ["system", "user"]
    assert request.messages[1].text == "Ada is 36"
    assert request.response_format is not None
    assert request.response_format.type == "json_schema"
    assert set(request.response_format.schema["properties"]) == {"value", "detail"}
    assert "Schema: " in prompt(request)


async def test_data_are_stored_after_the_step() -> None:
    """9.8.2, 9.8.3: under the key, which is trimmed."""
    state, _ = await run_extraction(ADA, call=extract_call(store_as=" who "))
    assert results(state) == ['Extracted person into \'who\': {"name":"Ada","age":36}']
    assert state.metadata == {"who": {"name": "Ada", "age": 36}}


@pytest.mark.parametrize("store_as", [None, "", " "])
async def test_a_blank_key_means_none(store_as: str | None) -> None:
    """9.8.1: store_as may be left out."""
    state, _ = await run_extraction(ADA, call=extract_call(store_as=store_as))
    assert (results(state), dict(state.metadata)) == ([STORED], {})


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"input": " "}, "Error: Nothing extracted (person): The input is empty"),
        ({"schema": ""}, "Error: Nothing extracted (): The schema name is empty"),
        (
            {"schema": "car"},
            "Error: Nothing extracted (car): No schema named 'car'. Choose from: person, place",
        ),
        (
            {"store_as": "tasks"},
            "Error: Nothing extracted (person): The key 'tasks' is reserved, choose another",
        ),
        ({"max_retries": -1}, "Error: max_retries is -1; pass a whole number of at least 0"),
        ({"max_retries": "3"}, "Error: max_retries is '3'; pass a whole number of at least 0"),
        ({"input": 5}, "Error: input must be text, not int"),
        ({"schema": None}, "Error: schema must be text, not NoneType"),
        ({"store_as": ["a"]}, "Error: store_as must be text, not list"),
    ],
)
async def test_invalid_arguments_are_reported_without_a_model_call(args: dict[str, Any], text: str) -> None:
    """9.8.2, 9.8.3"""
    state, model = await run_extraction(ADA, call=extract_call(**args))
    assert results(state) == [text]
    assert model.requests == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"value": null, "detail": "only places"}', "The input holds no person: only places"),
        ('{"value": null}', "The input holds no person: the model found nothing"),
        (ModelError("overloaded"), "overloaded"),
    ],
)
async def test_without_a_result_nothing_is_stored(answer: str | Exception, reason: str) -> None:
    """9.8.2, 9.8.3: on success only; the call is not a failure."""
    state, model = await run_extraction(answer, call=extract_call(store_as="who"))
    assert results(state) == [f"Error: Nothing extracted (person): {reason}"]
    assert not state.steps[0].has_errors
    assert (dict(state.metadata), len(model.requests)) == ({}, 1)


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        ({}, 4),
        ({"max_retries": 0}, 1),
        ({"max_retries": 2}, 3),
        ({"schema": "place"}, 2),
        ({"schema": "place", "max_retries": 5}, 6),
        ({"max_retries": 10**9}, 11),
    ],
)
async def test_retries_are_those_of_the_call_the_schema_or_the_policy(
    args: dict[str, Any], asked: int
) -> None:
    """9.8.1: and there is a limit to those that a model may request."""
    state, model = await run_extraction('{"value": {"age": 3}}', call=extract_call(**args))
    assert len(model.requests) == asked
    name = args.get("schema", "person")
    assert results(state)[0].startswith(f"Error: Nothing extracted ({name}): value.")


async def test_the_model_gets_the_validation_error() -> None:
    """9.8.2: its own answer precedes it."""
    state, model = await run_extraction("I think Ada", ADA)
    *_, own, again = model.requests[1].messages
    assert own.text == "I think Ada"
    assert again.text.startswith("That does not fit: the answer is not valid JSON")
    assert results(state) == [STORED]


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", "\n {} \n"])
async def test_a_code_fence_around_the_answer_is_removed(fence: str) -> None:
    """9.8.2"""
    state, _ = await run_extraction(fence.format(ADA))
    assert results(state) == [STORED]


async def test_without_maybe_the_schema_itself_is_requested() -> None:
    """9.8.1: use_maybe"""
    policy = StructuredOutputPolicy(use_maybe=False, llm_preset="extractor")
    state, model = await run_extraction('{"name": "Ada", "age": 36}', policy=policy)
    assert results(state) == [STORED]
    assert "answer with value null" not in prompt(model.requests[0])
    assert model.requests[0].response_format is not None
    assert set(model.requests[0].response_format.schema["properties"]) == {"name", "age"}


@pytest.mark.parametrize(
    ("mode", "kind"), [(None, "json_schema"), ("json_object", "json_object"), ("text", None)]
)
async def test_the_mode_selects_the_request_to_the_provider(mode: str | None, kind: str | None) -> None:
    """9.8.1: output_mode; the schema is described in the prompt in every mode."""
    policy = StructuredOutputPolicy(llm_preset="extractor", output_mode=mode)
    state, model = await run_extraction(ADA, policy=policy)
    wanted = model.requests[0].response_format
    assert (wanted and wanted.type) == kind
    assert '"properties"' in prompt(model.requests[0])
    assert results(state) == [STORED]


async def test_the_prompt_contains_the_whole_definition() -> None:
    """9.8.1: description, prompt and examples; the policy's system_prompt instead of ours."""
    definition = SchemaDefinition(Person, "A person", "Take the full name", examples=(Person(name="Bo"),))
    policy = StructuredOutputPolicy(llm_preset="extractor", system_prompt="Read closely.")
    _, model = await run_extraction(ADA, policy=policy, schemas={"person": definition})
    parts = prompt(model.requests[0]).split("\n\n")
    assert parts[0] == "Read closely."
    assert parts[2:4] == ["A person", "Take the full name"]
    assert parts[-1] == 'Example: {"name":"Bo","age":null}'


@pytest.mark.parametrize(
    ("policy", "options", "wanted"),
    [
        (StructuredOutputPolicy(llm_preset="fast"), {}, "fast"),
        (
            StructuredOutputPolicy(llm_preset="fast", model="m-1"),
            {"temperature": 0},
            {"temperature": 0, "model": "m-1", "preset": "fast"},
        ),
        (StructuredOutputPolicy(model="m-1"), {}, {"model": "m-1"}),
    ],
)
async def test_the_model_is_selected_by_policy_and_schema(
    policy: StructuredOutputPolicy, options: dict[str, Any], wanted: Any
) -> None:
    """9.8.1: llm_preset, model, llm_options."""
    presets = Presets(fast=ScriptedModel(ADA), default=ScriptedModel(ADA))
    use = UseStructuredOutputs({"person": SchemaDefinition(Person, llm_options=frozen_map(options))}, policy)
    builder = builder_of(use, max_steps=1).with_driver(ToolCallingDriver(ScriptedModel(extract_call())))

    state = await builder.build(models=presets).arun("Who?")

    assert results(state) == [STORED]
    assert presets.wanted == [wanted]


async def test_without_a_preset_the_agents_model_extracts() -> None:
    """9.8.1: llm_preset None."""
    model = ScriptedModel(extract_call(), says(ADA, Usage(input=7)))
    builder = builder_of(UseStructuredOutputs(SCHEMAS), max_steps=1)
    state = await builder.with_driver(ToolCallingDriver(model)).build().arun("Who?")
    assert (results(state), state.usage) == ([STORED], Usage(input=7))


def test_the_schema_is_an_enum_of_names() -> None:
    """9.8.1: bare classes are shorthand."""
    use = UseStructuredOutputs(SchemaRegistry(SCHEMAS))
    properties = builder_of(use).definition().tools.get("extract_data").schema["properties"]
    assert properties["schema"]["enum"] == ["person", "place"]
    assert "- place: Where somebody lives" in properties["schema"]["description"]


async def test_names_that_providers_refuse_are_replaced() -> None:
    """9.8.1: the registered name is any text."""
    schemas = {"contact info ä": Person}
    state, model = await run_extraction(ADA, call=extract_call(schema="contact info ä"), schemas=schemas)
    assert model.requests[0].response_format is not None
    assert model.requests[0].response_format.name == "contact_info__"
    assert results(state) == ['Extracted contact info ä: {"name":"Ada","age":36}']


# Limits of stored data.


async def test_the_limits_of_the_scratchpad_apply() -> None:
    """9.8.3, 9.4.2: those of the agent's own scratchpad, with the keys written earlier in the step."""
    call = calls(
        ("metadata_write", {"key": "a", "value": 1}),
        ("extract_data", {"input": "Ada", "schema": "person", "store_as": "b"}),
        ("extract_data", {"input": "Ada", "schema": "person", "store_as": "c"}),
        ("metadata_write", {"key": "d", "value": 1}),
        ("extract_data", {"input": "Ada", "schema": "person", "store_as": "b"}),
    )
    state, model = await run_extraction(ADA, call=call, notes=MetadataPolicy(max_keys=2))
    into_b = 'Extracted person into \'b\': {"name":"Ada","age":36}'
    assert results(state) == [
        "Stored 'a': 1",
        into_b,
        "Error: Nothing extracted (person): Maximum of 2 keys reached",
        "Error: Metadata not stored: Maximum of 2 keys reached",
        into_b,
    ]
    assert (len(model.requests), set(state.metadata)) == (2, {"a", "b"})


async def test_data_that_are_too_large_are_not_stored() -> None:
    """9.8.3, 9.4.2: the size is known once there are data."""
    notes = MetadataPolicy(max_value_size_bytes=20)
    state, _ = await run_extraction(ADA, call=extract_call(store_as="who"), notes=notes)
    assert results(state) == ["Error: Nothing extracted (person): The value is larger than 20 bytes"]
    assert dict(state.metadata) == {}


async def test_without_a_scratchpad_its_default_limits_apply() -> None:
    """9.8.3, 9.4.1: 65536 bytes."""
    huge = json.dumps({"value": {"name": "ä" * 40_000}})
    state, _ = await run_extraction(huge, call=extract_call(store_as="who"))
    assert results(state) == ["Error: Nothing extracted (person): The value is larger than 65536 bytes"]


async def test_the_shown_data_are_cut() -> None:
    """9.8.2: JSON text cut to 200."""
    state, _ = await run_extraction(
        json.dumps({"value": {"name": "🧳" * 300}}), call=extract_call(store_as="who")
    )
    shown = '{"name":"' + "🧳" * 191
    assert results(state) == [f"Extracted person into 'who': {shown}..."]
    assert state.metadata["who"]["name"] == "🧳" * 300
