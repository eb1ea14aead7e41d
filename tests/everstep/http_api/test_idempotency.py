"""A repeated request with the same key is carried out once, and gets the same response."""

import asyncio
from collections.abc import Awaitable
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.storage.keys import StoredResponse
from everstep.http_api.auth import SECRET_MARKER
from everstep.http_api.pages import PUBLIC_ROUTES
from tests.everstep.http_api.house import Answer, ApiCaller, ApiSetup, MakeCaller, assert_problem

REPLAYED = "idempotency-replayed"


async def lose_process_before_response(monkeypatch: pytest.MonkeyPatch, sent: Awaitable[Answer]) -> None:
    """The process dies after the work is done, and no response is sent."""

    async def lose_process(*_name: str, **_given: Any) -> StoredResponse:
        raise SystemError("the process dies here")

    with monkeypatch.context() as patch:
        patch.setattr("everstep.store.keys.PostgresKeys.remember", lose_process)
        assert_problem(await sent, 500)


async def test_the_same_request_again_gets_the_same_answer(ann: ApiCaller) -> None:
    body = {"content": "Hello"}
    first = await ann.send_post("/agent/messages", body, key="k-1")
    again = await ann.send_post("/agent/messages", body, key="k-1")

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert REPLAYED not in first.headers
    assert again.headers[REPLAYED] == "true"
    assert len((await ann.get("/agent/sessions"))["items"]) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [("/agent/messages", {"content": "Other"}), ("/agent/executions", {"content": "Hello"})],
)
async def test_another_request_under_the_key_is_refused(ann: ApiCaller, path: str, body: Any) -> None:
    await ann.post("/agent/messages", {"content": "Hello"}, key="k-1")

    problem = assert_problem(await ann.send_post(path, body, key="k-1"), 422, "use a new key")

    assert problem["type"] == "urn:everstep:problem:key-reused"


async def test_a_key_belongs_to_its_caller(sign_in: MakeCaller) -> None:
    ann, ben, far = (
        await sign_in("ann"),
        await sign_in("ben"),
        await sign_in("ann", tenant=f"far-{uuid4().hex}"),
    )

    made = {
        (await p.post("/agent/messages", {"content": "x"}, key="k-1"))["session_id"] for p in (ann, ben, far)
    }

    assert len(made) == 3


async def test_concurrent_copies_of_a_request_have_one_effect(ann: ApiCaller, api_setup: ApiSetup) -> None:
    body = {"content": "Hello"}
    answers = await asyncio.gather(*(ann.send_post("/agent/messages", body, key="k-1") for _ in range(20)))

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["execution_id"] for answer in answers}) == 1
    assert len((await ann.get("/agent/executions"))["items"]) == 1
    del api_setup


async def test_a_refused_request_may_be_sent_again(ann: ApiCaller) -> None:
    session = await ann.create_session()
    path = f"/agent/sessions/{session}"
    await ann.http.patch(path, json={"status": "closed"})
    assert_problem(await ann.send_post(f"{path}/messages", {"content": "x"}, key="k-1"), 409)
    await ann.http.patch(path, json={"status": "active"})

    assert (await ann.send_post(f"{path}/messages", {"content": "x"}, key="k-1")).status_code == 201


async def test_a_retry_after_a_lost_response_finds_the_same(
    ann: ApiCaller, api_setup: ApiSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"content": "Hello"}
    await lose_process_before_response(monkeypatch, ann.send_post("/agent/messages", body, key="k-1"))
    first = (await ann.get("/agent/sessions"))["items"]

    again = await ann.post("/agent/messages", body, key="k-1")

    assert [session["id"] for session in first] == [again["session_id"]]
    assert len((await ann.get("/agent/executions"))["items"]) == 1
    del api_setup


async def test_such_a_key_names_no_other_message(ann: ApiCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = ann.send_post("/agent/messages", {"content": "Hello"}, key="k-1")
    await lose_process_before_response(monkeypatch, hello)

    assert_problem(
        await ann.send_post("/agent/messages", {"content": "Other"}, key="k-1"), 422, "use a new key"
    )


@pytest.mark.parametrize("other", [{"content": "Other"}, {"agent": "other"}, {"metadata": {"a": 1}}])
async def test_such_a_key_names_no_other_execution(
    ann: ApiCaller, work: None, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    path, body = "/agent/executions", {"content": "Hello"}
    await lose_process_before_response(monkeypatch, ann.send_post(path, body, key="k-1"))

    assert_problem(await ann.send_post(path, {**body, **other}, key="k-1"), 422, "use a new key")
    begun = await ann.post(path, body, key="k-1")

    assert (await ann.wait_for_status(begun["id"], "completed"))["output"]["response"] == "You said: Hello"
    assert len((await ann.get(path))["items"]) == 1
    del work


async def test_another_request_does_not_begin_an_accepted_execution(
    ann: ApiCaller, work: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died before it began: the execution waits for the same request, or for the reconciler."""

    async def lose_process(*_self: object, **_given: Any) -> None:
        raise SystemError("the process dies here")

    path, body = "/agent/executions", {"content": "Hello"}
    with monkeypatch.context() as patch:
        patch.setattr("everstep.client.client.Client.launch", lose_process)
        assert_problem(await ann.send_post(path, body, key="k-1"), 500)

    assert_problem(await ann.send_post(path, {**body, "agent": "other"}, key="k-1"), 422, "use a new key")
    (accepted,) = (await ann.get(path))["items"]
    assert accepted["status"] == "pending"
    await ann.post(path, body, key="k-1")
    assert (await ann.wait_for_status(accepted["id"], "completed"))["agent"] == "clerk"
    del work


async def test_a_fork_that_has_run_is_found_by_the_same_request(
    ann: ApiCaller, work: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await ann.post_message(await ann.create_session(), "One"))["execution_id"]
    await ann.wait_for_status(first, "completed")
    path, body = f"/agent/executions/{first}/fork", {"step": 0, "content": "Two"}
    await lose_process_before_response(monkeypatch, ann.send_post(path, body, key="k-1"))
    (forked,) = [row["id"] for row in (await ann.get("/agent/executions"))["items"] if row["id"] != first]
    await ann.wait_for_status(forked, "completed")

    assert (await ann.post(path, body, key="k-1"))["id"] == forked
    del work


@pytest.mark.parametrize("key", ["two words", "x" * 201, "\x7f"])
async def test_an_invalid_key_is_refused(ann: ApiCaller, key: str) -> None:
    assert_problem(await ann.send_post("/agent/messages", {"content": "x"}, key=key), 422, "Idempotency-Key")


async def test_every_post_accepts_a_key(ann: ApiCaller) -> None:
    for path, operations in (await ann.get("/openapi.json"))["paths"].items():
        # Who signs in is not known yet, secrets are not stored, and tools of MCP take the key as an argument.
        post = operations.get("post")
        if path not in {*PUBLIC_ROUTES, "/mcp"} and post and SECRET_MARKER not in post:
            assert "idempotency-key" in [p["name"] for p in post["parameters"]], path
