"""ReAct as a capability, in runs."""

import json
from typing import Any

import pytest

from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.tasks import TodoPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.testing import ScriptedModel
from everstep.capabilities.critique import UseSelfCritique
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.react import UseReAct
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.tasks import UseTaskPlanning
from everstep.local.local_agent import Agent
from everstep.runtime.builder import AgentBuilder
from tests.everstep.capabilities.agent_words import Presets, builder_of, results


def decision_json(tool: str, **args: Any) -> str:
    return json.dumps({"thought": "next", "type": "call_tool", "tool": tool, "args": args})


def answer_json(text: str) -> str:
    return json.dumps({"thought": "done", "type": "final_answer", "answer": text})


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


async def test_the_model_of_the_preset_decides() -> None:
    """12.2: in JSON, with the tools described in the prompt."""
    model = ScriptedModel(decision_json("look"), answer_json("Ulm"))
    presets = Presets(small=model)
    agent = builder_of(UseReAct()).with_llm_preset("small").build(models=presets)

    state = await agent.arun("Where?")

    assert (state.final_response, state.status) == ("Ulm", AgentStatus.COMPLETED)
    assert texts(state.messages)[1:] == [
        "Thought: next\nAction: look\nAction Input: {}",
        'Observation: "seen"',
        "Ulm",
    ]
    request = model.requests[0]
    assert not request.tools
    assert request.response_format is not None
    assert request.response_format.type == "json_object"
    assert '[{"name":"look","description":"Looks around"}]' in request.messages[0].text
    assert presets.wanted == ["small"]


async def test_without_presets_the_step_fails() -> None:
    """12.2: and its error says so."""
    state = await Agent(builder_of(UseReAct()).definition()).arun("Where?")
    assert state.status is AgentStatus.FAILED
    assert "ReActDriver has no model; pass one" in state.steps[0].errors_as_text


async def test_the_answer_may_be_written_by_a_second_call() -> None:
    """12.2: final_via_inference"""
    presets = Presets(default=ScriptedModel(answer_json("Ulm"), "It is Ulm."))
    state = await builder_of(UseReAct(final_via_inference=True)).build(models=presets).arun("Where?")
    assert state.final_response == "It is Ulm."


def test_invalid_retries_are_refused() -> None:
    """12.2: max_retries"""
    with pytest.raises(InvalidInput, match="max_retries is -1"):
        builder_of(UseReAct(max_retries=-1))


async def test_tools_may_write_metadata() -> None:
    """12.2, 9.3.2, 9.4.2: the values are there from the next step on."""
    task = {"content": "Find", "status": "pending", "activeForm": "Finding"}
    model = ScriptedModel(
        decision_json("metadata_write", key="city", value={"name": "Ulm"}),
        decision_json("todo_write", todos=[task]),
        decision_json("metadata_read", key="city"),
        answer_json("Ulm"),
    )
    capabilities = (UseReAct(), UseMetadataTools(), UseTaskPlanning(TodoPolicy(20, 1, 0, 0)))
    state = await builder_of(*capabilities).build(models=Presets(default=model)).arun("Where?")

    assert state.metadata == {"city": {"name": "Ulm"}, "tasks": [task]}
    observations = [text for text in texts(state.messages) if text.startswith("Observation:")]
    assert observations == [
        'Observation: "Stored \'city\': {\\"name\\":\\"Ulm\\"}"',
        'Observation: "1. ○ Find\\nDone: 0 of 1, in progress: 0, pending: 1"',
        'Observation: "{\\"name\\":\\"Ulm\\"}"',
    ]


async def test_a_null_argument_is_dropped() -> None:
    """12.2: a metadata value of null needs another representation."""
    model = ScriptedModel(decision_json("metadata_write", key="city", value=None), answer_json("Ulm"))
    agent = builder_of(UseReAct(), UseMetadataTools()).with_error_policy(ErrorPolicy.retry_tool_errors())
    state = await agent.build(models=Presets(default=model)).arun("Where?")
    assert results(state) == ["Error: Required arguments are missing: value"]
    assert state.status is AgentStatus.COMPLETED


async def test_a_critic_gets_the_answer_and_its_evidence() -> None:
    """12.2, 9.7.1: the critic uses its own prompt."""
    approves = json.dumps({"approved": True, "summary": "Fine"})
    model = ScriptedModel(decision_json("look"), answer_json("Ulm"), approves)
    agent = builder_of(UseReAct(), UseSelfCritique()).build(models=Presets(default=model))

    state = await agent.arun("Where?")

    assert state.metadata["self_critic_result"]["approved"]
    review = model.requests[2]
    assert review.messages[1].text.endswith("Result: seen\n\n# Answer to review\n\nUlm")
    assert review.response_format is None


async def test_a_tool_calls_the_model_that_decides() -> None:
    """12.2, 9.9.1: the preset's."""
    model = ScriptedModel(decision_json("llm_query", query="Why?"), "Because.", answer_json("Ulm"))
    builder = AgentBuilder.base().with_capability(UseReAct()).with_tools(LlmQueryTool())
    state = await builder.build(models=Presets(default=model)).arun("Where?")
    assert results(state) == ["Because."]


@pytest.mark.parametrize("model", [None, "inherit", "other", {"preset": "other", "temperature": 0}])
async def test_subagents_decide_like_their_parent(model: Any) -> None:
    """12.2, 9.6.5: also with their own model."""
    script = [decision_json("spawn_subagent", subagent="scout", prompt="Look"), answer_json("Done")]
    child = [decision_json("look"), answer_json("Seen")]
    mine = model in (None, "inherit")
    presets = Presets(
        default=ScriptedModel(script[0], *(child if mine else []), script[1]), other=ScriptedModel(*child)
    )
    registry = AgentSpecRegistry([AgentSpec("scout", "Looks", "You look.", model=model)])

    state = await builder_of(UseReAct(), UseSubagents(registry)).build(models=presets).arun("Where?")

    assert results(state) == ["[Subagent: scout] Seen"]
    assert state.final_response == "Done"
