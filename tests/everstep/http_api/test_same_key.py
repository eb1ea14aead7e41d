"""Every POST has one response per key, from any process, also when one of the processes is lost.

The cases below are compared with the API's own list of addresses: a new POST needs a case.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.storage.keys import Claim
from everstep.client.client import Client
from everstep.client.sessions import Sessions
from everstep.http_api.auth import SECRET_MARKER
from everstep.http_api.pages import PUBLIC_ROUTES
from everstep.runtime.file_store import build_attachments
from everstep.steps.attachments import FetchedFile
from everstep.store.keys import PostgresKeys
from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.everstep.http_api.house import (
    TICKET,
    WIRES,
    Answer,
    ApiCaller,
    ApiSetup,
    assert_problem,
    described_api,
    open_api_setup,
    open_callers,
)
from tests.services import Servers
from tests.workflows.harness import connect_temporal, final_result

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCOPES = ("approve", "admin")
REPLAYED = "idempotency-replayed"


@dataclass(frozen=True)
class Case:
    """A request, and a different one with the same key."""

    path: str
    body: Any = None
    other_path: str | None = None
    other_body: Any = None

    def send(self, person: ApiCaller, key: str) -> Awaitable[Answer]:
        return self._send(person, self.path, self.body, key)

    def send_another(self, person: ApiCaller, key: str) -> Awaitable[Answer]:
        return self._send(person, self.other_path or self.path, self.other_body, key)

    def _send(self, person: ApiCaller, path: str, body: Any, key: str) -> Awaitable[Answer]:
        """Bytes are sent as a file."""
        if isinstance(body, bytes):
            return person.send_file(body, "trip.txt", key=key)
        return person.send_post(path, body, key=key)


async def _waiting(ann: ApiCaller) -> str:
    """An execution that waits for an approval."""
    execution = await ann.start_execution("book")
    await ann.wait_for_request(execution)
    return execution


def _case_of_execution(execution: str, act: str) -> Case:
    """Its key is refused for a request to any other execution, before that is looked up."""
    path = "/agent/executions/{}/" + act
    return Case(path.format(execution), other_path=path.format(uuid4()))


async def _session(ann: ApiCaller) -> Case:
    del ann
    return Case("/agent/sessions", {"title": "One"}, other_body={"title": "Two"})


async def _first_message(ann: ApiCaller) -> Case:
    del ann
    return Case("/agent/messages", {"content": "Hello"}, other_body={"content": "Other"})


async def _message(ann: ApiCaller) -> Case:
    path = f"/agent/sessions/{await ann.create_session()}/messages"
    return Case(path, {"content": "Hello"}, other_body={"content": "Other"})


async def _execution(ann: ApiCaller) -> Case:
    del ann
    return Case("/agent/executions", {"content": "Hello"}, other_body={"content": "Other"})


async def _answer(ann: ApiCaller) -> Case:
    execution = await ann.start_execution("ask me")
    await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}/input"
    return Case(path, {"text": "Friday"}, other_body={"text": "Monday"})


async def _decision(ann: ApiCaller) -> Case:
    execution = await ann.start_execution("book")
    request = await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}/approvals/{request['id']}"
    digest = {"args_digest": request["args_digest"]}
    return Case(path, {"decision": "approve", **digest}, other_body={"decision": "deny", **digest})


async def _steer(ann: ApiCaller) -> Case:
    path = f"/agent/executions/{await _waiting(ann)}/steer"
    return Case(path, {"content": "Hurry"}, other_body={"content": "Wait"})


async def _pause(ann: ApiCaller) -> Case:
    return _case_of_execution(await _waiting(ann), "pause")


async def _resume(ann: ApiCaller) -> Case:
    execution = await _waiting(ann)
    await ann.post(f"/agent/executions/{execution}/pause")
    return _case_of_execution(execution, "resume")


async def _cancel(ann: ApiCaller) -> Case:
    return _case_of_execution(await _waiting(ann), "cancel")


async def _budget(ann: ApiCaller) -> Case:
    budget = {"steps": 0, "on_exhausted": "ask"}
    execution = (await ann.post("/agent/executions", {"content": "Hello", "budget": budget}))["id"]
    await ann.wait_for_request(execution)
    return Case(f"/agent/executions/{execution}/budget", {"steps": 5}, other_body={"steps": 9})


async def _fork(ann: ApiCaller) -> Case:
    execution = await ann.start_execution("Hello")
    await ann.wait_for_status(execution, "completed")
    path = f"/agent/executions/{execution}/fork"
    return Case(path, {"step": 0, "content": "One"}, other_body={"step": 0, "content": "Two"})


async def _retry(ann: ApiCaller) -> Case:
    execution = await ann.start_execution("fail")
    await ann.wait_for_status(execution, "failed")
    return _case_of_execution(execution, "retry")


async def _feedback(ann: ApiCaller) -> Case:
    session = await ann.create_session()
    await ann.wait_for_status((await ann.post_message(session, "Hello"))["execution_id"], "completed")
    messages = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
    (answer,) = [each["id"] for each in messages if each["role"] == "assistant"]
    return Case(f"/agent/messages/{answer}/feedback", {"rating": "up"}, other_body={"rating": "down"})


async def _upload(ann: ApiCaller) -> Case:
    del ann
    return Case("/agent/attachments", b"One", other_body=b"Two")


async def _url(ann: ApiCaller) -> Case:
    del ann
    one, two = "https://files.example/one.txt", "https://files.example/two.txt"
    return Case("/agent/attachments/url", {"url": one}, other_body={"url": two})


async def _channel(ann: ApiCaller) -> Case:
    channel = f"private-agent.session.{await ann.create_session()}"
    body = {"socket_id": "1.2", "channel_name": channel}
    return Case("/broadcasting/auth", body, other_body={**body, "socket_id": "3.4"})


async def _what_if(ann: ApiCaller) -> Case:
    del ann
    return Case("/agent/what-if", {"max_steps": 1}, other_body={"max_steps": 2})


PAUSED_SCHEDULE = {"agent": "clerk", "content": "Hello", "interval_seconds": 3600, "paused": True}


async def _schedule(ann: ApiCaller) -> Case:
    del ann
    return Case("/agent/schedules", PAUSED_SCHEDULE, other_body={**PAUSED_SCHEDULE, "content": "Other"})


async def _refused_schedule(ann: ApiCaller, act: str, body: Any = None) -> Case:
    """A schedule whose messages are refused, so that no run adds rows later."""
    session = await ann.create_session()
    schedule = (await ann.post("/agent/schedules", {**PAUSED_SCHEDULE, "session_id": session}))["id"]
    assert (await ann.http.delete(f"/agent/sessions/{session}")).status_code == 204
    path = "/agent/schedules/{}/" + act
    return Case(path.format(schedule), body, other_path=path.format(uuid4()), other_body=body)


PERIOD = {"start_at": "2026-01-12T00:00:00Z", "end_at": "2026-01-12T00:00:01Z"}

SCHEDULE_CASES: dict[str, Callable[[ApiCaller], Awaitable[Case]]] = {
    "/agent/schedules": _schedule,
    "/agent/schedules/{schedule_id}/pause": partial(_refused_schedule, act="pause"),
    "/agent/schedules/{schedule_id}/resume": partial(_refused_schedule, act="resume"),
    "/agent/schedules/{schedule_id}/trigger": partial(_refused_schedule, act="trigger"),
    "/agent/schedules/{schedule_id}/backfill": partial(_refused_schedule, act="backfill", body=PERIOD),
}


async def _ping(ann: ApiCaller) -> Case:
    return Case(f"/agent/webhooks/{await _webhook(ann)}/ping", other_path=f"/agent/webhooks/{uuid4()}/ping")


async def _replay(ann: ApiCaller) -> Case:
    path = f"/agent/webhooks/{await _webhook(ann)}"
    delivery = (await ann.post(f"{path}/ping"))["id"]
    replay = path + "/deliveries/{}/replay"
    return Case(replay.format(delivery), other_path=replay.format(uuid4()))


async def _webhook(ann: ApiCaller) -> str:
    body = {"url": f"http://127.0.0.1:9/{uuid4().hex}"}
    return (await ann.post("/agent/webhooks", body))["id"]


WEBHOOK_CASES: dict[str, Callable[[ApiCaller], Awaitable[Case]]] = {
    "/agent/webhooks/{webhook_id}/ping": _ping,
    "/agent/webhooks/{webhook_id}/deliveries/{delivery_id}/replay": _replay,
}

CASES: dict[str, Callable[[ApiCaller], Awaitable[Case]]] = {
    "/agent/sessions": _session,
    "/agent/messages": _first_message,
    "/agent/sessions/{session_id}/messages": _message,
    "/agent/executions": _execution,
    "/agent/executions/{execution_id}/input": _answer,
    "/agent/executions/{execution_id}/approvals/{request_id}": _decision,
    "/agent/executions/{execution_id}/steer": _steer,
    "/agent/executions/{execution_id}/pause": _pause,
    "/agent/executions/{execution_id}/resume": _resume,
    "/agent/executions/{execution_id}/cancel": _cancel,
    "/agent/executions/{execution_id}/budget": _budget,
    "/agent/executions/{execution_id}/fork": _fork,
    "/agent/executions/{execution_id}/retry": _retry,
    "/agent/messages/{message_id}/feedback": _feedback,
    "/agent/attachments": _upload,
    "/agent/attachments/url": _url,
    "/agent/what-if": _what_if,
    "/broadcasting/auth": _channel,
    **SCHEDULE_CASES,
    **WEBHOOK_CASES,
}

MAKES_NOTHING = frozenset(
    {
        "/agent/sessions",
        "/agent/messages/{message_id}/feedback",
        "/agent/attachments",
        "/agent/attachments/url",
        "/agent/what-if",
        "/broadcasting/auth",
        *SCHEDULE_CASES,
        *WEBHOOK_CASES,
    }
)
"""These requests start and notify no workflow of an execution."""

every_post = pytest.mark.parametrize("post", CASES, ids=lambda path: path.strip("/").replace("/", "."))


class ProcessLost(Exception):
    """The process dies at this point."""


@dataclass(frozen=True)
class TwoProcesses:
    """Two API processes of one installation, which share only the servers, and a worker."""

    api_setup: ApiSetup
    ann: ApiCaller
    also_ann: ApiCaller
    """The same user, at the other process."""

    async def count_rows(self) -> list[int]:
        """The number of rows that requests create."""
        counts: list[int] = []
        async with self.api_setup.keys.engine.connect() as connection:
            for table, condition in (
                ("agent_sessions", "true"),
                ("agent_executions", "true"),
                ("agent_session_messages", "role = 'user'"),
                ("agent_steered", "true"),
                ("agent_commands", "true"),
                ("agent_feedback", "true"),
                ("agent_attachments", "true"),
                ("agent_schedules", "true"),
                ("agent_webhook_deliveries", "true"),
            ):
                counted = f"SELECT count(*) FROM {table} WHERE tenant_id = :tenant AND {condition}"  # noqa: S608
                counts.append(
                    (await connection.execute(text(counted), {"tenant": self.api_setup.tenant})).scalar_one()
                )
        return counts


class Files:
    """The files at URLs: each has its URL as its content."""

    async def fetch(self, url: str, max_bytes: int) -> FetchedFile:
        del max_bytes
        return FetchedFile(url.rpartition("/")[2], "text/plain", url.encode())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setups(http_database: str, services: Servers) -> AsyncGenerator[tuple[ApiSetup, ApiSetup]]:
    """The parts of two API processes, which read files from URLs, and a worker."""
    async with (
        open_api_setup(http_database, await connect_temporal(services)) as api_setup,
        open_engine(http_database) as engine,
    ):
        client = api_setup.sessions.client
        client = replace(client, attachments=replace(client.require_attachments(), urls=Files()))
        ours = replace(api_setup.sessions, client=client)
        store = PostgresSessions(engine)
        files = replace(build_attachments(api_setup.settings, engine), urls=Files())
        client = Client(client.temporal, store, client.agents, client.task_queue, attachments=files)
        theirs = Sessions(client, store, ours.default_agent, ours.contexts)
        other = ApiSetup(theirs, PostgresKeys(engine), api_setup.settings)
        async with api_setup.open_worker():
            yield replace(api_setup, sessions=ours), other


@pytest_asyncio.fixture(loop_scope="module")
async def processes(setups: tuple[ApiSetup, ApiSetup]) -> AsyncGenerator[TwoProcesses]:
    """Two API processes, and a tenant for this test."""
    tenant = f"tenant-{uuid4().hex}"
    one, other = (replace(each, tenant=tenant) for each in setups)
    async with open_callers(one) as sign_in, open_callers(other) as let_in:
        yield TwoProcesses(one, await sign_in("ann", *SCOPES), await let_in("ann", *SCOPES))


async def send_and_die(api_setup: ApiSetup, case: Case) -> None:
    """Send the request to a process that dies after its commit, before it calls Temporal."""

    def strike(point: Failpoint) -> None:
        if point is Failpoint.API_AFTER_COMMIT:
            raise ProcessLost

    client = replace(api_setup.sessions.client, strike=strike)
    doomed = replace(api_setup, sessions=replace(api_setup.sessions, client=client, strike=strike))
    async with open_callers(doomed) as sign_in:
        assert_problem(await case.send(await sign_in("ann", *SCOPES), "k-1"), 500)


async def test_every_post_has_a_case() -> None:
    """8.2.8"""
    paths = described_api()["paths"]

    # A secret is stored under no key.
    posts = {
        path
        for path, operations in paths.items()
        if "post" in operations and SECRET_MARKER not in operations["post"]
    }
    # The response of a wire is a stream: see tests/wires. A ticket opens one connection.
    posts = {path for path in posts if not path.startswith(tuple(WIRES))} - PUBLIC_ROUTES - {TICKET}
    assert posts == set(CASES)


@every_post
async def test_one_key_gets_one_response_from_two_concurrent_processes(
    processes: TwoProcesses, post: str
) -> None:
    """8.2.8"""
    case = await CASES[post](processes.ann)
    both = (processes.ann, processes.also_ann)
    answers = await asyncio.gather(*(case.send(each, "k-1") for each in both * 2))
    made = await processes.count_rows()
    later = [await case.send(each, "k-1") for each in both]

    assert {answer.status_code for answer in answers} <= {200, 201}, [answer.text for answer in answers]
    assert [answer.json() for answer in (*answers, *later)] == [answers[0].json()] * 6
    assert {REPLAYED in answer.headers for answer in later} == {True}
    assert await processes.count_rows() == made


@every_post
async def test_a_request_lost_before_its_response_was_stored_is_repeated(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch, post: str
) -> None:
    """8.2.8: and the key accepts no other request, although no response was sent."""
    case = await CASES[post](processes.ann)

    async def lose_process(*_name: object, **_given: object) -> None:
        raise ProcessLost

    with monkeypatch.context() as patch:
        patch.setattr("everstep.store.keys.PostgresKeys.remember", lose_process)
        assert_problem(await case.send(processes.ann, "k-1"), 500)
    made = await processes.count_rows()

    for each in (processes.also_ann, processes.ann):
        assert_problem(await case.send_another(each, "k-1"), 422, "use a new key")
    again = await case.send(processes.also_ann, "k-1")
    assert again.status_code in {200, 201}, again.text
    assert_problem(await case.send_another(processes.ann, "k-1"), 422, "use a new key")
    assert (await case.send(processes.ann, "k-1")).json() == again.json()
    assert await processes.count_rows() == made


@pytest.mark.parametrize("post", sorted(CASES.keys() - MAKES_NOTHING))
async def test_a_request_lost_between_commit_and_temporal_is_repeated(
    processes: TwoProcesses, post: str
) -> None:
    """8.2.8: by the same request, at another process."""
    case = await CASES[post](processes.ann)
    await send_and_die(processes.api_setup, case)
    made = await processes.count_rows()

    assert_problem(await case.send_another(processes.also_ann, "k-1"), 422, "use a new key")
    again = await case.send(processes.also_ann, "k-1")

    assert again.status_code in {200, 201}, again.text
    assert await processes.count_rows() == made
    assert (await case.send(processes.ann, "k-1")).json() == again.json()
    assert await processes.api_setup.sessions.store.commands(
        processes.api_setup.settings.task_queue, 0.0
    ) == (
        (),
        None,
    )


@pytest.mark.parametrize("post", sorted(CASES.keys() - MAKES_NOTHING))
async def test_a_request_lost_there_is_completed_without_a_retry(processes: TwoProcesses, post: str) -> None:
    """8.2.9: by the reconciler."""
    case = await CASES[post](processes.ann)
    await send_and_die(processes.api_setup, case)

    repairs = await processes.api_setup.reconciler.once()

    assert repairs.launched + repairs.delivered == 1
    assert await processes.api_setup.sessions.store.commands(
        processes.api_setup.settings.task_queue, 0.0
    ) == (
        (),
        None,
    )
    again = await case.send(processes.ann, "k-1")
    assert again.status_code in {200, 201}, again.text


async def test_a_cancel_with_a_lost_response_gets_the_same_one_after_the_end(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.8"""
    case = await _cancel(processes.ann)
    execution = case.path.split("/")[3]

    async def lose_process(*_name: object, **_given: object) -> None:
        raise ProcessLost

    with monkeypatch.context() as patch:
        patch.setattr("everstep.store.keys.PostgresKeys.remember", lose_process)
        assert_problem(await case.send(processes.ann, "k-1"), 500)
    await processes.ann.wait_for_status(execution, "cancelled")
    await final_result(processes.api_setup.sessions.client.execution(UUID(execution)))

    assert (await case.send(processes.also_ann, "k-1")).json()["status"] == "cancelled"
    # With a new key as well: a cancelled execution stays cancelled.
    assert (await case.send(processes.also_ann, "k-2")).json()["status"] == "cancelled"


