"""`everstep doctor` finds problems, and says how to fix them."""

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import PauseActivityRequest
from temporalio.client import ActivityFailureError, WorkflowUpdateFailedError
from temporalio.common import RetryPolicy

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution
from everstep.agent_domain.storage.steps import BeginStep
from everstep.client.temporal_entry import StartRequest
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect
from everstep.store.engine import create_engine
from everstep.workflows.contracts import WORKFLOW, workflow_id
from tests.acceptance.harness import Nursery, open_installation, until
from tests.databases import Databases
from tests.everstep.cli.desk import CommandLine, a_database
from tests.services import Servers

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def problems_of(desk: CommandLine, *options: object, **environment: str | None) -> list[str]:
    """The problems that it reports."""
    result = await desk.run_command(*options, "doctor", **environment)
    lines = result.stdout.splitlines()
    assert result.stderr == ""
    assert all(line.startswith(("ok     ", "WRONG  ")) for line in lines), result.output
    wrong = [line.removeprefix("WRONG  ") for line in lines if line.startswith("WRONG")]
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (bool(wrong), bool(wrong))
    return wrong


def a_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


@asynccontextmanager
async def open_other_command_line(
    desk: CommandLine, services: Servers, name: str
) -> AsyncGenerator[CommandLine]:
    """A command line with its own database, without a worker."""
    async with open_installation(
        desk.installation.nursery, services, await a_database(services, name)
    ) as own:
        yield CommandLine(own, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(nursery: Nursery, services: Servers) -> AsyncGenerator[CommandLine]:
    """An installation without problems."""
    async with open_installation(nursery, services, await a_database(services, "well")) as own:
        desk = CommandLine(own, "well")
        async with desk.open_worker():
            # The worker has started by now.
            await (await desk.client.start("clerk", "hello")).result()
            yield desk


async def test_traces_of_an_operator_are_repaired(nursery: Nursery, services: Servers) -> None:
    """8.2.3: an execution without a workflow is closed; once."""
    async with open_installation(nursery, services, await a_database(services, "mended")) as own:
        desk = CommandLine(own, "mended")
        async with desk.open_worker():
            execution = await desk.start_until_pause("pay")
            await execution.workflow.terminate("by an operator")

            async def is_repaired() -> bool:
                return "repaired  0 launched, 0 released, 1 closed" in await desk.output_of(
                    "doctor", "--repair"
                )

            await until("Temporal tells that it has ended", is_repaired)
            assert (await execution.get()).error_message == "Its workflow was terminated"
            assert "nothing to repair" in await desk.output_of("doctor", "--repair")


async def test_a_working_installation_has_no_problems(desk: CommandLine) -> None:
    said = await desk.output_of("doctor")

    assert [line[:7] for line in said.splitlines()] == ["ok     "] * 7
    assert "a worker answers on 'well'" in said


async def test_a_missing_installation_is_reported_with_how_to_start_one(
    desk: CommandLine, tmp_path: Path
) -> None:
    (wrong,) = await problems_of(desk, "--data", tmp_path, DATABASE_URL=None, TEMPORAL_ADDRESS=None)

    assert "start a local installation with `everstep up`, or set DATABASE_URL and TEMPORAL_ADDRESS" in wrong


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"TEMPORAL_ADDRESS": "127.0.0.1:9"}, "no Temporal server answers at 127.0.0.1:9 (the connection is"),
        ({"TEMPORAL_ADDRESS": "nowhere.invalid:7233"}, "no Temporal server answers at nowhere.invalid:7233"),
        ({"TEMPORAL_NAMESPACE": "other"}, "has no namespace 'other': create it, or check TEMPORAL_NAMESPACE"),
        ({"TEMPORAL_API_KEY": "secret"}, "does not speak TLS, which a TEMPORAL_API_KEY asks for"),
        ({"DATABASE_URL": "postgresql://127.0.0.1:9/x"}, "cannot be reached"),
        ({"DATABASE_URL": "nonsense"}, "use postgresql://user:password@host:5432/name"),
        ({"EVERSTEP_PAYLOAD_KEY": "short"}, "payload_key must be 32 random bytes in base64; make one with"),
        ({"EVERSTEP_PRESET": "best"}, "No preset named 'best'. Name a model with its provider"),
        ({"EVERSTEP_PRESET": "openai"}, "preset 'openai' needs a key; set OPENAI_API_KEY"),
        (
            {"EVERSTEP_AGENTS": str(Path(__file__).parent)},
            "cli can be used; an agent is a file there that ends in",
        ),
        (
            {"EVERSTEP_AGENTS": "tests.everstep.cli.sandboxed:agents"},
            "the agent 'shell' cannot run commands on this",
        ),
        ({"EVERSTEP_DEFAULT_AGENT": "clark"}, "default_agent: No agent named 'clark'. Choose from: clerk"),
        ({"EVERSTEP_AGENTS": "nowhere:agents"}, "the module of 'nowhere:agents' cannot be imported"),
    ],
)
async def test_it_names_a_problem_and_checks_all_the_rest(
    desk: CommandLine, environment: dict[str, str], complaint: str
) -> None:
    wrong = await problems_of(desk, **environment)

    assert complaint in wrong[0]
    assert len(wrong) == 1


