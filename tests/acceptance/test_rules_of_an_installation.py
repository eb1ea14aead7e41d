"""Rules about a running installation, each over HTTP against an API process and a worker process."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from everstep.agent_domain.ids import ExecutionRef
from everstep.http_api.api_keys import create_key
from everstep.store.keys import PostgresKeys
from everstep.workflows.contracts import workflow_id
from tests.acceptance.citizens import NAP, PATIENCE
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, until
from tests.acceptance.storm.programs import Program
from tests.acceptance.town import Town, state_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = "tests.acceptance.citizens:agents"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def town(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Town]:
    """One API process and one worker for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("town")
    tenant = f"town-{uuid4().hex}"
    keys, scopes = PostgresKeys(installation.store.engine), ["approve", "approve:edit"]
    made = await create_key(keys, "ann", tenant_id=tenant, user_id="ann", scopes=scopes)
    variables = {"EVERSTEP_AGENTS": AGENTS, "EVERSTEP_TEST_FOLDER": str(folder)}
    front = Front(installation, folder, made.secret, f"town-{uuid4().hex}", variables=variables)
    await front.process("worker", says="working on")
    try:
        async with Town.open(front, tenant) as town:
            yield town
    finally:
        for process in front.begun:
            await process.kill()


# Statuses and Temporal.


async def test_every_layer_has_its_own_status(town: Town) -> None:
    """1.2.1"""
    done = await town.begin([("count", {"mark": "a"})])
    assert (await town.wait_for_end(done))["status"] == "completed"
    asked = await town.begin([("user_input", {"prompt": "Which?"})])
    await town.request(asked)
    await town.post(f"/agent/executions/{asked['execution_id']}/cancel")
    assert (await town.wait_for_end(asked))["status"] == "cancelled"

    wire = [e.payload["status"] for e in await town.envelopes(asked) if e.type == "agent.status"]
    assert (wire[:2], wire[-1]) == (["processing", "paused"], "cancelled")
    assert state_of((await town.snapshots(done))[-1])["status"] == "completed"
    assert state_of((await town.snapshots(asked))[-1])["status"] == "completed"


async def test_the_model_learns_of_a_step_that_rests_in_no_result(town: Town) -> None:
    """1.1.5"""
    asked = await town.begin([("user_input", {"prompt": "Which?"})])
    await town.request(asked)
    await town.post(f"/agent/executions/{asked['execution_id']}/cancel")
    await town.wait_for_end(asked)
    messages = (await town.steps(asked))[-1]["messages"]
    assert messages[-1]["content"] == "Error: Cancelled before it finished"


# Clocks.


async def test_only_work_counts_as_time(town: Town) -> None:
    """2.7.1, 2.7.2 and 6.2: waiting for a person is no work, and the snapshots say so."""
    asked = await town.begin([("nap", {})], [("user_input", {"prompt": "Which?"})], [("nap", {})])
    request = await town.request(asked)
    await asyncio.sleep(2 * NAP)
    execution = asked["execution_id"]
    await town.post(f"/agent/executions/{execution}/input", text="this", request_id=request["id"])
    await town.wait_for_end(asked)

    *_, paused, final = await town.snapshots(asked)
    before, after = state_of(paused)["execution"], state_of(final)["execution"]
    assert NAP <= before["cumulative_seconds"] < after["cumulative_seconds"]
    assert 2 * NAP <= after["cumulative_seconds"] < 4 * NAP
    assert after["session_seconds"] == pytest.approx(after["cumulative_seconds"])
    assert before["started_at"] == after["started_at"]
    durations = [step["duration_ms"] for step in state_of(final)["steps"]]
    assert all(duration is not None and duration > 0 for duration in durations)


async def test_a_sessions_time_limits_all_its_executions(town: Town) -> None:
    """2.7.3"""
    first = await town.begin([("nap", {})], agent="brief")
    assert (await town.wait_for_end(first))["stop_reason"] == "completed"
    second = await town.say(first["session_id"], [("nap", {})], [("nap", {})], agent="brief")
    ended = await town.wait_for_end(second)
    assert (ended["stop_reason"], ended["step_count"]) == ("time_limit", 1)


# Viewers.


async def test_envelopes_have_their_keys(town: Town) -> None:
    """7.2 and 7.6.2"""
    done = await town.begin([("count", {"mark": "a"})])
    await town.wait_for_end(done)
    by_type = {e.type: e for e in await town.envelopes(done)}
    assert set(by_type["agent.step.started"].payload) == {
        "step_number",
        "message_count",
        "available_tools",
        "available_tools_count",
    }
    completed = by_type["agent.tool.completed"].payload
    assert completed["result_summary"] == "count a"
    assert completed["success"] is True
    last = (await town.envelopes(done))[-1]
    assert (last.type, last.payload["status"]) == ("agent.status", "completed")


