"""Executions over HTTP: their results, and people who answer, approve and stop them."""

import re
from typing import Any
from uuid import UUID, uuid4

import pytest

from everstep.http_api import idempotency
from tests.everstep.http_api.house import AGENTS, ApiCaller, MakeCaller, assert_problem


async def test_a_question_is_answered_by_one_of_its_choices(ann: ApiCaller, work: None) -> None:
    """8.5.3, 8.5.4"""
    execution = await ann.start_execution("ask me")
    question = await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}/input"

    assert question["request"]["choices"] == ["Monday", "Friday"]
    for text, complaint in (("Sunday", "Answer must be one of: Monday, Friday"), ("", "Answer must be")):
        assert_problem(await ann.send_post(path, {"text": text}), 422, complaint)
    assert (await ann.get(f"/agent/executions/{execution}"))["status"] == "paused"
    assert (await ann.post(path, {"text": " Friday "}))["state"] == "resolved"
    ended = await ann.wait_for_status(execution, "completed")
    assert ended["output"]["response"] == "So be it: Friday"
    assert_problem(await ann.send_post(path, {"text": "Friday"}), 409)
    del work


async def test_the_next_message_of_a_session_answers_its_question(ann: ApiCaller, work: None) -> None:
    """8.5.3"""
    session = await ann.create_session()
    asked = await ann.post_message(session, "ask me")
    await ann.wait_for_request(asked["execution_id"])

    path = f"/agent/sessions/{session}/messages"
    assert_problem(
        await ann.send_post(path, {"content": "Sunday"}), 422, "Answer must be one of: Monday, Friday"
    )
    answered = await ann.post_message(session, "Friday")

    assert answered["route"] == "answer"
    assert answered["execution_id"] == asked["execution_id"]
    ended = await ann.wait_for_status(asked["execution_id"], "completed")
    assert ended["output"]["response"] == "So be it: Friday"
    del work


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        ("ask", "Answer must be one of: Monday, Friday"),
        ("wonder", "Answer cannot be empty"),
        ("form", "Answer does not match the schema: "),
    ],
)
async def test_an_empty_answer_is_refused(ann: ApiCaller, work: None, question: str, complaint: str) -> None:
    """8.5.4"""
    session = await ann.create_session()
    execution = (await ann.post_message(session, question))["execution_id"]
    await ann.wait_for_request(execution)

    assert_problem(
        await ann.send_post(f"/agent/sessions/{session}/messages", {"content": " "}), 422, complaint
    )
    assert_problem(await ann.send_post(f"/agent/executions/{execution}/input", {"text": " "}), 422, complaint)
    assert (await ann.get(f"/agent/executions/{execution}"))["status"] == "paused"
    del work


async def test_a_form_is_answered_with_its_data(ann: ApiCaller, work: None) -> None:
    """8.5.3"""
    session = await ann.create_session()
    execution = (await ann.post_message(session, "form"))["execution_id"]
    await ann.wait_for_request(execution)
    path = f"/agent/sessions/{session}/messages"

    assert_problem(
        await ann.send_post(path, {"data": {"seats": "two"}}), 422, "Answer does not match the schema: "
    )
    answered = await ann.post(path, {"data": {"seats": 2}})

    assert answered["route"] == "answer"
    ended = await ann.wait_for_status(execution, "completed")
    assert ended["output"]["response"] == 'So be it: {"seats":2}'
    assert_problem(await ann.send_post(path, {"content": " "}), 422, "say something")
    del work


async def test_a_call_runs_once_it_is_approved(ann: ApiCaller, work: None) -> None:
    """8.6.2, 8.6.3"""
    execution = await ann.start_execution("book")
    request = await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}/approvals/{request['id']}"
    right = {"decision": "approve", "args_digest": request["args_digest"]}

    wrong = assert_problem(await ann.send_post(path, {**right, "args_digest": "0" * 64}), 409)
    assert wrong["title"] == "Approval does not match the pending call"
    assert_problem(
        await ann.send_post(path, {**right, "args": {"hotel": "x"}}), 422, "send args with the decision"
    )
    assert_problem(await ann.send_post(path, {"decision": "approve"}), 422, "args_digest")
    for digest in ("", " ", right["args_digest"].upper(), right["args_digest"][:63], None):
        assert_problem(await ann.send_post(path, {**right, "args_digest": digest}), 422, "args_digest")
    assert (await ann.get(f"/agent/executions/{execution}"))["status"] == "paused"
    assert_problem(
        await ann.send_post(path, {**right, "remember": {"hotel": "Quay"}}), 422, "does not match the call"
    )
    decided = await ann.post(path, {**right, "remember": {"hotel": "Harbour*"}})
    again = assert_problem(await ann.send_post(path, right), 409)

    assert decided["state"] == "resolved"
    assert again["title"] == "Approval already resolved"
    ended = await ann.wait_for_status(execution, "completed")
    assert ended["output"]["response"] == "So be it: a room at Harbour Inn"
    del work


