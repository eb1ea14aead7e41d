"""The HTTP API of an installation: processes that can be killed, and a worker behind them."""

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
    """One that stays the same, whichever process answers there.

    It lies below the ports that the kernel gives to outgoing connections, in a range of this test process,
    so that nothing takes it between this look and its use.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = secrets.randbelow(2000) + 12_000 + 2000 * worker
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class Front:
    """API processes on one port, one after the other, and a worker."""

    installation: Installation
    folder: Path
    key: str
    queue: str
    port: int = field(default_factory=a_free_port)
    kill_at: Failpoint | None = None
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """What its processes find in their environment besides."""
    begun: list[Process] = field(default_factory=list[Process])

    async def process(self, *arguments: str, says: str) -> Process:
        """A process of this installation, once it says that it is up."""
        log = self.folder / f"{len(self.begun)}.log"
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
        """One that answers."""
        return await self.process("api", "--port", str(self.port), says="answering at")

    @property
    def url(self) -> str:
        """Where."""
        return f"http://127.0.0.1:{self.port}"
