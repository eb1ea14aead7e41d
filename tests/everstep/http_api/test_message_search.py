"""Full-text search over HTTP: what a caller finds, and what he is told of what he cannot search."""

from typing import Any

import pytest

from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem


async def run_message(caller: ApiCaller, content: str, session: str | None = None) -> dict[str, Any]:
    """A message to a session, or to a new one, whose execution has ended or waits."""
    sent = (
        await caller.post_message(session, content)
        if session
        else await caller.post("/agent/messages", {"content": content})
    )
    await caller.wait_for_status(sent["execution_id"], "completed", "paused")
    return sent


def marked(hit: dict[str, Any]) -> list[str]:
    """The words that a snippet marks."""
    return [hit["snippet"]["text"][start:end] for start, end in hit["snippet"]["marks"]]


async def test_a_caller_finds_what_was_said_and_called(ann: ApiCaller, work: None) -> None:
    """Follows rules 16.6.3 and 16.6.6."""
    talked = await run_message(ann, "Where is the zebra?")
    booked = await run_message(ann, "book")

    reply, message = (await ann.get("/agent/search", q="zebra"))["items"]
    (call,) = (await ann.get("/agent/search", q='"harbour inn" hotel'))["items"]

    assert (reply["kind"], reply["step_number"], reply["snippet"]["text"]) == (
        *("reply", 1),
        "You said: Where is the zebra?",
    )
    assert (message["kind"], message["step_number"], marked(message)) == ("message", 0, ["zebra"])
    for hit, sent in ((reply, talked), (message, talked), (call, booked)):
        assert (hit["session_id"], hit["execution_id"]) == (sent["session_id"], sent["execution_id"])
        assert (hit["agent"], hit["user_id"]) == ("clerk", "ann")
    assert message["session_title"] == "Where is the zebra?"
    assert (call["kind"], call["tool"], marked(call)) == ("arguments", "book", ["hotel", "Harbour Inn"])
    step = (await ann.get(f"/agent/executions/{booked['execution_id']}/steps"))["items"][0]
    assert call["call_id"] == step["calls"][0]["id"]
    del work


async def test_no_caller_finds_what_lists_do_not_show_him(sign_in: MakeCaller, work: None) -> None:
    """16.6.4: texts of other users and tenants are neither found nor counted."""
    ann, ben, service = await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")
    approver = await sign_in("carol", "approve")
    hers, his = await run_message(ann, "secret plan"), await run_message(ben, "secret list")

    async def search_ids(caller: ApiCaller, path: str, **query: Any) -> set[str]:
        items = (await caller.get(path, q="secret", **query))["items"]
        return {item.get("execution_id") or item.get("last_execution_id") or item["id"] for item in items}

    for path in ("/agent/search", "/agent/executions", "/agent/sessions"):
        assert await search_ids(ann, path) == {hers["execution_id"]}, path
        assert await search_ids(ann, path, user_id="ben") == set(), path
        assert await search_ids(approver, path) == set(), path
        assert await search_ids(service, path) == {hers["execution_id"], his["execution_id"]}, path
        assert await search_ids(service, path, user_id="ben") == {his["execution_id"]}, path
    assert (await ann.get("/agent/search", q="secret", limit=2))["next_cursor"] is None
    del work


async def test_pages_and_filters_of_a_search(ann: ApiCaller, work: None) -> None:
    """16.6.6"""
    sent = [await run_message(ann, f"penguin {number}") for number in range(3)]
    first = await ann.get("/agent/search", q="penguin", limit=4)
    last = await ann.get("/agent/search", q="penguin", limit=4, cursor=first["next_cursor"])
    seen = [(hit["execution_id"], hit["step_number"]) for page in (first, last) for hit in page["items"]]

    assert seen == [(each["execution_id"], step) for each in reversed(sent) for step in (1, 0)]
    assert last["next_cursor"] is None
    for query, count in (
        ({"session_id": sent[0]["session_id"]}, 2),
        ({"status": "failed"}, 0),
        ({"agent": "other"}, 0),
        ({"since": "2999-01-01T00:00:00Z"}, 0),
    ):
        assert len((await ann.get("/agent/search", q="penguin", **query))["items"]) == count, query
    del work


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "query.q"),
        ("q=", "names no word"),
        ("q=...", "names no word"),
        ("q=-only", "names no word"),
        ("q=a%20OR%20-b", "names no word"),
        ("q=" + "a+" * 30, "more than 20"),
        ("q=" + "a" * 501, "query.q"),
        ("q=a%00b", "query.q"),
        ("q=a&cursor=bm9wZQ", "cursor cannot be read"),
        ("q=a&limit=0", "query.limit"),
        ("q=a&status=done", "query.status"),
    ],
)
async def test_a_search_that_cannot_be_used_says_why(ann: ApiCaller, query: str, words: str) -> None:
    """16.6.2"""
    assert_problem(await ann.http.get(f"/agent/search?{query}"), 422, words)


async def test_lists_refuse_what_a_search_refuses(ann: ApiCaller) -> None:
    """16.6.8"""
    for path in ("/agent/executions", "/agent/sessions"):
        assert_problem(await ann.http.get(f"{path}?q=-only"), 422, "names no word")


async def test_erased_sessions_are_not_found(ann: ApiCaller, work: None) -> None:
    """16.6.5"""
    sent = await run_message(ann, "unicorn")
    assert (await ann.get("/agent/search", q="unicorn"))["items"] != []

    await ann.http.delete(f"/agent/sessions/{sent['session_id']}")

    assert (await ann.get("/agent/search", q="unicorn"))["items"] == []
    del work
