"""No caller reads or changes another user's objects, at any address of the API.

The addresses come from the API's own description, so that a new one is tested automatically.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from everstep.http_api.app import create_app
from everstep.http_api.pages import PUBLIC_ROUTES
from everstep.http_api.schemas.request_bodies import ForkSent
from tests.everstep.http_api.house import TICKET, ApiCaller, ApiSetup, MakeCaller, http_client

EVERYBODYS = {
    "/agent/agents",
    "/agent/agents/{name}",
    "/v1/models",
    "/v1/models/{model}",
    "/healthz",
    "/readyz",
    "/metrics",
}
"""Addresses whose response is the same for all callers."""

MAKES = {
    ("post", "/agent/sessions"),
    ("post", "/agent/messages"),
    ("post", "/agent/executions"),
    ("post", "/agent/attachments"),
    ("post", "/agent/attachments/url"),
    ("post", "/agent/schedules"),
    ("post", "/v1/chat/completions"),
}
"""Addresses where every caller creates an object."""

EMPTY_STREAMS = {"application/x-ndjson", "text/event-stream; charset=utf-8"}
"""The types of responses that are empty streams for a stranger: of a thread of another user, as of none."""

BODIES: Mapping[str, Any] = {
    "MessageSent": {"content": "Let me in"},
    "TenantLimitsSent": {"max_running": 0},
    "SessionChangesSent": {"title": "Mine"},
    "AnswerSent": {"text": "Friday"},
    "SteerSent": {"content": "Come to me"},
    "NewTotalSent": {"usd": 5},
    "ForkSent": {"step": 0},
    "WhatIfSent": {"max_steps": 1},
    "FeedbackSent": {"rating": "down", "text": "Mine"},
    "ApprovalDecision": {"decision": "approve", "args_digest": "{digest}"},
    "NewWebhookSent": {"url": "https://mine.example/"},
    "WebhookChangesSent": {"enabled": False},
    "ScheduleChangesSent": {"content": "Mine"},
    "BackfillSent": {"start_at": "2026-01-12T00:00:00Z", "end_at": "2026-01-13T00:00:00Z"},
}
"""A valid body, by the name of its schema; a new schema needs an entry here."""


class OwnObjects:
    """The objects of one user, and the texts that no response to another user may contain."""

    def __init__(self, ids: Mapping[str, str], words: tuple[str, ...]) -> None:
        self.ids = ids
        self.words = words

    def requests(self, document: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Every request that names them: method, address, body."""
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if path in {*EVERYBODYS, *PUBLIC_ROUTES, TICKET} or (method, path) in MAKES:
                    continue
                yield method, self._address(path, operation), self._body(path, operation)

    def _address(self, path: str, operation: Mapping[str, Any]) -> str:
        queries = (each for each in operation.get("parameters", ()) if each["in"] == "query")
        required = "&".join(f"{each['name']}=treasure" for each in queries if each.get("required"))
        names = re.findall(r"{(\w+)}", path)
        assert set(names) <= set(self.ids), f"{path}: say in this test which id it takes"
        return path.format(**self.ids) + (f"?{required}" if required else "")

    def _body(self, path: str, operation: Mapping[str, Any]) -> Any:
        if path == "/v1/responses":
            return {"model": "clerk", "input": "Go on", "previous_response_id": self.ids["response_id"]}
        return self._body_of_wire(path) or self._body_of_schema(path, operation)

    def _body_of_wire(self, path: str) -> Any:
        if path == "/agui/{agent}":
            answer = {"interruptId": self.ids["request_id"], "status": "resolved", "payload": True}
            return {"threadId": self.ids["thread_id"], "runId": "r", "messages": [], "resume": [answer]}
        if path == "/ai/{agent}/chat":
            approval = {"id": self.ids["request_id"], "approved": True}
            part = {"type": "tool-book", "state": "approval-responded", "approval": approval}
            return {
                "id": self.ids["chat_id"],
                "messages": [{"id": "m", "role": "assistant", "parts": [part]}],
            }
        if path == "/mcp":
            answer = {"execution_id": self.ids["execution_id"], "decision": "approve"}
            params = {"name": "answer", "arguments": answer}
            return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return None

    def _body_of_schema(self, path: str, operation: Mapping[str, Any]) -> Any:
        if path == "/broadcasting/auth":
            return {"socket_id": "1.2", "channel_name": f"private-agent.session.{self.ids['session_id']}"}
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            return None
        name = content["schema"]["$ref"].rpartition("/")[2]
        assert name in BODIES, f"{name}: say in this test which body would do"
        body = {**BODIES[name]}
        if "args_digest" in body:
            body["args_digest"] = self.ids["digest"]
        return body


