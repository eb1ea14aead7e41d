"""MCP servers in durable executions: third-party servers, and hostile ones."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql
import pytest
import pytest_asyncio
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import calls
from everstep.agent_domain.tools.toolsets import Asker
from everstep.capabilities.mcp import HttpServer, Server, UseMCP, close_connections, toolset as mcp_toolset
from everstep.client.client import Execution
from everstep.local.runner import LocalRunner
from everstep.store.engine import create_engine
from everstep.store.sessions import PostgresSessions
from everstep.workflows import agent_execution
from tests.everstep.capabilities.mcp.counterparts import TIME, everything, everything_over_http, filesystem
from tests.everstep.capabilities.mcp.hostile_http import HostileHttp, hostile_http
from tests.everstep.capabilities.mcp.using import hostile, wait_until
from tests.services import Servers, make_database
from tests.workflows.failpoints import FailpointStrike, results
from tests.workflows.harness import Office, WatchedStore, an_agent, an_office, at_work, final_result, runs_of

FORGIVING = ErrorPolicy.retry_all(9)


@pytest_asyncio.fixture(autouse=True)
async def close_servers() -> AsyncGenerator[None]:
    """Close every server after a test."""
    yield
    await close_connections()


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Asker]:
    """The requests for a list of tools."""
    asked, ask = list[Asker](), mcp_toolset.McpToolset.list_tools

    async def list_tools(self: mcp_toolset.McpToolset, asker: Asker) -> object:
        asked.append(asker)
        return await ask(self, asker)

    monkeypatch.setattr(mcp_toolset.McpToolset, "list_tools", list_tools)
    return asked


def using(server: Server, *script: InferenceResponse | str, **given: Any) -> DefinitionBuilder:
    """An agent that calls its tools `s_...`."""
    return an_agent(*script).with_capability(UseMCP(server, "s", **given)).with_error_policy(FORGIVING)


def asks(tool: str, **args: object) -> InferenceResponse:
    return calls((f"s_{tool}", args))


class TestServersOfOthers:
    async def test_three_servers_serve_one_execution(
        self, temporal: TemporalClient, tmp_path: Path, listings: list[Asker]
    ) -> None:
        """9.10.1, 9.10.2: each listed once, and called by its prefix; in-process it is the same."""
        note = str(tmp_path / "note.txt")
        script = (
            calls(
                ("time_convert_time", {"source_timezone": "UTC", "time": "09:00", "target_timezone": "UTC"}),
                ("files_write_file", {"path": note, "content": "noted"}),
                ("all_get-sum", {"a": 2, "b": 3}),
            ),
            calls(("files_read_text_file", {"path": note})),
            calls(("files_read_text_file", {"path": "/etc/passwd"})),
            "Done",
        )

        def agent() -> DefinitionBuilder:
            builder = an_agent(*script).with_error_policy(FORGIVING)
            for server, prefix in ((TIME, "time"), (filesystem(tmp_path), "files"), (everything(), "all")):
                builder.with_capability(UseMCP(server, prefix))
            return builder

        async with at_work(temporal, agent()) as office:
            execution, result = await office.run()
            read = await results(execution)
            said = await office.conversation(execution)
        asked = [asker.execution_id for asker in listings]

        assert json.loads(read[0])["time_difference"] == "+0.0h"
        assert read[2:4] == ["The sum of 2 and 3 is 5.", "noted"]
        assert read[4].startswith("Error: Access denied")
        assert (result.status, asked) == (AgentStatus.COMPLETED, [execution.id] * 3)
        local = await LocalRunner(agent().definition()).run(AgentState.empty().with_user_message("Go"))
        assert [message.text for message in local.messages] == said

    @pytest.mark.parametrize("way", ["stdio", "http"])
    async def test_content_other_than_text_is_named_and_not_stored(
        self, temporal: TemporalClient, way: str
    ) -> None:
        """9.10.2: an image, a link, resources, structured content."""
        script = (
            calls(
                ("s_get-tiny-image", {}),
                ("s_get-resource-links", {"count": 1}),
                ("s_get-resource-reference", {"resourceType": "Blob", "resourceId": 1}),
                ("s_get-structured-content", {"location": "Chicago"}),
            ),
            "Done",
        )

        async def run_to_end(server: Server) -> list[str]:
            async with at_work(temporal, using(server, *script)) as office:
                execution, _ = await office.run()
                return await results(execution)

        if way == "stdio":
            image, link, blob, structured = await run_to_end(everything())
        else:
            async with everything_over_http() as server:
                image, link, blob, structured = await run_to_end(server)
        assert "[image, image/png, 4,033 bytes, not shown]" in image
        assert "[link to the resource demo://" in link
        assert "[resource demo://resource/dynamic/blob/1, text/plain, " in blob
        assert "temperature" in json.loads(structured)
        assert len(image + blob) < 1_000

    async def test_neither_a_lost_worker_nor_a_cut_history_asks_for_the_list_again(
        self, temporal: TemporalClient, listings: list[Asker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """9.10.1, 1.1.4: the next worker starts the server, and calls the recorded tools."""
        monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 20)
        sums = [asks("get-sum", a=number, b=1) for number in range(6)]
        strike = FailpointStrike(Failpoint.TOOL_AFTER_EFFECT)
        office = an_office(temporal, using(everything(), *sums, "Done").with_approval("s_get-sum", "always"))
        async with office.worker(strike=strike):
            execution = await office.start()
            for _ in range(3):
                await office.until_waiting(execution)
                await execution.approve()
                await office.until_running_again(execution)
            await office.until_waiting(execution)
        await close_connections()
        async with office.worker():
            await execution.approve(remember=True)
            await final_result(execution)

            assert await results(execution) == [
                f"The sum of {number} and 1 is {number + 1}." for number in range(6)
            ]
            assert len(await runs_of(execution)) > 1
        assert strike.at is None
        assert len(listings) == 1


class TestFailures:
    async def test_a_server_that_never_responds_fails_the_step(
        self, temporal: TemporalClient, listings: list[Asker]
    ) -> None:
        """9.10.1, 4.5.4: the error policy decides, and no workflow is stuck."""
        agent = using(hostile("silent"), "Never", connect_seconds=0.2)
        async with at_work(temporal, agent.with_error_policy(ErrorPolicy.retry_all(2))) as office:
            execution, result = await office.run()
            row, steps = await execution.get(), await execution.steps()

        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)
        assert row.error_message == "MCP server 's': it did not answer within 0.2s"
        assert [error.type for step in steps for error in step.errors] == [ErrorType.TIMEOUT] * 2
        assert len(listings) == 2

    async def test_a_server_that_dies_during_a_call_fails_the_call(
        self, temporal: TemporalClient, tmp_path: Path
    ) -> None:
        """9.10.2: a tool that runs at most once is not called again, an idempotent one is; the next call
        works.
        """
        once, twice = tmp_path / "once", tmp_path / "twice"
        script = (
            calls(("s_die", {"note": str(once)}), ("s_dies_once", {"note": str(twice)})),
            asks("garbage"),
            asks("huge"),
            asks("echo", text="well"),
            "Done",
        )
        async with at_work(temporal, using(hostile(), *script).with_parallel_tools(False)) as office:
            execution, result = await office.run()
            read = await results(execution)

        assert read[0].startswith("Error: MCP server 's': it ended with exit code 3; whether it did")
        assert read[1:3] == ["alive", "after the garbage"]
        assert "and at most 8,388,608 are read" in read[3]
        assert read[4] == "well"
        assert once.read_text() == "died\n"
        assert result.status is AgentStatus.COMPLETED

    @pytest.mark.parametrize(
        ("tool", "reads"), [("wait", f"Error: {EFFECT_UNKNOWN}"), ("dies_once", "alive")]
    )
    async def test_a_lost_worker_repeats_only_idempotent_calls(
        self, temporal: TemporalClient, tmp_path: Path, tool: str, reads: str
    ) -> None:
        """9.10.2, 1.1.3: as the server declared it."""
        note = tmp_path / "note"
        note.touch()
        script = (asks(tool, seconds=0, note=str(note)), "Done")
        async with at_work(
            temporal, using(hostile(), *script), strike=FailpointStrike(Failpoint.TOOL_AFTER_EFFECT)
        ) as office:
            execution, _ = await office.run()

            assert await results(execution) == [reads]


async def by_update(execution: Execution) -> None:
    await execution.cancel()


async def by_temporal(execution: Execution) -> None:
    await execution.workflow.cancel()


class TestCancelling:
    @pytest.mark.parametrize("cancel", [by_update, by_temporal])
    async def test_a_call_ends_with_its_execution_and_the_server_is_notified(
        self,
        temporal: TemporalClient,
        tmp_path: Path,
        cancel: Callable[[Execution], Awaitable[None]],
    ) -> None:
        """8.2.1, 1.1.5: within moments; other executions continue to call it."""
        notes = tmp_path / "notes"
        server = hostile(env={"NOTES": str(notes)})
        agent = using(server, asks("never", note=str(notes)), asks("echo", text="well"), "Done")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await wait_until(notes.exists)
            began = time.perf_counter()
            await cancel(execution)
            result = await final_result(execution)
            took = time.perf_counter() - began
            await wait_until(lambda: "cancelled" in notes.read_text())

            assert await results(execution) == [CANCELLED_CALL]
            assert (await execution.get()).status is ExecutionStatus.CANCELLED
            other, _ = await office.run()
            assert await results(other) == ["well"]
        assert result.stop_reason is StopReason.USER_REQUESTED
        assert took < 5

    async def test_an_execution_is_cancelled_while_it_asks_for_the_list(
        self, temporal: TemporalClient, listings: list[Asker]
    ) -> None:
        """8.2.1, 9.10.1: of a server that never responds."""
        async with at_work(temporal, using(hostile("silent"), "Never")) as office:
            execution = await office.start()
            async with asyncio.timeout(20):
                while not listings:  # noqa: ASYNC110 -- no signal
                    await asyncio.sleep(0.01)
            await execution.cancel()
            result = await final_result(execution)

        assert result.stop_reason is StopReason.USER_REQUESTED


# Secrets.


@pytest.fixture(scope="module")
def database(services: Servers) -> str:
    """The URL of a database with our tables."""
    return make_database(services, "mcp_secrets")


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[HostileHttp]:
    async with hostile_http() as server:
        yield server
        await close_connections()


def all_rows(database: str) -> str:
    rows = list[str]()
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            wanted = psycopg.sql.SQL("SELECT t::text FROM {} t").format(psycopg.sql.Identifier(table))
            rows += [text for (text,) in connection.execute(wanted).fetchall()]
    return "\n".join(rows)


def token_of(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-of-{tenant}"}


async def ran_for(tenant: str, office: Office) -> Execution:
    """An execution of this tenant."""
    client = replace(office.client, tenant_id=tenant)
    execution = await client.start("agent", "Go")
    await final_result(execution)
    return execution


async def test_headers_of_tenants_are_in_no_history_and_in_no_database(
    temporal: TemporalClient, http: HostileHttp, database: str
) -> None:
    """9.10.2: not even where the server repeats them in its errors; no tenant has those of another."""
    engine = create_engine(database)
    shot = (asks("echo_secret"), asks("status", status=500), asks("html"), asks("slow", seconds=0), "Done")
    agent = using(HttpServer(f"{http.url}?key=sk-in-url", token_of), *shot, *shot)
    office = replace(an_office(temporal, agent), store=WatchedStore(PostgresSessions(engine)))
    async with office.worker():
        ran = [await ran_for(tenant, office) for tenant in ("acme", "globex")]
        read = [await results(execution) for execution in ran]
        histories = [
            event.SerializeToString()
            for execution in ran
            for run in await runs_of(execution)
            for event in run
        ]
    await engine.dispose()

    assert read[0] == read[1]
    assert read[0][0] == "Error: MCP server 's': no [hidden]"
    assert read[0][3] == "slept"
    seen = [headers["authorization"] for method, headers in http.seen if method == "tools/call"]
    assert set(seen[: len(seen) // 2]) == {"Bearer sk-of-acme"}
    assert set(seen[len(seen) // 2 :]) == {"Bearer sk-of-globex"}
    stored = all_rows(database)
    assert "slept" in stored
    assert "sk-" not in stored
    assert not any(b"sk-" in event for event in histories)
