"""Public pages: `/openapi.json`, `/docs`, which loads nothing from other hosts, and the browser client."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from everstep.http_api import problems
from everstep.http_api.problems import ProblemDocument
from everstep.http_api.schemas.ag_ui_requests import RunErrorEvent

_SWAGGER = files("fastapi_swagger") / "resources"

_ASSETS: Mapping[str, str] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}

CLIENT = "everstep-client.js"

PUBLIC_ROUTES = frozenset({"/healthz", "/readyz", "/metrics", "/sign-in", "/sign-out"})
"""The routes without authentication."""

_DESCRIPTION = """Sessions with durable agents, over HTTP.

Every request needs authentication: `Authorization: Bearer` with a token (JWT) or with a key from
`everstep keys create`. Every POST accepts an `Idempotency-Key`, which makes it safe to repeat. Errors are
problem documents (RFC 9457) that say how to fix the request.
"""


def install(app: FastAPI) -> None:
    """Add the pages to the application."""
    app.openapi = _openapi_builder(app)

    @cache
    def document() -> bytes:
        # Rendered once: it takes many milliseconds, and any client may ask.
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    async def openapi(request: Request) -> Response:
        del request
        return Response(document(), media_type="application/json")

    async def docs(request: Request) -> Response:
        root = request.scope.get("root_path", "").rstrip("/")
        page = get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title="Everstep",
            swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
            swagger_css_url=f"{root}/docs/swagger-ui.css",
            swagger_favicon_url=f"{root}/docs/favicon-32x32.png",
        )
        # It sends requests with a token that its reader enters: no other page may have it in a frame.
        page.headers["Content-Security-Policy"] = "frame-ancestors 'none'"
        return page

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise problems.not_found("page", name)
        headers = {"Cache-Control": "public, max-age=86400"}
        return Response((_SWAGGER / name).read_bytes(), headers=headers, media_type=_ASSETS[name])

    script = (files("everstep.http_api") / "static" / CLIENT).read_bytes()
    tag = f'"{hashlib.sha256(script).hexdigest()[:32]}"'

    async def client(request: Request) -> Response:
        # The URL never changes, so browsers must revalidate: a page must not connect to a new gateway with an
        # old client. An unchanged file is answered with 304.
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        known = {
            each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")
        }
        if known & {tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(script, headers=headers, media_type="text/javascript")

    app.add_route(f"/{CLIENT}", client, include_in_schema=False)
    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)
    app.add_route("/docs/{name}", asset, include_in_schema=False)


def _openapi_builder(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title="Everstep", version=app.version, description=_DESCRIPTION, routes=app.routes
            )
            _add_security(document)
            app.openapi_schema = document
        return app.openapi_schema

    return describe


_ERROR_TYPES = {ProblemDocument.__name__: problems.MEDIA_TYPE, RunErrorEvent.__name__: "application/json"}
"""The media types of errors, by their model."""


def _add_security(document: dict[str, Any]) -> None:
    """Add what FastAPI cannot know: authentication and the media type of errors."""
    scheme = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token (JWT), or a key from `everstep keys create`.",
    }
    document.setdefault("components", {})["securitySchemes"] = {"bearer": scheme}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path not in PUBLIC_ROUTES:
                operation["security"] = [{"bearer": []}]
            for status, response in operation["responses"].items():
                for media in response.get("content", {}).copy().values():
                    name = media.get("schema", {}).get("$ref", "").rpartition("/")[2]
                    if status >= "4" and name in _ERROR_TYPES:
                        response["content"] = {_ERROR_TYPES[name]: media}