async def test_messages_are_listed_as_they_were_stored(town: Town) -> None:
    """7.8.3"""
    done = await town.begin([("count", {"mark": "a"})])
    await town.wait_for_end(done)
    listed = (await town.get(f"/agent/sessions/{done['session_id']}/messages?limit=100"))["items"]
    moments = [(each["created_at"], each["id"]) for each in listed]
    assert moments == sorted(moments, reverse=True)
    announced = [e.id for e in await town.envelopes(done) if not e.type.startswith("agent.")]
    assert [str(each) for each in announced] == [
        each["id"] for each in reversed(listed) if UUID(each["id"]) in announced
    ]


async def test_only_the_operator_sees_the_message_of_a_tools_exception(town: Town) -> None:
    """5.4.4"""
    done = await town.begin([("spill", {})])
    ended = await town.wait_for_end(done)
    pages = [
        await town.get(f"/agent/executions/{done['execution_id']}/{part}")
        for part in ("steps", "trace", "snapshots", "requests")
    ]
    messages = await town.get(f"/agent/sessions/{done['session_id']}/messages")
    envelopes = [e.to_dict() for e in await town.envelopes(done)]
    seen = f"{ended}{pages}{messages}{envelopes}"
    assert "hunter2" not in seen
    assert "RuntimeError (ref " in seen


# Sessions, executions, snapshots.


async def test_a_session_knows_its_last_execution_and_snapshot(town: Town) -> None:
    """8.1 and 8.2.3"""
    accepted = await town.begin([("user_input", {"prompt": "Which?"})])
    session = await town.get(f"/agent/sessions/{accepted['session_id']}")
    assert session["last_execution_id"] == accepted["execution_id"]
    await town.request(accepted)

    async def has_snapshot() -> bool:
        found = await town.get(f"/agent/sessions/{accepted['session_id']}")
        return found["last_snapshot_id"] is not None

    await until("the session has a snapshot", has_snapshot)
    paused = (await town.snapshots(accepted))[-1]
    assert not paused["is_final"]
    await town.post(f"/agent/executions/{accepted['execution_id']}/input", text="this")
    ended = await town.wait_for_end(accepted)
    session = await town.get(f"/agent/sessions/{accepted['session_id']}")
    final = (await town.snapshots(accepted))[-1]
    assert (session["last_snapshot_id"], final["is_final"]) == (final["id"], True)
    assert ended["output"]["stop_reason"] == "completed"
    assert ended["started_at"] <= ended["completed_at"]


async def test_debug_mode_keeps_a_state_for_each_step_that_another_follows(town: Town) -> None:
    """8.1.3"""
    turns: tuple[Any, ...] = ([("count", {"mark": "a"})], [("count", {"mark": "b"})])
    done = await town.begin(*turns, debug=True)
    await town.wait_for_end(done)
    kept = [(each["step_number"], each["is_final"]) for each in await town.snapshots(done)]
    assert kept == [(1, False), (2, False), (3, True)]
    quiet = await town.begin(*turns)
    await town.wait_for_end(quiet)
    assert [each["is_final"] for each in await town.snapshots(quiet)] == [True]


async def test_a_subagent_is_a_separate_execution(town: Town) -> None:
    """8.1.2 and 9.6.3"""
    task = Program("[child]").text()
    done = await town.begin([("spawn_subagent", {"subagent": "finder", "prompt": task})])
    await town.wait_for_end(done)
    children = await town.get(f"/agent/executions?parent_execution_id={done['execution_id']}")
    (child,) = children["items"]
    assert child["metadata"]["parent_execution_id"] == done["execution_id"]
    assert await town.results(done) == ["[Subagent: finder] [child] is done."]


async def test_a_quiet_session_starts_the_next_message_with_the_conversation_so_far(town: Town) -> None:
    """8.2.4"""
    first = await town.begin([("count", {"mark": "a"})])
    await town.wait_for_end(first)
    second = await town.say(first["session_id"])
    assert second["route"] == "start"
    await town.wait_for_end(second)
    started = next(
        e
        for e in await town.envelopes(second)
        if e.type == "agent.step.started" and str(e.execution_id) == second["execution_id"]
    )
    assert started.payload["message_count"] > 3


async def test_a_busy_session_cannot_be_forked(town: Town) -> None:
    """8.2.5"""
    first = await town.begin([("count", {"mark": "a"})])
    await town.wait_for_end(first)
    busy = await town.say(first["session_id"], [("user_input", {"prompt": "Which?"})])
    await town.request(busy)
    await town.post(f"/agent/executions/{first['execution_id']}/fork", step=1, expect=409)
    await town.post(f"/agent/executions/{busy['execution_id']}/cancel")
    await town.wait_for_end(busy)
    forked = await town.post(f"/agent/executions/{first['execution_id']}/fork", step=1)
    assert (await town.wait_for_end(forked))["status"] == "completed"


