"""A program that used an installation exits normally, with the interpreter."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

import pytest

from everstep.runtime.installation import upgrade
from everstep.runtime.settings import Settings
from tests.acceptance.harness import ROOT, environment
from tests.everstep.cli.desk import a_database
from tests.services import Servers

PROGRAM = """
import asyncio, os, sys
from everstep.cli import processes
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

async def main(how, queue):
    settings = Settings.read(agents="tests.everstep.cli.interrupting:agents", task_queue=queue)
    async with open_installation(settings) as installation:
        execution = await installation.client.start("interrupting", "Do it")
        if how == "waiting":
            result = asyncio.create_task(execution.result())
            await asyncio.sleep(0.1)
            result.cancel()
            return
        stop = asyncio.Event()
        worker = asyncio.create_task(installation.work(stop))
        await execution.result()
        stop.set()
        await worker

times, at_once = int(sys.argv[1]), int(sys.argv[2])
running = 0
for number in range(times):
    if running == at_once:
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        running -= 1
    if not os.fork():
        how = ("waiting", "working")[number % 2]
        asyncio.run(main(how, f"exits-{how}-{number}"))
        break
    running += 1
else:
    for _ in range(running):
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Runs a program many times; each run is a fork of an interpreter that has imported everything and has one
thread. It uses Temporal in the fork only, and ends with the interpreter's own shutdown.
"""
AT_ONCE = 4


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("times", [2, pytest.param(400, marks=pytest.mark.slow)])
async def test_it_neither_aborts_nor_hangs(services: Servers, tmp_path: Path, times: int) -> None:
    """Half of the times while it waits for an execution, and half with a worker."""
    database = await a_database(services, f"exits_{times}")
    address = services.temporal_address
    await upgrade(Settings.read(data_dir=tmp_path, database_url=database, temporal_address=address))
    given = environment(DATABASE_URL=database, TEMPORAL_ADDRESS=address, PYTHONPATH=str(ROOT))
    runs = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(times), str(AT_ONCE)),
        stdout=PIPE,
        stderr=PIPE,
        env=given,
        # A run that hangs is a child of this process.
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(60 + times):
            output, error = await runs.communicate()
    except TimeoutError:
        os.killpg(runs.pid, signal.SIGKILL)
        output, error = await runs.communicate()
        pytest.fail(f"a run did not end: {output.decode()}{error.decode()[-2000:]}")

    assert Counter(output.decode().split()) == {"0": times}, error.decode()[-2000:]
