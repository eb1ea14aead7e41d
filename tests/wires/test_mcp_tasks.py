"""Executions as tasks of MCP, with the unmodified npm SDK and its extension for tasks."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.everstep.http_api.house import ApiCaller
from tests.node import installed_modules, node
from tests.wires.clients import HERE, LOCK

pytestmark = pytest.mark.usefixtures("work")

CallAsTask = Callable[..., Awaitable[list[Any]]]


@pytest.fixture
def call_as_task(url: str, ann: ApiCaller, tmp_path: Path) -> CallAsTask:
    """Runs the program that calls `start` as a task; returns what it prints."""
    shutil.copy(HERE / "mcp_tasks.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(installed_modules(LOCK))

    async def call(
        generation: str, message: str, *reply: str, caller: ApiCaller = ann, **env: str
    ) -> list[Any]:
        token = caller.http.headers["authorization"].removeprefix("Bearer ")
        process = await asyncio.create_subprocess_exec(
            *(node(), "mcp_tasks.mjs", f"{url}/mcp", generation, message, *reply),
            cwd=tmp_path,
            env={**os.environ, "TOKEN": token, **env},
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return [json.loads(line) for line in output.splitlines()]

    return call


@pytest.mark.parametrize("generation", ["v1", "v2"])
async def test_a_start_is_a_task_with_the_result_of_the_execution(
    call_as_task: CallAsTask, ann: ApiCaller, generation: str
) -> None:
    """17.6.8"""
    created, done = await call_as_task(generation, "hello")
    (run,) = (await ann.get("/agent/executions"))["items"]
    assert created == {"kind": "task", "taskId": run["id"]}
    assert (done["status"], done["run"]["response"]) == ("completed", "You said: hello")
    _, failed = await call_as_task(generation, "fail")
    assert (failed["status"], failed["run"]["status"]) == ("completed", "failed")


async def test_a_task_asks_its_client(call_as_task: CallAsTask) -> None:
    """17.6.8"""
    reply = json.dumps({"action": "accept", "content": {"answer": "Friday"}})
    _, asked, done = await call_as_task("v2", "ask", reply)
    assert asked["asked"] == "Which day?"
    assert asked["schema"]["properties"]["answer"]["enum"] == ["Monday", "Friday"]
    assert done["run"]["response"] == "So be it: Friday"
    reply = json.dumps({"action": "accept", "content": {"decision": "approve"}})
    _, asked, done = await call_as_task("v2", "book", reply)
    assert asked["asked"] == 'The agent wants to call book with {"hotel":"Harbour Inn"}'
    assert done["run"]["response"] == "So be it: a room at Harbour Inn"
    reply = json.dumps({"action": "decline"})
    _, _, done = await call_as_task("v2", "book", reply)
    assert done["run"]["response"].startswith("So be it: Denied")


@pytest.mark.parametrize("generation", ["v1", "v2"])
async def test_a_task_is_cancelled(call_as_task: CallAsTask, ann: ApiCaller, generation: str) -> None:
    """17.6.8"""
    created, done = await call_as_task(generation, "refund", CANCELS="1")
    assert done["status"] == "cancelled"
    assert (await ann.wait_for_status(created["taskId"], "cancelled"))["status"] == "cancelled"
