"""The command as a process: its streams, and its exit."""

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import httpx2
import pytest

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.cli import command
from everstep.runtime.embedded import find_running
from everstep.runtime.embedded.process_table import command_lines
from tests.acceptance.harness import ROOT, Nursery, Process, environment, until
from tests.everstep.capabilities.bash.surroundings import need_a_sandbox
from tests.everstep.cli.agents import hesitant
from tests.everstep.cli.desk import CommandLine
from tests.services import data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def start_without_buffer(
    nursery: Nursery, *arguments: str, log: Path, environment: Mapping[str, str]
) -> Process:
    """A process with unbuffered log output."""
    log.touch()
    return await nursery.start(*arguments, log=log, environment=environment)


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_stopping_follow_prints_the_command_to_resume(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    given = ("run", "Think", "--agent", "hesitant")
    process = await start_without_buffer(nursery, *given, log=tmp_path / "log", environment=desk.environment)

    # The model has not completed its answer, and the text so far is shown.
    await until("it streams", lambda: "  model   Let me think" in process.log.read_text())
    process.signal(signal.SIGINT)

    assert await process.wait() == 130
    said = process.log.read_text()
    assert said.startswith("step 1\n  model   Let me think\nThe execution continues. To follow it again: ")
    back = re.search(r"everstep (follow) (\S+)\n$", said)
    assert back
    execution = desk.client.execution(UUID(back[2]))
    assert (await execution.get()).status is ExecutionStatus.RUNNING
    following = asyncio.create_task(desk.output_of(*back.groups()))
    hesitant.go_on.set()
    assert (await following).startswith("step 1\n  model   Let me think about it.\nexecution  ")


async def test_an_execution_without_a_worker_is_reported(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    lonely = {**desk.environment, "EVERSTEP_TASK_QUEUE": "lonely"}
    given = ("--data", str(tmp_path), "run", "hello", "--agent", "clerk")
    process = await start_without_buffer(nursery, *given, log=tmp_path / "log", environment=lonely)
    await until("it tells", lambda: "pending: no worker has picked it up" in process.log.read_text())
    process.signal(signal.SIGINT)

    assert await process.wait() == 130
    back = re.search(rf"everstep --data {tmp_path} follow (\S+)\n$", process.log.read_text())
    assert back
    assert "no worker has picked it up; `everstep doctor` checks" in await desk.output_of("show", back[1])
    await desk.client.execution(back[1]).workflow.terminate()


@pytest.mark.parametrize(("number", "form"), [(signal.SIGTERM, "json"), (signal.SIGINT, "text")])
async def test_a_worker_stops_on_a_signal(
    desk: CommandLine, nursery: Nursery, tmp_path: Path, number: signal.Signals, form: str
) -> None:
    """18.3.5, 18.3.14: with a port, it serves metrics and probes under its own names.

    18.5.12: it warns if a script answers for its agents, as for the built-in one.
    """
    given = {
        **desk.environment,
        "EVERSTEP_TASK_QUEUE": "stops",
        "EVERSTEP_METRICS_PORT": "0",
        "EVERSTEP_LOG_FORMAT": form,
        # The warning about it is a line as well.
        "EVERSTEP_METRICS_PROT": "1",
    }
    if form == "json":
        given["EVERSTEP_AGENTS"] = ""
    worker = await start_without_buffer(nursery, "worker", log=tmp_path / "log", environment=given)
    await until("it works", lambda: "working on 'stops' for the agents" in worker.log.read_text())
    (url,) = re.findall(r"metrics at (http://[\w.:]+)/metrics", worker.log.read_text())
    async with httpx2.AsyncClient(base_url=url) as prometheus:
        page = (await prometheus.get("/metrics")).text
        assert 'everstep_activity_slots{state="free"}' in page
        assert "temporal_worker_start_total{" in page
        assert (await prometheus.get("/metrics", headers={"Host": "rebound.example"})).status_code == 403
        await until("it is ready", lambda: is_ready(prometheus))
        assert (await prometheus.get("/healthz")).json() == {"status": "ok"}
        assert (await prometheus.get("/")).status_code == 404
    worker.signal(number)

    assert await worker.wait() == 0, worker.log.read_text()
    lines = worker.log.read_text().splitlines()
    said = [json.loads(line)["message"] for line in lines] if form == "json" else lines
    assert "stopping; running model calls may finish" in said
    assert "EVERSTEP_METRICS_PROT" in said[0]
    warned = [line for line in said if "so the scripted demo model answers for assistant: set a key" in line]
    assert len(warned) == (form == "json")
    assert not any("Traceback" in line for line in lines)


async def is_ready(client: httpx2.AsyncClient) -> bool:
    return (await client.get("/readyz")).json()["status"] == "ready"


async def test_a_worker_that_cannot_start_says_why(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    given = {**desk.environment, "TEMPORAL_NAMESPACE": "elsewhere", "EVERSTEP_LOG_FORMAT": "json"}
    worker = await start_without_buffer(nursery, "worker", log=tmp_path / "log", environment=given)

    assert await worker.wait() == 1
    lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    # Temporal's core may have logged a warning before.
    assert lines[-1]["level"] == "error"
    assert lines[-1]["message"] == (
        "the Temporal namespace does not exist or is not visible; check TEMPORAL_NAMESPACE"
    )
    assert "exception" not in lines[-1]


async def test_a_worker_whose_resource_cannot_be_started_names_it(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    """9.9.7: it takes no work, and stops what it has started."""
    agents = "tests.everstep.cli.broken_agents:agents"
    given = {**desk.environment, "EVERSTEP_AGENTS": agents, "EVERSTEP_PRESET": "demo"}
    worker = await start_without_buffer(nursery, "worker", log=tmp_path / "log", environment=given)

    assert await worker.wait() == 1
    said = worker.log.read_text().splitlines()
    assert said == [
        "first starts",
        "first stops",
        "Error: the resource 'orders' cannot be started: ConnectionRefusedError: no database at port 5432",
    ]


async def remains_of(data: Path, *addresses: str) -> list[object]:
    """The remains of a local installation: processes, open ports, a lock, a socket."""
    found: list[object] = [line for line in (await command_lines()).values() if str(data) in line]
    for address in addresses:
        host, port = address.removeprefix("http://").split(":")
        with suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            found.append(address)
    return [*found, *([find_running(data)] if find_running(data) else []), *(data / "postgres").glob(".s.*")]


async def test_a_local_installation_leaves_nothing_behind(nursery: Nursery, tmp_path: Path) -> None:
    """18.3.14: with a log of JSON, its addresses are a line of JSON, too."""
    with data_directory() as folder:
        data, nothing = folder / "fresh", environment()
        logs = {**nothing, "EVERSTEP_LOG_FORMAT": "json"}
        (tmp_path / "talk.yaml").write_text("turns: [{text: I follow a script}]")
        given = (
            "--data",
            str(data),
            "up",
            "--model",
            f"scripted:{tmp_path / 'talk.yaml'}",
            "--temporal-port",
            "0",
            "--ui-port",
            "0",
            "--http-port",
            "0",
            "--gateway-port",
            "0",
        )
        up = await start_without_buffer(nursery, *given, log=tmp_path / "up", environment=logs)
        await until("it is up", lambda: up.ended.done() or "\n" in up.log.read_text())
        assert up.code is None, up.log.read_text()
        addresses = json.loads(up.log.read_text())
        assert addresses.keys() == {
            "database_url",
            "temporal_address",
            "ui_url",
            "api_url",
            "gateway_url",
            "token",
            "console_url",
        }
        ports = addresses["temporal_address"], addresses["ui_url"]
        assert len(await remains_of(data, *ports)) > 4

        ran = await start_without_buffer(
            nursery, "--data", str(data), "run", "Hello", log=tmp_path / "run", environment=nothing
        )
        assert await ran.wait() == 0, ran.log.read_text()
        assert "I follow a script" in ran.log.read_text()
        doctor = await start_without_buffer(
            nursery, "--data", str(data), "doctor", log=tmp_path / "doctor", environment=nothing
        )
        assert await doctor.wait() == 0, doctor.log.read_text()

        up.signal(signal.SIGINT)
        assert await up.wait() == 0, up.log.read_text()
        lines = [json.loads(line) for line in up.log.read_text().splitlines()]
        assert "stopping; running model calls may finish" in [each.get("message") for each in lines]
        assert await remains_of(data, *ports) == []


async def test_an_installation_without_a_worker_leaves_executions_to_others(
    nursery: Nursery, tmp_path: Path
) -> None:
    with data_directory() as folder:
        own, nothing = ("--data", str(folder / "data")), environment()
        ports = [word for name in ("temporal", "ui", "http", "gateway") for word in (f"--{name}-port", "0")]
        up = await start_without_buffer(
            nursery, *own, "up", "--no-worker", "--json", *ports, log=tmp_path / "up", environment=nothing
        )
        await until("it is up", lambda: up.ended.done() or "\n" in up.log.read_text())
        assert up.code is None, up.log.read_text()
        doctor = await start_without_buffer(
            nursery, *own, "doctor", log=tmp_path / "doctor", environment=nothing
        )
        assert await doctor.wait() == 1
        assert "start one with `everstep worker`" in doctor.log.read_text()
        up.signal(signal.SIGINT)
        assert await up.wait() == 0, up.log.read_text()


async def test_a_background_installation_handles_signals_like_one_in_the_foreground(
    nursery: Nursery, tmp_path: Path
) -> None:
    need_a_sandbox()
    with data_directory() as folder:
        # The sandbox has a /dev/shm of its own, where the data may be.
        data, work = folder / "data", tmp_path
        options = ("--data", str(data), "--agents", "tests.everstep.cli.interrupting:agents")
        ports = [word for name in ("temporal", "ui", "http", "gateway") for word in (f"--{name}-port", "0")]
        given = environment(PYTHONPATH=str(ROOT))
        up = await asyncio.create_subprocess_exec(
            *("sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh", nursery.everstep),
            *(*options, "up", *ports, "--json"),
            stdout=PIPE,
            cwd=work,
            env=given,
        )
        try:
            assert up.stdout
            addresses = json.loads(await up.stdout.readline())
            run = await asyncio.create_subprocess_exec(
                *(nursery.everstep, *options),
                *("run", "Interrupt yourself", "--agent", "interrupting"),
                stdout=PIPE,
                cwd=work,
                env=given,
            )
            said, _ = await run.communicate()
            assert run.returncode == 0
            assert re.findall(r"[A-Z]+ \d+", said.decode()) == ["HUP 129", "INT 130", "QUIT 131"]
        finally:
            up.terminate()
            code = await up.wait()
        assert code == 0
        assert await remains_of(data, addresses["temporal_address"], addresses["ui_url"]) == []


async def test_a_signal_ends_a_process_whose_output_is_read_by_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """18.5.11: the program that collected its log has ended."""

    def refuse(text: str, **_given: object) -> None:
        raise BrokenPipeError(text)

    monkeypatch.setattr(command, "echo", refuse)
    stop = command.stop_on_signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
