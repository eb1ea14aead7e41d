"""The model of one execution, chosen over HTTP."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, assert_problem, open_callers


@pytest.fixture
async def open_desk(api_setup: ApiSetup, tmp_path: Path) -> AsyncGenerator[MakeCaller]:
    """An installation with two presets, and an agent that names neither."""
    sections: dict[str, dict[str, str]] = {}
    for name in ("calm", "loud"):
        (tmp_path / f"{name}.yaml").write_text(f"turns: [{{text: I am {name}}}]")
        sections[name] = {"driver": "scripted", "scenario": str(tmp_path / f"{name}.yaml")}
    presets = Presets.read(sections, {}, "calm")
    desk = DefinitionBuilder.base().with_name("desk").definition()
    client = api_setup.sessions.client
    client = replace(client, agents={**client.agents, "desk": desk}, check_model=presets.resolve)
    sessions = replace(api_setup.sessions, client=client)
    setup = replace(api_setup, sessions=sessions, models=Models(presets, {}))
    async with open_callers(setup) as sign_in, setup.open_worker():
        yield sign_in


async def answer_to(caller: ApiCaller, execution: str) -> str:
    return (await caller.wait_for_status(execution, "completed", "failed"))["output"]["response"]


async def test_an_execution_uses_the_model_that_its_request_names(open_desk: MakeCaller) -> None:
    """11.6: without a session, and with messages of one; the agent's own is used without it."""
    ann = await open_desk()
    hello = {"content": "Hello", "agent": "desk"}
    session = await ann.create_session(agent="desk")

    single = await ann.post("/agent/executions", {**hello, "model": "loud"})
    started = await ann.post("/agent/messages", {**hello, "model": "loud"})
    sent = await ann.post_message(session, "Hello", model="loud")
    other = await ann.create_session()
    refused = await ann.send_post(f"/agent/sessions/{other}/messages", {"content": "Hello", "model": "loud"})
    usual = await ann.post("/agent/executions", hello)

    assert await answer_to(ann, single["id"]) == "I am loud"
    assert await answer_to(ann, started["execution_id"]) == "I am loud"
    assert await answer_to(ann, sent["execution_id"]) == "I am loud"
    assert await answer_to(ann, usual["id"]) == "I am calm"
    assert_problem(refused, 422, "the agent 'clerk' has a model of its own")


async def test_a_model_that_cannot_be_used_is_refused_before_anything_is_stored(
    open_desk: MakeCaller,
) -> None:
    """11.6: users choose among presets, and services may name any model of a provider."""
    ann, service = await open_desk(), await open_desk("shop", "sessions:all")
    elsewhere = "openai-chat:x@https://elsewhere.example/v1"
    for caller, agent, model, status, problem in (
        (ann, "desk", "quiet", 422, "No preset named 'quiet'"),
        (ann, "desk", "openai:gpt-5.5", 403, "needs the scope 'sessions:all'; name a preset"),
        (ann, "desk", elsewhere, 422, "must not hold the address https://elsewhere.example/v1"),
        (ann, "clerk", "loud", 422, "the agent 'clerk' has a model of its own; leave 'model' out"),
        (service, "desk", "scripted:/etc/passwd", 422, "must not hold the path of a script"),
        (service, "desk", "opnai:gpt-5.5", 422, "No preset or driver named 'opnai'"),
        (service, "desk", elsewhere, 422, "must not hold the address https://elsewhere.example/v1"),
    ):
        body = {"content": "Hello", "agent": agent, "model": model}
        for path in ("/agent/executions", "/agent/messages"):
            assert_problem(await caller.send_post(path, body), status, problem)
        assert (await caller.get("/agent/executions"))["items"] == []

    accepted = await service.post(
        "/agent/executions", {"content": "Hi", "agent": "desk", "model": "openai:x"}
    )

    ended = await service.wait_for_status(accepted["id"], "failed")
    assert "preset 'openai:x' needs a key; set OPENAI_API_KEY" in ended["error_message"]
