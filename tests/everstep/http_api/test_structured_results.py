"""Structured results over HTTP: `output.data` beside `output.response`."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from everstep.agent_domain.testing import ScriptedModel
from tests.everstep.http_api.house import ApiSetup, MakeCaller, assert_problem, open_callers
from tests.workflows.harness import an_agent

GOOD = '{"city":"Oslo"}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Trip(BaseModel):
    city: str
    days: int = 1


@pytest.fixture
async def open_desk(api_setup: ApiSetup) -> AsyncGenerator[MakeCaller]:
    """An installation with an agent that has a result, and one that answers the same without."""
    desk = an_agent(model=ScriptedModel(GOOD)).with_name("desk").with_output(Trip).definition()
    free = an_agent(model=ScriptedModel("Hm", GOOD)).with_name("free").definition()
    client = api_setup.sessions.client
    client = replace(client, agents={**client.agents, "desk": desk, "free": free})
    setup = replace(api_setup, sessions=replace(api_setup.sessions, client=client))
    async with open_callers(setup) as sign_in, setup.open_worker():
        yield sign_in


async def test_the_result_is_beside_the_answer(open_desk: MakeCaller) -> None:
    """9.8.4: of the agent's type, or as the request asks, with a session and without."""
    ann = await open_desk()
    hello = {"content": "Hello"}
    session = await ann.create_session(agent="desk")
    data: Any
    for started, data in (
        (
            (await ann.post("/agent/executions", {**hello, "agent": "desk"}))["id"],
            {"city": "Oslo", "days": 1},
        ),
        ((await ann.post_message(session, "Hello"))["execution_id"], {"city": "Oslo", "days": 1}),
        ((await ann.post_message(session, "Hello", output=SCHEMA))["execution_id"], {"city": "Oslo"}),
        (
            (await ann.post("/agent/messages", {**hello, "agent": "free", "output": SCHEMA}))["execution_id"],
            {"city": "Oslo"},
        ),
        (
            (await ann.post("/agent/executions", {**hello, "agent": "free", "output": SCHEMA}))["id"],
            {"city": "Oslo"},
        ),
    ):
        ended = await ann.wait_for_status(started, "completed", "failed")
        assert ended["output"] == {"response": GOOD, "stop_reason": "completed", "data": data}

    free = await ann.post("/agent/executions", {**hello, "agent": "free"})
    assert "data" not in (await ann.wait_for_status(free["id"], "completed"))["output"]


async def test_an_unusable_schema_is_refused_before_anything_is_stored(open_desk: MakeCaller) -> None:
    """9.8.7"""
    ann = await open_desk()
    session = await ann.create_session()
    refused: list[tuple[Any, str]] = [
        ({}, "the output schema is empty"),
        ({"type": "elephant"}, "the output schema cannot be used"),
        ({"$ref": "https://example.org"}, "is not fetched"),
        ({"propertis": {}}, "did you mean 'properties'?"),
        ("Trip", "output"),
    ]
    for schema, problem in refused:
        body = {"content": "Hello", "agent": "free", "output": schema}
        for path in ("/agent/executions", "/agent/messages", f"/agent/sessions/{session}/messages"):
            assert_problem(await ann.send_post(path, body), 422, problem)
    assert (await ann.get("/agent/executions"))["items"] == []
