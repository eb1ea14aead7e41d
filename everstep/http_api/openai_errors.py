"""Errors in the form of OpenAI's API, as its SDKs read them."""

from http import HTTPStatus

from starlette.responses import JSONResponse

from everstep.http_api.problems import Refusal
from everstep.wires.chat_chunks import INVALID

SHOULD_RETRY = "x-should-retry"
"""The header by which the SDKs know whether to repeat a request on their own."""
NO_RETRY = {SHOULD_RETRY: "false"}

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_CODES = {"unauthorized": "invalid_api_key", "unusable": None}


def render_error(refusal: Refusal) -> JSONResponse:
    """A refusal as an error. What OpenAI's API answers with 400 is 422 elsewhere in this one."""
    is_bad_input = refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY and refusal.slug != INVALID
    status = 400 if is_bad_input else refusal.status
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    place = next((fault["at"] for fault in refusal.errors), "body")
    param = None if place == "body" else place.removeprefix("body.")
    error = {
        "message": refusal.detail,
        "type": _TYPES.get(HTTPStatus(status), kind),
        "param": param,
        "code": _CODES.get(refusal.slug, refusal.slug.replace("-", "_")),
    }
    # The state that refuses a request does not change within the seconds of a repetition.
    headers = NO_RETRY if status == HTTPStatus.CONFLICT else {}
    return JSONResponse({"error": error}, status, headers)


def unusable(param: str, message: str) -> Refusal:
    """The refusal of a parameter."""
    return Refusal(
        422, "unusable", "The request cannot be used", message, errors=[{"at": param, "message": message}]
    )


def unsupported(param: str, message: str) -> Refusal:
    """The refusal of a parameter of OpenAI's API that agents do not have."""
    return Refusal(
        422, "unsupported-parameter", "Not supported", message, errors=[{"at": param, "message": message}]
    )
