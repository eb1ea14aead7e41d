"""A worker of several processes: Python runs on one core at a time, so a process of its own for each core.

The first process runs no agents. It starts the others, stops them when it is stopped, and starts one again
that ends: Temporal gives its work to the others, as when a whole worker is lost. A process that cannot start
at all has a mistake in its settings or agents, so the worker ends with it.

Standard input of each process carries its settings, and stays open as long as the first process lives. A
process whose first process is gone stops as well.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.embedded.child import exit_text
from everstep.runtime.settings import Settings

log = logging.getLogger(__name__)

MAX_PROCESSES: Final = 256
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a process is started again.

The pause doubles with each end, up to the second value, and is reset once the process has run for longer than
that.
"""
STOP_SECONDS: Final = 30.0
"""How much longer than its running calls may take a process has to stop."""

Say = Callable[[str], object]


def process_settings(settings: Settings, processes: int) -> list[dict[str, object]]:
    """Return the settings in which the processes differ: each serves its metrics at a port of its own.

    Raises:
        InvalidInput: There are not enough ports.
    """
    port, last = settings.metrics_port, 65535
    if port and port + processes - 1 > last:
        raise InvalidInput(
            f"EVERSTEP_METRICS_PORT is {port}, and {processes} processes of a worker need the ports from "
            f"there on; use {last + 1 - processes} or less, or 0 for free ports"
        )
    return [{"metrics_port": port and port + index} for index in range(processes)]


async def run_processes(
    command: Sequence[str],
    given: Sequence[Mapping[str, object]],
    stop: asyncio.Event,
    say: Say,
    *,
    patience: float,
    first_pause: float = FIRST_PAUSE,
) -> None:
    """Run a process for each of the given settings, until the stop event.

    Args:
        command: The program and its arguments.
        given: The settings that each process is given; it reads the others.
        stop: Ends all of them; their running calls may finish.
        say: Called with the lines of each process that works.
        patience: Seconds that running calls may take when a process stops.
        first_pause: Seconds before a process is started again for the first time.

    Raises:
        InvalidInput: A process ended before it worked.
    """
    processes = [
        _WorkerProcess(f"process {number} of {len(given)}", command, each, say, patience)
        for number, each in enumerate(given, 1)
    ]
    tasks = [asyncio.create_task(each.keep_running(stop, first_pause)) for each in processes]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


class _WorkerProcess:
    """One of the processes, however often it is started."""

    def __init__(
        self, name: str, command: Sequence[str], given: Mapping[str, object], say: Say, patience: float
    ) -> None:
        self._name = name
        self._command = command
        self._given = given
        self._say = say
        self._patience = patience
        self._has_worked = False

    async def keep_running(self, stop: asyncio.Event, first_pause: float) -> None:
        """Run the process until the stop event, and start it again when it ends before."""
        pause = first_pause
        while not stop.is_set():
            began = monotonic()
            code, pid = await self._run(stop)
            if stop.is_set():
                return
            if code >= 0 and not self._has_worked:
                raise InvalidInput(
                    f"{self._name} of the worker {exit_text(code)} while it started; see above"
                )
            if monotonic() - began > LONGEST_PAUSE:
                pause = first_pause
            log.error(
                "%s of the worker (%s) %s; it starts again in %g s", self._name, pid, exit_text(code), pause
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _run(self, stop: asyncio.Event) -> tuple[int, int]:
        """Run the process once; return its exit code and its id."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as pipe:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(writing,),
                    # Ctrl-C reaches the whole group of a terminal; the first process stops the others.
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
            reports = asyncio.create_task(self._read_report(process, writing, pipe))
            try:
                await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                await self._stop(process)
                # It may have written its report, and ended before that was read.
                await asyncio.gather(reports, return_exceptions=True)
            return await ended, process.pid

    async def _read_report(self, process: asyncio.subprocess.Process, report: int, pipe: object) -> None:
        """Send the settings, and say what the process reports once it works."""
        assert process.stdin is not None  # noqa: S101 -- it was started with a pipe
        order = {"settings": self._given, "report": report}
        with suppress(ConnectionError):
            # It may have ended already; then it reports nothing.
            process.stdin.write(json.dumps(order).encode() + b"\n")
            await process.stdin.drain()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                self._has_worked = True
                self._say(f"{self._name}: {line.decode().rstrip()}")
        finally:
            transport.close()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._patience + STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            log.warning("%s of the worker (%s) does not stop; it is killed", self._name, process.pid)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
