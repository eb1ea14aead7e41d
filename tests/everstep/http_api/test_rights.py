"""Who may decide about calls, answer, steer and cancel, over HTTP."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from everstep.http_api.api_keys import create_key
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, assert_problem, http_client


async def open_request(person: ApiCaller, content: str) -> Any:
    """The request of a new execution, in a session of its own."""
    session = await person.create_session(title="My treasure")
    execution = (await person.post_message(session, content))["execution_id"]
    return await person.wait_for_request(execution)


def path_of(request: Mapping[str, Any]) -> str:
    return f"/agent/executions/{request['execution_id']}/approvals/{request['id']}"


def decision(request: Mapping[str, Any], verdict: str = "approve", **more: Any) -> dict[str, Any]:
    return {"decision": verdict, "args_digest": request["args_digest"], **more}


async def with_key(person: ApiCaller, *scopes: str) -> tuple[ApiCaller, UUID]:
    """A service with a key that has these scopes, and the key's id."""
    made = await create_key(person.api_setup.keys, "desk", tenant_id=person.api_setup.tenant, scopes=scopes)
    http = http_client(person.app, {"Authorization": f"Bearer {made.secret}"})
    return ApiCaller(http, person.api_setup, person.app), made.key.id


async def test_a_call_is_decided_by_a_caller_with_the_scope(sign_in: MakeCaller, work: None) -> None:
    """8.6.7, 8.6.8: by default neither its owner nor a service for all sessions may decide."""
    ann, ben = await sign_in("ann"), await sign_in("ben", "approve")
    request = await open_request(ann, "refund")
    assert (request["approver"], request["may_decide"]) == (["scope:approve"], False)

    for person in (ann, await sign_in("robot", "sessions:all")):
        assert_problem(
            await person.send_post(path_of(request), decision(request)),
            403,
            "Only callers with the scope 'approve' may decide",
        )
    for stranger in (await sign_in("cid"), await sign_in("ben", "approve", tenant=f"far-{uuid4().hex}")):
        assert_problem(await stranger.send_post(path_of(request), decision(request)), 404)

    (listed,) = (await ben.get("/agent/inbox"))["items"]
    assert (listed["id"], listed["args"]) == (request["id"], {"euros": 80})
    assert (listed["agent"], listed["user_id"], listed["may_decide"]) == ("clerk", "ann", True)
    decided = await ben.post(path_of(request), decision(request))
    assert decided["decided_by"]["subject"] == "ben"
    assert decided["decided_by"]["scopes"] == ["approve"]

    execution = request["execution_id"]
    await ann.wait_for_status(execution, "completed")
    path = f"/agent/executions/{execution}"
    assert (await ann.get(f"{path}/requests"))["items"] == []
    for status in ("all", "resolved"):
        (stored,) = (await ann.get(f"{path}/requests", status=status))["items"]
        assert (stored["decision"], stored["decided_by"]) == ("approve", decided["decided_by"])
    store = ann.api_setup.sessions.client.store
    envelopes = await store.envelopes(ann.api_setup.tenant, UUID(request["session_id"]))
    (asked,) = [e.payload for e in envelopes if e.type == "agent.approval.requested"]
    assert (asked["approver"], asked["four_eyes"], asked["expires_at"]) == (["scope:approve"], False, None)
    (resolved,) = [e.payload for e in envelopes if e.type == "agent.approval.resolved"]
    assert resolved["decided_by"] == {
        "subject": "ben",
        "scopes": ["approve"],
        "at": decided["decided_by"]["at"],
    }
    final = (await ann.get(f"{path}/snapshots"))["items"][0]["state"]
    (call,) = final["steps"][0]["tool_calls"]
    assert (call["decision"], call["decided_by"]["subject"]) == ("approve", "ben")
    del work


