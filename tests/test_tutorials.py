"""The commands of the tutorials run as a reader copies them, and print what the pages show."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.acceptance.harness import environment, until
from tests.services import data_directory

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(.*?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for its, block in found if its == language]


def variables(programs: Path, home: Path) -> dict[str, str]:
    """The environment of a reader in an empty home."""
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment(PATH=path, HOME=str(home), XDG_STATE_HOME=str(home / "state"), PYTHONUNBUFFERED="1")


@asynccontextmanager
async def local_installation(programs: Path, folder: Path, home: Path) -> AsyncGenerator[None]:
    """`everstep up` in another terminal."""
    log = home / "up.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(programs / "everstep", "up"),
            cwd=folder,
            env=variables(programs, home),
            stdin=DEVNULL,
            stdout=out,
            stderr=STDOUT,
        )
    try:
        await until(
            "it is up", lambda: "In another terminal" in log.read_text() or process.returncode is not None
        )
        assert process.returncode is None, log.read_text()
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def test_the_durable_tutorial_prints_what_it_shows(programs: Path) -> None:
    page = "first-durable-agent.md"
    with data_directory() as home:
        folder = home / "project"
        folder.mkdir()
        (folder / "agents.py").write_text("".join(blocks(page, "python")))
        (folder / "everstep.toml").write_text("".join(blocks(page, "toml")))
        commands = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + "".join(blocks(page, "sh"))
        async with local_installation(programs, folder, home):
            done = await asyncio.to_thread(
                subprocess.run,
                ["bash", "-euo", "pipefail", "-c", commands],
                cwd=folder,
                env=variables(programs, home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=200,
            )
    assert done.returncode == 0, done.stdout + done.stderr
    commands_of_others, *shown = blocks(page, "")
    assert commands_of_others == "everstep up\n"
    printed = done.stdout.splitlines()
    assert [line for block in shown for line in block.splitlines() if line not in printed] == []
    assert len(re.findall(r"^8:25 call_\w+$", done.stdout, re.MULTILINE)) == 1
