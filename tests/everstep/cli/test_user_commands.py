"""Exporting and erasing the data of one person."""

import json
from pathlib import Path
from uuid import uuid4
from zipfile import ZipFile

import pytest

from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.sessions import NewSession
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
