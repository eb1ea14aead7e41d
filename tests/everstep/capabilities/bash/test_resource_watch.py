"""Measuring a command's resources: in time, without blocking the worker or counting others' use."""

import asyncio
import threading

import pytest

from everstep.capabilities.bash import resource_watch
from everstep.capabilities.bash.sandbox import Sandbox
from tests.everstep.capabilities.bash.surroundings import PYTHON, SandboxHost, bash, policy_for

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
"""Eight processes that share 60 MiB, counted as 480 MiB if each of them counts it."""


async def test_memory_shared_by_processes_counts_once(around: SandboxHost) -> None:
    """9.1.2: memory 128M."""
    assert await bash(FAMILY, policy_for(around)) == "all there\n"


async def test_memory_that_takes_too_long_to_measure_counts_for_each_process(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.2: otherwise a command could escape the limit by making measurements slow."""
    await bash("true", policy_for(around))
    monkeypatch.setattr(resource_watch, "SHARE_SECONDS", -1.0)
    assert (await bash(FAMILY, policy_for(around))).endswith(TOO_MUCH)


async def test_a_slow_measurement_blocks_nothing(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1: other work continues, and a cancelled command still ends."""
    looking, over, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def slow(*_: object) -> str | None:
        loop.call_soon_threadsafe(looking.set)
        over.wait()
        return "it was looked at for so long"

    sandbox = Sandbox(policy_for(around, 99))
    monkeypatch.setattr(resource_watch, "find_excess", slow)
    task = asyncio.create_task(sandbox.run("sleep 98765"))
    async with asyncio.timeout(20):
        await looking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not around.running_processes()
    over.set()


async def test_sockets_are_counted_with_a_network_as_well(around: SandboxHost) -> None:
    """9.1.2: a command has its own network namespace."""
    script = "import socket, time; x = [socket.socket() for _ in range(300)]; time.sleep(1)"
    for policy in (policy_for(around), policy_for(around).with_network()):
        assert "it opened more than 256 sockets" in await bash(f"{PYTHON} -I -S -c '{script}'", policy)
