"""Worker processes that run an agent's commands and file tools, given as JSON; each prints JSON.

A worker imports for a second before it does anything, so this process does so once, and forks for each line
of its input. The answer is a line with `result`, or with `error`.
"""

import asyncio
import gc
import json
import os
import sys
import traceback
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.bash import BashTool, self_test
from everstep.capabilities.bash.sandbox import Sandbox
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
    held = [asyncio.ensure_future(Sandbox(policy).run(command)) for command in asked.get("held", ())]
    files = {tool.name: tool for tool in UseFileTools(asked["base"], policy).tools}
    return {
        "checks": await self_test.failed_checks(policy) if asked.get("checks") else None,
        "bash": [await bash.call({"command": command}, CONTEXT) for command in asked.get("commands", ())],
        "held": [each.stderr for each in await asyncio.gather(*held)],
        "files": [str(files[name].call(args, CONTEXT)) for name, args in asked.get("files", ())],
    }


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What a worker of this home answers."""
    os.environ["HOME"] = asked.pop("home")
    try:
        return {"result": asyncio.run(main(asked))}
    except BaseException:  # noqa: BLE001 -- the test fails with it
        return {"error": traceback.format_exc()}


def serve() -> None:
    """Fork a worker for each line of the input, one after the other."""
    # A child's garbage collector would read, and thereby copy, all that was imported.
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.write(1, json.dumps(answer(json.loads(line))).encode() + b"\n")
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    serve()
