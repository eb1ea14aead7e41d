"""The worker attacks its own sandbox, reports what it finds open, and then runs no commands."""

import os
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash import profile, seccomp, self_test
from everstep.capabilities.bash.protected_mounts import Guard, Mount
from everstep.capabilities.protection import Protection
from tests.everstep.capabilities.bash.surroundings import SandboxHost, bash, policy_for
from tests.everstep.capabilities.bash.users import WorkerUser


@pytest.fixture(autouse=True)
def no_earlier_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a process that has not run a command yet."""
    monkeypatch.setattr(self_test, "_PASSED", set[tuple[int, int, bool, bool]]())


async def refusal_of(around: SandboxHost) -> str:
    """The error that the model reads instead of a result."""
    text = await bash("touch run", policy_for(around))
    assert text.startswith("Error: bash is unavailable: ")
    assert not (around.base_dir / "run").exists()
    return text


async def test_the_sandbox_holds_here(around: SandboxHost) -> None:
    """9.1.5: nothing is open, with network and without."""
    assert await self_test.failed_checks(policy_for(around)) == []
    assert await self_test.failed_checks(policy_for(around).with_network()) == []
    assert not around.running_processes()


async def test_it_is_checked_once(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.5: for each shape of policy."""
    shapes = list[bool]()
    real = self_test.failed_checks

    async def count_checks(policy: ExecutionPolicy) -> list[str]:
        shapes.append(bool(policy.network))
        return await real(policy)

    monkeypatch.setattr(self_test, "failed_checks", count_checks)
    for policy in (policy_for(around), policy_for(around, 3), policy_for(around).with_network()):
        for _ in range(2):
            assert await bash("echo on", policy) == "on\n"
    assert shapes == [False, True]


