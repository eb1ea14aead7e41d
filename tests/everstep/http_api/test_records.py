"""Comparisons of executions, and their ledgers, over HTTP."""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.ledger import BEFORE_FIRST
from everstep.agent_domain.storage.run_record import RunRecord
from everstep.agent_domain.values import json_text
from everstep.client.ledgers import audit_execution
from everstep.runtime.replay.replaying import replay_record
from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem


def read_run_data(content: str) -> RunRecord:
    """The record in the data file of an exported test."""
    return RunRecord.from_dict(json.loads(content))


async def run_to_the_end(person: ApiCaller, content: str) -> str:
    """An execution that has answered."""
    execution = await person.start_execution(content)
    await person.wait_for_status(execution, "completed", "failed")
    return execution


async def test_two_executions_are_compared(ann: ApiCaller, work: None) -> None:
    """15.4.1: in the form that the command prints, too."""
    one, other = await run_to_the_end(ann, "spend 0.25"), await run_to_the_end(ann, "spend 0.5")

    found = await ann.get(f"/agent/executions/{one}/diff/{other}")

    assert found["version"] == 1
    sides = found["executions"]
    assert [sides[side]["cost_usd"] for side in "ab"] == [0.25, 0.5]
    (step,) = found["steps"]
    assert (step["a"], step["b"], step["same"], step["shared"]) == (1, 1, True, False)
    assert step["cost_usd"] == {"a": 0.25, "b": 0.5}
    assert (found["differing_steps"], found["settings"]) == (0, [])
    client = replace(ann.api_setup.sessions.client, tenant_id=ann.api_setup.tenant)
    assert (await client.diff(one, other)).to_dict() == found
    del work


async def test_both_executions_have_to_be_the_callers(sign_in: MakeCaller, work: None) -> None:
    """15.4.5"""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    hers, his = await run_to_the_end(ann, "My treasure"), await run_to_the_end(ben, "hello")

    for a, b in ((hers, his), (his, hers), (his, str(uuid4())), (hers, hers)):
        assert_problem(await ben.http.get(f"/agent/executions/{a}/diff/{b}"), 404, "There is no execution")
    stranger = await sign_in("ben", "sessions:all", tenant=f"far-{uuid4().hex}")
    assert_problem(await stranger.http.get(f"/agent/executions/{hers}/diff/{his}"), 404)
    desk = await sign_in("desk", "sessions:all")
    assert "My treasure" in json_text(await desk.get(f"/agent/executions/{hers}/diff/{his}"))
    del work


async def test_an_execution_is_exported_in_every_form(sign_in: MakeCaller, work: None) -> None:
    """15.3.11: the files of the command."""
    ann, desk = await sign_in("ann"), await sign_in("desk", "sessions:all")
    execution = await run_to_the_end(ann, "My key is sk-live-4f9a8b7c6d5e4f3a")
    path = f"/agent/executions/{execution}/export"
    stem = f"_{execution[:8]}"

    test = await desk.get(path, **{"as": "test"})
    names = [file["name"] for file in test["files"]]
    assert [name.endswith(f"{stem}{end}") for name, end in zip(names, (".py", ".json"), strict=True)] == [
        True,
        True,
    ]
    assert test["execution_id"] == execution
    record = read_run_data(test["files"][1]["content"])
    assert (str(record.ref.execution_id), record.redacted) == (
        execution,
        sum(each["count"] for each in test["redacted"]),
    )
    assert record.redacted > 0
    for form in ("scenario", "dataset"):
        (file,) = (await desk.get(path, **{"as": form}))["files"]
        assert file["content"]
        assert "sk-live" not in json_text(file)
    (line,) = (await desk.get(path, **{"as": "dataset", "shape": "eval"}))["files"]
    assert json.loads(line["content"])["metadata"]["execution_id"] == execution
    assert "sk-live" not in json_text(test)
    del work


