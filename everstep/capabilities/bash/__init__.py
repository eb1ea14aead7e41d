"""`bash`: the agent runs commands, always in a sandbox.

| file | concern |
|---|---|
| `sandbox.py` | runs one command: checks it, finds the user, the paths and the mounts |
| `places.py` | resolves the policy's paths |
| `protected_mounts.py` | protects files in writable directories by mounts |
| `aftermath.py` | disables code that a command leaves behind, after it has ended |
| `profile.py` | the file system, the variables and the limits inside |
| `way_out.py`, `listener.py`, `proxy.py` | the network, if the policy allows one: a proxy, and nothing else |
| `seccomp.py` | the system calls that a command may make |
| `mounts.py` | for a worker that is root: mounts of root's directories that another user can use |
| `process.py` | the life of one command and all its processes |
| `resource_watch.py`, `disk.py` | the resources that all its processes use together |
| `cgroups.py` | the same bounds, enforced by the kernel, if the worker has a cgroup |
| `self_test.py`, `attack.py`, `decoy.py` | a self-test: does the sandbox hold on this machine? |
"""

import os
from collections.abc import Mapping
from typing import Any, Self

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.bash import BashPolicy, ExecutionPolicy, PathText, result_text
from everstep.agent_domain.capabilities.network import AllowedNetwork
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.capabilities.bash import self_test
from everstep.capabilities.bash.sandbox import Sandbox, command_problem
from everstep.capabilities.bash.words import Unavailable, Unusable

TOOL = "bash"

SCHEMA: FrozenDict = frozen_map(
    {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "What `bash -c` runs."}},
        "required": ["command"],
    }
)


def description(policy: ExecutionPolicy) -> str:
    """The description of the tool that the model reads."""
    allowed = AllowedNetwork.of(policy.network)
    network = f"with HTTP and HTTPS by a proxy to {allowed}" if policy.network else "without network"
    return (
        f"Run a command with bash in {policy.base_dir}, {network}, for at most {policy.timeout:.15g} s. "
        "Each call is a new shell, and processes left in the background end with it. Files elsewhere than in "
        f"{', '.join([policy.base_dir, *policy.writable_paths])} are read-only or gone after the call."
    )


class BashTool:
    """Runs one command per call.

    Args:
        policy: What commands may use. If it is given, `base_dir` and `timeout` are ignored.
        base_dir: The directory in which commands run; the current directory by default.
        timeout: How many seconds a command may take.
        output_policy: How much of a command's output the model reads.
    """

    name = TOOL
    schema = SCHEMA
    options = ToolOptions(effect=Effect.AT_MOST_ONCE)

    def __init__(
        self,
        policy: ExecutionPolicy | None = None,
        base_dir: PathText | None = None,
        timeout: float = 120,
        output_policy: BashPolicy | None = None,
    ) -> None:
        self.policy = policy or ExecutionPolicy.for_bash(base_dir or os.getcwd(), timeout)
        self.output_policy = output_policy or BashPolicy()
        self.description = description(self.policy)

    @classmethod
    def in_directory(cls, base_dir: PathText) -> Self:
        """The tool for commands that run in one directory."""
        return cls(base_dir=base_dir)

    @classmethod
    def with_policy(cls, policy: ExecutionPolicy) -> Self:
        """The tool for commands under a policy."""
        return cls(policy)

    def unstorable(self, args: Mapping[str, Any]) -> str | None:
        """The error for a command that cannot be passed to a program either, or None."""
        problem = command_problem(args.get("command"))
        return f"Error: {problem}" if problem else None

    async def call(self, args: dict[str, Any], context: ToolContext) -> str:
        """Run the command and return its result as text; a command that fails is an ordinary result."""
        del context
        try:
            await self_test.require(self.policy)
            result = await Sandbox(self.policy).run(args["command"])
        except Unusable as error:
            return f"Error: {error}"
        except Unavailable as error:
            return f"Error: bash is unavailable: {error}"
        return result_text(result, self.policy.timeout, self.output_policy)


class UseBash:
    """Lets an agent run commands in a directory; see `BashTool` for the arguments."""

    name = "bash"

    def __init__(
        self,
        policy: ExecutionPolicy | None = None,
        base_dir: PathText | None = None,
        timeout: float = 120,
        output_policy: BashPolicy | None = None,
    ) -> None:
        self.tool = BashTool(policy, base_dir, timeout, output_policy)
        self.policy, self.output_policy = self.tool.policy, self.tool.output_policy

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tool."""
        return builder.with_tools([self.tool])