async def test_agent_files_are_checked_once_with_their_servers(
    desk: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """10.2.3"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "everstep.toml").write_text("[mcp.time]\ncommand = ['no-such-program']\n")
    (tmp_path / "agents").mkdir()
    options = "{bash: {base_dir: /etc}, mcp: {servers: [time]}}"
    front = f"name: shell\ndescription: Helps\ncapabilities: {options}"
    (tmp_path / "agents" / "shell.md").write_text(f"---\n{front}\n---\nYou help.")
    (tmp_path / "agents" / "broken.md").write_text("no agent")

    # Without a server no later checks run.
    _, wrong = await problems_of(desk, EVERSTEP_AGENTS="agents", TEMPORAL_ADDRESS="127.0.0.1:9")

    assert wrong.startswith("the agent 'shell' cannot run commands on this machine")
    assert len(caplog.messages) == 1


async def test_missing_tables_are_reported_with_the_command_that_creates_them(
    desk: CommandLine, services: Servers
) -> None:
    database = {"DATABASE_URL": Databases(services.database_url).create()}

    (wrong,) = await problems_of(desk, **database)
    assert wrong.startswith("the tables are out of date (")
    assert wrong.endswith("): run `everstep db upgrade`")

    assert (await desk.output_of("db", "upgrade", **database)).startswith("the tables are up to date\n")
    assert await problems_of(desk, **database) == []


async def test_tables_of_a_newer_release_do_not_hold_up_the_way_back(
    desk: CommandLine, services: Servers
) -> None:
    """18.5.5"""
    database = await a_database(services, "newer")
    engine = create_engine(database)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE agent_schema_version SET version_num = 'from_the_future'"))
    await engine.dispose()

    said = await desk.output_of("db", "upgrade", DATABASE_URL=database)
    assert said.startswith(
        "the tables are those of a newer release, which this one can use; nothing is changed\n"
    )


async def test_builds_are_listed_and_made_current(desk: CommandLine) -> None:
    """18.5.8"""
    said = await desk.error_of("builds", "set-current", "nowhere")
    assert "Temporal does not make the build 'nowhere' current: " in said
    assert "first start workers with EVERSTEP_BUILD_ID=nowhere" in said
    for blank in ("", " "):
        said = await desk.error_of("builds", "set-current", blank)
        assert said == "the id of the build is blank; name one of `everstep builds list`"
    listed = await desk.run_command("builds", "list", "--json")
    assert listed.exit_code == 0
    for line in listed.stdout.splitlines():
        assert json.loads(line).keys() == {"build_id", "status", "created_at"}


async def test_without_a_worker_it_says_so_and_lists_the_waiting_executions(
    desk: CommandLine, services: Servers
) -> None:
    async with open_other_command_line(desk, services, "unattended") as unattended:
        execution = await unattended.client.start("clerk", "hello")

        assert await problems_of(unattended) == [
            "no worker listens on 'unattended': start one with `everstep worker`",
            "1 execution(s) are pending: they wait for a worker",
        ]

        async with unattended.open_worker():
            await execution.result()
            assert await problems_of(unattended) == []

        # Temporal lists the worker for some minutes.
        assert await problems_of(unattended) == [
            "no worker on 'unattended' answers within 3 seconds: start one with `everstep worker`"
        ]


async def test_an_execution_that_never_reached_temporal_is_reported(
    desk: CommandLine, services: Servers
) -> None:
    async with open_other_command_line(desk, services, "lost") as place:
        ref = ExecutionRef(place.client.derived_id("lost"))
        spec = ExecutionSpec(agent="clerk")
        await place.installation.store.accept(NewExecution(ref, spec, (user("hello"),)))

        _, wrong = await problems_of(place)

        assert wrong == (
            f"1 execution(s) have not reached Temporal ({ref.execution_id}): "
            "they wait for their session's turn, or for a worker to start them"
        )


async def test_executions_that_do_not_continue_are_reported(
    desk: CommandLine, services: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.14: the tables alone do not show it."""
    monkeypatch.setattr("everstep.runtime.failing_executions.MIN_FAILED_ATTEMPTS", 1)
    async with open_other_command_line(desk, services, "failing") as place:
        execution = await place.client.start("clerk", "hello")
        stuck, lost = [await running_execution(place, name) for name in ("stuck", "lost")]
        # An input of a newer version: this worker's attempts fail.
        unreadable = {
            "ref": {"execution_id": str(stuck.execution_id)},
            "plan": {"max_steps": "from the future"},
        }
        temporal: Any = place.installation.temporal
        stuck_workflow = await temporal.start_workflow(
            WORKFLOW, unreadable, id=workflow_id(stuck), task_queue="failing"
        )
        async with place.installation.store.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE agent_transcript ADD CHECK (step < 1) NOT VALID"))

        async with place.open_worker():

            async def has_failed_repeatedly() -> bool:
                described = (await execution.workflow.describe()).raw_description
                task = (await stuck_workflow.describe()).raw_description.pending_workflow_task
                return task.attempt > 1 and any(each.attempt > 1 for each in described.pending_activities)

            await until("its activity has failed repeatedly", has_failed_repeatedly)
            failing = await problems_of(place)
            await temporal.workflow_service.pause_activity(
                PauseActivityRequest(
                    namespace=temporal.namespace,
                    execution=WorkflowExecution(workflow_id=execution.workflow.id),
                    type="infer",
                    identity="an operator",
                    reason="the provider is down",
                )
            )
            paused = await problems_of(place)
            for workflow in (execution.workflow, stuck_workflow):
                await workflow.terminate()
    told = rf"{execution.id}: infer has failed \d+ times, last with StoreError: "
    reports = "\n".join(failing)
    assert re.search(f"{told}the worker's log says why; `everstep cancel` ends it", reports), reports
    assert re.search(
        rf"{stuck.execution_id}: its workflow cannot continue, as its task has failed \d+ times.*"
        f"`temporal workflow terminate -w {stuck_workflow.id}`",
        reports,
    ), reports
    assert f"1 running or paused execution(s) have no workflow in Temporal ({lost.execution_id}): " in reports
    assert len(failing) == len(paused) == 3
    (found,) = [each for each in paused if "paused in" in each]
    assert re.fullmatch(
        rf"{execution.id}: infer is paused in Temporal by an operator \(the provider is down\): "
        rf"`temporal activity unpause -w {execution.workflow.id} -a \d+` continues it",
        found,
    ), found


async def running_execution(place: CommandLine, name: str) -> ExecutionRef:
    """An execution that runs in the store, without a workflow."""
    ref = ExecutionRef(place.client.derived_id(name))
    new = NewExecution(
        ref, ExecutionSpec(agent="clerk"), (user("hello"),), task_queue=place.client.task_queue
    )
    await place.installation.store.accept(new)
    await place.installation.store.begin_step(BeginStep(ref, 1, 1, None))
    return ref


async def test_a_worker_with_another_payload_key_is_detected(desk: CommandLine, services: Servers) -> None:
    async with open_other_command_line(desk, services, "keyed") as place:
        key = a_key()
        address = place.installation.temporal_address
        keyed = replace(
            place.installation,
            temporal=await connect(Settings(temporal_address=address, payload_key=key)),
        )
        other = "the worker on 'keyed' has another payload_key than this process"
        async with CommandLine(keyed, "keyed").open_worker():
            # The worker has started by now.
            await (await CommandLine(keyed, "keyed").client.start("clerk", "hello")).result()
            for wrong_key in (a_key(), None):
                wrong, _ = await problems_of(place, EVERSTEP_PAYLOAD_KEY=wrong_key)
                assert wrong.startswith(other)
            assert await problems_of(place, EVERSTEP_PAYLOAD_KEY=key) == []

        # Without a worker, earlier payloads show it.
        alone = CommandLine(place.installation, "keyless")
        written = [(await problems_of(alone, EVERSTEP_PAYLOAD_KEY=each))[1:] for each in (key, a_key(), None)]
        assert [[finding.split(":")[0] for finding in findings] for findings in written] == [
            [],
            ["payloads in Temporal were encrypted with another payload_key"],
            ["payloads in Temporal are encrypted, and this process has no key"],
        ]


async def test_unencrypted_input_of_strangers_is_refused(desk: CommandLine, services: Servers) -> None:
    """8.9.4: by a worker, where there is a key. The execution continues, and answers callers with the key."""
    async with open_other_command_line(desk, services, "sealed") as place:
        address = place.installation.temporal_address
        sealed = Settings(temporal_address=address, payload_key=a_key())
        keyed = CommandLine(replace(place.installation, temporal=await connect(sealed)), "sealed")
        async with keyed.open_worker():
            execution = await keyed.start_until_pause("choose")
            stranger = place.installation.temporal.get_workflow_handle(execution.workflow.id)
            (request,) = await execution.requests()
            answer = {"call_id": request.call_id}
            with pytest.raises(WorkflowUpdateFailedError):
                await stranger.execute_update("submit_input", answer)  # pyright: ignore[reportUnknownMemberType] -- its overloads
            await stranger.signal("anything", answer)
            forged = StartRequest(agent="clerk", message="hello")
            with pytest.raises(ActivityFailureError):
                await place.installation.temporal.execute_activity(
                    "everstep.start",
                    forged,
                    id=str(uuid4()),
                    task_queue="sealed",
                    start_to_close_timeout=timedelta(seconds=10),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )

            await execution.submit_input("high")
            await execution.result()
            assert (await execution.get()).output
            assert len((await keyed.client.list()).rows) == 1


async def test_the_doctor_reports_payloads_from_before_the_key(desk: CommandLine, services: Servers) -> None:
    """8.9.4: and the setting permits reading them."""
    async with open_other_command_line(desk, services, "migrating") as place:
        async with CommandLine(place.installation, "migrating").open_worker():
            await (await CommandLine(place.installation, "migrating").client.start("clerk", "hello")).result()
        alone = CommandLine(place.installation, "nobody-works")
        key = a_key()
        told = (await problems_of(alone, EVERSTEP_PAYLOAD_KEY=key))[1:]
        assert [finding.split(",")[0] for finding in told] == ["a payload in Temporal is not encrypted"]
        given = {"EVERSTEP_PAYLOAD_KEY": key, "EVERSTEP_ACCEPT_PLAIN_PAYLOADS": "true"}
        assert (await problems_of(alone, **given))[1:] == []


@asynccontextmanager
async def a_provider(key: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """Lists its models for requests with the key; its address, and the requests that it received."""
    asked = list[str]()

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split()[1])
        status = "200 OK" if key in head else "401 Unauthorized"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve_connection, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_a_key_that_the_provider_refuses_is_reported(desk: CommandLine) -> None:
    given = dict[str, str]()
    async with a_provider("sk-right") as (address, asked):
        for driver in ("openai", "openai-chat", "anthropic"):
            preset = {"driver": driver, "model": "m", "base_url": address, "api_key_env": "OUR_KEY"}
            given = {"EVERSTEP_PRESETS": json.dumps({"ours": preset}), "EVERSTEP_PRESET": "ours"}

            assert await problems_of(desk, **given, OUR_KEY="sk-right") == []
            assert await problems_of(desk, **given, OUR_KEY="sk-wrong") == [
                "preset 'ours': the provider refuses the key in OUR_KEY (HTTP 401): check it, or api_key_env"
            ]
            assert set(asked) == {"/v1/models" if driver == "anthropic" else "/models"}
            asked.clear()

    (wrong,) = await problems_of(desk, **given, OUR_KEY="sk-right")
    assert wrong.startswith(f"preset 'ours': {address}")
    assert "cannot be reached" in wrong