async def test_forks_and_runs_with_files_are_replayed_from_their_exports(
    sign_in: MakeCaller, work: None
) -> None:
    """15.3.2: with the conversation before it, also without a message of its own, and with files."""
    ann, desk = await sign_in("ann"), await sign_in("desk", "sessions:all")
    first = await run_to_the_end(ann, "Hello")
    forked = f"/agent/executions/{first}/fork"
    fork = (await ann.post(forked, {"step": 1}))["id"]
    edited = (await ann.post(forked, {"step": 0, "content": "Good evening"}))["id"]
    note = await ann.upload(b"# Notes", "notes.md")
    looking = (await ann.post("/agent/executions", {"content": "look", "attachments": [note["id"]]}))["id"]
    exporting = await ann.start_execution("export table.csv")
    agents = ann.api_setup.sessions.client.agents

    for execution in (fork, edited, looking, exporting):
        await ann.wait_for_status(execution, "completed", "failed")
        exported = await desk.get(f"/agent/executions/{execution}/export")
        record = read_run_data(exported["files"][1]["content"])
        replay = await replay_record(record, agents)
        assert replay.differences == (), replay.comparison.text
        assert len(replay.replayed.steps) == len(record.steps) > 0
    del work


async def test_only_services_that_see_all_sessions_export(sign_in: MakeCaller, work: None) -> None:
    """15.3.11"""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    execution = await run_to_the_end(ann, "Hello")
    path = f"/agent/executions/{execution}/export"

    assert_problem(await ben.http.get(path, params={"as": "test"}), 404, "There is no execution")
    stranger = await sign_in("ann", "sessions:all", tenant=f"far-{uuid4().hex}")
    assert_problem(await stranger.http.get(path, params={"as": "test"}), 404, "There is no execution")
    assert_problem(await ann.http.get(path, params={"as": "test"}), 403, "needs the scope 'sessions:all'")
    desk = await sign_in("desk", "sessions:all")
    assert (await desk.get(path))["form"] == "test"
    assert_problem(await desk.http.get(path, params={"as": "tests"}), 422, "'test', 'scenario' or 'dataset'")
    assert_problem(await desk.http.get(path, params={"as": "dataset", "shape": "x"}), 422, "shape")
    unknown = f"/agent/executions/{uuid4()}/export"
    assert_problem(await desk.http.get(unknown, params={"as": "test"}), 404, "There is no execution")
    del work


async def test_a_ledger_is_read_in_pages_and_its_chain_verified(sign_in: MakeCaller, work: None) -> None:
    """15.7.2, 15.7.5: of a call that a person approved, with the decider and without texts."""
    ann, ben = await sign_in("ann"), await sign_in("ben", "approve")
    execution = await ann.start_execution("refund")
    request = await ann.wait_for_request(execution)
    decision = {"decision": "approve", "args_digest": request["args_digest"]}
    await ben.post(f"/agent/executions/{execution}/approvals/{request['id']}", decision)
    await ann.wait_for_status(execution, "completed")

    entries, cursor, last = list[dict[str, Any]](), None, BEFORE_FIRST
    while True:
        page = await ann.get(
            f"/agent/executions/{execution}/ledger", limit=2, **({"cursor": cursor} if cursor else {})
        )
        assert (page["version"], page["sealed"]) == (1, True)
        entries += page["entries"]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    (decided,) = [entry["facts"] for entry in entries if entry["kind"] == "decided"]
    assert (decided["by"]["subject"], decided["by"]["scopes"]) == ("ben", ["approve"])
    assert decided["args_digest"] == request["args_digest"]
    assert "80 euros" not in json_text(entries)
    for entry in entries:
        own = entry.pop("hash")
        written = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert (entry["previous"], sha256(written.encode()).hexdigest()) == (last, own)
        last = own
    store = ann.api_setup.sessions.client.store
    report = await audit_execution(store, ExecutionRef(UUID(execution), ann.api_setup.tenant))
    assert (report.hash, report.is_closed, report.breaks, report.gone) == (last, True, (), ())
    del work


