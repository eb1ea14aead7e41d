"""The ASGI application: routes, middleware and the pages of the documentation."""

from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from everstep.agent_domain.attachments import DEFAULT_LIMITS
from everstep.console import site
from everstep.http_api import pages, problems
from everstep.http_api.dependencies import Api
from everstep.http_api.host_middleware import HostMiddleware
from everstep.http_api.middleware import MAX_BODY, OriginMiddleware, RequestMiddleware
from everstep.http_api.problems import ProblemDocument
from everstep.http_api.routes import (
    ag_ui_runs,
    answer_feedback,
    attachments,
    broadcasting,
    budgets,
    chat_completions,
    execution_records,
    executions,
    health,
    listings,
    mcp_route,
    message_search,
    openai_models,
    response_routes,
    schedules,
    sessions,
    signing_in,
    streams,
    system,
    tenants,
    ui_message_streams,
    usage,
    webhooks,
    what_if_route,
)
from everstep.http_api.schemas.ag_ui_requests import RunErrorEvent
from everstep.http_api.schemas.agent_tool_schemas import JsonRpcRefusal
from everstep.http_api.schemas.openai_requests import OpenAiErrorBody

_REFUSALS: Mapping[int | str, dict[str, Any]] = {
    400: {"model": ProblemDocument, "description": "The body cannot be read."},
    401: {"model": ProblemDocument, "description": "Authentication is missing or invalid."},
    403: {"model": ProblemDocument, "description": "The caller lacks the permission."},
    404: {"model": ProblemDocument, "description": "It does not exist, or belongs to another user."},
    408: {"model": ProblemDocument, "description": "The body did not arrive in time."},
    409: {"model": ProblemDocument, "description": "The current state does not allow it."},
    413: {"model": ProblemDocument, "description": "The body is too large."},
    422: {"model": ProblemDocument, "description": "The request is invalid."},
    429: {"model": ProblemDocument, "description": "Too many requests; see `Retry-After`."},
    431: {"model": ProblemDocument, "description": "The request line and the headers are too large."},
    500: {"model": ProblemDocument, "description": "An internal error."},
    503: {"model": ProblemDocument, "description": "Temporarily unavailable; send the same request again."},
}

_TOO_MANY_ATTEMPTS: dict[str, Any] = {
    "model": ProblemDocument,
    "description": "Too many attempts to sign in with an identity provider; see `Retry-After`.",
}


def create_app(api: Api, *, max_body: int = MAX_BODY, max_upload: int = DEFAULT_LIMITS.max_bytes) -> FastAPI:
    """Create the HTTP API as an ASGI application.

    Args:
        api: The dependencies of the routes.
        max_body: The limit of a request body in bytes.
        max_upload: The limit of an uploaded file in bytes.
    """
    app = FastAPI(
        title="Everstep",
        version=version("everstep"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # `RequestMiddleware` has the spans and metrics of requests. FastAPI's contain the queries of URLs.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        generate_unique_id_function=_operation_id,
    )
    app.state.api = api
    problems.install(app)
    for module in (
        *(sessions, executions, execution_records, attachments, budgets, answer_feedback),
        *(
            listings,
            message_search,
            usage,
            what_if_route,
            streams,
            broadcasting,
            signing_in,
            system,
            schedules,
            webhooks,
            tenants,
        ),
    ):
        app.include_router(module.routes, responses={**_REFUSALS})
    app.include_router(signing_in.public_routes, responses={**_REFUSALS, 429: _TOO_MANY_ATTEMPTS})
    refused = {status: {**each, "model": RunErrorEvent} for status, each in _REFUSALS.items()}
    app.include_router(ag_ui_runs.routes, responses=refused)
    text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    told = {status: {**text, "description": each["description"]} for status, each in _REFUSALS.items()}
    app.include_router(ui_message_streams.routes, responses={**told})
    refused = {status: {**each, "model": JsonRpcRefusal} for status, each in _REFUSALS.items()}
    app.include_router(mcp_route.routes, responses={**refused})
    failed = {status: {**each, "model": OpenAiErrorBody} for status, each in _REFUSALS.items()}
    for module in (openai_models, chat_completions, response_routes):
        app.include_router(module.routes, responses=failed)
    app.include_router(openai_models.other_routes)
    app.include_router(health.routes)
    pages.install(app)
    site.install(app, partial(_gateway_url, api))
    # The middleware that is added last runs first.
    app.add_middleware(OriginMiddleware, allowed=api.allowed_origins)
    if api.allowed_hosts is not None:
        app.add_middleware(HostMiddleware, allowed=api.allowed_hosts)
    app.add_middleware(
        RequestMiddleware,
        metrics=api.metrics,
        max_body=max_body,
        upload_path=attachments.UPLOAD_PATH,
        max_upload=max_upload,
    )
    return app


def _gateway_url(api: Api) -> str | None:
    # Asked for each page, as a local gateway may begin later, at another address.
    return api.gateway_url()


def _operation_id(route: APIRoute) -> str:
    return route.name
