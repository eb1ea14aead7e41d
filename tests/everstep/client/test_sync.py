"""The client for programs without an event loop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.testing import calls, says
from everstep.capabilities.user_input import UseUserInput
from everstep.client.client import Client
from everstep.client.sync import SyncClient, SyncExecution
from tests.services import Servers
from tests.workflows.harness import an_agent, an_office, connect_temporal

ASKING = ("user_input", {"prompt": "Which day?"})


def run_blocking(services: Servers) -> tuple[ExecutionStatus, str | None, int]:
    """A program without an event loop, with its worker in the client's own loop."""

    @asynccontextmanager
    async def open_client() -> AsyncGenerator[Client]:
        agent = an_agent(calls(ASKING), says("Done.")).with_capability(UseUserInput())
        office = an_office(await connect_temporal(services), agent)
        async with office.worker():
            yield office.client

    with SyncClient(open_client) as client:
        execution = client.start("agent", "Plan it")
        wait_for_request(execution)
        execution.submit_input("Friday")
        execution.result()
        row = client.execution(execution.id).get()
        response = row.output["response"] if row.output else None
        return row.status, response, len(client.list().rows)


def wait_for_request(execution: SyncExecution) -> None:
    while execution.get().status is not ExecutionStatus.PAUSED:
        """Waits in another thread."""


async def test_a_blocking_program_runs_an_execution_to_its_end(services: Servers) -> None:
    """8.5.3"""
    assert await asyncio.to_thread(run_blocking, services) == (ExecutionStatus.COMPLETED, "Done.", 1)
