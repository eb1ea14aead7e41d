"""The tools of a server, for an agent."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from everstep.agent_domain.errors import InvalidInput, ToolFailed
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.agent_domain.tools.toolsets import Asker, ListedTool
from everstep.agent_domain.values import FrozenDict, escape_unstorable, frozen_map, json_text, truncate
from everstep.capabilities.mcp.connection_registry import CONNECTIONS
from everstep.capabilities.mcp.errors import McpError, McpLost, McpTimeout
from everstep.capabilities.mcp.naming import is_chosen, model_names
from everstep.capabilities.mcp.policy import McpPolicy
from everstep.capabilities.mcp.results import error_text, text_of
from everstep.capabilities.mcp.servers import HttpServer, Server
from everstep.capabilities.mcp.shared_connections import McpConnection
from everstep.capabilities.mcp.transports import open_link

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TOOLS = 1_000
MAX_PAGES = 200
MAX_SCHEMA_CHARACTERS = 64_000
MAX_DESCRIPTION_CHARACTERS = 8_000
MAX_TOOLSET_CHARACTERS = 1_000_000
"""Every request to a model contains the tools: a larger size is no description any more."""
RETRY_PAUSES = (0.0, 0.2, 1.0)
"""Pauses before a request is sent again, if the server never got it or may run it twice."""
LISTING_SECONDS = 60.0
_EXTRA_READ_SECONDS = 10.0
"""How much longer than the caller's timeout an answer over HTTP is read."""
_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_UNKNOWN_TOOL_CODES = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND})


class McpToolset:
    """The tools of one server."""

    def __init__(self, name: str, server: Server, policy: McpPolicy) -> None:
        self._name = name
        self.server = server
        self.policy = policy

    @property
    def name(self) -> str:
        """The name that distinguishes it from the agent's other toolsets."""
        return self._name

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        """List the selected tools that the server has now."""
        with self._named_errors():
            tools = await self._request(asker.tenant_id, list_all_tools, LISTING_SECONDS, is_repeatable=True)
            return self._describe_tools(self._selected_tools(tools))

    def tool(self, listed: ListedTool) -> "McpTool":
        """The tool for an entry of the list, ready to be called."""
        return McpTool(self, listed)

    async def call_tool(self, listed: ListedTool, args: dict[str, Any], tenant_id: str) -> str:
        """Call a tool and return its result as text.

        Raises:
            ToolFailed: The server reports that the call failed.
            McpError: The server cannot be used, or did not answer.
        """
        name = str(listed.origin.get("tool", listed.name))
        seconds = listed.options.timeout_seconds or self.policy.timeout_seconds
        is_repeatable = listed.options.effect is Effect.IDEMPOTENT
        with self._named_errors():
            result = await self._request(
                tenant_id,
                lambda session: _call_tool(session, name, args),
                seconds,
                is_repeatable=is_repeatable,
            )
            if isinstance(result, types.InputRequiredResult):
                raise McpError(f"'{name}' asks for input from people, which its calls here cannot have")
        text = text_of(result, self.policy.most_characters)
        if result.is_error:
            raise ToolFailed(error_text(text))
        return text

    async def aclose(self) -> None:
        """Close its connections in this event loop; the next call opens one again."""
        await CONNECTIONS.close(self.server)

    async def _request(
        self,
        tenant_id: str,
        ask: Callable[[ClientSession], Awaitable[T]],
        seconds: float,
        *,
        is_repeatable: bool,
    ) -> T:
        """Send a request; the answer has to come in time."""
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                return await self._request_with_retries(tenant_id, ask, is_repeatable=is_repeatable)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise McpTimeout(f"it did not answer within {seconds:g}s") from None

    async def _request_with_retries(
        self, tenant_id: str, ask: Callable[[ClientSession], Awaitable[T]], *, is_repeatable: bool
    ) -> T:
        """Send a request, and again if it never arrived or if a repetition changes nothing."""
        for pause in RETRY_PAUSES:
            try:
                return await self._connection(tenant_id).request(ask)
            except McpLost as lost:
                if lost.was_sent and not is_repeatable:
                    unknown = "whether it did what was asked is unknown, and it was not asked again"
                    raise McpError(f"{lost}; {unknown}") from None
            await asyncio.sleep(pause)
        return await self._connection(tenant_id).request(ask)

    def _connection(self, tenant_id: str) -> McpConnection:
        """The open connection, or a new one. Tenants share a program, but not a connection with headers."""
        policy, tenant = self.policy, tenant_id if isinstance(self.server, HttpServer) else ""
        patience = max(policy.timeout_seconds, LISTING_SECONDS) + _EXTRA_READ_SECONDS
        return CONNECTIONS.get(
            (self.server, self._name, tenant),
            lambda: McpConnection(
                lambda lost: open_link(self.server, self._name, tenant, patience, lost),
                policy.connect_seconds,
                policy.idle_seconds,
            ),
        )

    def _selected_tools(self, tools: Sequence[types.Tool]) -> list[types.Tool]:
        patterns = self.policy.tools
        if patterns is None:
            return list(tools)
        tool_names = [tool.name for tool in tools]
        missed = [each for each in patterns if not any(is_chosen(name, (each,)) for name in tool_names)]
        if missed and len(missed) == len(patterns):
            raise McpError(
                f"it has no tool that matches {', '.join(missed)}; its tools: "
                f"{truncate(', '.join(tool_names), 2_000)}"
            )
        for pattern in missed:
            logger.warning("MCP server '%s' has no tool that matches '%s'", self._name, pattern)
        return [tool for tool in tools if is_chosen(tool.name, patterns)]

    def _describe_tools(self, tools: Sequence[types.Tool]) -> list[ListedTool]:
        """The tools as they are recorded. If two have one name, the server would never run the second."""
        distinct: dict[str, types.Tool] = {}
        for tool in tools:
            if distinct.setdefault(tool.name, tool) is not tool:
                logger.warning("MCP server '%s' lists '%s' twice; the first counts", self._name, tool.name)
        model_names_by_tool = model_names(self.policy.prefix, distinct)
        described = [
            each
            for tool in distinct.values()
            if (each := self._describe_tool(tool, model_names_by_tool[tool.name])) is not None
        ]
        if (
            sum(len(each.description) + len(json_text(each.schema)) for each in described)
            > MAX_TOOLSET_CHARACTERS
        ):
            raise McpError(
                f"its {len(described)} tools take more than {MAX_TOOLSET_CHARACTERS:,} characters to "
                "describe; choose some of them with 'tools'"
            )
        return described

    def _describe_tool(self, tool: types.Tool, name: str) -> ListedTool | None:
        """The tool, or None and a warning if it cannot be described to a model."""
        try:
            options, origin = self._options(tool.annotations), frozen_map({"tool": tool.name})
            return ListedTool(name, _description(tool), _schema(tool), options, origin)
        except InvalidInput as error:
            tool_name = escape_unstorable(truncate(tool.name, 100))
            logger.warning("MCP server '%s': the tool '%s' is left out: %s", self._name, tool_name, error)
            return None

    def _options(self, hints: types.ToolAnnotations | None) -> ToolOptions:
        is_idempotent = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
        effect = Effect.IDEMPOTENT if is_idempotent else Effect.AT_MOST_ONCE
        return ToolOptions(effect=effect, timeout_seconds=self.policy.timeout_seconds)

    @contextmanager
    def _named_errors(self) -> Generator[None]:
        """Name the server in errors: an agent may have several."""
        try:
            yield
        except McpTimeout as error:
            raise McpTimeout(f"MCP server '{self._name}': {error}") from None
        except McpError as error:
            raise McpError(f"MCP server '{self._name}': {error}") from None


