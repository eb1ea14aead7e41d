"""A worker process that runs an agent's commands and file tools, given as JSON; it prints JSON."""

import asyncio
import json
import os
import sys
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.bash import BashTool, self_test
from everstep.capabilities.files import UseFileTools
from everstep.capabilities.protection import protect

CONTEXT = ToolContext(UUID(int=1), "call", 1)


async def main(asked: dict[str, Any]) -> dict[str, Any]:
    os.chdir(asked.get("here", asked["base"]))
    os.environ["PATH"] = asked.get("path", os.environ["PATH"])
    protect(asked.get("hidden", ()), asked.get("read_only", ()))
    policy = ExecutionPolicy.for_bash(asked["base"], asked.get("seconds", 60)).with_git(
        asked.get("git", False)
    )
    policy = policy.with_writable_paths(*asked.get("writable", ())).with_disk(asked.get("disk", 2**30))
    bash = BashTool.with_policy(policy)
    files = {tool.name: tool for tool in UseFileTools(asked["base"], policy).tools}
    return {
        "checks": await self_test.failed_checks(policy) if asked.get("checks") else None,
        "bash": [await bash.call({"command": command}, CONTEXT) for command in asked.get("commands", ())],
        "files": [str(files[name].call(args, CONTEXT)) for name, args in asked.get("files", ())],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
