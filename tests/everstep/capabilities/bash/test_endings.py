"""A command leaves no processes, however it ends."""

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from everstep.capabilities.bash import process, self_test
from everstep.capabilities.bash.sandbox import Sandbox
from everstep.capabilities.bash.words import Unavailable
from tests.everstep.capabilities.bash.surroundings import MARK, SandboxHost, bash, policy_for

AT_WORK = "(setsid sleep 98765 &); (sleep 98765 & sleep 98765) & touch begun; wait"
DEADLINE = 20


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 -- another process writes, and does not notify this one
            await asyncio.sleep(0.005)


@asynccontextmanager
async def open_running_command(around: SandboxHost) -> AsyncGenerator[asyncio.Task[str]]:
    """A command with background processes that would run for days."""
    task = asyncio.create_task(bash(AT_WORK, policy_for(around, 99)))
    await wait_until((around.base_dir / "begun").exists)
    assert around.running_processes()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        (around.base_dir / "begun").unlink()


async def test_a_timeout_stops_the_command(around: SandboxHost) -> None:
    """9.1.3: `Time limit of {n}s reached, command stopped`; its earlier output is returned."""
    begun = time.monotonic()
    text = await bash(f"echo first; {AT_WORK}", policy_for(around, 1.5))
    assert text == "Time limit of 1.5s reached, command stopped\n\nfirst\n"
    assert not around.running_processes()
    assert 1.5 <= time.monotonic() - begun < DEADLINE


async def test_a_cancelled_command_ends_at_once(around: SandboxHost) -> None:
    """9.1.1: with all its processes, within 100 ms; the best of several, on a shared machine."""
    seconds = list[float]()
    for _ in range(5):
        async with open_running_command(around) as task:
            begun = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            seconds.append(time.monotonic() - begun)
            assert not around.running_processes()
    assert min(seconds) < 0.1


async def test_a_command_cancelled_twice_ends_as_well(around: SandboxHost) -> None:
    """9.1.1: the caller that cancels does not wait."""
    async with open_running_command(around) as task:
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: not around.running_processes())


async def test_a_command_cancelled_at_any_moment_leaves_nothing(around: SandboxHost) -> None:
    """9.1.1: also while its sandbox is created."""
    sandbox = Sandbox(policy_for(around, 99))
    descriptors = len(os.listdir("/proc/self/fd"))
    for turns in range(30):
        task = asyncio.create_task(sandbox.run("sleep 98765"))
        for _ in range(turns % 10):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not around.running_processes()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3  # a namespace is kept


async def test_a_command_that_ends_stops_its_background_processes(around: SandboxHost) -> None:
    """9.1.1: no process continues."""
    begun = time.monotonic()
    assert await bash(AT_WORK.removesuffix("wait") + "echo done", policy_for(around, 99)) == "done\n"
    assert not around.running_processes()
    assert time.monotonic() - begun < DEADLINE


WORKERS = """
import asyncio, os, signal, sys
from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash.sandbox import Sandbox

async def work(folder):
    sandbox = Sandbox(ExecutionPolicy.for_bash(folder, 99))
    await asyncio.gather(*(sandbox.run(f"touch {n}; setsid -f sleep 98765; sleep 98765") for n in range(8)))

for line in sys.stdin:
    child = os.fork()
    if not child:
        folder, name, value = line.split()
        os.environ[name] = value
        asyncio.run(work(folder))
    print(child, flush=True)
    os.waitpid(child, 0)
"""
"""Forks a worker for each line of its input, after the end of the one before."""


async def test_a_worker_that_is_killed_leaves_nothing(around: SandboxHost) -> None:
    """9.1.1: at any point of its startup."""
    # Only the commands of the workers have the mark.
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    workers = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKERS), env=environment, stdin=-1, stdout=-1
    )
    assert workers.stdin
    assert workers.stdout

    def started(folder: Path) -> int:
        return len(list(folder.glob("[0-9]")))

    def is_at_work(folder: Path, begun: int) -> bool:
        return around.running_processes() != [] and started(folder) >= begun

    for begun in (0, 1, 3, 8):
        folder = around.base_dir / f"folder-{begun}"
        folder.mkdir()
        workers.stdin.write(f"{folder} {MARK} {around.mark}\n".encode())
        worker = int(await workers.stdout.readline())
        await wait_until(partial(is_at_work, folder, begun))
        os.kill(worker, signal.SIGKILL)
        await wait_until(lambda: not around.running_processes())
        # No command was started after the kill.
        assert started(folder) <= 8
    workers.stdin.close()
    assert await workers.wait() == 0


async def test_many_commands_run_concurrently(around: SandboxHost) -> None:
    """9.1.1: they are isolated from each other."""
    policy = policy_for(around, 60)
    texts = await asyncio.gather(*(bash(f"echo {n}; ls /proc | grep -c '^[0-9]'", policy) for n in range(12)))
    assert [text.split()[0] for text in texts] == [str(n) for n in range(12)]
    assert {int(text.split()[1]) for text in texts} <= {3, 4, 5}
    assert not around.running_processes()