class McpTool:
    """A listed tool."""

    def __init__(self, toolset: McpToolset, listed: ListedTool) -> None:
        self._toolset = toolset
        self._listed = listed
        self.options = listed.options

    @property
    def name(self) -> str:
        """The name under which models call it."""
        return self._listed.name

    @property
    def description(self) -> str:
        """The server's description of the tool."""
        return self._listed.description

    @property
    def schema(self) -> FrozenDict:
        """The server's JSON schema of the arguments."""
        return self._listed.schema

    async def call(self, args: dict[str, Any], context: ToolContext) -> str:
        """Call the tool on the server."""
        return await self._toolset.call_tool(self._listed, args, context.tenant_id)


def _description(tool: types.Tool) -> str:
    text = tool.description or tool.title or tool.name
    return truncate(escape_unstorable(text), MAX_DESCRIPTION_CHARACTERS)


def _schema(tool: types.Tool) -> FrozenDict:
    schema = frozen_map({"type": "object", "properties": {}, **tool.input_schema}, "its schema")
    if len(json_text(schema)) > MAX_SCHEMA_CHARACTERS:
        raise InvalidInput(f"its schema has more than {MAX_SCHEMA_CHARACTERS:,} characters")
    return schema


async def list_all_tools(session: ClientSession) -> list[types.Tool]:
    """All pages of the server's list."""
    tools: list[types.Tool] = []
    cursor, seen = None, set[str]()
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MAX_TOOLS:
            raise McpError(f"it lists more than {MAX_TOOLS:,} tools")
        if cursor is None:
            return tools
        if cursor in seen:
            break
        seen.add(cursor)
    raise McpError("its list of tools has no end: pages repeat, or there are too many")


async def _call_tool(
    session: ClientSession, name: str, args: dict[str, Any]
) -> types.CallToolResult | types.InputRequiredResult:
    """The server's answer.

    Not by `session.call_tool`: that also lists tools, and validates results against schemas of the server's
    choice, including regular expressions, which fails calls that have had their effect.
    """
    params = types.CallToolRequestParams(name=name, arguments=args)
    request = types.CallToolRequest(params=params)
    try:
        return await session.send_request(request, _ANSWER)
    except MCPError as error:
        if error.code == types.HEADER_MISMATCH:
            # Only the list shows which arguments are also sent as headers.
            await list_all_tools(session)
            return await session.send_request(request, _ANSWER)
        if error.code in _UNKNOWN_TOOL_CODES and name not in [
            tool.name for tool in await list_all_tools(session)
        ]:
            raise McpError(f"the tool '{name}' is gone: the server no longer offers it") from None
        raise
