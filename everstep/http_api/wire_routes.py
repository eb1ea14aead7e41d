"""Routes of wires: streams whose errors have the form of their protocol."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, cast

from fastapi import Depends, Header
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from everstep.agent_domain.values import escape_unstorable, truncate
from everstep.http_api.auth import READ_MARKER, READ_METHODS, admit
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import HEADER, USABLE_KEY, require_known, run_with_timeout
from everstep.http_api.problems import MAX_DETAIL, Refusal, invalid_request, refusal_of_any

RenderRefusal = Callable[[Refusal], Response]
"""A refusal in the form of a protocol."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def wire_route(render: RenderRefusal) -> type[APIRoute]:
    """The class of a wire's routes: they authenticate first, and render refusals in the wire's form.

    A POST is idempotent without a stored response: what it creates has ids that derive from the request, and
    the response is read from the log.
    """

    class WireRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            answer = super().get_route_handler()
            known = {parameter.alias for parameter in self.dependant.query_params}
            is_read = set[str](self.methods or ()) <= READ_METHODS or READ_MARKER in (
                self.openapi_extra or {}
            )

            async def handler(request: Request) -> Response:
                try:
                    api = cast("Api", request.app.state.api)
                    admit(request, await api.caller_of(request), is_read=is_read)
                    require_known(request.query_params, known)
                    # The request that has the body ends here: the response may be a stream of hours.
                    own = Request(request.scope, request.receive)
                    await own.body()
                    return await run_with_timeout(answer, own)
                except ClientDisconnect:
                    raise
                except Exception as error:  # noqa: BLE001 -- rendered, and logged where it is unexpected
                    return render_refusal(render, error)

            return handler

    return WireRoute


def render_refusal(render: RenderRefusal, error: Exception) -> Response:
    """The response for an error, in the form of a protocol."""
    refusal = refusal_of_any(error)
    detail = truncate(escape_unstorable(refusal.detail), MAX_DETAIL)
    shown = Refusal(
        refusal.status, refusal.slug, refusal.title, detail, headers=refusal.headers, errors=refusal.errors
    )
    response = render(shown)
    response.headers.update(shown.headers)
    return response


async def _given_key(
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=200,
            description="A unique name for this request. By default its own ids name it: a repeated request "
            "follows what the first one began.",
        ),
    ] = None,
) -> str | None:
    if idempotency_key is not None and not USABLE_KEY.fullmatch(idempotency_key):
        raise invalid_request(f"An {HEADER} has 1 to 200 visible ASCII characters; use a UUID")
    return idempotency_key


GivenKey = Annotated[str | None, Depends(_given_key)]
"""The type of a route's parameter for the `Idempotency-Key`."""