async def test_ledgers_are_exported_over_a_period(sign_in: MakeCaller, work: None) -> None:
    """15.7.6: own ones, and those of all users with `sessions:all`."""
    ann, ben, desk = await sign_in("ann"), await sign_in("ben"), await sign_in("desk", "sessions:all")
    hers, his = await run_to_the_end(ann, "hello"), await run_to_the_end(ben, "My treasure")

    async def export(person: ApiCaller, **query: Any) -> tuple[set[str], str | None]:
        answer = await person.http.get("/agent/ledger", params=query)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
        entries = [json.loads(line) for line in answer.text.splitlines()]
        return {entry["execution_id"] for entry in entries}, answer.headers.get("everstep-next-cursor")

    mine, cursor = await export(ann)
    assert mine == {hers}
    assert (await export(ann, cursor=cursor))[0] == set()
    assert (await export(ben))[0] == {his}
    assert (await export(desk))[0] == {hers, his}
    assert (await export(desk, until="2026-01-01T00:00:00Z"))[0] == set()
    later = await run_to_the_end(ann, "hello again")
    assert (await export(ann, cursor=cursor))[0] == {later}
    assert_problem(await ann.http.get("/agent/ledger", params={"cursor": "x"}), 422, "cursor cannot be read")
    del work


async def test_an_execution_of_an_older_release_has_a_ledger_that_is_not_sealed(
    ann: ApiCaller, work: None
) -> None:
    """15.7.8"""
    execution = await run_to_the_end(ann, "spend 0.25")
    async with ann.api_setup.keys.engine.connect() as connection:
        for statement in (
            "DELETE FROM agent_ledger WHERE execution_id = :id",
            "DELETE FROM agent_ledger_heads WHERE execution_id = :id",
            "UPDATE agent_executions SET is_sealed = false WHERE id = :id",
        ):
            await connection.execute(text(statement), {"id": execution})

    page = await ann.get(f"/agent/executions/{execution}/ledger")
    report = await audit_execution(
        ann.api_setup.sessions.client.store, ExecutionRef(UUID(execution), ann.api_setup.tenant)
    )

    assert page["sealed"] is False
    assert [(entry["kind"], entry["sealed"]) for entry in page["entries"]] == [
        ("accepted", False),
        ("replied", False),
        ("judged", False),
        ("ended", False),
    ]
    assert (report.is_sealed, report.is_whole, report.entries) == (False, True, 0)
    del work


async def test_the_prompt_of_a_step_is_read_page_by_page(sign_in: MakeCaller, work: None) -> None:
    """16.4.11: the instructions with `sessions:all` only, and nothing of others."""
    ann, ben, boss = await sign_in("ann"), await sign_in("ben"), await sign_in("boss", "sessions:all")
    run = await ann.post("/agent/executions", {"agent": "clerk", "content": "ask"})
    await ann.wait_for_status(run["id"], "paused")
    await ann.post(f"/agent/executions/{run['id']}/input", {"text": "Friday"})
    await ann.wait_for_status(run["id"], "completed")
    path = f"/agent/executions/{run['id']}/steps/2/prompt"

    prompt = await ann.get(path)
    assert [message["role"] for message in prompt["messages"]] == ["user", "assistant", "tool"]
    assert (prompt["total"], prompt["first"], prompt["is_current"]) == (3, 0, True)
    assert "refund" in [tool["name"] for tool in prompt["tools"]]
    assert prompt["instructions"] is None
    assert isinstance((await boss.get(path))["instructions"], list)
    last = await ann.get(path, limit=1)
    assert (last["messages"], last["first"]) == (prompt["messages"][2:], 2)
    earlier = await ann.get(path, limit=5, before=2)
    assert (earlier["messages"], earlier["first"]) == (prompt["messages"][:2], 0)
    assert_problem(await ann.http.get(path.replace("/2/", "/3/")), 404, "There is no step 3")
    assert_problem(await ben.http.get(path), 404)
