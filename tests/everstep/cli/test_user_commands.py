"""Exporting and erasing the data of one person."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4
from zipfile import ZipFile

import pytest
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.sessions import NewSession
from everstep.client.command_delivery import CommandDelivery
from everstep.client.execution import Execution
from everstep.store.sessions import PostgresSessions
from tests.acceptance.harness import until_pause
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def a_person(desk: CommandLine) -> tuple[str, Execution]:
    """A person who is signed in, with a session, and an execution that waits for an answer."""
    name = f"ann {uuid4().hex}"
    await desk.open_browser_session(name)
    sessions = PostgresSessions(desk.installation.store.engine)
    await sessions.create_session(NewSession(uuid4(), DEFAULT_TENANT, name, title="Secret plans"))
    execution = await desk.client.start("clerk", user("choose"), user_id=name)
    return name, execution


async def test_the_data_of_a_person_are_exported(desk: CommandLine, tmp_path: Path) -> None:
    """18.9.3"""
    name, execution = await a_person(desk)
    file = tmp_path / "ann.zip"

    said = await desk.output_of("users", "export", name, "--output", file)
    again = await desk.error_of("users", "export", name, "--output", file)

    assert said.endswith(f"written: {file}\n")
    assert again == f"{file} exists; name another file with --output"
    with ZipFile(file) as archive:
        about = json.loads(archive.read("export.json"))
        (session,) = archive.read("tables/agent_sessions.jsonl").decode().splitlines()
        (row,) = archive.read("tables/agent_executions.jsonl").decode().splitlines()
        (sign_in,) = archive.read("tables/agent_sign_ins.jsonl").decode().splitlines()
    assert (about["user"], about["rows"]["agent_sessions"]) == (name, 1)
    assert json.loads(session)["title"] == "Secret plans"
    assert json.loads(row)["id"] == str(execution.id)
    assert "digest" not in json.loads(sign_in)
    assert not list(tmp_path.glob("*.part"))
    assert file.stat().st_mode & 0o777 == 0o600
    (unfinished := tmp_path / "again.zip.part").touch()
    refused = await desk.error_of("users", "export", name, "--output", tmp_path / "again.zip")
    assert refused.startswith(f"{unfinished} exists: another export writes it")
    assert unfinished.exists()


async def test_a_person_is_erased_once_executions_have_ended(desk: CommandLine) -> None:
    """18.9.4"""
    name, execution = await a_person(desk)
    _, kept = await a_person(desk)

    question = await desk.error_of("users", "erase", name)
    await until_pause(kept)
    said = await desk.output_of("users", "erase", name, "--yes", "--json")
    report = json.loads(said)
    again = await desk.output_of("users", "erase", name, "--yes")

    assert question == f"this erases all data of the user {name}; add --yes to do so without a question"
    assert report["removed"]["agent_sessions"] == report["removed"]["agent_executions"] == 1
    assert (report["left"], report["running"]) == ({}, [])
    assert again == f"There are no data of the user {name} in the tenant default.\n"
    assert await desk.installation.store.execution(execution.ref) is None
    assert await desk.installation.store.execution(kept.ref) is not None


async def test_two_runs_of_an_erasure_at_once_both_succeed(desk: CommandLine) -> None:
    """18.9.4: what one of them has removed is no error of the other."""
    name, execution = await a_person(desk)
    await asyncio.gather(*(desk.output_of("users", "erase", name, "--yes") for _ in range(2)))
    assert await desk.installation.store.execution(execution.ref) is None


async def test_executions_without_a_worker_share_the_time_that_an_erasure_waits(
    desk: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.9.4: and their cancels are stored, also without any time to wait; so is one that cannot continue."""
    client = replace(desk.client, task_queue=f"no-worker-{uuid4().hex}")
    names = [f"ann {uuid4().hex}" for _ in range(2)]
    hurried, patient = [
        [await client.start("clerk", user("choose"), user_id=name) for _ in range(count)]
        for name, count in zip(names, (1, 8), strict=True)
    ]

    update = vars(CommandDelivery)["_update"]

    async def fail_one(delivery: CommandDelivery, *given: Any) -> None:
        if delivery.ref == patient[0].ref:
            raise RPCError("Workflow Task in failed state", RPCStatusCode.FAILED_PRECONDITION, b"")
        await update(delivery, *given)

    monkeypatch.setattr(CommandDelivery, "_update", fail_one)

    said = [await desk.run_command("users", "erase", names[0], "--yes", "--wait", "0", "--json")]
    began = monotonic()
    said.append(await desk.run_command("users", "erase", names[1], "--yes", "--wait", "1", "--json"))

    assert monotonic() - began < len(patient)
    for result, executions in zip(said, (hurried, patient), strict=True):
        assert result.exit_code == 1
        assert set(json.loads(result.stdout)["running"]) == {str(each.id) for each in executions}
        for each in executions:
            assert [command.kind for command in await client.store.pending_commands(each.ref)] == ["cancel"]
