"""The bash tool: its definition, and its results."""

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.capabilities.bash import MIB, BashPolicy, ExecutionPolicy
from everstep.agent_domain.tools.tools import Effect, Tool, options_of
from everstep.capabilities.bash import BashTool, UseBash
from everstep.capabilities.bash.sandbox import MAX_COMMAND_BYTES
from everstep.runtime.builder import AgentBuilder
from tests.everstep.capabilities.bash.surroundings import CONTEXT, SECRET, SandboxHost, bash, policy_for


def the_tool(capability: UseBash) -> Tool:
    (tool,) = AgentBuilder.new().with_capability(capability).definition().tools
    return tool


def test_by_default_it_runs_in_the_working_directory_for_two_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1: policy=None, base_dir=cwd, timeout=120, output_policy=None."""
    monkeypatch.chdir(tmp_path)
    capability = UseBash()
    assert capability.policy == ExecutionPolicy.for_bash(str(tmp_path), 120)
    assert capability.output_policy == BashPolicy()
    assert UseBash(base_dir="/work", timeout=7).policy == ExecutionPolicy.for_bash("/work", 7)


def test_a_policy_sets_the_directory_and_the_timeout() -> None:
    """9.1.1: a custom policy."""
    policy = ExecutionPolicy.in_dir("/work").with_network()
    assert UseBash(policy).policy is policy
    allowed = "/work, with HTTP and HTTPS by a proxy to all public names, for at most 5 s"
    assert allowed in the_tool(UseBash(policy)).description
    listed = policy.with_network(["pypi.org", "*.github.com"])
    assert "by a proxy to pypi.org, *.github.com, for" in the_tool(UseBash(listed)).description


def test_a_command_is_never_retried() -> None:
    """1.1.3: the effects of a command that was lost midway are unknown."""
    tool = the_tool(UseBash(base_dir="/work"))
    assert options_of(tool).effect is Effect.AT_MOST_ONCE
    assert (tool.name, tool.schema["required"]) == ("bash", ["command"])


async def test_the_output_of_a_command_is_returned(around: SandboxHost) -> None:
    """9.1.1, 9.1.3: `bash -c {command}` in base_dir."""
    text = await bash("echo $0 $#; pwd; echo mine >file; echo oops >&2; exit 3", policy_for(around))
    assert text == f"Exit code: 3\n\nbash 0\n{around.base_dir}\n\n\nSTDERR:\noops\n"
    assert (around.base_dir / "file").read_text() == "mine\n"
    assert (around.base_dir / "file").stat().st_uid == around.base_dir.stat().st_uid


async def test_a_command_without_output(around: SandboxHost) -> None:
    """9.1.3: `(no output)`."""
    assert await bash("true", policy_for(around)) == "(no output)"


@pytest.mark.parametrize("command", ["a b", "'", "((", "echo 1\nfi\n", "exit 2 ;", "no_such_program_at_all"])
async def test_an_error_of_bash_is_the_same_without_a_sandbox(command: str, around: SandboxHost) -> None:
    """9.1.5: the command's own error output."""
    text = await bash(command, policy_for(around))
    assert "Exit code: " in text
    assert "ulimit" not in text
    assert "__command" not in text


async def test_a_command_sees_a_reduced_environment(around: SandboxHost) -> None:
    """9.1.1: PATH, HOME, LANG, LC_*, TERM, TMPDIR, TZ, USER; paths and users are those of the sandbox."""
    allowed = {"PATH", "HOME", "LANG", "TERM", "TMPDIR", "TZ", "USER"}
    lines = (await bash("env", policy_for(around))).splitlines()
    found = dict(line.split("=", 1) for line in lines)
    # Bash itself sets the last three.
    assert {name for name in found if not name.startswith("LC_")} <= allowed | {"PWD", "SHLVL", "_"}
    assert (found["HOME"], found["USER"], found["TMPDIR"]) == ("/home/agent", "agent", "/tmp")  # noqa: S108
    assert found["PWD"] == str(around.base_dir)


async def test_a_policy_may_inherit_the_environment(around: SandboxHost) -> None:
    """9.1.1: unless the policy inherits it."""
    assert SECRET in await bash("echo $OPENAI_API_KEY", policy_for(around).inherit_environment())
    assert SECRET not in await bash("echo $OPENAI_API_KEY", policy_for(around))


async def test_a_policy_may_share_more_paths(around: SandboxHost) -> None:
    """9.1.2: `with_readable_paths`, `with_writable_paths`."""
    command = f"cat {around.outside}/secret; echo more >{around.outside}/more"
    policy = policy_for(around)
    reading = await bash(command, policy.with_readable_paths(around.outside))
    assert SECRET in reading
    assert "Read-only file system" in reading
    assert await bash(command, policy.with_writable_paths(around.outside)) == SECRET
    assert (around.outside / "more").read_text() == "more\n"


async def test_a_single_file_may_be_shared(around: SandboxHost) -> None:
    """9.1.2: `with_readable_paths`."""
    secret = around.outside / "secret"
    policy = policy_for(around).with_readable_paths(secret)
    assert await bash(f"ls {around.outside}; cat {secret}", policy) == f"secret\n{SECRET}"


