"""A command may use a limited amount of disk space, in any number of files."""

import asyncio
import os
import re
from typing import Any

import pytest

from everstep.agent_domain.capabilities.bash import MIB, ExecutionPolicy
from everstep.capabilities.bash import disk
from tests.everstep.capabilities.bash.surroundings import PYTHON, SandboxHost, bash, policy_for
from tests.everstep.capabilities.bash.users import ROOT

STOPPED = "sandbox: the command was stopped, as it let the disk grow by more than 64 MiB\n"
WAIT = "sleep 60"

WRITERS = {
    "one file after the other": "for i in $(seq 99); do head -c 8M /dev/zero >f$i; done",
    "many processes": "for i in $(seq 20); do head -c 8M /dev/zero >f$i & done; wait",
    "processes that nobody waits for": (
        PYTHON + " -I -S -c 'import os, signal\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for n in range(60):\n"
        "  if not os.fork():\n"
        '    open(f"f{n}", "wb").write(bytes(2**22)); os._exit(0)\n'
        "import time; time.sleep(60)'"
    ),
    "files that were removed": (
        PYTHON + " -I -S -c '\nimport os, time\nkept = []\n"
        'for n in range(40):\n  kept.append(open("f", "wb")); kept[-1].write(bytes(2**22)); os.unlink("f")\n'
        "time.sleep(60)'"
    ),
    "files that were removed and are mapped": (
        PYTHON + " -I -S -c '\nimport os, mmap, time\nkept = []\n"
        'for n in range(40):\n  f = open("f", "w+b"); f.truncate(2**22); m = mmap.mmap(f.fileno(), 2**22)\n'
        '  m.write(b"x" * 2**22); kept.append(m); f.close(); os.unlink("f")\n'
        "time.sleep(60)'"
    ),
    "a folder that is moved about": (
        "while :; do mv a b; mv b a; done 2>/dev/null & mkdir a; "
        "for i in $(seq 99); do head -c 8M /dev/zero >a/f$i || head -c 8M /dev/zero >b/f$i; done 2>/dev/null"
    ),
    "folders that are closed": (
        "for i in $(seq 60); do mkdir d$i; head -c 4M /dev/zero >d$i/f; chmod 000 d$i; done"
    ),
}


def with_disk_limit(policy: ExecutionPolicy) -> ExecutionPolicy:
    return policy.with_disk(64 * MIB)


DEEP = (
    PYTHON + " -I -S -c 'import os\n"
    'for n in range(1500): os.mkdir("d"); os.chdir("d")\n'
    'for n in range(40): open(f"f{n}", "wb").write(bytes(2**22))\n'
    "import time; time.sleep(60)'"
)


async def test_a_deep_tree_uses_no_descriptors_of_the_worker(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.11: a tree that cannot be measured counts as the limit of the command."""
    looked = list[int]()
    walk: Any = os.fwalk

    def counting(*args: Any, **kwargs: Any) -> Any:
        for found in walk(*args, **kwargs):
            looked.append(len(os.listdir("/proc/self/fd")))
            yield found

    monkeypatch.setattr("everstep.capabilities.bash.disk.os.fwalk", counting)
    told = await bash(DEEP, with_disk_limit(policy_for(around, 60)))
    monkeypatch.undo()
    # pytest's removal of temporary folders cannot remove these.
    await bash("rm -rf d", policy_for(around, 60))
    assert "what it takes of the disk cannot be measured" in told
    assert max(looked) - min(looked) <= 2 * disk.DEPTH


@pytest.mark.parametrize("name", WRITERS)
async def test_the_disk_use_of_a_command_is_limited(name: str, around: SandboxHost) -> None:
    """9.1.11: regardless of how the files are created."""
    told = await bash(f"{WRITERS[name]}; {WAIT}", with_disk_limit(policy_for(around, 60)))
    assert STOPPED in told or "what it takes of the disk cannot be measured" in told, told
    kept = sum(file.stat().st_blocks * 512 for file in around.base_dir.rglob("*") if file.is_file())
    assert kept < 2**30


async def test_space_cannot_be_reserved_without_writing(around: SandboxHost) -> None:
    """9.1.11: it would be used faster than the watcher can measure; libraries write instead."""
    code = 'import os; os.posix_fallocate(os.open("b", os.O_CREAT | os.O_RDWR), 0, 2**20); print("written")'
    told = await bash(f"fallocate -l 1M a; {PYTHON} -I -S -c '{code}'", policy_for(around))
    assert "Operation not supported" in told
    assert "written" in told


async def test_files_of_other_processes_do_not_count(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.11: the command continues, and may still use its own limit."""
    looked, loop, judge = asyncio.Event(), asyncio.get_running_loop(), disk.DiskWatch.limit_problem

    def limit_problem(self: disk.DiskWatch) -> str | None:
        loop.call_soon_threadsafe(looked.set)
        return judge(self)

    await bash("true", with_disk_limit(policy_for(around)))
    monkeypatch.setattr(disk.DiskWatch, "limit_problem", limit_problem)
    command = "until test -e go; do sleep 0.05; done; head -c 1M /dev/zero >mine; echo on"
    running = asyncio.create_task(bash(command, with_disk_limit(policy_for(around, 60))))
    with (around.outside / "other").open("ab") as other:
        while not looked.is_set() and other.tell() < 2**30:
            other.write(bytes(4 * MIB))
            other.flush()
            await asyncio.sleep(0)
    assert looked.is_set()
    (around.base_dir / "go").touch()
    assert await running == "on\n"


async def test_the_number_of_files_is_limited(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.11: inode tables are full before the disk is."""
    if not os.statvfs(around.base_dir).f_files:
        pytest.skip("this file system makes as many as there is space for")
    monkeypatch.setattr(disk, "MAX_FILES", 500)
    told = await bash(
        f"for i in $(seq 9999); do : >f$i; done; {WAIT}", with_disk_limit(policy_for(around, 60))
    )
    assert "sandbox: the command was stopped, as it made more than 500 files\n" in told
    assert len(os.listdir(around.base_dir)) > 500


async def test_existing_files_do_not_count(around: SandboxHost) -> None:
    """9.1.11: only added ones."""
    (around.base_dir / "old").write_bytes(bytes(80 * MIB))
    assert await bash("cp old new 2>&1; ls", ExecutionPolicy.for_bash(around.base_dir, 60)) == "new\nold\n"
    told = await bash(
        "head -c 1M /dev/zero >>old; rm new; echo on; sleep 0.2", with_disk_limit(policy_for(around, 60))
    )
    assert told == "on\n"


def test_the_default_limit_is_documented() -> None:
    """9.1.11: 1 GiB by default."""
    assert ExecutionPolicy.for_bash(".").disk_bytes == 1024 * MIB
    assert re.search(
        r"\| `disk_bytes` \| `1073741824` \|", (ROOT / "docs/capabilities.md").read_text("utf-8")
    )
