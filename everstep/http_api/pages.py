"""What is open to everybody: `/openapi.json`, `/docs`, which loads nothing from elsewhere, and our client."""

import hashlib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from everstep.http_api import problems

_SWAGGER = files("fastapi_swagger") / "resources"

_ASSETS: Mapping[str, str] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}

CLIENT = "everstep-client.js"

OPEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Where nobody is asked who he is."""

_DESCRIPTION = """Sessions with durable agents, over HTTP.

Every request names its sender: `Authorization: Bearer` with a token (JWT) or with a key that
`everstep keys create` made. Every POST takes an `Idempotency-Key`: send the same request with the same key as
often as you like. Errors are problem documents (RFC 9457) that say what to do.
"""


def install(app: FastAPI) -> None:
    """Serve the pages."""
    app.openapi = _described(app)

    async def docs(request: Request) -> Response:
        root = request.scope.get("root_path", "").rstrip("/")
        return get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title="Everstep",
            swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
            swagger_css_url=f"{root}/docs/swagger-ui.css",
            swagger_favicon_url=f"{root}/docs/favicon-32x32.png",
        )

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise problems.missing("page", name)
        headers = {"Cache-Control": "public, max-age=86400"}
        return Response((_SWAGGER / name).read_bytes(), headers=headers, media_type=_ASSETS[name])

    script = (files("everstep.http_api") / "static" / CLIENT).read_bytes()
    tag = f'"{hashlib.sha256(script).hexdigest()[:32]}"'

    async def client(request: Request) -> Response:
        # Its address never changes, so it is asked for each time: a page must not talk to today's gateway
        # with the client of last week. What has not changed is not sent again.
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        known = {
            each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")
        }
        if known & {tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(script, headers=headers, media_type="text/javascript")

    app.add_route(f"/{CLIENT}", client, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)
    app.add_route("/docs/{name}", asset, include_in_schema=False)


def _described(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title="Everstep", version=app.version, description=_DESCRIPTION, routes=app.routes
            )
            _complete(document)
            app.openapi_schema = document
        return app.openapi_schema

    return describe


def _complete(document: dict[str, Any]) -> None:
    """What FastAPI cannot know: who is let in, and in which form errors come."""
    scheme = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token (JWT), or a key of `everstep keys`.",
    }
    document.setdefault("components", {})["securitySchemes"] = {"bearer": scheme}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path not in OPEN:
                operation["security"] = [{"bearer": []}]
            for status, response in operation["responses"].items():
                for told in response.get("content", {}).copy().values():
                    if status >= "4" and told.get("schema", {}).get("$ref", "").endswith("/Problem"):
                        response["content"] = {problems.MEDIA_TYPE: told}