async def test_a_key_needs_the_scope_and_is_recorded(ann: ApiCaller, work: None) -> None:
    """8.6.8"""
    request = await open_request(ann, "refund")
    weak, _ = await with_key(ann, "sessions:all", "approve:edit")
    assert_problem(await weak.send_post(path_of(request), decision(request)), 403, "scope 'approve'")

    desk, key_id = await with_key(ann, "approve")
    edit = decision(request, "edit", args={"euros": 8})
    assert_problem(await desk.send_post(path_of(request), edit), 403, "need the scope 'approve:edit'")
    editor, key_id = await with_key(ann, "approve", "approve:edit")
    decided = await editor.post(path_of(request), edit)

    assert decided["edited_args"] == {"euros": 8}
    by = decided["decided_by"]
    assert (by["subject"], by["key_id"]) == (f"key:{key_id}", str(key_id))
    assert by["scopes"] == ["approve", "approve:edit"]
    del work


async def test_four_eyes(sign_in: MakeCaller, api_setup: ApiSetup, work: None) -> None:
    """8.6.7: the user of the execution does not decide, also with the scope, and also through a key."""
    ann = await sign_in("ann", "approve", "approve:edit")
    request = await open_request(ann, "wire")
    assert (request["four_eyes"], request["may_decide"]) == (True, False)
    made = await create_key(
        api_setup.keys, "hers", tenant_id=api_setup.tenant, user_id="ann", scopes=["approve"]
    )
    hers = ApiCaller(http_client(ann.app, {"Authorization": f"Bearer {made.secret}"}), api_setup, ann.app)
    for person in (ann, hers):
        assert_problem(
            await person.send_post(path_of(request), decision(request, "deny")), 403, "made for 'ann'"
        )

    ben = await sign_in("ben", roles=["clerk", "head of sales"])
    (listed,) = (await ben.get("/agent/inbox"))["items"]
    assert listed["id"] == request["id"]
    decided = await ben.post(path_of(request), decision(request, "deny", reason="too much"))
    assert (decided["decision"], decided["reason"]) == ("deny", "too much")
    assert (decided["decided_by"]["scopes"], decided["decided_by"]["roles"]) == ([], ["head of sales"])
    del work


async def test_an_approver_by_role_sees_only_the_requests_for_it(sign_in: MakeCaller, work: None) -> None:
    """8.6.9"""
    ann, head = await sign_in("ann"), await sign_in("ben", roles=["head of sales"])
    refund, wire = await open_request(ann, "refund"), await open_request(ann, "wire")

    assert [each["id"] for each in (await head.get("/agent/inbox"))["items"]] == [wire["id"]]
    assert (await head.get(f"/agent/executions/{wire['execution_id']}/requests"))["items"]
    hidden = await head.http.get(f"/agent/executions/{refund['execution_id']}/requests")
    assert_problem(hidden, 404)
    assert_problem(await head.send_post(path_of(refund), decision(refund)), 404)
    del work


async def test_a_request_pages_through_all_of_an_execution(sign_in: MakeCaller, work: None) -> None:
    """8.6.8"""
    ann, ben = await sign_in("ann"), await sign_in("ben", "approve")
    request = await open_request(ann, "refund")
    path = f"/agent/executions/{request['execution_id']}/requests"

    page = await ben.get(path, status="all", limit=1)
    assert ([each["id"] for each in page["items"]], page["next_cursor"]) == ([request["id"]], None)
    assert (await ben.get(path, status="resolved"))["items"] == []
    assert_problem(await ben.http.get(path, params={"cursor": "x"}), 422, "the cursor cannot be read")
    assert_problem(await ben.http.get(path, params={"status": "closed"}), 422)
    assert_problem(await ben.http.get(f"/agent/executions/{uuid4()}/requests"), 404)
    del work


async def test_questions_of_others_need_a_scope(sign_in: MakeCaller, work: None) -> None:
    """8.9.5: who sees a question, and who may answer it."""
    ann, boss = await sign_in("ann"), await sign_in("ben", "approve")
    question = await open_request(ann, "ask")
    path = f"/agent/executions/{question['execution_id']}/input"
    assert (await boss.get("/agent/inbox"))["items"][0]["may_decide"] is False
    for body in ({"text": "Friday"}, {"text": "Friday", "request_id": question["id"]}):
        assert_problem(await boss.send_post(path, body), 403, "this needs the scope 'answer'")
        assert_problem(await (await sign_in("cid", "steer")).send_post(path, body), 404)

    helper = await sign_in("dot", "answer")
    refund = await open_request(ann, "refund")
    assert [each["id"] for each in (await helper.get("/agent/inbox"))["items"]] == [question["id"]]
    assert_problem(await helper.send_post(path_of(refund), decision(refund)), 404)
    answered = await helper.post(path, {"text": "Friday"})
    assert (answered["decision"], answered["decided_by"]["subject"]) == ("answer", "dot")
    assert answered["decided_by"]["scopes"] == ["answer"]
    del work


