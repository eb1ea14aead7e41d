"""Processes that end with this one: servers that answer after their start, and `everstep` processes."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

from tests.acceptance.harness import ROOT, Process
from tests.acceptance.storm.weather import pause_processes, processes_below

START_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.1
WATCH_SECONDS: Final = 0.5
TAIL: Final = 3000


class Place(Protocol):
    """Where a program runs."""

    def command(self, *command: str) -> Sequence[str]:
        """The command that runs a command there."""
        ...


@dataclass(frozen=True)
class Here:
    """This machine."""

    def command(self, *command: str) -> Sequence[str]:
        return command


async def launch(
    command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path = ROOT
) -> asyncio.subprocess.Process:
    """Start a program that the kernel kills when this process ends; its output is appended to the log."""
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env=environment,
            # Ctrl-C is for this process, which then stops its children.
            start_new_session=True,
        )


async def run(*command: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return its output; a failure is an error with that output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {text[-TAIL:]}")
    return text


@dataclass
class Server:
    """A server's process."""

    name: str
    command: Sequence[str]
    log: Path
    answers: Callable[[], Awaitable[bool]]
    folder: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    kills: int = 0
    _process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        process = self._process
        return process.pid if process and process.returncode is None else None

    async def start(self) -> None:
        """Start it and wait until it answers. If it ends, its port may not be free yet: try again."""
        deadline = monotonic() + START_SECONDS
        while True:
            self._process = await launch(self.command, self.log, self.environment, self.folder)
            while self._process.returncode is None:
                if await self.answers():
                    return
                if monotonic() > deadline:
                    await self.kill()
                    break
                await asyncio.sleep(POLL_SECONDS)
            if monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-TAIL:]
                raise RuntimeError(f"{self.name} does not start:\n{tail}")
            await asyncio.sleep(POLL_SECONDS)

    async def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to stop."""
        await self._end(signal.SIGTERM)

    async def crash(self, pause: float) -> None:
        """Kill it, and start it after a moment."""
        self.kills += 1
        await self.kill()
        await asyncio.sleep(pause)
        await self.start()

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process and process.returncode is None:
            process.send_signal(number)
            await process.wait()


class Supervisor:
    """Kills servers, and starts those again that end by themselves, as an operator's supervisor does."""

    def __init__(self, servers: Sequence[Server], on_end: Callable[[Server], object]) -> None:
        self._locks = {server.name: asyncio.Lock() for server in servers}
        self._servers = servers
        self._on_end = on_end

    async def crash(self, server: Server, pause: float) -> None:
        """Kill a server, and start it after a moment."""
        async with self._locks[server.name]:
            await server.crash(pause)

    async def freeze(self, server: Server, seconds: float) -> None:
        """Stop a server and its processes without an end: its connections stay open, and silent."""
        async with self._locks[server.name]:
            with pause_processes(processes_below(server.pid) if server.pid else []):
                await asyncio.sleep(seconds)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for server in self._servers:
                lock = self._locks[server.name]
                if server.pid is None and not lock.locked():
                    async with lock:
                        self._on_end(server)
                        await server.start()


async def accepts(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


@dataclass
class EverstepStarter:
    """Starts `everstep` processes in a place."""

    place: Place
    _watching: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def start(self, *arguments: str, log: Path, environment: Mapping[str, str]) -> Process:
        """Start a process; its output goes to the log."""
        command = self.place.command(sys.executable, "-m", "everstep.cli", *arguments)
        process = await launch(command, log, environment)
        ended = asyncio.get_running_loop().create_future()

        async def watch() -> None:
            ended.set_result(await process.wait())

        task = asyncio.create_task(watch())
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return Process(process.pid, log, ended)
