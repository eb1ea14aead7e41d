"""The MCP server: agents as tools for one caller, served for the length of one request.

The SDK speaks the protocol, in all its versions. No state outlives a request, so that any process of the API
serves any of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any, Final

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from everstep.agent_domain.values import json_text, truncate
from everstep.http_api.agent_tools import AgentTools
from everstep.http_api.event_stream import SEND_SECONDS
from everstep.http_api.mcp_tasks import TaskServer
from everstep.http_api.problems import MAX_DETAIL, refusal_of_any
from everstep.http_api.schemas.agent_tool_schemas import (
    MAX_WAIT,
    AgentRun,
    AnswerArguments,
    JsonRpcError,
    JsonRpcMessage,
    JsonRpcRefusal,
    ResultArguments,
    StartArguments,
    StatusArguments,
)

# Each request would log that its manager starts and stops.
logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)

PROGRESS_SECONDS = 5.0
"""Seconds between two notifications of progress while nothing changes."""
EXCHANGE_SECONDS = MAX_WAIT + 45.0
"""The limit of one request in seconds; the tools end long before."""
MAX_LISTED_AGENTS = 100
MAX_DESCRIPTION = 300
"""The limits of the list of agents in the description of `start`: agents, and characters of each."""

INSTRUCTIONS: Final = (
    "Agents of Everstep work for minutes, hours or days, also while you are disconnected. `start` one with "
    f"a message, then call `result` until `is_over` is true: each call waits up to {MAX_WAIT} seconds. If "
    "`requests` has open questions or approvals, ask your user, and pass the reply to `answer`."
)

Context = ServerRequestContext[Any, Any]
Call = Callable[[Context, AgentTools, Mapping[str, Any]], Awaitable[AgentRun]]


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool: what clients read about it, and what it does."""

    description: str
    arguments: type[BaseModel]
    call: Call
    annotations: types.ToolAnnotations

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return self.annotations.read_only_hint is True


async def _start(context: Context, tools: AgentTools, arguments: Mapping[str, Any]) -> AgentRun:
    headers = getattr(context.request, "headers", {})
    return await tools.start(StartArguments.model_validate(arguments), headers.get("idempotency-key"))


async def _status(context: Context, tools: AgentTools, arguments: Mapping[str, Any]) -> AgentRun:
    del context
    return await tools.status(StatusArguments.model_validate(arguments))


async def _result(context: Context, tools: AgentTools, arguments: Mapping[str, Any]) -> AgentRun:
    given = ResultArguments.model_validate(arguments)
    return await tools.result(given, ProgressReporter(context, given.wait_seconds).report)


async def _answer(context: Context, tools: AgentTools, arguments: Mapping[str, Any]) -> AgentRun:
    del context
    return await tools.answer(AnswerArguments.model_validate(arguments))


TOOLS: Final[Mapping[str, ServedTool]] = {
    "start": ServedTool(
        "Start a run of an agent, and return at once. The run goes on in the background.",
        StartArguments,
        _start,
        types.ToolAnnotations(
            title="Start an agent", read_only_hint=False, destructive_hint=True, open_world_hint=True
        ),
    ),
    "status": ServedTool(
        "Read how a run is, without waiting.",
        StatusArguments,
        _status,
        types.ToolAnnotations(title="Status of a run", read_only_hint=True, open_world_hint=False),
    ),
    "answer": ServedTool(
        "Answer a question of a run, decide about a call that waits for approval, raise an exhausted budget, "
        "or cancel the run. Only a person may decide: ask your user first. The same answer again, with its "
        "`request_id`, changes nothing.",
        AnswerArguments,
        _answer,
        types.ToolAnnotations(
            title="Answer a run",
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=True,
            open_world_hint=True,
        ),
    ),
    "result": ServedTool(
        f"Wait until a run is over or asks something, for at most {MAX_WAIT} seconds. If it is still "
        "running, call this again: nothing is lost in between.",
        ResultArguments,
        _result,
        types.ToolAnnotations(title="Result of a run", read_only_hint=True, open_world_hint=False),
    ),
}


@dataclass
class ProgressReporter:
    """Notifies a client of the progress of its call, when something changes and now and then."""

    context: Context
    total: float
    _last: tuple[float, str] | None = field(default=None, init=False)

    async def report(self, waited: float, how: str) -> None:
        """Send a notification if it is time for one, and if the client wants any."""
        if self._last is not None and self._last[1] == how and waited - self._last[0] < PROGRESS_SECONDS:
            return
        self._last = (waited, how)
        await self.context.session.report_progress(round(waited, 3), self.total, how)


