"""The application of `examples/06_web_application`, over a local installation."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from everstep.runtime.embedded.free_ports import free_port
from tests.acceptance.harness import ROOT, environment, until

EXAMPLE = ROOT / "examples" / "06_web_application"
PROGRAMS = Path(sys.executable).parent
FIRST = re.compile("In another terminal|Uvicorn running")


@asynccontextmanager
async def application(folder: Path, model: str | None = None) -> AsyncGenerator[str]:
    """The installation and the application, by the commands of the example's page, on free ports."""
    (commands,) = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    if model:
        commands = commands.replace("everstep up", f"everstep up --model {model}")
    web, api = free_port(), free_port()
    address, log = f"http://127.0.0.1:{web}", folder / "log"
    given = environment(
        PATH=f"{PROGRAMS}:{os.environ['PATH']}",
        PYTHONUNBUFFERED="1",
        PYTHONDONTWRITEBYTECODE="1",
        EVERSTEP_DATA=str(folder / "data"),
        EVERSTEP_HTTP_PORT=str(api),
        EVERSTEP_API_URL=f"http://127.0.0.1:{api}",
        EVERSTEP_ALLOWED_ORIGINS=address,
    )
    with log.open("wb") as out:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-euc", commands.replace("8090", str(web))),
            cwd=EXAMPLE,
            env=given,
            stdin=DEVNULL,
            stdout=out,
            stderr=STDOUT,
            start_new_session=True,
        )
    try:
        await until(
            "both are up",
            lambda: (
                {"In another terminal", "Uvicorn running"} <= {*FIRST.findall(log.read_text())}
                or shell.returncode is not None
            ),
        )
        assert shell.returncode is None, log.read_text()
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        await shell.wait()
        await until("both have ended", lambda: not is_running(shell.pid))


def is_running(group: int) -> bool:
    """Whether a process of this group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