async def test_an_answer_by_message_has_its_sender(ann: ApiCaller, work: None) -> None:
    """8.6.8"""
    question = await open_request(ann, "ask")
    await ann.post_message(question["session_id"], "Friday")
    await ann.wait_for_status(question["execution_id"], "completed")

    path = f"/agent/executions/{question['execution_id']}/requests"
    (stored,) = (await ann.get(path, status="all"))["items"]
    assert (stored["decided_by"]["subject"], stored["decided_by"]["scopes"]) == ("ann", [])
    del work


@pytest.mark.parametrize(
    "claims", [{"roles": {"head": True}}, {"roles": 5}, {"roles": ["head", 5]}, {"scope": ["approve", None]}]
)
async def test_malformed_roles_are_refused_in_a_sentence(sign_in: MakeCaller, claims: dict[str, Any]) -> None:
    """8.9.6"""
    person = await sign_in("ann", **claims)

    problem = assert_problem(await person.http.get("/agent/inbox"), 401, "The token's")
    assert "send a new one" in problem["detail"]
    assert next(iter(claims)) in problem["detail"]


async def test_executions_of_others_are_steered_with_a_scope(sign_in: MakeCaller, work: None) -> None:
    """8.9.5: the message and its sender are in the conversation, which the sender does not see."""
    ann, lead = await sign_in("ann"), await sign_in("ben", "steer")
    request = await open_request(ann, "book")
    path = f"/agent/executions/{request['execution_id']}/steer"
    assert_problem(await (await sign_in("cid", "approve")).send_post(path, {"content": "Stop"}), 404)

    steered = await lead.post(path, {"content": "Look at the price"})
    assert (steered["route"], steered["output"], steered["metadata"]) == ("steer", None, {})
    said = (await ann.get(f"/agent/sessions/{request['session_id']}/messages"))["items"]
    (message,) = [each for each in said if each["content"] == "Look at the price"]
    by = message["metadata"]["sent_by"]
    assert (by["subject"], by["scopes"]) == ("ben", ["steer"])
    assert_problem(await lead.http.get(f"/agent/sessions/{request['session_id']}/messages"), 404)
    del work


async def test_executions_of_others_are_cancelled_with_a_scope(sign_in: MakeCaller, work: None) -> None:
    """8.9.5"""
    ann, lead = await sign_in("ann"), await sign_in("ben", "cancel")
    request = await open_request(ann, "book")
    path = f"/agent/executions/{request['execution_id']}"
    assert_problem(await (await sign_in("cid", "approve", "steer")).send_post(f"{path}/cancel"), 404)

    assert (await lead.post(f"{path}/cancel"))["metadata"] == {}
    ended = await ann.wait_for_status(request["execution_id"], "cancelled")
    assert (ended["cancelled_by"]["subject"], ended["cancelled_by"]["scopes"]) == ("ben", ["cancel"])
    assert_problem(await lead.http.get(path), 404)
    del work


async def test_an_own_execution_needs_no_scope(ann: ApiCaller, work: None) -> None:
    """8.9.5"""
    request = await open_request(ann, "book")
    await ann.post(f"/agent/executions/{request['execution_id']}/cancel")
    ended = await ann.wait_for_status(request["execution_id"], "cancelled")
    assert (ended["cancelled_by"]["subject"], ended["cancelled_by"]["scopes"]) == ("ann", [])

    other = await open_request(ann, "book")
    await ann.post_message(other["session_id"], "Something else", on_busy="interrupt")
    ended = await ann.wait_for_status(other["execution_id"], "cancelled")
    assert ended["cancelled_by"]["subject"] == "ann"
    del work
