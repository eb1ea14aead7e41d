"""What goes wrong in a fleet: partitions between hosts, killed servers, and processes that end or freeze."""

import asyncio
from random import Random

from tests.acceptance.storm.scene import Scene
from tests.acceptance.storm.weather import Option, Weather
from tests.fleet.hosts import Fleet
from tests.fleet.network import Host
from tests.servers.programs import Server, Supervisor

LINKS = (
    ("worker", "pgbouncer"),
    ("worker", "temporal-frontend"),
    ("worker", "gateway"),
    ("api", "temporal-frontend"),
    ("api", "pgbouncer"),
    ("gateway", "pgbouncer"),
    ("pgbouncer", "postgres"),
    ("worker", "nats"),
    ("api", "nats"),
    ("gateway", "nats"),
    ("temporal-frontend", "temporal-history"),
    ("temporal-history", "postgres"),
    ("temporal-history", "temporal-matching"),
)
"""The kinds of hosts between which packets are lost, if the fleet has them."""

SECONDS = 3, 45
"""How long a partition lasts: shorter and longer than every timeout of a statement, a heartbeat or a push."""


class FleetWeather(Weather):
    """Draws the faults of a fleet."""

    def __init__(self, scene: Scene, dice: Random, fleet: Fleet) -> None:
        super().__init__(scene, dice)
        self._fleet = fleet
        self._supervisor = Supervisor(list(fleet.servers.values()), self._on_end)

    async def run(self) -> None:
        supervising = asyncio.create_task(self._supervisor.run())
        try:
            await super().run()
        finally:
            supervising.cancel()

    def _on_end(self, server: Server) -> None:
        self.scene.note(f"{server.name} ended by itself, and is started again")

    def options(self) -> list[Option]:
        dice, fleet = self.dice, self._fleet
        role = dice.choice(self.scene.roles)
        kind, other_kind = dice.choice([link for link in LINKS if all(map(fleet.hosts_of, link))])
        one, other = dice.choice(fleet.hosts_of(kind)), dice.choice(fleet.hosts_of(other_kind))
        seconds, is_one_way = dice.uniform(*SECONDS), dice.random() < 0.25
        server, freeze = dice.choice(list(fleet.servers)), dice.uniform(1, 14)
        arrow = "to" if is_one_way else "and"
        parted = f"partition of {one.name} {arrow} {other.name} for {seconds:.0f} s"
        return [
            *self.options_of(role),
            (0.40, parted, lambda: self._part(one, other, seconds, is_one_way=is_one_way)),
            (0.10, f"{server} is killed", lambda: self._crash(server, dice.uniform(0.2, 5))),
            (0.05, f"{server} freezes for {freeze:.1f} s", lambda: self._freeze_server(server, freeze)),
        ]

    async def _part(self, one: Host, other: Host, seconds: float, *, is_one_way: bool) -> None:
        directions = [(one, other)] if is_one_way else [(one, other), (other, one)]
        for direction in directions:
            await self._fleet.network.part(*direction)
        try:
            await asyncio.sleep(seconds)
        finally:
            for direction in directions:
                await self._fleet.network.join(*direction)

    async def _freeze_server(self, name: str, seconds: float) -> None:
        await self._supervisor.freeze(self._fleet.servers[name], seconds)

    async def _crash(self, name: str, pause: float) -> None:
        await self._supervisor.crash(self._fleet.servers[name], pause)
