"""Ways to servers, opened with what only a worker knows."""

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from mcp.client import Transport

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict
from everstep.capabilities.mcp.errors import McpError
from everstep.capabilities.mcp.hiding import Secrets
from everstep.capabilities.mcp.http import http_link
from everstep.capabilities.mcp.servers import HttpServer, Server, as_headers
from everstep.capabilities.mcp.stdio import stdio_link

Lost = Callable[[str], None]


class Link(NamedTuple):
    """A way to a server, and what nobody may read of what was said on it."""

    transport: Transport
    secrets: Secrets


@asynccontextmanager
async def opened(
    server: Server, name: str, tenant_id: str, patience: float, lost: Lost
) -> AsyncGenerator[Link]:
    """The way to the server, for that tenant; `lost` is told when it ends by itself."""
    if isinstance(server, HttpServer):
        headers = await _headers(server, tenant_id)
        async with http_link(server, headers, patience) as transport:
            yield Link(transport, Secrets(headers.values()))
    else:
        yield Link(stdio_link(server, name, lost), Secrets(server.env.values()))


async def _headers(server: HttpServer, tenant_id: str) -> FrozenDict:
    """Those of the tenant. What a function of somebody else's raises may name a secret, so it is not told."""
    given = server.headers
    try:
        if callable(given):
            given = given(tenant_id)
            given = await given if inspect.isawaitable(given) else given
    except Exception as error:  # noqa: BLE001 -- anybody's code
        kind = type(error).__name__
        raise McpError(f"its headers could not be made: the function for them raised {kind}") from None
    try:
        return as_headers(given)
    except InvalidInput as error:
        raise McpError(f"its headers could not be made: {error}") from None
