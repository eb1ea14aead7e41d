"""Server-sent events of the API, over a socket."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from everstep.agent_domain.loop.status import WireStatus
from everstep.client.reconciler import Reconciler
from everstep.runtime.gateway import open_feeds
from everstep.runtime.serving import serve_app
from tests.everstep.http_api.house import SECRET, ApiCaller, ApiSetup, assert_problem, make_app

pytestmark = pytest.mark.usefixtures("work")


@pytest_asyncio.fixture
async def url(api_setup: ApiSetup) -> AsyncGenerator[str]:
    """The address of the API."""
    settings = api_setup.settings.model_copy(update={"auth_secret": SECRET})
    async with open_feeds(settings, api_setup.keys.engine) as feeds:
        assert feeds is not None
        app = make_app(replace(api_setup.api, feed=feeds.open))
        async with serve_app(app, "127.0.0.1", 0) as url:
            yield url
            feeds.close()


@asynccontextmanager
async def open_event_stream(
    url: str, person: ApiCaller, stream_id: str, **headers: str
) -> AsyncGenerator[AsyncGenerator[tuple[str, str, Any]]]:
    """Events as (id, type, data)."""

    async def read(answer: httpx2.Response) -> AsyncGenerator[tuple[str, str, Any]]:
        told: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                told[name] = value
            elif told:
                yield told.get("id", ""), told["event"], json.loads(told["data"])
                told = {}

    where = f"{url}/agent/streams/{stream_id}"
    async with (
        httpx2.AsyncClient(headers=person.http.headers, timeout=20) as http,
        http.stream("GET", where, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield read(answer)


async def test_a_session_is_followed_and_resumed(url: str, ann: ApiCaller) -> None:
    """7.8.1"""
    session = await ann.create_session()
    run = (await ann.post_message(session, "hello"))["execution_id"]
    await ann.wait_for_status(run, "completed")
    seen: list[tuple[str, str, Any]] = []
    async with open_event_stream(url, ann, session, **{"Last-Event-ID": "0"}) as events:
        async for event in events:
            seen.append(event)
            if event[1] == "agent.status" and event[2]["payload"]["status"] == "completed":
                break
    assert seen[0][1:] == ("joined", {"epoch": seen[0][2]["epoch"], "seq": 0, "recovered": True})
    epoch = seen[0][2]["epoch"]
    assert [event[0] for event in seen[1:]] == [f"{epoch}:{n}" for n in range(1, len(seen))]
    async with open_event_stream(url, ann, session, **{"Last-Event-ID": seen[3][0]}) as events:
        assert (await anext(events))[2]["recovered"]
        assert await anext(events) == seen[4]
    # An execution of a session publishes in the session's stream.
    async with open_event_stream(url, ann, f"{run}?since=0") as events:
        await anext(events)
        assert await anext(events) == seen[1]


async def all_envelopes(url: str, person: ApiCaller, session: str, *executions: str) -> list[Any]:
    """All envelopes of a session, up to the terminal status of each of these executions."""
    told, missing = list[Any](), set(executions)
    async with open_event_stream(url, person, session, **{"Last-Event-ID": "0"}) as events:
        await anext(events)
        while missing:
            _, kind, envelope = await anext(events)
            told.append(envelope)
            if kind == "agent.status" and WireStatus(envelope["payload"]["status"]).is_terminal:
                missing.discard(envelope["execution_id"])
    return told


async def all_messages(person: ApiCaller, session: str) -> list[Any]:
    """The messages of a session, oldest first."""
    return (await person.get(f"/agent/sessions/{session}/messages", limit=200))["items"][::-1]


async def test_an_announcement_has_the_time_of_its_message(url: str, ann: ApiCaller) -> None:
    """0.5, 7.7.1, 7.8.3: both sort alike."""
    session = await ann.create_session()
    run = (await ann.post_message(session, "hello"))["execution_id"]
    told = await all_envelopes(url, ann, session, run)

    messages = {each["id"]: each["created_at"] for each in await all_messages(ann, session)}
    announced = {each["id"]: each["timestamp"] for each in told if not each["type"].startswith("agent.")}
    assert announced == messages
    assert [*announced] == [*messages] == sorted(messages, key=lambda message: messages[message])
    assert {len(at) for at in announced.values()} == {len("2026-01-16T10:05:00.123456Z")}
    assert {len(each["timestamp"]) for each in told if each["type"].startswith("agent.")} == {24}


ENDS = {
    "hello": "completed",
    "fail": "failed",
    "cancel": "cancelled",
    "queued": "cancelled",
    "terminated": "failed",
}


@pytest.mark.parametrize("said", ENDS)
async def test_the_last_envelope_of_an_execution_is_its_terminal_status(
    url: str, ann: ApiCaller, api_setup: ApiSetup, said: str
) -> None:
    """7.4.2: its announcement precedes it, regardless of which process records the end."""
    status, waits = ENDS[said], said in {"queued", "terminated", "cancel"}
    session = await ann.create_session()
    run = (await ann.post_message(session, "book" if waits else said))["execution_id"]
    if waits:
        await ann.wait_for_request(run)
    if said == "terminated":
        await api_setup.sessions.client.execution(run).workflow.terminate()
        await Reconciler(api_setup.sessions, grace=0).once(thorough=True)
    if said == "queued":
        run = (await ann.post_message(session, "later"))["execution_id"]
    if status == "cancelled":
        await ann.post(f"/agent/executions/{run}/cancel")
    await ann.wait_for_status(run, status)

    own = [each for each in await all_envelopes(url, ann, session, run) if each["execution_id"] == run]
    assert [each["type"] for each in own[-2:]] == [f"execution.{status}", "agent.status"]
    assert own[-1]["payload"]["status"] == status


async def test_only_permitted_readers_can_follow(url: str, ann: ApiCaller, api_setup: ApiSetup) -> None:
    session = await ann.create_session()
    bob = {"Authorization": f"Bearer {api_setup.token('bob')}"}
    async with httpx2.AsyncClient(base_url=url) as http:
        assert_problem(await http.get(f"/agent/streams/{session}", headers=bob), 404, session)
        assert (await http.get(f"/agent/streams/{session}")).status_code == 401
        headers = {**ann.http.headers, "Last-Event-ID": "yesterday"}
        assert_problem(await http.get(f"/agent/streams/{session}", headers=headers), 422, "Last-Event-ID")


async def test_without_a_secret_no_channel_is_signed(ann: ApiCaller) -> None:
    session = await ann.create_session()
    assert_problem(await ann.http.get(f"/agent/streams/{session}"), 503, "EVERSTEP_BROADCAST_SECRET")
