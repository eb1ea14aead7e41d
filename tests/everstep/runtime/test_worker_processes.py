"""The processes of one worker: they are started again, and end together."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime import worker_processes
from everstep.runtime.settings import Settings
from everstep.runtime.worker_processes import process_settings, run_processes

PROGRAM = """
import json, os, signal, sys
order = json.loads(sys.stdin.readline())
given, journal = order["settings"], sys.argv[1]

def note(what):
    with open(journal, "a") as file:
        print(what, given["metrics_port"], file=file)

def stop(*_):
    note("stopped")
    os._exit(0)

if given["fails"]:
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN if given["hangs"] else stop)
with open(order["report"], "w") as report:
    print("works as", os.getpid(), file=report)
sys.stdin.read()
note("alone")
"""
"""Does what the program of a worker's process does with its standard input, the report and SIGTERM."""


class Worker:
    """A worker of such processes."""

    def __init__(self, journal: Path, *given: dict[str, Any]) -> None:
        self._journal = journal
        self.stop = asyncio.Event()
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        settings = [
            {"fails": False, "hangs": False, "metrics_port": number, **each}
            for number, each in enumerate(given)
        ]
        self.task = asyncio.create_task(
            run_processes(
                (sys.executable, "-IS", "-c", PROGRAM, str(journal)),
                settings,
                self.stop,
                self.lines.put_nowait,
                patience=0,
                first_pause=0.01,
            )
        )

    async def next_pid(self, name: str) -> int:
        """The id of the process that works next, which has this name."""
        async with asyncio.timeout(20):
            line = await self.lines.get()
        assert line.startswith(f"{name}: works as "), line
        return int(line.rpartition(" ")[2])

    async def pids(self, count: int) -> dict[str, int]:
        """The ids of the processes that work next, by name."""
        async with asyncio.timeout(20):
            lines = [await self.lines.get() for _ in range(count)]
        return {line.partition(":")[0]: int(line.rpartition(" ")[2]) for line in lines}

    @property
    def notes(self) -> Sequence[str]:
        """What the processes have noted."""
        return sorted(self._journal.read_text().splitlines()) if self._journal.exists() else []


@asynccontextmanager
async def a_worker(journal: Path, *given: dict[str, Any]) -> AsyncGenerator[Worker]:
    worker = Worker(journal, *given)
    try:
        yield worker
    finally:
        worker.stop.set()
        await asyncio.gather(worker.task, return_exceptions=True)


async def test_a_killed_process_starts_again_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """18.1.4: its end is a line of the log."""
    async with a_worker(tmp_path / "notes", {}, {}) as worker:
        pids = await worker.pids(2)
        os.kill(pids["process 2 of 2"], signal.SIGKILL)
        assert await worker.next_pid("process 2 of 2") not in pids.values()
        worker.stop.set()
        await worker.task

    assert worker.notes == ["stopped 0", "stopped 1"]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line == (
        f"process 2 of 2 of the worker ({pids['process 2 of 2']}) was killed by SIGKILL; "
        "it starts again in 0.01 s"
    )


async def test_pauses_grow_while_a_process_keeps_dying(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """18.1.4."""
    async with a_worker(tmp_path / "notes", {}) as worker:
        for _ in range(3):
            os.kill(await worker.next_pid("process 1 of 1"), signal.SIGKILL)
        await worker.next_pid("process 1 of 1")

    pauses = [record.getMessage().rpartition(" in ")[2] for record in caplog.records]
    assert pauses == ["0.01 s", "0.02 s", "0.04 s"]


async def test_a_process_that_cannot_start_ends_the_worker(tmp_path: Path) -> None:
    """18.1.4: a mistake in the settings or the agents, which the process has reported."""
    async with a_worker(tmp_path / "notes", {}, {"fails": True}) as worker:
        with pytest.raises(InvalidInput, match=r"^process 2 of 2 of the worker exited with code 3 while"):
            await worker.task

    # The other one may not have come so far that it notes its end.
    assert worker.notes in ([], ["stopped 0"], ["alone 0"])


async def test_a_process_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.1.5."""
    monkeypatch.setattr(worker_processes, "STOP_SECONDS", 0.05)
    async with a_worker(tmp_path / "notes", {"hangs": True}, {}) as worker:
        pids = await worker.pids(2)
        worker.stop.set()
        await worker.task

    assert worker.notes == ["stopped 1"]
    with pytest.raises(ProcessLookupError):
        os.kill(pids["process 1 of 2"], 0)


def test_each_process_has_a_port_of_its_own_for_metrics() -> None:
    """18.1.6: none without a port, and free ones for port 0."""

    def ports(port: int | None, processes: int) -> list[object]:
        return [each["metrics_port"] for each in process_settings(Settings(metrics_port=port), processes)]

    assert ports(9100, 3) == [9100, 9101, 9102]
    assert ports(0, 2) == [0, 0]
    assert ports(None, 2) == [None, None]
    assert ports(65535, 1) == [65535]
    with pytest.raises(InvalidInput, match="use 65533 or less, or 0 for free ports"):
        ports(65534, 3)
