"""How fast executions are, measured by the times that are stored."""

import asyncio
from dataclasses import dataclass
from statistics import median
from typing import Final
from uuid import uuid4

import httpx2

from tests.acceptance.storm.programs import Program
from tests.acceptance.storm.scene import Scene

ALONE: Final = 15
AT_ONCE: Final = 200
CLIENTS: Final = 25
POLL_SECONDS: Final = 0.02

WARM_UP: Final = 3


@dataclass(frozen=True)
class Throughput:
    """The figures of one Temporal."""

    seconds: float
    """The median of an execution's seconds, one after the other."""
    per_second: float
    """Executions that end in a second, with many at once."""


async def measure_throughput(scene: Scene) -> Throughput:
    """Measure executions of two model calls and one tool call."""
    headers = {"Authorization": f"Bearer {scene.people[0].key}"}
    async with httpx2.AsyncClient(base_url=scene.urls[0], headers=headers, timeout=30) as http:
        for _ in range(WARM_UP):
            await _run(scene, http)
        alone = [await _seconds(scene, await _run(scene, http)) for _ in range(ALONE)]
        turns = asyncio.Semaphore(CLIENTS)

        async def run_in_turn() -> str:
            async with turns:
                return await _start(http)

        started = await asyncio.gather(*(run_in_turn() for _ in range(AT_ONCE)))
        await _wait(scene, *started)
    (span,) = await scene.rows(
        "SELECT extract(epoch FROM max(completed_at) - min(created_at))::float AS seconds"
        " FROM agent_executions WHERE id = ANY(CAST(:ids AS uuid[]))",
        ids=started,
    )
    return Throughput(median(alone), AT_ONCE / span["seconds"])


async def _run(scene: Scene, http: httpx2.AsyncClient) -> str:
    execution = await _start(http)
    await _wait(scene, execution)
    return execution


async def _start(http: httpx2.AsyncClient) -> str:
    program = Program(f"[{uuid4().hex[:8]}]", [[("count", {"mark": uuid4().hex})]])
    answer = await http.post("/agent/executions", json={"content": program.text()})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def _wait(scene: Scene, *executions: str) -> None:
    while True:
        rows = await scene.rows(
            "SELECT DISTINCT status FROM agent_executions WHERE id = ANY(CAST(:ids AS uuid[]))",
            ids=list(executions),
        )
        statuses = {row["status"] for row in rows}
        if statuses == {"completed"}:
            return
        assert statuses <= {"pending", "running", "completed"}, statuses
        await asyncio.sleep(POLL_SECONDS)


async def _seconds(scene: Scene, execution: str) -> float:
    (row,) = await scene.rows(
        "SELECT extract(epoch FROM completed_at - created_at)::float AS seconds"
        " FROM agent_executions WHERE id = :id",
        id=execution,
    )
    return row["seconds"]
