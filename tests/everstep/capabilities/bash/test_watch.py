"""Watching what a command takes: in time, without holding up the worker or blaming it for nothing."""

import asyncio
import threading

import pytest

from everstep.capabilities.bash import watch
from everstep.capabilities.bash.sandbox import Sandbox
from tests.everstep.capabilities.bash.surroundings import PYTHON, Surroundings, bash, policy_for

TOO_MUCH = (
    "sandbox: the command was stopped, as all its processes together took more than 128 MiB of memory\n"
)

FAMILY = f"""{PYTHON} -I -S -c '
import os
x = bytearray(60 * 2**20)
ready, tell = os.pipe()
hold, release = os.pipe()
for _ in range(7):
    if not os.fork():
        os.close(release)
        sum(x[::4096])
        os.write(tell, b"x")
        os.read(hold, 1)
        os._exit(0)
seen = 0
while seen < 7:
    seen += len(os.read(ready, 7))
print("all there", flush=True)
import time
time.sleep(0.5)
'"""
"""Eight processes that have 60 MiB in common, and so 480 MiB if it counts for each."""


async def test_what_processes_have_in_common_counts_once(around: Surroundings) -> None:
    """9.1.2: memory 128M."""
    assert await bash(FAMILY, policy_for(around)) == "all there\n"


async def test_what_takes_too_long_to_be_told_counts_for_each(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.2: or whoever makes looking slow would not be watched."""
    await bash("true", policy_for(around))
    monkeypatch.setattr(watch, "PATIENCE", -1.0)
    assert (await bash(FAMILY, policy_for(around))).endswith(TOO_MUCH)


async def test_a_look_that_takes_long_holds_up_nobody(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1: other work goes on, and a command that is cancelled is gone all the same."""
    looking, over, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def slow(*_: object) -> str | None:
        loop.call_soon_threadsafe(looking.set)
        over.wait()
        return "it was looked at for so long"

    sandbox = Sandbox(policy_for(around, 99))
    monkeypatch.setattr(watch, "overdrawn", slow)
    task = asyncio.create_task(sandbox.run("sleep 98765"))
    async with asyncio.timeout(20):
        await looking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not around.left()
    over.set()


async def test_sockets_are_counted_with_a_network_as_well(around: Surroundings) -> None:
    """9.1.2: the network is the command's own."""
    script = "import socket, time; x = [socket.socket() for _ in range(300)]; time.sleep(1)"
    for policy in (policy_for(around), policy_for(around).with_network()):
        assert "it opened more than 256 sockets" in await bash(f"{PYTHON} -I -S -c '{script}'", policy)
