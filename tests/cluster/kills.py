"""Kills every process in turn: each role of Temporal, the database, workers, APIs and gateways."""

import asyncio
from collections.abc import Sequence
from random import Random

from tests.acceptance.chaos import Role
from tests.acceptance.storm.scene import Scene
from tests.acceptance.storm.weather import Option, Weather
from tests.servers.programs import Server, Supervisor

AWAY_SECONDS = 0.5, 6
"""How long a killed process is away."""

BETWEEN_SECONDS = 6
"""Seconds from the return of one process to the kill of the next."""


class KillsInTurn(Weather):
    """Kills one process after the other with SIGKILL, and starts it again."""

    def __init__(self, scene: Scene, dice: Random, servers: Sequence[Server], rounds: int = 1) -> None:
        super().__init__(scene, dice)
        self.victims: list[Server | Role] = [*servers, *scene.roles] * rounds
        self._supervisor = Supervisor(servers, self._on_end)
        self.ended = list[str]()
        """The servers that ended by themselves, because of the end of another one."""

    def options(self) -> list[Option]:
        raise NotImplementedError("the kills are not drawn")

    async def run(self) -> None:
        watch = asyncio.create_task(self._supervisor.run())
        try:
            for victim in self.victims:
                await asyncio.sleep(BETWEEN_SECONDS)
                seconds = self.dice.uniform(*AWAY_SECONDS)
                self.scene.note(f"{victim.name} is killed, and away for {seconds:.1f} s")
                if isinstance(victim, Server):
                    await self._supervisor.crash(victim, seconds)
                else:
                    await victim.crash(seconds)
            await asyncio.sleep(BETWEEN_SECONDS)
        finally:
            watch.cancel()

    def _on_end(self, server: Server) -> None:
        self.ended.append(server.name)
        self.scene.note(f"{server.name} ended by itself, and is started again")
