"""Cgroups: where there is one, the kernel limits a command; where there is none, that is reported.

This machine may have no controllers of version 2. Handling of the kernel's files is tested on a folder with
the same files, and moving processes on the real tree, which works the same without controllers.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.agent_domain.capabilities.bash import MIB, ExecutionPolicy
from everstep.capabilities.bash import cgroups
from tests.everstep.capabilities.bash.surroundings import SandboxHost, bash, policy_for


@pytest.fixture(autouse=True)
def again() -> Iterator[None]:
    """Other tests use the machine's real cgroups."""
    yield
    cgroups.set_cgroup(Path("/"))
    cgroups.set_cgroup(None)


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """The files of a cgroup, in a folder that the kernel does not know."""
    folder = tmp_path / "cgroup"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu io memory pids\n")
    (folder / "cgroup.subtree_control").write_text("\n")
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (folder / cgroups.LEAF).mkdir()
    (folder / cgroups.LEAF / "cgroup.procs").write_text("")
    return folder


def test_the_worker_moves_into_a_leaf_and_controllers_are_enabled(stand_in: Path) -> None:
    """9.1.13: processes and controllers cannot be in the same cgroup."""
    (stand_in / "everstep-command-1-1").mkdir()
    cgroups.set_cgroup(stand_in)
    assert cgroups.detect_bound().folder == stand_in
    assert (stand_in / cgroups.LEAF / "cgroup.procs").read_text() == str(os.getpid())
    assert (stand_in / "cgroup.subtree_control").read_text() == "+memory +pids +io"
    assert not (stand_in / "everstep-command-1-1").exists()
    assert (
        str(cgroups.detect_bound())
        == f"memory and processes are bounded by the kernel, in cgroups below {stand_in}"
    )


def test_the_kernel_limits_memory_and_processes() -> None:
    """9.1.13: the limits that are otherwise watched, plus the size of the temporary file systems."""
    limits = cgroups.cgroup_limits(ExecutionPolicy.for_bash(".").with_memory(100 * MIB))
    assert limits == {
        "memory.max": str(225 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "256",
        "io.weight": "default 50",
    }


def test_limits_are_written_where_the_kernel_has_them(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.13: and only there."""
    make = Path.mkdir

    def with_files(path: Path) -> None:
        make(path)
        for name in ("memory.max", "pids.max"):
            (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", with_files)
    made = cgroups.Cgroup(stand_in, {"memory.max": "5", "pids.max": "6", "io.weight": "7"})
    assert sorted((each.name, each.read_text()) for each in made.folder.iterdir()) == [
        ("memory.max", "5"),
        ("pids.max", "6"),
    ]
    assert not made.ran_out_of_memory
    (made.folder / "memory.events").write_text("low 0\noom 1\noom_kill 0\noom_group_kill 1\n")
    assert made.ran_out_of_memory


def test_without_controllers_the_remaining_limits_are_reported(stand_in: Path) -> None:
    """9.1.13: the doctor and `everstep up` report them."""
    (stand_in / "cgroup.controllers").write_text("cpu\n")
    cgroups.set_cgroup(stand_in)
    assert cgroups.detect_bound().folder is None
    assert str(cgroups.detect_bound()) == (
        "memory and processes are bounded by limits and by watching "
        f"(the cgroup {stand_in} has no controller for memory and pids)"
    )
    cgroups.set_cgroup(stand_in / "gone")
    assert "is not a cgroup of version 2" in str(cgroups.detect_bound())


def test_a_cgroup_that_is_not_delegated_is_not_used() -> None:
    """9.1.13: a worker that runs as root could write to every cgroup of the machine."""
    cgroups.set_cgroup(None)
    told = cgroups.detect_bound()
    if told.folder is None:
        assert "bounded by limits and by watching" in str(told)
    else:
        assert any(os.getxattr(told.folder, mark) == b"1" for mark in os.listxattr(told.folder))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cgroup of the kernel, with or without controllers."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    top = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if top is None or not os.access(top, os.W_OK):
        pytest.skip("this user may make no cgroup of version 2 here")
    folder = top / f"everstep-test-{os.getpid()}"
    folder.mkdir()
    monkeypatch.setattr(cgroups, "REQUIRED", frozenset[str]())
    monkeypatch.setattr(cgroups, "USEFUL", ())
    cgroups.set_cgroup(folder)
    yield folder
    folder.rmdir()


async def test_a_command_runs_in_its_own_cgroup(real: Path, around: SandboxHost) -> None:
    """9.1.13: with all its processes, from the start; the cgroup is removed with it."""
    command = "(setsid sleep 98765 &); until test -e go; do sleep 0.02; done; cat /proc/self/cgroup"
    await bash("true", policy_for(around))
    running = asyncio.create_task(bash(command, policy_for(around, 60)))
    seen = set[str]()
    while len(seen) < 4:
        await asyncio.sleep(0)
        for each in real.glob("everstep-command-*/cgroup.procs"):
            seen |= set(each.read_text().split())
    (around.base_dir / "go").touch()
    assert "everstep-command-" in await running
    assert not around.running_processes()
    assert [each for each in real.iterdir() if each.is_dir()] == []
