"""Agents that name their model, and run in this process."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import ScriptedModel
from everstep.capabilities.critique import UseSelfCritique
from everstep.local.local_agent import Agent
from everstep.runtime.agents import AgentBook
from everstep.runtime.builder import AgentBuilder
from everstep.runtime.models import models_of
from everstep.runtime.settings import Settings
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import Answer, Call, answer_with_calls

SETTINGS = re.compile(r"EVERSTEP_|.*_API_KEY$")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, without keys and settings in the environment."""
    for name in filter(SETTINGS.match, tuple(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(wire: WireModelServer) -> str:
    return f"{wire.dialect.driver}:m@{wire.server.url}{wire.dialect.prefix}"


def with_preset(folder: Path, wire: WireModelServer, **settings: Any) -> None:
    """An `everstep.toml` whose default preset is the server."""
    section = {"driver": wire.dialect.driver, "model": "m", "base_url": wire.server.url + wire.dialect.prefix}
    lines = [f"{name} = {value!r}" for name, value in {**section, **settings}.items()]
    (folder / "everstep.toml").write_text("\n".join(["preset = 'ours'", "[presets.ours]", *lines]))


async def answers_of(agent: Agent, *, times: int = 2) -> list[str | None]:
    """The answers of blocking runs in threads without an event loop, and of coroutines here."""
    blocking = [await asyncio.to_thread(agent.run, "Hi") for _ in range(times)]
    return [state.final_response for state in (*blocking, await agent.arun("Hi"), await agent.arun("Hi"))]


# Any number of runs.


async def test_an_agent_runs_any_number_of_times_in_one_process(wire: WireModelServer) -> None:
    """11.4: blocking, as coroutines, and in several loops at once; with each provider's SDK."""
    await wire.script_answers(Answer(("Hello",)))
    agent = AgentBuilder.base().with_model(one_line(wire)).build()

    assert await answers_of(agent) == ["Hello"] * 4
    together = await asyncio.gather(*(asyncio.to_thread(agent.run, "Hi") for _ in range(4)), agent.arun("Hi"))
    assert [state.final_response for state in together] == ["Hello"] * 5
    assert [step.step_count async for step in agent.aiterator("Hi")] == [1]
    states = await asyncio.to_thread(lambda: list(agent.iterator("Hi")))
    assert [state.final_response for state in states] == ["Hello"]


SAMPLE = """
from everstep import AgentBuilder, AgentState, Message, UseBash, UseFileTools, UseTaskPlanning

agent = (
    AgentBuilder.base()
    .with_capability(UseBash())
    .with_capability(UseFileTools("."))
    .with_capability(UseTaskPlanning())
    .build()
)
state = AgentState.empty().with_messages([Message.from_string("Write a note")])
said = agent.final_step(state).current_step.output_messages.to_string()
"""


async def test_an_agent_with_tools_runs_with_a_preset_of_the_project(
    wire: WireModelServer, folder: Path
) -> None:
    """11.4: twice in one process."""
    with_preset(folder, wire)
    note = Call("call_1", "write_file", ('{"path": "note.txt", ', '"content": "Milk"}'))
    names: dict[str, Any] = {}

    for _ in range(2):
        await wire.script_answers(answer_with_calls(note), Answer(("Written ", "down.")))
        await asyncio.to_thread(exec, SAMPLE, names)
        assert names["said"] == "Written down."
        assert (folder / "note.txt").read_text() == "Milk"
        (folder / "note.txt").unlink()
        assert names["agent"].final_step is not None


# Which model answers.


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (None, {}),
        ("ours", {}),
        ("ours", {"max_output_tokens": 9}),
        ("ours:other", {}),
        ("ADDRESS", {"max_output_tokens": 9}),
    ],
)
async def test_a_worker_would_use_the_same_model(
    model: str | None, settings: dict[str, Any], wire: WireModelServer, folder: Path
) -> None:
    """11.2: the request is the same, from `everstep.toml` and in one line."""
    with_preset(folder, wire)
    await wire.script_answers(Answer(("Hello",)))
    builder = AgentBuilder.base().with_name("desk")
    if model:
        builder.with_model(one_line(wire) if model == "ADDRESS" else model, **settings)
    models = models_of(Settings.read())
    definition = builder.definition()
    book = AgentBook([definition], models)

    here = await builder.build().arun("Hi")
    driver = book.driver("desk", definition.spec().llm_preset)
    await driver.infer(AgentState.empty().with_messages("Hi"))

    first, second = (request.body for request in wire.server.requests)
    assert first == second
    assert first["model"] == ("other" if model == "ours:other" else "m")
    assert (9 in first.values()) == bool(settings)
    assert here.final_response == "Hello"
    await models.aclose()


