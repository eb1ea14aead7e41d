"""The HTTP API of an installation: processes that can be killed, with a worker behind them."""

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep.activities.failpoints import Failpoint
from tests.acceptance.agents import ARMED
from tests.acceptance.harness import Installation, Process, until

AGENTS = "tests.everstep.http_api.clerk:agents"


def a_free_port() -> int:
    """Choose a port that stays the same for every process that listens there.

    It lies below the range that the kernel gives to outgoing connections, in a range reserved for this test
    process, so that nothing takes it between the check and its use.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = secrets.randbelow(2000) + 12_000 + 2000 * worker
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class Front:
    """A sequence of API processes on one port, and a worker."""

    installation: Installation
    folder: Path
    key: str
    queue: str
    port: int = field(default_factory=a_free_port)
    kill_at: Failpoint | None = None
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Additional environment variables of its processes."""
    begun: list[Process] = field(default_factory=list[Process])

    async def process(self, *arguments: str, says: str) -> Process:
        """Start a process of this installation and wait until it reports that it is up."""
        # Processes that are started at the same time have logs of their own.
        log = self.folder / f"{len([*self.folder.glob('*.log')])}.log"
        log.touch()
        given = {"EVERSTEP_TASK_QUEUE": self.queue, "EVERSTEP_AGENTS": AGENTS, **self.variables}
        if self.kill_at:
            given["EVERSTEP_FAILPOINT"] = f"{self.kill_at}:{self.folder / ARMED}"
        environment = self.installation.environment(**given)
        process = await self.installation.nursery.start(*arguments, log=log, environment=environment)
        self.begun.append(process)
        await until(f"it is {says}", lambda: says in log.read_text() or process.ended.done())
        assert process.code is None, log.read_text()
        return process

    async def api(self) -> Process:
        """Start an API process and wait until it answers."""
        return await self.process("api", "--port", str(self.port), says="answering at")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
