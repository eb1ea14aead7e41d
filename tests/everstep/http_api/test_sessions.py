"""Sessions over HTTP: created, listed, changed, deleted, and their messages."""

from typing import Any
from uuid import uuid4

import pytest

from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem


async def test_a_message_creates_a_session_and_is_answered(ann: ApiCaller, work: None) -> None:
    """8.2.2, 8.2.3"""
    sent = await ann.post("/agent/messages", {"content": "Hello", "agent": "other"})
    ended = await ann.wait_for_status(sent["execution_id"], "completed")

    assert sent["route"] == "start"
    assert sent["message"]["role"] == "user"
    assert sent["message"]["content"] == "Hello"
    assert ended["output"]["response"] == "You said: Hello"
    assert ended["session_id"] == sent["session_id"]
    said = await ann.get(f"/agent/sessions/{sent['session_id']}/messages")
    contents = [message["content"] for message in reversed(said["items"])]
    assert contents[0] == "Hello"
    assert "Execution queued" in contents
    assert contents[-1] == "You said: Hello"
    session = await ann.get(f"/agent/sessions/{sent['session_id']}")
    assert session["last_execution_id"] == sent["execution_id"]
    assert session["agent"] == "other"
    assert session["title"] == "Hello"
    del work


async def test_a_session_continues_its_conversation(ann: ApiCaller, work: None) -> None:
    """8.2.4"""
    session = await ann.create_session(title="A trip")
    first = await ann.post_message(session, "One")
    await ann.wait_for_status(first["execution_id"], "completed")
    second = await ann.post_message(session, "Two")
    await ann.wait_for_status(second["execution_id"], "completed")

    listed = await ann.get("/agent/executions", session_id=session)
    assert [e["id"] for e in listed["items"]] == [second["execution_id"], first["execution_id"]]
    del work


async def test_an_execution_without_an_answer_does_not_repeat_an_earlier_one(
    ann: ApiCaller, work: None
) -> None:
    """8.2.4: an answer belongs to its execution."""
    session = await ann.create_session()
    first = await ann.wait_for_status((await ann.post_message(session, "Hello"))["execution_id"], "completed")
    failed = await ann.wait_for_status((await ann.post_message(session, "fail"))["execution_id"], "failed")
    then = await ann.wait_for_status((await ann.post_message(session, "Hello"))["execution_id"], "completed")

    assert first["output"]["response"] == then["output"]["response"] == "You said: Hello"
    assert failed["output"]["response"] is None


async def test_a_session_is_created_read_changed_and_deleted(ann: ApiCaller) -> None:
    """8.1"""
    made = await ann.post("/agent/sessions", {"title": "A trip", "metadata": {"colour": "red"}})
    path = f"/agent/sessions/{made['id']}"

    assert await ann.get(path) == {**made, "cost_usd": 0.0}
    assert made["created_at"].endswith("Z")
    changed = (
        await ann.http.patch(
            path, json={"title": "Another", "agent": "other", "metadata": {"colour": None, "size": 3}}
        )
    ).json()
    assert changed["title"] == "Another"
    assert changed["agent"] == "other"
    assert changed["metadata"] == {"agent": "other", "size": 3}
    assert (await ann.http.delete(path)).status_code == 204
    assert_problem(await ann.http.get(path), 404, made["id"])
    assert_problem(await ann.http.delete(path), 404)
    assert_problem(await ann.http.patch(path, json={"title": "x"}), 404)


async def test_a_message_may_arrive_while_the_session_is_busy(ann: ApiCaller, work: None) -> None:
    """8.3.1"""
    session = await ann.create_session()
    first = await ann.post_message(session, "book")
    await ann.wait_for_status(first["execution_id"], "paused")

    problem = assert_problem(
        await ann.send_post(f"/agent/sessions/{session}/messages", {"content": "x", "on_busy": "reject"}), 409
    )
    assert problem["title"] == "Session is busy"
    queued = await ann.post_message(session, "Later")
    assert queued["route"] == "queue"
    assert (await ann.wait_for_status(queued["execution_id"], "pending"))["started_at"] is None
    at_once = await ann.post_message(session, "Now", on_busy="interrupt")
    assert at_once["route"] == "interrupt"
    await ann.wait_for_status(first["execution_id"], "cancelled")
    await ann.wait_for_status(at_once["execution_id"], "completed")
    await ann.wait_for_status(queued["execution_id"], "completed")
    del work


async def test_an_inactive_session_accepts_no_message(ann: ApiCaller) -> None:
    """8.2.2"""
    session = await ann.create_session()
    await ann.http.patch(f"/agent/sessions/{session}", json={"status": "archived"})

    answer = await ann.send_post(f"/agent/sessions/{session}/messages", {"content": "x"})

    assert_problem(answer, 409, "archived")


