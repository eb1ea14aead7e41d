"""A worker of several processes: one of them is killed, and then the one that started them."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from everstep.agent_domain.loop.status import ExecutionStatus
from tests.acceptance.harness import Installation, site, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXECUTIONS = 6


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def test_a_killed_process_loses_nothing_and_none_outlives_the_first_one(
    installation: Installation, tmp_path: Path
) -> None:
    """Follows rules 18.1.4, 18.1.5 and 18.1.6."""
    async with site("processes", installation, tmp_path / "site", EVERSTEP_METRICS_PORT="0") as here:
        worker = await here.worker("--processes", "2", gates="turn 2")

        def lines() -> list[str]:
            return worker.log.read_text().splitlines()

        def works(number: int) -> int:
            said = rf"process {number} of 2: working on 'processes' for the agents .*; Ctrl-C stops"
            return sum(re.fullmatch(said, line) is not None for line in lines())

        await until("both work", lambda: works(1) and works(2))
        urls = re.findall(
            r"^process \d of 2: metrics at (\S+)/metrics$", worker.log.read_text(), re.MULTILINE
        )
        assert len(set(urls)) == 2
        executions = [await here.start("book") for _ in range(EXECUTIONS)]
        await until("all wait", lambda: here.count("waiting", "turn 2") == len(executions))
        # Temporal may give all of them to one process, but not for long.
        while len(holders := {entry.pid for entry in here.journal("waiting")}) < 2:
            executions.append(await here.start("book"))
            await until("all wait", lambda: here.count("waiting", "turn 2") == len(executions))

        killed = max(holders)
        os.kill(killed, signal.SIGKILL)
        here.open_gates()
        accounts = await asyncio.gather(*map(here.final_account, executions))
        await until("it works again", lambda: works(1) + works(2) == 3)

        assert {account.status for account in accounts} == {ExecutionStatus.COMPLETED}
        assert len({account.conversation for account in accounts}) == 1
        assert here.counts("ran") == {"look_up": len(executions), "book": len(executions)}
        (line,) = [line for line in lines() if f"({killed})" in line]
        assert line.endswith("was killed by SIGKILL; it starts again in 1 s")

        children = [
            int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        ]
        assert len(children) == 2
        await worker.kill()
        await until("none is left", lambda: not any(map(is_running, children)))