async def test_a_call_is_denied(ann: ApiCaller, work: None) -> None:
    """8.6.2"""
    execution = await ann.start_execution("book")
    request = await ann.wait_for_request(execution)

    path = f"/agent/executions/{execution}/approvals/{request['id']}"
    decision = {"decision": "deny", "reason": "too dear", "args_digest": request["args_digest"]}
    await ann.post(path, decision)

    ended = await ann.wait_for_status(execution, "completed")
    assert ended["output"]["response"] == "So be it: Denied by user: too dear"
    del work


async def test_after_an_edit_only_the_request_shows_the_original_arguments(
    sign_in: MakeCaller, work: None
) -> None:
    """8.6.2, 8.6.5"""
    ann = await sign_in("ann", "approve:edit")
    session = await ann.create_session()
    execution = (await ann.post_message(session, "book", broadcast="debug"))["execution_id"]
    request = await ann.wait_for_request(execution)

    path = f"/agent/executions/{execution}/approvals/{request['id']}"
    edit = {"decision": "edit", "args": {"hotel": "Quay"}, "args_digest": request["args_digest"]}
    assert (await ann.post(path, edit))["args"] == {"hotel": "Harbour Inn"}
    ended = await ann.wait_for_status(execution, "completed")
    edited = '[Arguments edited by user: {"hotel":"Quay"}]\na room at Quay'
    assert ended["output"]["response"] == f"So be it: {edited}"

    said = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
    assert [message["content"] for message in said if message["content"].startswith("book(")] == [
        "book(hotel: 'Quay')"
    ]
    store = ann.api_setup.sessions.client.store
    envelopes = await store.envelopes(ann.api_setup.tenant, UUID(session))
    (started,) = [e.payload for e in envelopes if e.type == "agent.tool.started"]
    assert (started["args_summary"], started["args"]) == ("hotel: 'Quay'", {"hotel": "Quay"})
    steps = (await ann.get(f"/agent/executions/{execution}/steps"))["items"]
    (call,) = steps[0]["calls"]
    assert (call["args"], call["requested_args"]) == ({"hotel": "Quay"}, {"hotel": "Harbour Inn"})
    assert call["text"] == edited
    del work


async def test_a_question_that_was_answered_accepts_no_other_answer(ann: ApiCaller, work: None) -> None:
    """8.5.4: in either form."""
    session = await ann.create_session()
    execution = (await ann.post_message(session, "ask me"))["execution_id"]
    question = await ann.wait_for_request(execution)
    await ann.post(f"/agent/executions/{execution}/input", {"text": "Friday"})

    named = {"request_id": question["id"]}
    for path, body in (
        (f"/agent/sessions/{session}/messages", {"content": "Monday", **named}),
        (f"/agent/sessions/{session}/messages", {"content": "Monday", "on_busy": "interrupt", **named}),
        (f"/agent/executions/{execution}/input", {"text": "Monday", **named}),
    ):
        assert_problem(await ann.send_post(path, body), 409, "The question is no longer open")
    ended = await ann.wait_for_status(execution, "completed")
    assert ended["output"]["response"] == "So be it: Friday"
    path = f"/agent/sessions/{session}/messages"
    assert_problem(await ann.send_post(path, {"content": "Monday", "request_id": str(uuid4())}), 404)
    del work


