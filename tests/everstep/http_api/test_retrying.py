"""A failed execution continues after its last good step: over HTTP, in its session, and once."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import calls, says
from everstep.agent_domain.tools.function_tool import tool
from tests.everstep.http_api.house import ApiSetup, MakeCaller, assert_problem, open_callers
from tests.workflows.harness import an_agent


@dataclass
class Desk:
    """A provider that breaks down, and a tool with an effect."""

    is_broken: bool = True
    bookings: list[str] = field(default_factory=list[str])
    requests: list[InferenceRequest] = field(default_factory=list[InferenceRequest])

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Book, then fail until it is repaired, then answer."""
        del on_text
        self.requests.append(request)
        last = request.messages[-1]
        if last.text == "Never mind":
            return says("Good.")
        if last.is_user:
            return calls(("book", {"hotel": last.text}))
        if self.is_broken:
            raise ModelError("the provider is out of order")
        return says(f"Done: {last.text}")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def sign_in(api_setup: ApiSetup, desk: Desk) -> AsyncGenerator[MakeCaller]:
    @tool
    def book(hotel: str) -> str:
        """Book a room."""
        desk.bookings.append(hotel)
        return f"a room at {hotel}"

    agent = an_agent(model=desk, tools=[book]).with_name("desk").definition()
    client = api_setup.sessions.client
    client = replace(client, agents={**client.agents, "desk": agent})
    setup = replace(api_setup, sessions=replace(api_setup.sessions, client=client))
    async with open_callers(setup) as make_caller, setup.open_worker():
        yield make_caller


async def test_a_failed_execution_goes_on_from_its_last_good_step(sign_in: MakeCaller, desk: Desk) -> None:
    """8.2.10: in a session and without; its tools do nothing twice, and a second retry is the same."""
    ann = await sign_in()
    session = await ann.create_session(agent="desk")
    for path, body in (
        ("/agent/executions", {"agent": "desk", "content": "Inn"}),
        (f"/agent/sessions/{session}/messages", {"content": "Inn"}),
    ):
        desk.is_broken = True
        started = await ann.post(path, body)
        failed = await ann.wait_for_status(started.get("execution_id") or started["id"], "failed")
        desk.is_broken, done = False, len(desk.bookings)

        retried = await ann.post(f"/agent/executions/{failed['id']}/retry")
        again = await ann.post(f"/agent/executions/{failed['id']}/retry", key=str(uuid4()))
        ended = await ann.wait_for_status(retried["id"], "completed", "failed")

        assert (again["id"], retried["id"] != failed["id"]) == (retried["id"], True)
        assert ended["output"]["response"] == "Done: a room at Inn"
        assert ended["metadata"]["retry_of"] == failed["id"]
        assert (ended["session_id"], ended["user_id"]) == (failed["session_id"], failed["user_id"])
        assert len(desk.bookings) == done
        said = [message.text for message in desk.requests[-1].messages]
        assert said == ["Inn", "", "a room at Inn"]
        assert_problem(
            await ann.send_post(f"/agent/executions/{ended['id']}/retry"),
            409,
            "Only a failed execution can be retried; this one is completed",
        )
    texts = [each["content"] for each in (await ann.get(f"/agent/sessions/{session}/messages"))["items"]]
    assert texts[0] == "Done: a room at Inn"


async def test_a_session_that_has_gone_on_is_not_turned_back(sign_in: MakeCaller, desk: Desk) -> None:
    """8.2.10: the order of the session's conversation stays as it is."""
    ann = await sign_in()
    session = await ann.create_session(agent="desk")
    failed = await ann.wait_for_status((await ann.post_message(session, "Inn"))["execution_id"], "failed")
    later = (await ann.post_message(session, "Never mind"))["execution_id"]
    await ann.wait_for_status(later, "completed")

    refused = await ann.send_post(f"/agent/executions/{failed['id']}/retry")

    assert_problem(refused, 409, "Its session has gone on since then; send a message instead")
    assert len((await ann.get("/agent/executions", session_id=session))["items"]) == 2
    assert desk.bookings == ["Inn"]


async def test_only_its_user_retries_an_execution(sign_in: MakeCaller) -> None:
    """8.2.10: others get 404, and those who may only read get 403."""
    ann = await sign_in()
    started: Any = await ann.post("/agent/executions", {"agent": "desk", "content": "Inn"})
    path = f"/agent/executions/{started['id']}/retry"
    await ann.wait_for_status(started["id"], "failed")

    assert_problem(await (await sign_in("bob")).send_post(path), 404, started["id"])
    assert_problem(await (await sign_in("ann", "read-only")).send_post(path), 403)
    assert_problem(await (await sign_in("ann", tenant="elsewhere")).send_post(path), 404)