def patch_arguments(change: Callable[[list[str]], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    real = profile.arguments

    def patched(
        policy: ExecutionPolicy, mounts: Sequence[Mount], descriptor: Callable[[bytes], int]
    ) -> list[str]:
        return change(real(policy, mounts, descriptor))

    monkeypatch.setattr(profile, "arguments", patched)


async def test_an_open_network_is_detected(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.5: the text names the opening, and says what to do."""
    patch_arguments(lambda given: [each for each in given if each != "--unshare-net"], monkeypatch)
    text = await refusal_of(around)
    assert "the sandbox leaves open: the worker's network; update bubblewrap and the kernel" in text
    # Only the filter blocks these.
    assert "local sockets" not in text


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("passwords of the machine", "/etc/shadow"),
        ("the system's services", "/sys/kernel"),
        ("other people's homes", "/home/somebody"),
    ],
)
async def test_an_extra_path_is_detected(
    name: str, path: str, around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.5: regardless of its origin."""
    patch_arguments(lambda given: ["--dir", path, *given], monkeypatch)
    assert f"the sandbox leaves open: {name}; " in await refusal_of(around)


async def test_a_writable_system_is_detected(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.5: it would be memory without a limit."""

    def writable(given: list[str]) -> list[str]:
        where = len(given) - given[::-1].index("/dev") - 2
        assert given[where : where + 4] == ["--remount-ro", "/dev", "--remount-ro", "/"]
        return given[:where] + given[where + 4 :]

    patch_arguments(writable, monkeypatch)
    assert "the sandbox leaves open: writing to the system; " in await refusal_of(around)


async def test_a_missing_filter_is_detected(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.5: by the calls that only the filter refuses."""
    allowing = struct.pack("=HBBI", 0x06, 0, 0, seccomp.ALLOW)

    def program() -> bytes:
        return allowing

    monkeypatch.setattr(seccomp, "program", program)
    text = await refusal_of(around)
    for name in (
        "keys in the kernel",
        "work in the kernel",
        "memory outside of all limits",
        "events of the machine",
        "watches of the worker's user",
        "local sockets",
        "starting as another user",
    ):
        assert f"the sandbox leaves open: {name}; " in text


async def test_missing_limits_are_detected(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.5: a fork bomb would not end."""
    real = profile.prelude

    def script_without_limits(policy: ExecutionPolicy, lifeline: int) -> str:
        return real(policy, lifeline).replace("ulimit", "true")

    monkeypatch.setattr(profile, "prelude", script_without_limits)
    assert "the sandbox leaves open: memory without end; " in await refusal_of(around)


async def test_an_open_project_is_detected(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.12: the installation's files there are attacked by commands and by file tools."""
    real = Guard.mounts

    def only_places(guard: Guard, sources: Mapping[str, str]) -> list[Mount]:
        return [mount for mount in real(guard, sources) if mount.path not in guard.checked_files]

    monkeypatch.setattr(Guard, "mounts", only_places)

    def as_before(guard: Guard, root: str) -> None:
        del guard, root

    monkeypatch.setattr(Guard, "replaced_in", as_before)
    text = await refusal_of(around)
    for name in (
        "the installation's data",
        "the installation's database",
        "secrets of the project",
        "settings of the installation",
        "definitions of agents",
        "code that git runs",
    ):
        assert f"the sandbox leaves open: {name}; " in text


async def test_open_file_tools_are_detected(around: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1.12: bash reports it, as does the doctor."""

    def never(protection: Protection, path: str, roots: Sequence[str], *, write: bool) -> bool:
        del protection, path, roots, write
        return False

    monkeypatch.setattr(Protection, "forbids", never)
    text = await refusal_of(around)
    for name in (
        "reading .everstep/api-secret",
        "reading .env",
        "writing everstep.toml",
        "writing .git/hooks/x",
    ):
        assert f"file tools leave open: {name}; " in text


@pytest.mark.parametrize("git", [False, True])
def test_it_holds_for_every_user_of_the_worker(git: bool, user: WorkerUser) -> None:
    """9.1.12: as root and as an ordinary user, and nothing is left of the attack."""
    base = user.folder / "base"
    base.mkdir()
    assert user.worker(base=base, checks=True, git=git)["checks"] == []
    assert os.listdir(base) == []


async def test_without_bubblewrap_no_command_runs(
    around: SandboxHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.5: the text says what to install."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(profile, "PROGRAMS", str(programs))
    said = "bwrap is not installed; install it (Debian and Ubuntu: apt install bubblewrap)"
    assert await refusal_of(around) == f"Error: bash is unavailable: {said}"


async def test_the_location_of_the_workers_bash_does_not_matter(
    around: SandboxHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1: it may be where no command looks."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    assert await bash("echo on", policy_for(around)) == "on\n"


@pytest.fixture
def everybodys() -> Generator[Path]:
    """A folder that all users may read, unlike pytest's."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(
    ("problem", "setting", "said"),
    [
        ("No permissions to create a new namespace", "0", "user namespaces are forbidden here: sysctl -w "),
        ("No permissions to create a new namespace", "1", "it has to be allowed to make user namespaces"),
        (
            "Can't mount proc on /newroot/proc: Operation not permitted",
            "0",
            "--security-opt systempaths=unconfined",
        ),
        ("setting up uid map: Permission denied", "1", "docker run --security-opt seccomp=unconfined"),
        ("Can't find source path /root/x: Permission denied", "0", "access to it and to the folders above"),
        ("Unknown option --disable-userns", "1", "update bubblewrap to 0.8 or later"),
    ],
)
async def test_a_sandbox_that_cannot_be_made(  # noqa: PLR0917 -- all parameters of a case
    problem: str,
    setting: str,
    said: str,
    around: SandboxHost,
    everybodys: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """9.1.5: the text says what prevents it, and how to allow it."""
    program = everybodys / "bwrap"
    program.write_text(f'#!/bin/sh\necho "bwrap: {problem}" >&2; exit 1\n')
    program.chmod(0o755)
    # The machine's own folders are searched before PATH.
    monkeypatch.setattr(profile, "PROGRAMS", f"{everybodys}:{profile.PROGRAMS}")
    (everybodys / "setting").write_text(f"{setting}\n")
    monkeypatch.setattr(self_test, "CLONE", str(everybodys / "setting"))
    text = await refusal_of(around)
    assert f"bwrap: {problem}; " in text
    assert said in text


async def test_on_another_system_the_sandbox_is_unsupported(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.5: the text names the supported systems."""
    monkeypatch.setattr(self_test.platform, "machine", lambda: "riscv64")
    assert "it needs Linux on x86_64 or aarch64; run the worker there" in await refusal_of(around)