async def test_a_request_has_one_kind_and_one_execution(ann: ApiCaller, work: None) -> None:
    asking, booking = await ann.start_execution("ask me"), await ann.start_execution("book")
    question, approval = await ann.wait_for_request(asking), await ann.wait_for_request(booking)

    decision = {"decision": "approve", "args_digest": approval["args_digest"]}
    for execution, request in ((asking, question["id"]), (asking, approval["id"]), (booking, str(uuid4()))):
        assert_problem(
            await ann.send_post(f"/agent/executions/{execution}/approvals/{request}", decision), 404
        )
    answer = {"text": "Friday", "request_id": approval["id"]}
    assert_problem(await ann.send_post(f"/agent/executions/{booking}/input", answer), 404)
    assert_problem(await ann.send_post(f"/agent/executions/{booking}/input", {"text": "Friday"}), 409)
    del work


async def test_the_inbox_lists_open_requests_of_all_sessions(sign_in: MakeCaller, work: None) -> None:
    """8.4.1"""
    ann, ben, service = await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")
    session = await ann.create_session()
    first = (await ann.post_message(session, "ask me"))["execution_id"]
    await ann.wait_for_request(first)
    second = await ann.start_execution("book")
    await ann.wait_for_request(second)
    third = await ben.start_execution("book")
    await ben.wait_for_request(third)

    async def inbox(person: ApiCaller, **query: Any) -> list[str]:
        return [request["execution_id"] for request in (await person.get("/agent/inbox", **query))["items"]]

    assert await inbox(ann) == [first, second]
    assert await inbox(ben) == [third]
    assert await inbox(service) == [first, second, third]
    page = await service.get("/agent/inbox", limit=2)
    assert await inbox(service, cursor=page["next_cursor"]) == [third]
    del work


async def test_steps_and_votes_are_listed(ann: ApiCaller, work: None) -> None:
    """15.1.7: the page of reasons, like that of steps, has the sentence of the whole execution."""
    execution = await ann.start_execution("book")
    request = await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}"
    approval = {"decision": "approve", "args_digest": request["args_digest"]}
    await ann.post(f"{path}/approvals/{request['id']}", approval)
    await ann.wait_for_status(execution, "completed")

    first, second = (await ann.get(f"{path}/steps"))["items"]
    assert (first["number"], first["type"], second["type"]) == (1, "tool_execution", "final")
    assert first["calls"][0]["tool"] == "book"
    assert first["calls"][0]["result"] == "a room at Harbour Inn"
    page = await ann.get(f"{path}/steps", limit=1)
    assert [step["number"] for step in page["items"]] == [1]
    page = await ann.get(f"{path}/steps", after=page["next_cursor"])
    assert [step["number"] for step in page["items"]] == [2]
    assert page["next_cursor"] is None
    votes = (await ann.get(f"{path}/trace"))["items"]
    assert [vote["outcome"]["shouldContinue"] for vote in votes] == [True, False]
    assert votes[0]["outcome"]["evaluations"][0]["criterion"]
    reasons = await ann.get(f"{path}/because", limit=1)
    others = await ann.get(f"{path}/because", limit=1, after=reasons["next_cursor"])
    beyond = await ann.get(f"{path}/because", after=2)
    pages = (reasons, others, beyond)
    assert [[step["number"] for step in page["steps"]] for page in pages] == [[1], [2], []]
    assert len({page["because"] for page in pages}) == 1
    assert others["next_cursor"] is None
    del work