async def test_a_session_has_an_allowed_subject(ann: ApiCaller) -> None:
    """8.2.2"""
    about = {"related_type": "order", "related_id": "17", "context_url": "https://shop.example/orders/17"}
    made = await ann.post("/agent/sessions", about)
    assert_problem(
        await ann.send_post("/agent/sessions", {"related_type": "person"}), 422, "person", "order, ticket"
    )
    assert_problem(
        await ann.send_post("/agent/messages", {"content": "x", "related_type": "person"}), 422, "person"
    )
    assert_problem(await ann.send_post("/agent/sessions", {"related_id": "17"}), 422, "related_type")

    assert {name: made[name] for name in about} == about
    found = await ann.get("/agent/sessions", related_type="order", related_id="17")
    assert [session["id"] for session in found["items"]] == [made["id"]]
    assert (await ann.get("/agent/sessions", related_type="order", related_id="18"))["items"] == []


async def test_sessions_are_listed_page_by_page_newest_first(ann: ApiCaller) -> None:
    made = [await ann.create_session(title=f"Session {number}") for number in range(5)]

    seen, cursor = list[str](), None
    while True:
        page = await ann.get("/agent/sessions", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [session["id"] for session in page["items"]]
        assert len(page["items"]) <= 2
        if (cursor := page["next_cursor"]) is None:
            break

    assert seen == made[::-1]


async def test_sessions_are_found_by_title_and_status(ann: ApiCaller) -> None:
    bergen = await ann.create_session(title="A trip to Bergen")
    oslo = await ann.create_session(title="A trip to Oslo")
    await ann.http.patch(f"/agent/sessions/{oslo}", json={"status": "closed"})

    async def find_ids(**query: Any) -> list[str]:
        return [session["id"] for session in (await ann.get("/agent/sessions", **query))["items"]]

    assert await find_ids(search="trip berg") == [bergen]
    assert await find_ids(search="oslo") == [oslo]
    assert await find_ids(search="oslo", status="active") == []
    assert await find_ids(status="closed") == [oslo]
    assert_problem(await ann.http.get("/agent/sessions", params={"search": "':* & | !"}), 422, "word")


async def test_a_service_acts_for_the_users_of_its_tenant(sign_in: MakeCaller) -> None:
    service, ann, ben = await sign_in("robot", "sessions:all"), await sign_in("ann"), await sign_in("ben")

    session = await service.create_session(user_id="ann")

    assert (await ann.get(f"/agent/sessions/{session}"))["user_id"] == "ann"
    assert_problem(await ben.http.get(f"/agent/sessions/{session}"), 404)
    assert_problem(await ben.send_post("/agent/sessions", {"user_id": "ann"}), 403, "sessions:all")
    as_ben = {"content": "x", "user_id": "ben"}
    assert_problem(await service.send_post(f"/agent/sessions/{session}/messages", as_ben), 404)
    sent = await service.post_message(session, "On behalf of whoever it is")
    assert (await ann.get(f"/agent/executions/{sent['execution_id']}"))["user_id"] == "ann"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/agent/sessions", {"colour": "red"}, ["body.colour", "there is no such key"]),
        ("/agent/sessions", {"titel": "x"}, ["body.titel", "did you mean 'title'?"]),
        ("/agent/sessions", {"title": "x" * 201}, ["body.title"]),
        ("/agent/sessions", {"title": "a\x00b"}, ["NUL"]),
        ("/agent/sessions", {"agent": "nobody"}, ["nobody", "clerk, other"]),
        ("/agent/sessions", [], ["body"]),
        ("/agent/messages", {"content": " "}, ["say something"]),
        ("/agent/messages", {}, ["body.content"]),
        ("/agent/messages", {"content": "x" * 200_001}, ["body.content"]),
        ("/agent/messages", {"content": "x", "on_busy": "wait"}, ["enqueue"]),
        ("/agent/messages", {"content": "x", "request_id": str(uuid4())}, ["body.request_id"]),
        ("/agent/executions", {"content": "x", "agent": "nobody"}, ["nobody"]),
        ("/agent/executions", {"content": ""}, ["say something"]),
    ],
)
async def test_an_invalid_field_is_refused_with_its_path(
    ann: ApiCaller, path: str, body: Any, words: list[str]
) -> None:
    assert_problem(await ann.send_post(path, body), 422, *words)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=many",
        "cursor=%00",
        "cursor=x",
        "status=open",
        "search=%00",
        "stauts=active",
        "=1",
    ],
)
async def test_a_list_refuses_unknown_parameters(ann: ApiCaller, query: str) -> None:
    assert_problem(await ann.http.get(f"/agent/sessions?{query}"), 422)