def build_server(tools: AgentTools) -> Server[Any]:
    """Build the MCP server of one caller."""

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(tools=[_tool(name, tools) for name in _offered(tools)])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in TOOLS:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}; use {', '.join(_offered(tools))}")
        try:
            run = await TOOLS[params.name].call(context, tools, params.arguments or {})
        except Exception as error:  # noqa: BLE001 -- rendered, and logged where it is unexpected
            return error_result(error)
        return tool_result(run)

    return TaskServer(
        "everstep",
        tools=tools,
        version=version("everstep"),
        title="Everstep",
        description="Durable AI agents as tools",
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=60_000)},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _offered(tools: AgentTools) -> list[str]:
    """The tools that the caller may use."""
    return [name for name, tool in TOOLS.items() if tool.is_read or tools.caller.may_write]


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(mode="serialization" if model is AgentRun else "validation")


def _tool(name: str, tools: AgentTools) -> types.Tool:
    tool = TOOLS[name]
    schema = deepcopy(_schema(tool.arguments))
    description = tool.description
    if name == "start":
        agents = tools.api.sessions.client.agents
        listed = list(agents.items())[:MAX_LISTED_AGENTS]
        lines = [
            f"- {each}: {truncate(definition.descriptor.description, MAX_DESCRIPTION)}"
            for each, definition in listed
        ]
        description = "\n".join([description, "", "Agents:", *lines])
        if len(listed) == len(agents):
            schema["properties"]["agent"]["enum"] = [each for each, _ in listed]
    return types.Tool(
        name=name,
        title=tool.annotations.title,
        description=description,
        input_schema=schema,
        output_schema=_schema(AgentRun),
        annotations=tool.annotations,
        execution=types.ToolExecution(task_support="optional") if name == "start" else None,
    )


def tool_result(run: AgentRun) -> types.CallToolResult:
    """The result of a call: the document, as structured content and as text."""
    document = run.to_json()
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=json_text(document))], structured_content=document
    )


def error_result(error: Exception) -> types.CallToolResult:
    """The result of a call that was refused, or failed: models read it and correct the call."""
    refusal = refusal_of_any(error)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=truncate(refusal.detail, MAX_DETAIL))],
        is_error=True,
        _meta={"everstep/problem": refusal.slug, "everstep/status": refusal.status},
    )


def version_refusal(declared: str | None, body: bytes) -> JsonRpcRefusal | None:
    """The refusal of a message whose header names an unknown version of the protocol; None for others.

    The SDK refuses those that name it in their parameters. For others it would ask for such parameters.
    """
    if declared is None or declared in KNOWN_PROTOCOL_VERSIONS:
        return None
    message = JsonRpcMessage.model_validate_json(body)
    if "_meta" in message.params:
        return None
    text = (
        f"MCP-Protocol-Version is {declared!r}; use one of {', '.join(KNOWN_PROTOCOL_VERSIONS)}, "
        "which `initialize` chooses"
    )
    data = {"requested": declared, "supported": [*KNOWN_PROTOCOL_VERSIONS]}
    error = JsonRpcError(code=UNSUPPORTED_PROTOCOL_VERSION, message=text, data=data)
    return JsonRpcRefusal(id=message.id, error=error)


class McpExchange(Response):
    """One request of the streamable HTTP transport, handled by the SDK.

    Args:
        server: The server of the caller.
        body: The body of the request, which was read before.
        patience: Seconds within which a client must read each part of the response.
    """

    def __init__(self, server: Server[Any], body: bytes, patience: float = SEND_SECONDS) -> None:
        super().__init__()
        self._patience = patience
        self._server = server
        self._request_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request; a client that does not read is disconnected."""
        sender = _PatientSender(send, self._patience)
        headers = MutableHeaders(scope=scope)
        reads_events = "text/event-stream" in headers.get("accept", "")
        # The SDK refuses requests of programs that name no types.
        headers["accept"] = "application/json, text/event-stream"
        manager = StreamableHTTPSessionManager(
            self._server,
            json_response=not reads_events,
            stateless=True,
            max_request_body_size=max(1, len(self._request_body)),
        )
        handling = asyncio.create_task(self._handle(manager, scope, receive, sender))
        stalled = asyncio.create_task(sender.stalled.wait())
        try:
            await asyncio.wait(
                (handling, stalled), timeout=EXCHANGE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (handling, stalled):
                task.cancel()
            failure, _ = await asyncio.gather(handling, stalled, return_exceptions=True)
        if isinstance(failure, Exception) and not sender.stalled.is_set():
            raise failure

    async def _handle(
        self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = [self._request_body]

        async def replay() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            return await receive()

        async with manager.run():
            await manager.handle_request(scope, replay, send)


class _PatientSender:
    """Sends the parts of a response, and notices a client that does not read."""

    def __init__(self, send: Send, patience: float) -> None:
        self._send = send
        self._patience = patience
        self.stalled = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            self.stalled.set()
            raise