def test_without_keys_the_demo_model_answers_as_on_a_worker() -> None:
    """11.2"""
    assert "Set OPENAI_API_KEY" in str(AgentBuilder.base().build().run("Hello").final_response)


def test_a_script_is_a_model_in_one_line(folder: Path) -> None:
    """11.2"""
    (folder / "talk.yaml").write_text("turns: [{text: First}, {text: Second}]")
    assert AgentBuilder.base().with_model("scripted:talk.yaml").build().run("Hi").final_response == "First"


def test_models_that_a_caller_passes_are_used_instead() -> None:
    """11.2"""
    agent = (
        AgentBuilder.base().with_model("ours").build(models=lambda choice: ScriptedModel(f"I am {choice}"))
    )
    assert agent.run("Hi").final_response == "I am ours"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("ours", "No preset named 'ours'. Name a model with its provider, as in openai:gpt-5.5"),
        ("opnai:gpt-5.5", "No preset or driver named 'opnai'"),
        ("anthropic:m@nowhere:x@http://", "preset 'anthropic:m@nowhere:x@http://': base_url: "),
    ],
)
def test_a_model_that_does_not_exist_is_refused_when_the_agent_is_built(model: str, problem: str) -> None:
    """11.2"""
    with pytest.raises(InvalidInput) as refused:
        AgentBuilder.base().with_model(model).build()
    assert str(refused.value).startswith(problem)


def test_a_setting_that_the_provider_does_not_take_is_refused_when_the_agent_is_built() -> None:
    """11.3"""
    with pytest.raises(InvalidInput, match="the Messages API takes no 'seed'; leave it out"):
        AgentBuilder.base().with_model("anthropic:m", seed=1).build()


@pytest.mark.parametrize("model", ["openai", "openai:m", "anthropic:m"])
def test_a_missing_key_is_named_when_the_agent_runs(model: str) -> None:
    """11.2: processes that only start executions need no keys."""
    agent, provider = AgentBuilder.base().with_model(model).build(), model.partition(":")[0]
    with pytest.raises(InvalidInput, match=f"preset '{model}' needs a key; set {provider.upper()}_API_KEY"):
        agent.run("Hi")


def test_a_broken_everstep_toml_is_named(folder: Path) -> None:
    """11.2"""
    (folder / "everstep.toml").write_text("[presets.ours]\ndriver = 'openai'\nmodle = 'm'\n")
    with pytest.raises(InvalidInput, match="preset 'ours': modle: there is no such key"):
        AgentBuilder.base().build().run("Hi")


def test_capabilities_use_presets_as_on_a_worker(folder: Path) -> None:
    """11.2"""
    (folder / "critic.yaml").write_text(
        'turns: [{text: \'{"approved": true, "summary": "ok"}\', usage: {input: 7}}]'
    )
    critic = UseSelfCritique(llm_preset="scripted:critic.yaml")
    agent = AgentBuilder.base().with_model(ScriptedModel("Hello")).with_capability(critic).build()
    state = agent.run("Hi")
    assert (state.final_response, state.usage.input) == ("Hello", 7)
