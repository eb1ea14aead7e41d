"""Subagents in the API: their questions, their events, and forks."""

from typing import Any
from uuid import UUID

import pytest

from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem
from tests.workflows.harness import eventually


async def _start_subagents(ann: ApiCaller, content: str, **given: Any) -> tuple[str, str, list[Any]]:
    """A session whose subagents do this, and their executions once all wait for people: oldest first."""
    session = await ann.create_session(agent="chief")
    execution = (await ann.post_message(session, content, **given))["execution_id"]

    async def wait() -> bool:
        found = (await ann.get("/agent/executions", parent_execution_id=execution))["items"]
        return len(found) == content.count("&") + 1 and {each["status"] for each in found} == {"paused"}

    await eventually(wait)
    await ann.wait_for_status(execution, "paused")
    listed = (await ann.get("/agent/executions", parent_execution_id=execution))["items"]
    return session, execution, listed[::-1]


async def test_edited_arguments_of_a_subagents_call_are_validated(sign_in: MakeCaller, work: None) -> None:
    """8.6.2: for a subagent's call as for its parent's."""
    ann = await sign_in("ann", "approve:edit")
    _, execution, (aide,) = await _start_subagents(ann, "send book")
    request = await ann.wait_for_request(aide["id"])
    path = f"/agent/executions/{aide['id']}/approvals/{request['id']}"
    edit = {"decision": "edit", "args_digest": request["args_digest"]}

    assert_problem(
        await ann.send_post(path, {**edit, "args": {"room": 7}}), 422, "Required arguments are missing: hotel"
    )
    assert (await ann.get(f"/agent/executions/{aide['id']}"))["status"] == "paused"
    await ann.post(path, {**edit, "args": {"hotel": "Quay"}})

    assert (await ann.wait_for_status(execution, "completed"))["status"] == "completed"
    (call,) = (await ann.get(f"/agent/executions/{aide['id']}/steps"))["items"][0]["calls"]
    assert call["text"] == '[Arguments edited by user: {"hotel":"Quay"}]\na room at Quay'
    del work


async def test_an_empty_answer_to_the_oldest_of_several_questions_is_refused(
    ann: ApiCaller, work: None
) -> None:
    """8.5.4: of all executions of the session; and to the named one."""
    session, execution, _ = await _start_subagents(ann, "send wonder & ask & book")
    asked = [each for each in (await ann.get("/agent/inbox"))["items"] if each["kind"] == "input"]
    complaints = {"Why?": "Answer cannot be empty", "Which day?": "Answer must be one of: Monday, Friday"}
    path = f"/agent/sessions/{session}/messages"

    oldest, newest = (complaints[each["request"]["prompt"]] for each in asked)
    assert_problem(await ann.send_post(path, {"content": " "}), 422, oldest)
    assert_problem(await ann.send_post(path, {"content": " ", "request_id": asked[1]["id"]}), 422, newest)
    assert_problem(await ann.send_post(path, {"content": " ", "on_busy": "interrupt"}), 422, "say something")
    assert (await ann.get(f"/agent/executions/{execution}"))["status"] == "paused"
    del work


async def test_a_late_answer_is_not_taken_for_the_recorded_one(ann: ApiCaller, work: None) -> None:
    """8.5.4: the same answer again is not refused, because its response may have been lost."""
    session, execution, (aide,) = await _start_subagents(ann, "send ask")
    request = await ann.wait_for_request(aide["id"])
    path = f"/agent/executions/{aide['id']}/input"
    answer = {"text": "Friday", "request_id": request["id"]}

    assert (await ann.post_message(session, "Friday"))["route"] == "answer"
    assert_problem(
        await ann.send_post(path, {**answer, "text": "Monday"}), 409, "The question is no longer open"
    )
    assert (await ann.post(path, answer))["state"] == "resolved"
    await ann.wait_for_status(execution, "completed")
    assert_problem(
        await ann.send_post(path, {**answer, "text": "Monday"}), 409, "The question is no longer open"
    )
    del work


@pytest.mark.parametrize("broadcast", ["minimal", "debug"])
async def test_events_of_subagents_have_the_same_detail_as_their_parents(
    ann: ApiCaller, work: None, broadcast: str
) -> None:
    """7.5"""
    session, execution, (aide,) = await _start_subagents(ann, "send ask", broadcast=broadcast)
    await ann.post_message(session, "Friday")
    await ann.wait_for_status(execution, "completed")

    store, debugs = ann.api_setup.sessions.client.store, broadcast == "debug"
    told = await store.envelopes(ann.api_setup.tenant, UUID(session))
    for each in (execution, aide["id"]):
        own = [envelope for envelope in told if str(envelope.execution_id) == each]
        assert ("agent.continuation" in {envelope.type for envelope in own}) is debugs
        (started,) = [envelope for envelope in own if envelope.type == "agent.tool.started"]
        assert ("args" in started.payload) is debugs
    del work


async def test_a_subagents_call_begins_when_the_subagent_does(ann: ApiCaller, work: None) -> None:
    """4.6.1: not when its parent reads its result."""
    session, execution, (aide,) = await _start_subagents(ann, "send ask")
    await ann.post_message(session, "Friday")
    await ann.wait_for_status(execution, "completed")

    (call,) = (await ann.get(f"/agent/executions/{execution}/steps"))["items"][0]["calls"]
    ended = await ann.get(f"/agent/executions/{aide['id']}")
    assert call["started_at"] <= ended["started_at"] < ended["completed_at"] <= call["completed_at"]
    del work


async def test_a_subagent_is_not_forked_in_its_session(ann: ApiCaller, work: None) -> None:
    """8.2.5: otherwise the session's next message would continue the subagent's conversation."""
    session, execution, (aide,) = await _start_subagents(ann, "send ask")
    assert_problem(
        await ann.send_post(f"/agent/executions/{execution}/fork", {"step": 0}), 409, "Session is busy"
    )
    assert_problem(
        await ann.http.delete(f"/agent/sessions/{session}"),
        409,
        "Wait for the running execution or cancel it",
    )
    await ann.post_message(session, "Friday")
    await ann.wait_for_status(execution, "completed")

    assert_problem(
        await ann.send_post(f"/agent/executions/{aide['id']}/fork", {"step": 1}),
        422,
        "fork its parent execution",
    )
    forked = await ann.post(f"/agent/executions/{execution}/fork", {"step": 1})
    assert (await ann.wait_for_status(forked["id"], "completed"))["agent"] == "chief"
    del work
