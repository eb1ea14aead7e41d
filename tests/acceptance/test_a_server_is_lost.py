"""PostgreSQL and Temporal stop for a while and restart on their files; executions continue.

Four executions are under way at that moment: one waits for a model, one for a tool that must not run twice,
one for a person's answer, and one was paused between two steps. The model and the tool finish while the
server is away.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.client import Execution
from everstep.runtime.embedded import EmbeddedServices, Service, open_services
from tests.acceptance.harness import (
    Account,
    Installation,
    Nursery,
    Site,
    open_installation,
    site,
    until,
    until_pause,
)
from tests.services import careless, data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")

GATES = "book: turn 2;pay ran;jot: turn 1"

Outage: TypeAlias = Callable[["RunningExecutions"], Awaitable[None]]


@dataclass(frozen=True)
class RunningExecutions:
    """The executions, each at the point where it waits, and the servers."""

    site: Site
    services: EmbeddedServices
    model: Execution
    tool: Execution
    asking: Execution
    held: Execution

    @classmethod
    async def start(cls, site: Site, services: EmbeddedServices) -> "RunningExecutions":
        """All of them at the points where they wait, with the gates still closed."""
        await site.worker(gates=GATES)
        held = await site.start("jot")
        await site.until_entry("waiting", "turn 1")
        await held.pause()
        under_way = cls(
            site, services, await site.start("book"), await site.start("pay"), await site.start("ask"), held
        )
        await site.until_entry("waiting", "turn 2")
        await site.until_entry("waiting", "pay ran")
        await until_pause(under_way.asking)
        return under_way

    async def accounts(self) -> Mapping[str, Account]:
        """People answer, and all executions end."""
        await self.asking.submit_input("low")
        await until_pause(self.held)
        await self.held.resume()
        executions = {"model": self.model, "tool": self.tool, "asking": self.asking, "held": self.held}
        return {name: await self.site.final_account(each) for name, each in executions.items()}

    async def is_recorded(self) -> bool:
        """Whether the model's reply and the tool's result are in the store."""
        answered = (await self.model.steps())[-1].facts
        (called,) = (await self.tool.steps())[-1].calls
        return answered is not None and called.record is not None


async def no_outage(under_way: RunningExecutions) -> None:
    """No outage: the reference for the others."""
    under_way.site.open_gates()


async def kill_postgres(under_way: RunningExecutions) -> None:
    """The reply and the result cannot be stored for a while."""
    await under_way.services.postgres.kill()
    under_way.site.open_gates()
    await until("the worker has tried twice, for each", lambda: tries(under_way.site) >= 4)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await under_way.asking.get()
    await under_way.services.postgres.start()


def tries(site: Site) -> int:
    """How often a worker failed to store something that must not be lost."""
    return site.workers[0].log.read_text().count("the store is unavailable, retrying")


async def kill_temporal(under_way: RunningExecutions) -> None:
    """The reply and the result are stored, and cannot be reported for a while."""
    await under_way.services.temporal.kill()
    under_way.site.open_gates()
    await until("the answer and the result are recorded", under_way.is_recorded)
    await under_way.services.temporal.start()


async def away(service: Service, under_way: RunningExecutions, seconds: float) -> None:
    """An outage of a given length."""
    await service.stop()
    under_way.site.open_gates()
    await asyncio.sleep(seconds)
    await service.start()


async def postgres_is_away_for_long(under_way: RunningExecutions) -> None:
    """An outage longer than every timeout."""
    await away(under_way.services.postgres, under_way, 20)


async def temporal_is_away_for_long(under_way: RunningExecutions) -> None:
    """An outage longer than every timeout."""
    await away(under_way.services.temporal, under_way, 20)


@dataclass(frozen=True)
class Servers:
    """An installation whose servers a test may kill."""

    services: EmbeddedServices
    installation: Installation
    folder: Path

    async def run(self, outage: Outage) -> tuple[Mapping[str, Account], Site]:
        """How the executions end, and the worker's journal."""
        name = outage.__name__
        async with site(name, self.installation, self.folder / name) as place:
            under_way = await RunningExecutions.start(place, self.services)
            await outage(under_way)
            return await under_way.accounts(), place


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Servers]:
    """Servers of this test alone."""
    with data_directory() as data:
        async with (
            open_services(careless(data)) as services,
            open_installation(nursery, services, services.database_url) as installation,
        ):
            yield Servers(services, installation, tmp_path_factory.mktemp("sites"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def without_outage(servers: Servers) -> Mapping[str, Account]:
    """How the executions end without an outage."""
    accounts, _ = await servers.run(no_outage)
    return accounts


@pytest.mark.parametrize(
    "outage",
    [
        kill_postgres,
        kill_temporal,
        pytest.param(postgres_is_away_for_long, marks=pytest.mark.slow),
        pytest.param(temporal_is_away_for_long, marks=pytest.mark.slow),
    ],
)
async def test_nothing_is_lost_or_done_twice(
    servers: Servers, without_outage: Mapping[str, Account], outage: Outage
) -> None:
    accounts, place = await servers.run(outage)

    assert {account.status for account in accounts.values()} == {ExecutionStatus.COMPLETED}
    assert accounts == without_outage
    # Each reply was paid for once, and each tool ran once.
    assert place.counts("asked") == place.counts("answered") == {"turn 1": 4, "turn 2": 4, "turn 3": 4}
    assert place.counts("ran") == {"look_up": 4, "book": 1, "pay": 1, "jot": 1}
