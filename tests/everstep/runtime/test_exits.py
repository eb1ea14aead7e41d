"""A program that used an installation exits normally, with the interpreter."""

import asyncio
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
import asyncio, sys
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

async def main(how):
    settings = Settings.read(agents="tests.everstep.cli.interrupting:agents", task_queue=sys.argv[2])
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

asyncio.run(main(sys.argv[1]))
"""
AT_ONCE = 4


async def end_of(how: str, number: int, settings: Settings) -> str:
    """The exit code of a program and the last line of its error output."""
    given = environment(
        DATABASE_URL=settings.require("database_url", ""),
        TEMPORAL_ADDRESS=settings.require("temporal_address", ""),
        PYTHONPATH=str(ROOT),
    )
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, how, f"exits-{how}-{number}"), stdout=PIPE, stderr=PIPE, env=given
    )
    try:
        async with asyncio.timeout(120):
            _, error = await program.communicate()
    except TimeoutError:
        program.kill()
        await program.wait()
        return "it did not end"
    return f"{program.returncode} {error.decode()[-200:]}".strip()


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("how", ["waiting", "working"])
@pytest.mark.parametrize("times", [4, pytest.param(200, marks=pytest.mark.slow)])
async def test_it_neither_aborts_nor_hangs(services: Servers, tmp_path: Path, how: str, times: int) -> None:
    database = await a_database(services, f"exits_{how}_{times}")
    address = services.temporal_address
    settings = Settings.read(data_dir=tmp_path, database_url=database, temporal_address=address)
    await upgrade(settings)
    places = asyncio.Semaphore(AT_ONCE)

    async def place(number: int) -> str:
        async with places:
            return await end_of(how, number, settings)

    assert Counter(await asyncio.gather(*map(place, range(times)))) == {"0": times}
