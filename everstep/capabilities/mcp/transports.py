"""Opens transports to servers, with the headers that only a worker has."""

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from mcp.client import Transport

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict
from everstep.capabilities.mcp.errors import McpError
from everstep.capabilities.mcp.hiding import Secrets
from everstep.capabilities.mcp.http_transport import http_link
from everstep.capabilities.mcp.servers import HttpServer, Server, as_headers
from everstep.capabilities.mcp.stdio import stdio_link

OnLost = Callable[[str], None]


class McpLink(NamedTuple):
    """A transport to a server, and the secrets to hide in its texts."""

    transport: Transport
    secrets: Secrets


@asynccontextmanager
async def open_link(
    server: Server, name: str, tenant_id: str, patience: float, lost: OnLost
) -> AsyncGenerator[McpLink]:
    """Open the transport to the server, for a tenant; `lost` is called if the server ends it."""
    if isinstance(server, HttpServer):
        headers = await _headers(server, tenant_id)
        async with http_link(server, headers, patience) as transport:
            yield McpLink(transport, Secrets(headers.values()))
    else:
        yield McpLink(stdio_link(server, name, lost), Secrets(server.env.values()))


async def _headers(server: HttpServer, tenant_id: str) -> FrozenDict:
    """The headers of the tenant.

    An error of a user's function may contain a secret, so its text is not used.
    """
    headers = server.headers
    try:
        if callable(headers):
            headers = headers(tenant_id)
            headers = await headers if inspect.isawaitable(headers) else headers
    except Exception as error:  # noqa: BLE001 -- a user's code
        kind = type(error).__name__
        raise McpError(f"its headers could not be made: the function for them raised {kind}") from None
    try:
        return as_headers(headers)
    except InvalidInput as error:
        raise McpError(f"its headers could not be made: {error}") from None
