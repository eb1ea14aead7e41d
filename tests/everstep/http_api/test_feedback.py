"""Feedback on answers: kept, listed with messages, exported, and erased with the session."""

from typing import Any

import pytest

from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem


async def answer_of(caller: ApiCaller, session: str, content: str) -> dict[str, Any]:
    """The answer to a message."""
    execution = (await caller.post_message(session, content))["execution_id"]
    await caller.wait_for_status(execution, "completed")
    items = (await caller.get(f"/agent/sessions/{session}/messages"))["items"]
    return next(each for each in items if each["role"] == "assistant")


@pytest.fixture
async def service(sign_in: MakeCaller) -> ApiCaller:
    return await sign_in("shop", "sessions:all")


async def test_feedback_is_kept_with_its_answer(
    ann: ApiCaller, service: ApiCaller, sign_in: MakeCaller, work: None
) -> None:
    """8.2.11: up, down, words, or nothing; it is erased with its session."""
    session = await ann.create_session()
    answer = await answer_of(ann, session, "Hello")
    path = f"/agent/messages/{answer['id']}/feedback"
    assert answer["feedback"] is None

    for body, rating, text in (
        ({"rating": "up"}, "up", None),
        ({"rating": "down", "text": " Too short "}, "down", "Too short"),
        ({"text": "Better"}, None, "Better"),
    ):
        given = (await ann.post(path, body))["feedback"]
        assert (given["rating"], given["text"], given["by"]) == (rating, text, "ann")
        listed = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
        assert next(each for each in listed if each["id"] == answer["id"])["feedback"] == given

    (exported,) = (await service.get("/agent/feedback"))["items"]
    assert exported["answer"] == "You said: Hello"
    assert (exported["message_id"], exported["session_id"]) == (answer["id"], session)
    assert (exported["execution_id"], exported["agent"]) == (answer["execution_id"], "clerk")
    assert (await (await sign_in("bob")).get("/agent/feedback"))["items"] == []

    assert (await ann.post(path, {"text": " "}))["feedback"] is None
    assert (await ann.get("/agent/feedback"))["items"] == []
    await ann.post(path, {"rating": "up"})
    assert (await ann.http.delete(f"/agent/sessions/{session}")).status_code == 204
    assert (await service.get("/agent/feedback"))["items"] == []


async def test_feedback_is_listed_in_pages(ann: ApiCaller, work: None) -> None:
    """8.2.11: of the newest answers first."""
    session = await ann.create_session()
    for text in ("One", "Two", "Three"):
        answer = await answer_of(ann, session, text)
        await ann.post(f"/agent/messages/{answer['id']}/feedback", {"rating": "up"})

    first = await ann.get("/agent/feedback", limit=2)
    second = await ann.get("/agent/feedback", limit=2, cursor=first["next_cursor"])

    answers = [each["answer"] for each in (*first["items"], *second["items"])]
    assert answers == ["You said: Three", "You said: Two", "You said: One"]
    assert second["next_cursor"] is None


async def test_feedback_that_does_not_fit_is_refused(ann: ApiCaller, sign_in: MakeCaller, work: None) -> None:
    """8.2.11"""
    session = await ann.create_session()
    answer = await answer_of(ann, session, "Hello")
    own = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
    question = next(each for each in own if each["role"] == "user")
    path = f"/agent/messages/{answer['id']}/feedback"

    assert_problem(await ann.send_post(path, {"rating": "sideways"}), 422, "rating")
    assert_problem(await ann.send_post(path, {"text": "x" * 4001}), 422, "text")
    asked = await ann.send_post(f"/agent/messages/{question['id']}/feedback", {"rating": "up"})
    assert_problem(asked, 422, "Only answers take feedback; this message has the role user")
    for other in (await sign_in("bob"), await sign_in("ann", tenant="elsewhere")):
        assert_problem(await other.send_post(path, {"rating": "up"}), 404)
    assert_problem(await (await sign_in("ann", "read-only")).send_post(path, {"rating": "up"}), 403)