async def test_two_concurrent_cancels_get_the_same_response(processes: TwoProcesses) -> None:
    """8.2.1: with different keys."""
    case = await _cancel(processes.ann)
    both = (processes.ann, processes.also_ann)

    answers = await asyncio.gather(*(case.send(each, f"k-{n}") for n, each in enumerate(both * 3)))

    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("kept", ["/pause", "/resume"])
async def test_a_request_accepted_before_the_end_gets_the_same_response_after_it(
    processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """8.2.8"""
    case = await {"/pause": _pause, "/resume": _resume}[kept](processes.ann)
    execution = case.path.split("/")[3]

    async def lose_process(*_name: object, **_given: object) -> None:
        raise ProcessLost

    with monkeypatch.context() as patch:
        patch.setattr("everstep.store.keys.PostgresKeys.remember", lose_process)
        assert_problem(await case.send(processes.ann, "k-1"), 500)
    await processes.ann.post(f"/agent/executions/{execution}/cancel")
    await processes.ann.wait_for_status(execution, "cancelled")

    assert (await case.send(processes.also_ann, "k-1")).status_code == 200
    assert_problem(await case.send(processes.also_ann, "k-2"), 409, "has ended")


async def test_a_claim_of_a_lost_process_expires(processes: TwoProcesses) -> None:
    """8.2.8: the waiting request takes over; a different one is refused at once."""
    keys, name = processes.api_setup.keys, (processes.api_setup.tenant, "ann", "k-1")
    owner, other = UUID(int=1), UUID(int=2)

    async def claim_key(by: UUID, digest: str = "d") -> tuple[str, bool]:
        claim = await keys.claim(*name, by, digest=digest, seconds=60)
        assert isinstance(claim, Claim)
        return claim.digest, claim.is_mine

    assert await claim_key(owner) == ("d", True)
    assert await claim_key(other) == ("d", False)
    await keys.release_claim(*name, other, forget=True)
    assert await claim_key(other) == ("d", False)
    await keys.renew(*name, owner, seconds=0)
    assert await claim_key(other, "e") == ("d", False)
    assert await claim_key(other) == ("d", True)
    await keys.release_claim(*name, other, forget=False)
    assert await claim_key(owner, "e") == ("d", False)
    assert await claim_key(owner) == ("d", True)
    await keys.release_claim(*name, owner, forget=True)
    assert await claim_key(other, "e") == ("e", True)
