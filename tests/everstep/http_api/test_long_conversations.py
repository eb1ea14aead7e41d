"""Sessions that outgrow the context window of their model, over HTTP."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.errors import MessageTooLong
from everstep.agent_domain.messages.messages import assistant, user
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.runtime.models import agent_window
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, assert_problem, open_callers

WORDS = "some words to fill the window " * 20


@pytest.fixture
async def open_desk(api_setup: ApiSetup, tmp_path: Path) -> AsyncGenerator[MakeCaller]:
    """An installation with a small model, and an agent that uses it."""
    (tmp_path / "calm.yaml").write_text("turns: [{text: I am calm}]")
    calm = {"driver": "scripted", "scenario": str(tmp_path / "calm.yaml")}
    presets = Presets.read({"calm": {**calm, "context_window": 1600}, "wide": calm}, {}, "calm")
    agents = {"desk": DefinitionBuilder.base().with_name("desk").definition()}
    client = api_setup.sessions.client
    client = replace(client, agents={**client.agents, **agents}, window_of=partial(agent_window, presets))
    setup = replace(
        api_setup, sessions=replace(api_setup.sessions, client=client), models=Models(presets, {})
    )
    async with open_callers(setup) as sign_in, setup.open_worker():
        yield sign_in


async def talk(caller: ApiCaller, session: str, content: str) -> str:
    sent = await caller.post_message(session, content)
    row = await caller.wait_for_status(sent["execution_id"], "completed", "failed")
    assert row["status"] == "completed"
    return sent["execution_id"]


async def test_a_session_goes_on_beyond_the_window_and_shows_each_compaction(open_desk: MakeCaller) -> None:
    """14.4, 14.6, 14.9"""
    ann = await open_desk()
    session = await ann.create_session(agent="desk")
    ids = [await talk(ann, session, f"Message {number}: {WORDS}") for number in range(8)]
    steps = [(await ann.get(f"/agent/executions/{each}/steps"))["items"][0] for each in ids]
    traces = [(await ann.get(f"/agent/executions/{each}/trace"))["items"][0] for each in ids]
    compacted = [step["compactions"] for step in steps if step["compactions"]]
    assert [step["number"] for step in steps] == [1] * 8
    assert 1 <= len(compacted) <= 4
    assert [trace["compactions"] for trace in traces] == [step["compactions"] for step in steps]
    (first,) = compacted[0]
    assert first["step_number"] == 1
    assert first["messages"] > 0
    assert first["summary"] == "I am calm"
    assert first["tokens_after"] < 1200 < first["tokens_before"] + 300
    history = (await ann.get(f"/agent/sessions/{session}/messages?limit=100"))["items"]
    assert sum(message["role"] == "user" for message in history) == 8


async def test_a_message_that_is_too_long_is_refused_and_does_not_block_the_session(
    open_desk: MakeCaller,
) -> None:
    """14.8"""
    ann = await open_desk()
    session = await ann.create_session(agent="desk")
    long = {"content": "word " * 10_000}
    for path, more in (
        (f"/agent/sessions/{session}/messages", {}),
        (f"/agent/sessions/{session}/messages", {"agent": "desk"}),
        ("/agent/messages", {"agent": "desk"}),
        ("/agent/executions", {"agent": "desk"}),
    ):
        problem = "it has at least 10000 tokens, and 1200 fit. Send a shorter one"
        assert_problem(await ann.send_post(path, {**long, **more}), 413, problem)
    assert (await ann.get(f"/agent/sessions/{session}/messages"))["items"] == []
    # Perhaps it fits: the execution finds that it does not.
    sent = await ann.post_message(session, "word " * 900)
    row = await ann.wait_for_status(sent["execution_id"], "completed", "failed")
    assert row["status"] == "failed"
    assert row["error_message"].startswith("The message is too long for the model: it has about 1808 tokens")
    await talk(ann, session, "And now?")
    wide = await ann.post("/agent/executions", {**long, "agent": "desk", "model": "wide"})
    assert (await ann.wait_for_status(wide["id"], "completed", "failed"))["status"] == "completed"


async def test_a_long_history_is_no_message_that_is_too_long(
    api_setup: ApiSetup, open_desk: MakeCaller
) -> None:
    """14.8: only the last message has to fit."""
    await open_desk()

    def window(_definition: AgentDefinition, _model: str | None) -> ContextWindow:
        return ContextWindow(1600, 400)

    desk = DefinitionBuilder.base().with_name("desk").definition()
    client = replace(api_setup.sessions.client, agents={"desk": desk}, window_of=window)
    history = [user("word " * 1000), assistant("Noted")] * 5
    with pytest.raises(MessageTooLong, match="at least 10000 tokens, and 1200 fit"):
        await client.start("desk", "word " * 10_000)
    execution = await client.start("desk", [*history, user("And now?")])
    assert (await execution.get()).agent == "desk"