async def create_objects(person: ApiCaller) -> OwnObjects:
    """A session with an answer and a question, and a call that waits for approval."""
    session = await person.create_session(title="My treasure", metadata={"note": "My treasure"})
    file = await person.upload(b"Where My treasure is", "My treasure.txt")
    looked = (await person.post_message(session, "Look", attachments=[file["id"]]))["execution_id"]
    await person.wait_for_status(looked, "completed")
    messages = (await person.get(f"/agent/sessions/{session}/messages"))["items"]
    answer = next(each for each in messages if each["role"] == "assistant")
    await person.post(f"/agent/messages/{answer['id']}/feedback", {"rating": "up", "text": "My treasure"})
    asked = (await person.post_message(session, "ask about My treasure"))["execution_id"]
    await person.wait_for_request(asked)
    booking = await person.create_session()
    booked = (await person.post_message(booking, "book My treasure"))["execution_id"]
    request = await person.wait_for_request(booked)
    schedule = {"agent": "clerk", "content": "Look for My treasure", "interval_seconds": 3600, "paused": True}
    webhook, delivery = await create_webhook(person)
    ids = {
        "webhook_id": webhook,
        "delivery_id": delivery,
        "schedule_id": (await person.post("/agent/schedules", schedule))["id"],
        "session_id": session,
        "stream_id": session,
        "execution_id": booked,
        "other_id": asked,
        "request_id": request["id"],
        "attachment_id": file["id"],
        "message_id": answer["id"],
        "agent": "clerk",
        "number": "1",
        "tenant_id": "treasury",
        "sign_in_id": await sign_in_with_browser(person),
        "thread_id": booking,
        "chat_id": booking,
        "response_id": f"resp_{UUID(booked).hex}",
    }
    ids["digest"] = request["args_digest"]
    return OwnObjects(
        ids, ("My treasure", "My-treasure", "Harbour Inn", "Which day", asked, booked, session, booking)
    )


async def create_webhook(person: ApiCaller) -> tuple[str, str]:
    """The ids of a webhook in this person's tenant, and of a delivery."""
    token = person.api_setup.token("boss", "admin")
    async with http_client(person.app, {"Authorization": f"Bearer {token}"}) as http:
        boss = ApiCaller(http, person.api_setup, person.app)
        url = f"http://127.0.0.1:9/My-treasure-{uuid4().hex}"
        webhook = (await boss.post("/agent/webhooks", {"url": url}))["id"]
        return webhook, (await boss.post(f"/agent/webhooks/{webhook}/ping"))["id"]


async def sign_in_with_browser(person: ApiCaller) -> str:
    """The id of a new session of this person in a browser."""
    token = person.http.headers["Authorization"].removeprefix("Bearer ")
    transport = httpx2.ASGITransport(person.app)
    async with httpx2.AsyncClient(transport=transport, base_url=person.http.base_url) as browser:
        assert (await browser.post("/sign-in", json={"token": token})).is_success
    (session,) = (await person.get("/agent/sign-ins"))["items"]
    return session["id"]


def is_chat_stream(address: str) -> bool:
    """Whether it is the stream of a chat: that of another user is as empty as that of none."""
    return address.startswith("/ai/") and address.endswith("/stream")


async def assert_no_access(stranger: ApiCaller, theirs: OwnObjects, opened: Sequence[str] = ()) -> None:
    """This caller reads nothing, and changes nothing, except at the addresses that end in `opened`."""
    count = 0
    for method, address, body in theirs.requests(stranger.app.openapi()):
        if address.endswith(tuple(opened)):
            continue
        count += 1
        given = httpx2.Request(method, "http://x", json=body) if body is not None else None
        headers = {"Content-Type": "application/json"} if given else {}
        content = given.content if given else None
        answer = await stranger.http.request(method.upper(), address, content=content, headers=headers)
        told = answer.text.replace(address, "")
        if answer.status_code == 204 and is_chat_stream(address):
            assert answer.content == b""
        elif address == "/mcp":
            assert answer.json()["result"]["isError"], answer.text
        elif answer.headers.get("content-type") in EMPTY_STREAMS:
            assert (answer.status_code, answer.text) == (200, ""), (method, address, answer.text)
        elif "{" not in address and answer.status_code == 200:
            # Lists: of the caller's own objects, and there are none.
            told_of: list[Any] = [value for value in answer.json().values() if isinstance(value, list)]
            assert told_of, (method, address, answer.text)
            assert not any(told_of), (method, address, answer.text)
        else:
            assert answer.status_code in (403, 404), (method, address, answer.status_code, answer.text)
        for word in theirs.words:
            # The response may say that the named id does not exist.
            if word not in address and word not in theirs.ids.values():
                assert word not in told, (method, address, answer.text)
    assert count > 15


