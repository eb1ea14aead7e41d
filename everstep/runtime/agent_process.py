"""The process that runs the agents of `everstep up --reload`: a worker and the HTTP API.

A changed module can be loaded reliably only by a new interpreter. So the servers and the gateway stay in the
first process, and this one is started again when files change:

1. The new process loads the agents. If it fails, it says why and ends, and the old one continues.
2. Both listen on the same socket, which the first process holds, so that no request is refused.
3. The old process stops listening, and its running model calls and tools may finish.

Standard input of the process carries its order, and stays open as long as the first process lives.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from everstep.agent_domain.errors import InvalidInput
from everstep.inference.presets import DEMO, LOCAL
from everstep.runtime.api import open_api
from everstep.runtime.embedded.child import exit_text
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.protection import command_limits
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import open_telemetry
from everstep.runtime.temporal_threads import export_sdk_metrics

START_SECONDS: Final = 60.0
"""How long a new process may take to load the agents: a module may wait for something that never comes."""

STOP_SECONDS: Final = 30.0
"""How much longer than its running calls may take a process has to stop."""


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What a process of agents says of itself."""

    agents: tuple[str, ...]
    model: str
    """The default preset, what to do about it if it is no real model, and the agents that do not use it."""
    sources: tuple[str, ...] = ()
    """The locations that the agents were loaded from."""
    remarks: tuple[str, ...] = ()
    """Limits that the operator should know of."""

    @classmethod
    def of(cls, installation: Installation) -> Self:
        """Return the report on the agents of an installation, which loads them."""
        book, remarks = installation.book, command_limits(installation.book.agents.values())
        default = model = installation.models.presets.default
        if model == DEMO:
            model += (
                " (a script; set OPENAI_API_KEY or ANTHROPIC_API_KEY to ask a real model, "
                "or start a small one on this machine: everstep up --model local)"
            )
        elif model == LOCAL:
            model += " (a small model on this machine, which makes mistakes)"
        if others := [
            name
            for name, agent in book.agents.items()
            if not agent.wants_model or agent.model_choice not in (None, default)
        ]:
            model += f"; other models: {', '.join(others)}"
        return cls(book.names, model, installation.settings.agents, tuple(remarks))


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """What a process of agents is started with."""

    settings: Mapping[str, Any]
    """The settings that the first process decides; the others are read again."""
    listener: int
    """The descriptor of the API's socket."""
    report: int
    """The descriptor of the pipe for the report."""


class AgentProcess:
    """A running process of agents, as the first process sees it."""

    def __init__(self, process: asyncio.subprocess.Process, report: AgentReport, patience: float) -> None:
        self._process = process
        self._patience = patience
        self.report = report

    @classmethod
    async def start(
        cls, command: Sequence[str], given: Mapping[str, Any], listener: socket.socket, patience: float
    ) -> Self:
        """Start a process, and wait until its agents are loaded.

        Args:
            command: The program and its arguments.
            given: The settings that this process decides.
            listener: The socket of the HTTP API.
            patience: Seconds that its running calls may take when it stops.

        Raises:
            InvalidInput: The agents cannot be loaded; the message says why.
        """
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as pipe:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(writing, listener.fileno()),
                    # Ctrl-C reaches the whole group of a terminal; the first process stops the others.
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            try:
                order = AgentOrder(given, listener.fileno(), writing)
                async with asyncio.timeout(START_SECONDS):
                    return cls(process, await _exchange(process, order, pipe), patience)
            except TimeoutError:
                await _kill(process)
                raise InvalidInput(f"the agents were not loaded within {START_SECONDS:g} seconds") from None
            except BaseException:
                await _kill(process)
                raise

    async def wait(self) -> str:
        """Wait for the end of the process; return how it ended."""
        return exit_text(await self._process.wait())

    async def stop(self) -> None:
        """Stop the process; its running calls may finish."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(self._patience + STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await _kill(self._process)


async def _exchange(process: asyncio.subprocess.Process, order: AgentOrder, pipe: Any) -> AgentReport:
    """Send the order and return the report."""
    assert process.stdin is not None  # noqa: S101 -- it was started with a pipe
    with suppress(ConnectionError):
        # It may have ended already; then it sends no report.
        process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        await process.stdin.drain()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        line = await reader.read()
    finally:
        transport.close()
    if not line:
        raise InvalidInput(f"the process of the agents {exit_text(await process.wait())} while it started")
    report = json.loads(line)
    if "error" in report:
        raise InvalidInput(report["error"])
    return AgentReport(
        tuple(report["agents"]), report["model"], tuple(report["sources"]), tuple(report["remarks"])
    )


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def serve_agents(order: AgentOrder, on_ready: Callable[[AgentReport], object]) -> None:
    """Run a worker and the HTTP API until SIGTERM.

    Args:
        order: The order.
        on_ready: Called once the agents are loaded.
    """
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = Settings.read(**order.settings)
    export_sdk_metrics()
    with open_telemetry(settings, "local", logs_requests=False):
        await _serve(settings, order, stop, on_ready)


async def _serve(
    settings: Settings, order: AgentOrder, stop: asyncio.Event, on_ready: Callable[[AgentReport], object]
) -> None:
    async with open_installation(settings, "everstep local", is_linked=True) as installation:
        report = AgentReport.of(installation)
        async with installation.open_worker() as work:
            async with open_api(installation, listener=socket.socket(fileno=order.listener)):
                working = asyncio.create_task(work(stop))
                stopping = asyncio.create_task(stop.wait())
                on_ready(report)
                await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
            # Requests are answered by the next process, while the calls of this one finish.
            await working