async def test_the_because_of_an_execution_changes_with_it(ann: ApiCaller, work: None) -> None:
    """15.1.1, 15.1.4, 15.1.7: the same sentence in its own route, among the steps and in the trace."""
    execution = await ann.start_execution("book")
    request = await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}"

    waiting = await ann.get(f"{path}/because")

    assert re.fullmatch(r"waits: approval of book\(.*\) by the owner since \d\d:\d\d UTC", waiting["because"])
    assert (await ann.get(path))["because"] is None
    (step,) = waiting["steps"]
    assert (step["number"], step["because"]) == (1, waiting["because"])
    assert (await ann.get(f"{path}/steps"))["items"][0]["because"] == waiting["because"]

    approval = {"decision": "approve", "args_digest": request["args_digest"]}
    await ann.post(f"{path}/approvals/{request['id']}", approval)
    await ann.wait_for_status(execution, "completed")
    ended = await ann.get(f"{path}/because")

    sentences = [
        "went on: the model called 1 tool: book",
        "completed: the model answered without calling tools",
    ]
    assert ended["because"] == sentences[1]
    assert (await ann.get(path))["because"] == sentences[1]
    cancelled = await ann.start_execution("book")
    await ann.wait_for_request(cancelled)
    (paused, _) = (await ann.get("/agent/executions", because="true"))["items"]
    assert (paused["id"], paused["because"]) == (cancelled, None)
    await ann.post(f"/agent/executions/{cancelled}/cancel")
    await ann.wait_for_status(cancelled, "cancelled")
    listed = (await ann.get("/agent/executions", because="true"))["items"]
    single = [(await ann.get(f"/agent/executions/{each['id']}"))["because"] for each in listed]
    assert [each["because"] for each in listed] == single
    assert single[1] == sentences[1]
    assert "ann" in single[0]
    assert [each["because"] for each in (await ann.get("/agent/executions"))["items"]] == [None, None]
    assert [step["because"] for step in ended["steps"]] == sentences
    for kind in ("steps", "trace"):
        assert [step["because"] for step in (await ann.get(f"{path}/{kind}"))["items"]] == sentences
    (heard,) = ended["steps"][0]["messages"]
    assert (heard["kind"], heard["id"]) == ("approve", request["id"])
    assert heard["by"].startswith("ann")
    assert [vote["criterion"] for vote in ended["steps"][0]["votes"]] == ["ToolCallPresenceCheck"]
    assert ended["steps"][0]["folded_votes"] > 0
    assert ended["next_cursor"] is None
    del work


async def test_the_because_of_another_users_execution_is_not_found(sign_in: MakeCaller, work: None) -> None:
    """15.1.7: as if there were none."""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    execution = await ann.start_execution("book")

    for unknown in (execution, uuid4()):
        assert_problem(await ben.http.get(f"/agent/executions/{unknown}/because"), 404)
    del work


async def test_the_final_snapshot_is_stored_and_a_fork_is_independent(ann: ApiCaller, work: None) -> None:
    """8.1.3"""
    session = await ann.create_session()
    first = (await ann.post_message(session, "One"))["execution_id"]
    await ann.wait_for_status(first, "completed")
    path = f"/agent/executions/{first}"

    snapshots = (await ann.get(f"{path}/snapshots"))["items"]
    assert snapshots[0]["is_final"]
    fork = await ann.post(f"{path}/fork", {"step": 0, "content": "Another one"}, key="fork-1")
    again = await ann.post(f"{path}/fork", {"step": 0, "content": "Another one"}, key="fork-1")
    assert again["id"] == fork["id"] != first
    ended = await ann.wait_for_status(fork["id"], "completed")
    assert ended["output"]["response"] == "You said: Another one"
    assert_problem(await ann.send_post(f"{path}/fork", {"step": 7}), 422)
    assert_problem(await ann.send_post(f"{path}/fork", {"step": -1}), 422)
    del work


async def test_debug_mode_is_requested_with_an_execution(ann: ApiCaller, work: None) -> None:
    """8.1.3"""
    body = {"content": "Hello", "debug": True}
    session = await ann.create_session()
    begun = [
        (await ann.post("/agent/executions", body))["id"],
        (await ann.post("/agent/messages", body))["execution_id"],
        (await ann.post_message(session, "Hello", debug=True))["execution_id"],
        (await ann.post_message(session, "Hello again"))["execution_id"],
    ]

    for execution, debugged in zip(begun, (True, True, True, False), strict=True):
        await ann.wait_for_status(execution, "completed")
        (final,) = (await ann.get(f"/agent/executions/{execution}/snapshots"))["items"]
        assert (final["is_final"], final["debug_mode"]) == (True, debugged)
        assert ("messageStore" in final["state"]) is debugged
    del work


async def test_a_running_or_queued_execution_is_cancelled(ann: ApiCaller, work: None) -> None:
    """2.4.2, 8.2.1: the trace names the source of the signal that stopped it."""
    session = await ann.create_session()
    begun = (await ann.post_message(session, "book"))["execution_id"]
    await ann.wait_for_status(begun, "paused")
    waiting = (await ann.post_message(session, "Later"))["execution_id"]

    cancelled = await ann.post(f"/agent/executions/{waiting}/cancel")
    assert (cancelled["status"], cancelled["started_at"]) == ("cancelled", None)
    assert cancelled["is_cancelling"] is False
    answer = await ann.post(f"/agent/executions/{begun}/cancel")
    # The end may be stored already.
    assert answer["is_cancelling"] is (answer["status"] != "cancelled")
    ended = await ann.wait_for_status(begun, "cancelled")
    assert ended["stop_reason"] == "user_requested"
    assert (await ann.post(f"/agent/executions/{begun}/cancel"))["status"] == "cancelled"
    (decided,) = (await ann.get(f"/agent/executions/{begun}/trace"))["items"]
    vote = decided["outcome"]["evaluations"][0]
    assert (vote["criterion"], vote["reason"], vote["source"]) == ("StopSignal", "Cancelled", "cancel")
    del work


