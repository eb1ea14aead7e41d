"""A host that uses an agent over MCP: starts it, answers what it asks, and prints its result.

    python host.py AGENT MESSAGE [URL]

It starts `everstep mcp`, or connects to the URL with the token in EVERSTEP_API_TOKEN.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool; return its structured result."""
    result = await client.call_tool(tool, arguments)
    if result.is_error or result.structured_content is None:
        raise SystemExit(f"{tool}: {result.content}")
    return result.structured_content


def reply_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """What this host answers; a real one asks its user."""
    if request["kind"] == "question":
        print(f"? {request['prompt']} {request.get('choices', '')}")
        return {"text": request["choices"][0] if "choices" in request else "Whatever suits you"}
    print(f"? {request['tool']}({request['args']})")
    return {"decision": "approve", "args_digest": request["args_digest"]}


async def run(client: Client, agent: str, message: str) -> None:
    """Run the agent until its end."""
    run = await call(client, "start", agent=agent, message=message, idempotency_key=str(uuid4()))
    named = {"execution_id": run["execution_id"]}
    while not run["is_over"]:
        run = await call(client, "result", **named)
        for request in run["requests"]:
            if request["may_answer"]:
                await call(client, "answer", **named, request_id=request["request_id"], **reply_to(request))
    print(run.get("response") or run.get("error") or run["status"])
    print(f"({run['because']})")


async def main(agent: str, message: str, url: str | None = None) -> None:
    """Connect, and run the agent."""
    if url is None:
        async with Client(StdioServerParameters(command="everstep", args=["mcp"])) as client:
            await run(client, agent, message)
        return
    headers = {"Authorization": f"Bearer {os.environ['EVERSTEP_API_TOKEN']}"}
    async with (
        # A call of `result` waits for up to 45 seconds.
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        await run(client, agent, message)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
