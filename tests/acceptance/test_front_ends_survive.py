"""Front ends with AG-UI and hosts of MCP see whole stories while everything behind them is killed.

The API and the worker are killed at random, connections are cut, and attempts of the model break off. The
unmodified client of AG-UI verifies that every event arrives once.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters

from everstep.http_api.api_keys import create_key
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, Process
from tests.browsers.relay import Relay, open_relay
from tests.browsers.viewer import in_node
from tests.wires.clients import AgUiClient, ag_ui_script

pytestmark = pytest.mark.asyncio(loop_scope="session")

READERS = 6
ROUNDS = int(os.environ.get("EVERSTEP_ROUNDS", "3"))


@asynccontextmanager
async def open_front(installation: Installation, folder: Path) -> AsyncGenerator[Front]:
    """An API and a worker with an agent whose attempts often break off."""
    keys = PostgresKeys(installation.store.engine)
    made = await create_key(keys, "people", tenant_id=f"front-{uuid4().hex}", user_id="ann")
    variables = {
        "EVERSTEP_AGENTS": "tests.acceptance.storytellers:agents",
        "EVERSTEP_AUTH_SECRET": "a secret of these tests, which is long enough",
        "EVERSTEP_TEST_FOLDER": str(folder),
        "EVERSTEP_TEST_ABORTED": "0.2",
    }
    front = Front(installation, folder, made.secret, f"front-{uuid4().hex}", variables=variables)
    try:
        yield front
    finally:
        for process in front.begun:
            await process.kill()


async def disturb(front: Front, relay: Relay, dice: Random, running: dict[str, Process]) -> str:
    """Kill a process and start another one, or cut all connections."""
    what = dice.choice(["api", "worker", "cut", "cut"])
    if what == "cut":
        relay.cut()
    else:
        await running[what].kill()
        running[what] = await (front.api() if what == "api" else front.process("worker", says="working on"))
    return what


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_event_arrives_once_while_processes_are_killed(
    installation: Installation, tmp_path: Path
) -> None:
    """17.1.6, 17.2.3, 17.2.4"""
    seed = int(os.environ.get("EVERSTEP_CHAOS_SEED", "1"))
    dice = Random(seed)  # noqa: S311 -- no secret
    done: list[str] = []
    async with (
        open_front(installation, tmp_path) as front,
        open_relay(front.port) as relay,
        in_node(*ag_ui_script(tmp_path)) as node,
    ):
        running = {"api": await front.api(), "worker": await front.process("worker", says="working on")}
        headers = {"Authorization": f"Bearer {front.key}"}
        url = f"http://127.0.0.1:{relay.port}/agui/teller"
        for round_ in range(ROUNDS):
            readers = [
                AgUiClient(node, uuid4().hex).make(url, headers, resumes=True, retryMin=50)
                for _ in range(READERS)
            ]
            for reader in readers:
                reader.patience = 300
            stories = [
                asyncio.create_task(reader.run(f"Story {4 * number + 1}"))
                for number, reader in enumerate(readers)
            ]
            # The requests themselves are not repeated by the client.
            await node.until_true(lambda: all(reader.kinds for reader in readers))  # noqa: B023
            while not all(story.done() for story in stories):
                done.append(await disturb(front, relay, dice, running))
                await asyncio.wait(stories, timeout=dice.uniform(0.2, 1.5))
            for reader, story in zip(readers, stories, strict=True):
                await compare(front, reader, story.result(), f"seed {seed}, round {round_}")
    assert not node.events_of("uncaught", None)
    events = sum(each["kind"] == "event" for each in node.said)
    disturbances = ", ".join(f"{done.count(what)} {what}" for what in sorted({*done}))
    logging.getLogger(__name__).warning(
        "%d runs, %d events, disturbed by %s", READERS * ROUNDS, events, disturbances
    )


async def compare(front: Front, reader: AgUiClient, seen: Any, where: str) -> None:
    """What a client has at the end is what is stored."""
    assert seen["error"] is None, (where, seen["error"])
    finished = reader.events[-1]
    assert finished["type"] == "RUN_FINISHED", where
    headers = {"Authorization": f"Bearer {front.key}"}
    async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=30) as http:
        path = f"/agent/executions/{finished['metadata']['executionId']}/steps"
        steps = (await http.get(path)).json()["items"]
    stored = [
        (message["role"], message["content"])
        for step in steps
        for message in step["messages"]
        if message["role"] in {"assistant", "tool"} and (message["content"] or message["role"] == "tool")
    ]
    shown = [
        (message["role"], message["content"])
        for message in seen["messages"]
        if message["role"] in {"assistant", "tool"} and message.get("content")
    ]
    assert sorted(shown) == sorted(stored), where


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_hosts_get_each_result_once_while_processes_are_killed(
    installation: Installation, programs: Path, tmp_path: Path
) -> None:
    """17.6.2, 17.6.7: `everstep mcp` repeats the calls of its host, and no execution starts twice."""
    dice = Random(int(os.environ.get("EVERSTEP_CHAOS_SEED", "1")))  # noqa: S311 -- no secret
    done: list[str] = []
    async with open_front(installation, tmp_path) as front, open_relay(front.port) as relay:
        running = {"api": await front.api(), "worker": await front.process("worker", says="working on")}
        arguments = ["mcp", "--url", f"http://127.0.0.1:{relay.port}", "--token", front.key]
        server = StdioServerParameters(command=str(programs / "everstep"), args=arguments)
        hosts = [asyncio.create_task(tell_stories(server)) for _ in range(READERS)]
        while not all(host.done() for host in hosts):
            done.append(await disturb(front, relay, dice, running))
            await asyncio.wait(hosts, timeout=dice.uniform(0.5, 2.5))
        runs = [run for host in hosts for run in host.result()]
        headers = {"Authorization": f"Bearer {front.key}"}
        async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=30) as http:
            stored = (await http.get("/agent/executions", params={"limit": 200})).json()["items"]
    assert {run["execution_id"]: run["response"] for run in runs} == {
        execution["id"]: execution["output"]["response"] for execution in stored
    }
    assert len(runs) == READERS * ROUNDS
    disturbances = ", ".join(f"{done.count(what)} {what}" for what in sorted({*done}))
    logging.getLogger(__name__).warning("%d runs over MCP, disturbed by %s", len(runs), disturbances)


async def tell_stories(server: StdioServerParameters) -> list[Any]:
    """The runs of a host, one after the other."""
    runs: list[Any] = []
    async with McpClient(server) as host:
        for number in range(ROUNDS):
            message = {"agent": "teller", "message": f"Story {4 * number + 1}"}
            run = (await host.call_tool("start", message)).structured_content
            while run is not None and not run["is_over"]:
                named = {"execution_id": run["execution_id"]}
                run = (await host.call_tool("result", named)).structured_content
            runs.append(run)
    return runs