async def test_a_deleted_session_leaves_nothing(town: Town) -> None:
    """8.7.1"""
    done = await town.begin([("count", {"mark": "a"})])
    await town.wait_for_end(done)
    answer = await town.http.delete(f"/agent/sessions/{done['session_id']}")
    assert answer.status_code == 204
    for path in (f"/agent/sessions/{done['session_id']}", f"/agent/executions/{done['execution_id']}"):
        assert (await town.http.get(path)).status_code == 404
    assert await town.envelopes(done) == []


# People.


async def test_questions_of_one_response_are_asked_one_after_the_other(town: Town) -> None:
    """8.5.2"""
    questions: Any = [("user_input", {"prompt": "First?"}), ("user_input", {"prompt": "Second?"})]
    asked = await town.begin(questions)
    for prompt in ("First?", "Second?"):
        request = await town.request(asked)
        assert request["request"]["prompt"] == prompt
        await town.post(f"/agent/executions/{asked['execution_id']}/input", text=f"to {prompt}")
        await until("it goes on", lambda closed=request["id"]: _is_closed(town, asked, closed))
    await town.wait_for_end(asked)
    assert await town.results(asked) == ["to First?", "to Second?"]
    types = [e.type for e in await town.envelopes(asked)]
    requested = types.index("agent.input.requested")
    following = [e for e in (await town.envelopes(asked))[requested:] if e.type == "agent.status"]
    assert following[0].payload["status"] == "paused"


async def _is_closed(town: Town, asked: dict[str, Any], request_id: str) -> bool:
    found = await town.get(f"/agent/executions/{asked['execution_id']}/requests")
    return all(each["id"] != request_id or each["state"] != "open" for each in found["items"])


async def test_a_question_without_an_answer_takes_the_default_or_fails(town: Town) -> None:
    """8.5.5"""
    question: Any = [("user_input", {"prompt": "Which?"})]
    hasty, mute = await town.begin(question, agent="hasty"), await town.begin(question, agent="mute")
    await asyncio.gather(town.wait_for_end(hasty), town.wait_for_end(mute))
    assert await town.results(hasty) == ["yes"]
    seconds = int(PATIENCE.total_seconds())
    assert (await town.results(mute)) == [f"Error: No answer within {seconds}s"]
    received = [e for e in await town.envelopes(hasty) if e.type == "agent.input.received"]
    assert [e.payload["source"] for e in received] == ["default"]


async def test_rules_decide_which_calls_wait_for_a_person(town: Town) -> None:
    """8.6.1"""
    cheap = await town.begin([("pay", {"mark": "cheap"})])
    assert (await town.wait_for_end(cheap))["status"] == "completed"
    dear = await town.begin([("pay", {"mark": "dear thing"})])
    request = await town.request(dear)
    assert (request["kind"], request["args"]) == ("approval", {"mark": "dear thing"})
    await town.post(f"/agent/executions/{dear['execution_id']}/cancel")
    await town.wait_for_end(dear)


@pytest.mark.parametrize(
    ("decision", "more", "result"),
    [
        ("approve", {}, "transfer a"),
        ("deny", {"reason": "too dear"}, "Denied by user: too dear"),
        ("deny", {}, "Denied by user"),
        ("edit", {"args": {"mark": "b"}}, '[Arguments edited by user: {"mark":"b"}]\ntransfer b'),
    ],
)
async def test_a_decision_is_carried_out(
    decision: str, more: dict[str, Any], result: str, town: Town
) -> None:
    """8.6.2 and 8.6.5"""
    asked = await town.begin([("transfer", {"mark": "a"})])
    request = await town.request(asked)
    path = f"/agent/executions/{asked['execution_id']}/approvals/{request['id']}"
    await town.post(path, decision=decision, args_digest=request["args_digest"], **more)
    await town.wait_for_end(asked)
    assert await town.results(asked) == [result]
    (call,) = (await town.steps(asked))[0]["calls"]
    assert call["args"] == more.get("args", {"mark": "a"})


async def test_an_approval_can_be_remembered(town: Town) -> None:
    """8.6.4"""
    asked = await town.begin([("transfer", {"mark": "a"})], [("transfer", {"mark": "b"})])
    request = await town.request(asked)
    path = f"/agent/executions/{asked['execution_id']}/approvals/{request['id']}"
    await town.post(path, decision="approve", args_digest=request["args_digest"], remember=True)
    await town.wait_for_end(asked)
    assert await town.results(asked) == ["transfer a", "transfer b"]


async def test_an_unanswered_execution_holds_no_worker(town: Town) -> None:
    """8.4.1"""
    asked = [await town.begin([("user_input", {"prompt": "Which?"})]) for _ in range(3)]
    for each in asked:
        await town.request(each)
    execution = ExecutionRef(UUID(asked[0]["execution_id"]), town.tenant)
    handle = town.installation.temporal.get_workflow_handle(workflow_id(execution))
    described = await handle.describe()
    assert not described.raw_description.pending_activities
    for each in asked:
        await town.post(f"/agent/executions/{each['execution_id']}/cancel")
        await town.wait_for_end(each)