async def test_excessive_output_is_stopped_and_its_beginning_is_kept(around: SandboxHost) -> None:
    """9.1.4: the line about the cut is in front; 9.1.5: the sandbox reports on stderr."""
    text = await bash("echo first; echo oops >&2; yes", policy_for(around))
    assert text.startswith("...(truncated)...\nfirst\n")
    said = "it wrote more than 10 MiB; write to a file, and show parts of it"
    assert text.endswith(f"\n\nSTDERR:\noops\nsandbox: the command was stopped, as {said}\n")


@contextmanager
def limit_descriptors(count: int) -> Generator[None]:
    """This many more descriptors, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    lower = [os.open("/", os.O_PATH) for _ in range(highest - len(os.listdir("/proc/self/fd")) + 2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max([highest, *lower]) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in lower:
            os.close(descriptor)


async def test_a_worker_without_descriptors_leaves_nothing(around: SandboxHost) -> None:
    """9.1.1: at any point where they run out; and the next command has them again."""
    policy = policy_for(around, 99)
    assert await bash("echo on", policy) == "on\n"
    before, told = len(os.listdir("/proc/self/fd")), list[str]()
    async with asyncio.timeout(DEADLINE):
        for count in range(32):
            with limit_descriptors(count):
                try:
                    told.append(await bash("echo on", policy))
                except OSError as error:
                    told.append(str(error))
            # The watcher may still run, here and before.
            await wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
            assert not around.running_processes()
    assert {"on\n", "[Errno 24] Too many open files"} <= {*told}
    assert all("Too many open files" in each for each in told if each != "on\n")


async def test_a_command_that_cannot_be_watched_never_begins(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.5: nor does a caller wait for it."""

    def fail_to_start(thread: threading.Thread) -> None:
        raise RuntimeError(f"no more threads for {thread.name}")

    sandbox = Sandbox(policy_for(around, 99))
    await sandbox.run("true")
    monkeypatch.setattr(process.threading.Thread, "start", fail_to_start)
    with pytest.raises(Unavailable, match=r"it cannot be watched \(no more threads for everstep watch\)"):
        async with asyncio.timeout(DEADLINE):
            await sandbox.run("touch begun; sleep 98765")
    assert not around.running_processes()
    assert not (around.base_dir / "begun").exists()


async def test_a_command_cancelled_while_the_sandbox_is_checked_leaves_nothing(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1, 9.1.5: at any moment of the check; the next command checks again."""
    monkeypatch.setattr(self_test, "_PASSED", set[tuple[int, int, bool, bool]]())
    descriptors = len(os.listdir("/proc/self/fd"))
    cancelled = 0
    for turns in range(20):
        task = asyncio.create_task(bash("touch begun", policy_for(around)))
        for _ in range(turns):
            await asyncio.sleep(0.002)
        if (around.base_dir / "begun").exists():
            # On a fast machine the check has already ended.
            task.cancel()
            await asyncio.wait([task])
            break
        task.cancel()
        await asyncio.wait([task])
        cancelled += task.cancelled()
        assert not around.running_processes()
    assert cancelled > 3
    assert await bash("echo on", policy_for(around)) == "on\n"
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3  # namespaces are kept


CLOSED = """
import asyncio, os, sys
from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash.sandbox import Sandbox

async def work():
    sandbox = Sandbox(ExecutionPolicy.for_bash(sys.argv[1], 20))
    result = await sandbox.run("cat; echo out; echo err >&2; exit 3")
    with open(sys.argv[2], "a") as file:
        print(result.exit_code, repr(result.stdout), repr(result.stderr), file=file)

for closed in sys.argv[3:]:
    child = os.fork()
    if not child:
        for stream in closed.split():
            os.close(int(stream))
        asyncio.run(work())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


async def test_a_worker_without_standard_streams(around: SandboxHost) -> None:
    """9.1.3: services are started this way, and descriptors get the numbers of the missing streams."""
    told, closed = around.outside / "told", ("0", "1", "2", "0 1 2")
    words = [sys.executable, "-c", CLOSED, str(around.base_dir), str(told), *closed]
    worker = await asyncio.create_subprocess_exec(*words)
    assert await worker.wait() == 0
    assert told.read_text() == "3 'out\\n' 'err\\n'\n" * len(closed)


@pytest.mark.parametrize("error", [PermissionError("no eyes"), ValueError("no eyes")])
async def test_a_command_that_cannot_be_watched_is_stopped(
    error: Exception, around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.5: no command runs unwatched."""

    def fail_to_look(*_: object) -> str | None:
        raise error

    sandbox = Sandbox(policy_for(around))
    monkeypatch.setattr(process.resource_watch, "find_excess", fail_to_look)
    result = await sandbox.run("sleep 98765")
    assert result.stderr == "sandbox: the command was stopped, as what it takes cannot be watched (no eyes)\n"
