"""The MCP server: agents as tools of other hosts."""

from importlib import import_module
from typing import Any, Final

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everstep.http_api.agent_tools import AgentTools
from everstep.http_api.auth import READ_MARKER, CallerDep
from everstep.http_api.problems import Refusal, refusal_of_any
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.schemas.agent_tool_schemas import JsonRpcError, JsonRpcMessage, JsonRpcRefusal
from everstep.http_api.wire_routes import wire_route

MCP_PATH: Final = "/mcp"

_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_INTERNAL_ERROR: Final = -32603


def _render(refusal: Refusal) -> JSONResponse:
    is_ours = refusal.status >= 500  # noqa: PLR2004 -- the errors of servers
    code = _INTERNAL_ERROR if is_ours else _INVALID_REQUEST
    error = JsonRpcError(code=code, message=refusal.detail, data={"problem": refusal.slug})
    return JSONResponse(JsonRpcRefusal(error=error).model_dump(), refusal.status)


routes = APIRouter(route_class=wire_route(_render), tags=["mcp"])

_MESSAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "title": "JSON-RPC message"}}},
    },
    # What a read-only caller may do depends on the tool.
    READ_MARKER: True,
}


@routes.post(
    MCP_PATH,
    openapi_extra=_MESSAGE,
    response_class=Response,
    responses={
        200: {
            "content": {"application/json": {}, "text/event-stream": {}},
            "description": "The JSON-RPC response, as JSON or as the last of several events.",
        },
        202: {"description": "A notification was received."},
    },
)
async def serve_mcp(api: ApiDep, caller: CallerDep, request: Request) -> Response:
    """Handle a message of the Model Context Protocol (streamable HTTP, without sessions).

    The tools are `start`, `status`, `answer` and `result`.
    """
    body = await request.body()
    if fault := message_fault(body):
        return JSONResponse(JsonRpcRefusal(error=fault).model_dump(), 400)
    server = await run_in_threadpool(_load_server)
    if refusal := server.version_refusal(request.headers.get("mcp-protocol-version"), body):
        return JSONResponse(refusal.model_dump(), 400)
    return server.McpExchange(server.build_server(AgentTools(api, caller)), body)


def message_fault(body: bytes) -> JsonRpcError | None:
    """What is wrong with a message as one of JSON-RPC; None if nothing is."""
    try:
        JsonRpcMessage.model_validate_json(body)
    except ValidationError as error:
        is_json = error.errors()[0]["type"] != "json_invalid"
        refusal = refusal_of_any(error)
        return JsonRpcError(code=_INVALID_REQUEST if is_json else _PARSE_ERROR, message=refusal.detail)
    return None


def _load_server() -> Any:
    # The SDK is an extra, and takes most of a second to import.
    try:
        return import_module("everstep.http_api.mcp_server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        detail = (
            "This installation has no MCP server; its operator installs it with pip install 'everstep[mcp]'"
        )
        raise Refusal(501, "no-mcp", "No MCP server", detail) from None