async def test_the_base_directory_in_a_shared_path_is_writable(around: SandboxHost) -> None:
    """9.1.2: the base directory is writable at any location."""
    policy = policy_for(around).with_readable_paths(around.base_dir.parent)
    assert await bash("touch mine && cat ../outside/secret", policy) == SECRET


async def test_streams_are_capped(around: SandboxHost) -> None:
    """9.1.1: stdout at 5 MiB, stderr at 1 MiB; 9.1.4: the line says so."""
    everything = BashPolicy(max_output_chars=0)
    tool = BashTool(policy_for(around), output_policy=everything)
    command = "head -c 6M /dev/zero | tr '\\0' o; head -c 2M /dev/zero | tr '\\0' e >&2"
    text = await tool.call({"command": command}, CONTEXT)
    assert text.count("...(truncated)...") == 2
    # The line about the cut contains the letter e.
    assert (text.count("o"), text.count("e") - 2) == (5 * MIB, MIB)


async def test_the_output_of_a_command_is_shortened(around: SandboxHost) -> None:
    """9.1.4: by the output policy."""
    tool = BashTool(policy_for(around), output_policy=BashPolicy(10, 4, 6))
    text = await tool.call({"command": "printf 0123456789ABCDEFGHIJ"}, CONTEXT)
    assert text == "...(truncated)...\n0123\n...\nEFGHIJ"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "Error: the command is empty"),
        (" \n", "Error: the command is empty"),
        ("echo \0", "Error: the command contains a NUL character"),
        ("echo \ud800", "Error: the command contains '\\ud800', which is not a valid character"),
        (
            "#" * (MAX_COMMAND_BYTES + 1),
            f"Error: the command has {MAX_COMMAND_BYTES + 1} bytes, "
            f"and at most {MAX_COMMAND_BYTES} are possible",
        ),
        (None, "Error: the command is of type NoneType, not text"),
        (["ls"], "Error: the command is of type list, not text"),
    ],
)
async def test_an_invalid_command_is_refused(command: Any, said: str, around: SandboxHost) -> None:
    """9.1.3: decided here: for a command that cannot be run, the error text says why."""
    assert (await bash(command, policy_for(around))).startswith(said)


async def test_the_longest_command_is_run(around: SandboxHost) -> None:
    """9.1.1: of exactly the maximum length."""
    command = "echo long #"
    assert await bash(command + "x" * (MAX_COMMAND_BYTES - len(command)), policy_for(around)) == "long\n"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing", "there is no directory {path}; make it first"),
        ("file", "{path} is not a directory; name one to work in"),
    ],
)
async def test_an_unusable_directory_is_refused(path: str, said: str, around: SandboxHost) -> None:
    """9.1.1: decided here: the error text says what to do."""
    (around.base_dir / "file").touch()
    policy = ExecutionPolicy.for_bash(around.base_dir / path)
    assert await bash("true", policy) == f"Error: {said.format(path=around.base_dir / path)}"


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "/usr/bin", "/proc/self", "/dev/shm"])  # noqa: S108
async def test_a_system_directory_is_not_a_base_directory(path: str, around: SandboxHost) -> None:
    """9.1.5: the sandbox is the protection, so no part of it may be writable."""
    assert "holds the system itself" in await bash("true", ExecutionPolicy.for_bash(path))
    assert "holds the system itself" in await bash("true", policy_for(around).with_writable_paths(path))


async def test_a_directory_that_was_removed_and_created_again(around: SandboxHost) -> None:
    """9.1.1: the command sees the current one."""
    policy = ExecutionPolicy.for_bash(around.base_dir / "again")
    for content in ("one", "two"):
        (around.base_dir / "again").mkdir()
        (around.base_dir / "again" / content).touch()
        assert await bash("ls", policy) == f"{content}\n"
        (around.base_dir / "again" / content).unlink()
        (around.base_dir / "again").rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
async def test_a_worker_that_runs_as_root_switches_to_the_owner(around: SandboxHost) -> None:
    """9.1.1: a command never runs as root."""
    os.chown(around.base_dir, 4321, 4321)
    (around.base_dir / "of_root").write_text(SECRET)
    (around.base_dir / "of_root").chmod(0o600)
    assert "Permission denied" in await bash("touch mine; cat of_root", policy_for(around))
    assert (around.base_dir / "mine").stat().st_uid == 4321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories of root")
async def test_in_a_directory_of_root_no_command_runs_as_root(around: SandboxHost) -> None:
    """9.1.1: a command never runs as root, not even in a directory that root owns."""
    (around.base_dir / "kept").write_text("before")
    await bash("echo after >kept; mkdir made; touch made/file", policy_for(around))
    assert (around.base_dir / "kept").read_text() == "after\n"
    assert {each.stat().st_uid for each in around.base_dir.rglob("*")} == {0}
    # As the kernel sees it: the process is not root.
    host = await bash("cat /proc/self/uid_map; stat -c %u /proc/self", policy_for(around))
    assert host.split()[0] == "1000"