async def test_an_execution_is_paused_steered_and_resumed(ann: ApiCaller, work: None) -> None:
    execution = await ann.start_execution("book")
    await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}"

    await ann.post(f"{path}/pause")
    await ann.post(f"{path}/steer", {"content": "Make it quick"}, key="steer-1")
    await ann.post(f"{path}/resume")
    assert_problem(await ann.send_post(f"{path}/steer", {"content": " "}), 422)

    await ann.post(f"{path}/cancel")
    await ann.wait_for_status(execution, "cancelled")
    assert_problem(await ann.send_post(f"{path}/pause"), 409, "read the execution")
    assert_problem(await ann.send_post(f"{path}/steer", {"content": "x"}), 409)
    del work


async def test_an_ended_execution_cannot_be_cancelled(ann: ApiCaller, work: None) -> None:
    execution = await ann.start_execution("Hello")
    await ann.wait_for_status(execution, "completed")

    assert_problem(await ann.send_post(f"/agent/executions/{execution}/cancel"), 409)
    del work


async def test_a_request_does_not_wait_for_a_missing_worker(
    ann: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ann.api_setup.open_worker():
        session = await ann.create_session()
        execution = (await ann.post_message(session, "ask me"))["execution_id"]
        await ann.wait_for_request(execution)
    monkeypatch.setattr(idempotency, "PATIENCE", 0.5)

    pauses = [await ann.send_post(f"/agent/executions/{execution}/pause", key=key) for key in (None, "k-1")]
    answer = await ann.send_post(f"/agent/sessions/{session}/messages", {"content": "Friday"}, key="k-2")

    for refusal in (*pauses, answer):
        assert_problem(refusal, 503, "same Idempotency-Key")
    monkeypatch.undo()
    async with ann.api_setup.open_worker():
        again = await ann.send_post(f"/agent/sessions/{session}/messages", {"content": "Friday"}, key="k-2")
        assert again.json()["route"] == "answer"
        await ann.post(f"/agent/executions/{execution}/resume")
        assert (await ann.wait_for_status(execution, "completed"))["output"]["response"] == "So be it: Friday"


async def test_agents_are_listed(ann: ApiCaller) -> None:
    listed = await ann.get("/agent/agents")

    assert listed["default"] == "clerk"
    assert [agent["name"] for agent in listed["items"]] == ["clerk", "other", "chief"]
    clerk = listed["items"][0]
    assert "book" in clerk["tools"]
    assert "user_input" in clerk["capabilities"]
    assert clerk["source"] == AGENTS


async def test_an_execution_shows_its_agent_definition(ann: ApiCaller) -> None:
    """10.2.4: in the response of a single execution, because the definition is long."""
    clerk = (await ann.get("/agent/agents"))["items"][0]
    execution = await ann.start_execution("hello")

    assert (await ann.get(f"/agent/executions/{execution}"))["definition_hash"] == clerk["definition_hash"]
    assert len(clerk["definition_hash"]) == 64
    (listed,) = (await ann.get("/agent/executions"))["items"]
    assert listed["definition_hash"] is None


async def test_the_level_of_detail_for_viewers_is_set_with_an_execution(ann: ApiCaller, work: None) -> None:
    """7.5"""
    del work
    told: list[set[str]] = []
    for given in ({}, {"broadcast": "debug"}):
        started = await ann.post("/agent/executions", {"content": "hello", **given})
        await ann.wait_for_status(started["id"], "completed")
        store = ann.api_setup.sessions.client.store
        told.append({e.type for e in await store.envelopes(ann.api_setup.tenant, UUID(started["id"]))})
    assert ["agent.continuation" in each for each in told] == [False, True]
    assert_problem(
        await ann.send_post("/agent/executions", {"content": "hello", "broadcast": "loud"}), 422, "broadcast"
    )
