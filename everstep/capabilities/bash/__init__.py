"""`bash`: the agent runs commands, in a sandbox and never outside of one.

| file | concern |
|---|---|
| `sandbox.py` | who runs a command, and where: refused before it begins, or begun |
| `places.py` | where the policy's paths lead, and no other way |
| `guard.py` | what of the directories that it can write to is closed all the same |
| `aftermath.py` | what it made that would run code, once it has ended |
| `profile.py` | what it finds inside, and its limits |
| `way_out.py`, `listener.py`, `proxy.py` | where the policy has a network: the only way out |
| `seccomp.py` | which system calls it may make |
| `mounts.py` | for a worker that is root: how somebody else can use root's directories |
| `process.py` | one command from its beginning to the end of all that it began |
| `watch.py`, `disk.py` | what all its processes take together |
| `cgroups.py` | the same by the kernel, where the worker has a cgroup |
| `checks.py`, `attack.py`, `decoy.py` | whether all that holds on this machine |
"""

import os
from collections.abc import Mapping
from typing import Any, Self

from everstep.agent_domain.agents.builder import AgentBuilder
from everstep.agent_domain.capabilities.bash import BashPolicy, ExecutionPolicy, PathText, result_text
from everstep.agent_domain.capabilities.network import AllowedNetwork
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.capabilities.bash import checks
from everstep.capabilities.bash.sandbox import Sandbox, unusable
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
    """What the model is told."""
    allowed = AllowedNetwork.of(policy.network)
    network = f"with HTTP and HTTPS by a proxy to {allowed}" if policy.network else "without network"
    return (
        f"Run a command with bash in {policy.base_dir}, {network}, for at most {policy.timeout:.15g} s. "
        "Each call is a new shell, and processes left in the background end with it. Files elsewhere than in "
        f"{', '.join([policy.base_dir, *policy.writable_paths])} are read-only or gone after the call."
    )


class BashTool:
    """Runs one command for each call.

    Args:
        policy: What commands may use; given one, `base_dir` and `timeout` do not count.
        base_dir: Where commands run; the current directory by default.
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
        """What is wrong with a command that no program could be given either."""
        problem = unusable(args.get("command"))
        return f"Error: {problem}" if problem else None

    async def call(self, args: dict[str, Any], context: ToolContext) -> str:
        """Say what became of the command; one that fails is a result like any other."""
        del context
        try:
            await checks.require(self.policy)
            result = await Sandbox(self.policy).run(args["command"])
        except Unusable as error:
            return f"Error: {error}"
        except Unavailable as error:
            return f"Error: bash is unavailable: {error}"
        return result_text(result, self.policy.timeout, self.output_policy)


class UseBash:
    """Lets an agent run commands in a directory; a policy that is given says which one, and for how long."""

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

    def install(self, builder: AgentBuilder) -> AgentBuilder:
        """Add the tool."""
        return builder.with_tools([self.tool])