async def stored_objects(person: ApiCaller, theirs: OwnObjects) -> Any:
    """All stored objects, to detect a change."""
    session, execution = theirs.ids["session_id"], theirs.ids["execution_id"]
    return [
        await person.get(f"/agent/sessions/{session}"),
        await person.get(f"/agent/sessions/{session}/messages"),
        await person.get(f"/agent/executions/{execution}"),
        await person.get("/agent/executions"),
        await person.get("/agent/inbox"),
        await person.get("/agent/feedback"),
        await person.get("/agent/sign-ins"),
    ]


async def test_another_user_and_another_tenant_get_nothing(sign_in: MakeCaller, work: None) -> None:
    ann = await sign_in("ann")
    theirs = await create_objects(ann)
    before = await stored_objects(ann, theirs)

    await assert_no_access(await sign_in("ben"), theirs)
    # Of the same name, and with the scope that opens all sessions of a tenant.
    await assert_no_access(await sign_in("ann", "sessions:all", tenant=f"far-{uuid4().hex}"), theirs)
    far = f"far-{uuid4().hex}"
    opened = ("/agent/system", "/agent/system/checks", "/agent/tenants", "/treasury", "/agent/webhooks")
    await assert_no_access(await sign_in("boss", "admin", tenant=far), theirs, opened)

    assert await stored_objects(ann, theirs) == before
    await assert_lists_are_empty(ann, await sign_in("ben"), theirs)
    del work


async def assert_lists_are_empty(ann: ApiCaller, ben: ApiCaller, theirs: OwnObjects) -> None:
    """Ben finds none of her objects in a list, by any filter or cursor."""
    for query in (
        {"session_id": theirs.ids["session_id"]},
        {"parent_execution_id": theirs.ids["execution_id"]},
        {"user_id": "ann"},
        {"since": "2020-01-01T00:00:00Z"},
    ):
        assert (await ben.get("/agent/executions", **query))["items"] == []
    cursor = (await ann.get("/agent/sessions", limit=1))["next_cursor"]
    assert (await ben.get("/agent/sessions", cursor=cursor))["items"] == []
    for wanted in ({"search": "treasure"}, {"user_id": "ann"}, {"since": "2020-01-01T00:00:00Z"}):
        assert (await ben.get("/agent/sessions", **wanted))["items"] == []
    assert (await ann.get("/agent/sessions", user_id="ann", since="2020-01-01T00:00:00Z"))["items"]
    assert (await ann.get("/agent/executions", user_id="ann", agent="absent"))["items"] == []


OPENED: Mapping[str, Sequence[str]] = {
    "approve": ("/agent/inbox", "/requests"),
    "answer": ("/agent/inbox", "/requests", "/input"),
    "steer": ("/steer",),
    "cancel": ("/cancel",),
}
"""The addresses that a scope opens for the objects of other users: others are 403 or 404 as without it."""


async def test_scopes_open_requests_and_no_conversation(sign_in: MakeCaller, work: None) -> None:
    """8.6.9, 8.9.5: each right by itself; the owner's call is not for approvers."""
    ann = await sign_in("ann")
    theirs = await create_objects(ann)
    before = await stored_objects(ann, theirs)

    await assert_no_access(await sign_in("ben", "approve:edit"), theirs)
    await assert_no_access(
        await sign_in("ben", "profile", roles=["owner", "approve", "sessions:all"]), theirs
    )
    for scope, opened in OPENED.items():
        person = await sign_in("ben", scope, "approve:edit")
        request = f"/agent/requests/{theirs.ids['request_id']}"
        if scope in {"steer", "cancel"}:
            await assert_no_access(person, theirs, opened=opened)
            continue
        await assert_no_access(person, theirs, opened=(*opened, request))
        requests = f"/agent/executions/{theirs.ids['execution_id']}/requests"
        for address in ("/agent/inbox", requests, request):
            shown = await person.http.get(address)
            # The request is an approval, which answers of questions do not open.
            assert shown.status_code == (404 if (scope, address) == ("answer", request) else 200)
            assert "My treasure" not in shown.text
    reader = await sign_in("ben", "approve", "read-only")
    for request in (await reader.get("/agent/inbox"))["items"]:
        assert request["may_decide"] is False

    assert await stored_objects(ann, theirs) == before
    del work


async def test_the_check_finds_a_new_address(api_setup: ApiSetup) -> None:
    """An endpoint without an ownership check fails it."""
    app = create_app(api_setup.api)

    @app.post("/agent/new/{thing_id}")
    async def new(thing_id: str, body: ForkSent) -> str:
        return f"{thing_id} {body}"

    belonging = OwnObjects(
        {"session_id": "x", "stream_id": "x", "execution_id": "x", "request_id": "x", "digest": "x"}, ()
    )
    with pytest.raises(AssertionError, match="which id it takes"):
        list(belonging.requests(app.openapi()))
