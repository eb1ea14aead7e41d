"""Others use the same Temporal namespace while `everstep up` runs, without effect on it."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from temporalio.client import Client, WorkflowFailureError

from everstep.workflows.contracts import ID_PREFIX, WORKFLOW
from everstep.workflows.scheduled_message import SCHEDULED_MESSAGE
from tests.acceptance.front import AGENTS
from tests.acceptance.harness import Nursery, environment, until
from tests.services import data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")

GIVEN: list[list[Any]] = [[], ["hello"], [7], [None], [{}], [[1]], [{"ref": "main"}], ["a", "b"], [b"\xff"]]
MOST_LINES = 40
"""The most lines of a log, over the whole run."""


async def test_workflows_of_others_neither_end_an_installation_nor_fill_its_log(
    nursery: Nursery, tmp_path: Path
) -> None:
    """1.3.3 and 1.3.4: one was ended by its owner, and nine are of each of our types with other input."""
    with data_directory() as data:
        log = tmp_path / "log"
        log.touch()
        ports = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--gateway-port", "0")
        given = environment(EVERSTEP_AGENTS=AGENTS, EVERSTEP_DEFAULT_AGENT="clerk")
        up = await nursery.start("--data", str(data), "up", "--json", *ports, log=log, environment=given)
        await until("it is up", lambda: '"api_url"' in log.read_text() or up.ended.done())
        assert up.code is None, log.read_text()
        printed = next(json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
        temporal = await Client.connect(printed["temporal_address"])

        ids = ["hello", f"{ID_PREFIX}hello", f"{ID_PREFIX}{uuid4()}"]
        for id_ in ids:
            # The delay keeps workers from it until its owner has ended it.
            ended = await temporal.start_workflow(
                WORKFLOW, id=id_, task_queue="everstep", start_delay=timedelta(hours=1)
            )
            await ended.terminate()
        handles = [
            await temporal.start_workflow(kind, args=args, id=f"other-{kind}-{n}", task_queue="everstep")
            for n, args in enumerate(GIVEN)
            for kind in (WORKFLOW, SCHEDULED_MESSAGE)
        ]
        for handle in handles:
            with pytest.raises(WorkflowFailureError):
                await handle.result()

        headers = {"Authorization": f"Bearer {printed['token']}"}
        async with httpx2.AsyncClient(base_url=printed["api_url"], headers=headers, timeout=60) as http:

            async def until_it_is(status: str, content: str, *, is_terminated: bool = False) -> None:
                sent = (await http.post("/agent/executions", json={"content": content})).json()

                async def stands(wanted: str) -> bool:
                    return (await http.get(f"/agent/executions/{sent['id']}")).json()["status"] == wanted

                if is_terminated:
                    await until("it waits", lambda: stands("paused"))
                    await temporal.get_workflow_handle(f"{ID_PREFIX}{sent['id']}").terminate()
                await until(f"it is {status}", lambda: stands(status))

            await until_it_is("completed", "Hello")
            # Only the reconciler closes this one, in a scan of all that ended.
            await until_it_is("failed", "ask", is_terminated=True)
            await until_it_is("completed", "Hello again")
            assert 'background_failures_total{task="the reconciler"}' not in (await http.get("/metrics")).text

        assert up.code is None
        assert len(log.read_text().splitlines()) < MOST_LINES, log.read_text()
        assert await up.stop() == 0
