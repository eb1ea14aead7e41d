"""Error responses: problem documents (RFC 9457) with a title and a detail that says what to do.

This module chooses the text for each error. Unexpected errors, and texts that name a server, a statement or
a line of code, are logged and never sent.
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPMethod, HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from everstep.agent_domain.capabilities.approvals import EXPIRED, MISMATCH, RESOLVED
from everstep.agent_domain.errors import (
    EverstepError,
    InvalidInput,
    MessageTooLong,
    NotFound,
    NotPermitted,
    StoreUnavailable,
)
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.sessions import (
    CannotRetry,
    ContextForbidden,
    QuestionClosed,
    SessionBusy,
    SessionNotActive,
)
from everstep.agent_domain.values import escape_unstorable, truncate
from everstep.client.context_validation import ContextPolicySlow
from everstep.client.errors import Ending, Refused, SettingRefused
from everstep.client.outages import ErrorMeaning, is_failing_task, meaning_of
from everstep.http_api.validation_texts import described_faults

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

MAX_DETAIL = 1000
"""The limit of a detail in characters: some quote the request."""

WORKFLOW_FAILS = (
    "The execution cannot continue, as the task of its workflow fails. The request is stored, and is carried "
    "out once the task succeeds; the worker's log and `everstep doctor` say more"
)


class Fault(BaseModel):
    """One invalid part of a request."""

    at: str = Field(examples=["body.on_busy"])
    message: str = Field(examples=["Input should be 'enqueue', 'steer', 'interrupt' or 'reject'"])


class ProblemDocument(BaseModel):
    """Why a request failed, and what to do."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:everstep:problem:session-busy"])
    title: str = Field(examples=["Session is busy"])
    status: int = Field(examples=[409])
    detail: str = Field(examples=["Wait for the running execution or cancel it"])
    request_id: str | None = Field(default=None, examples=["0b6f1c9a4f3e4f0f9d0c6a2f3c1b7a55"])
    errors: list[Fault] = Field(default_factory=list[Fault])


class Refusal(EverstepError):
    """An error response.

    Args:
        status: The HTTP status.
        slug: The last part of the problem's type.
        title: A short summary of the problem.
        detail: What the caller should do.
        headers: Additional headers.
        errors: The invalid parts of the request.
    """

    def __init__(
        self,
        status: int,
        slug: str,
        title: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.status, self.slug, self.title, self.detail = status, slug, title, detail
        self.headers, self.errors = dict(headers or {}), [*errors]
        super().__init__(detail)


def authentication_error(detail: str) -> Refusal:
    """401: authentication is missing or invalid."""
    headers = {"WWW-Authenticate": 'Bearer realm="everstep"'}
    return Refusal(401, "unauthorized", "Unauthorized", detail, headers=headers)


def forbidden(detail: str) -> Refusal:
    """403: the caller lacks the permission."""
    return Refusal(403, "forbidden", "Forbidden", detail)


def missing_scope(detail: str, scope: str) -> Refusal:
    """403: the token or key lacks a scope.

    Args:
        detail: What needs it.
        scope: The scope.
    """
    how = f"use a token or key that has it, such as one of `everstep keys create NAME --scope {scope}`"
    return forbidden(f"{detail}; {how}")


def invalid_request(detail: str, errors: Sequence[Mapping[str, str]] = ()) -> Refusal:
    """422: the request is invalid."""
    return Refusal(422, "unusable", "The request cannot be used", detail, errors=errors)


def unavailable(what: str) -> Refusal:
    """503: a dependency is unavailable, and the same request may be sent again."""
    detail = f"{what} is unavailable; send the same request again, with the same Idempotency-Key"
    return Refusal(503, "unavailable", "Try again", detail, headers={"Retry-After": "1"})


def not_found(kind: str, name: object) -> Refusal:
    """404: it does not exist, or belongs to another user."""
    return Refusal(404, "not-found", "Not found", f"There is no {kind} {name}; check its id")


def no_gateway() -> Refusal:
    """503: no gateway is configured."""
    detail = "No gateway is configured here; set EVERSTEP_BROADCAST_SECRET"
    return Refusal(503, "no-gateway", "No gateway", detail)


def too_large(limit: int) -> Refusal:
    """413: the body is over the limit."""
    return Refusal(
        413,
        "too-large",
        "The request is too large",
        f"The limit of a request's body is {limit} bytes; send less",
    )


def head_too_large(limit: int, count: int) -> Refusal:
    """431: the request line and the headers are over the limit."""
    detail = f"The limit of the request line and the headers is {limit} bytes in {count} headers; send less"
    headers = {"Connection": "close"}
    return Refusal(431, "head-too-large", "The request's head is too large", detail, headers=headers)


def too_slow(what: str = "body") -> Refusal:
    """408: the request did not arrive in time."""
    detail = f"The request's {what} did not arrive in time; send the same request again"
    return Refusal(408, "too-slow", "The request took too long", detail)


def overload() -> Refusal:
    """503: the memory for request bodies is used up."""
    detail = "Too many requests are being read at once; send the same request again"
    return Refusal(503, "overloaded", "Try again", detail, headers={"Retry-After": "1"})


def too_many_connections() -> Refusal:
    """503: there are too many connections."""
    detail = "Too many connections, in total or from this address; close some, or try again later"
    return Refusal(503, "crowded", "Try again", detail, headers={"Retry-After": "5"})


def ambiguous_length() -> Refusal:
    """400: the head has two lengths of the body."""
    detail = "A request has either Content-Length or Transfer-Encoding; send one of them"
    return Refusal(400, "malformed", "Bad Request", detail, headers={"Connection": "close"})


def too_many_attempts(seconds: int) -> Refusal:
    """429: this address, or all together, tried too often without success."""
    detail = f"Too many attempts to sign in; try again in {seconds} s"
    return Refusal(
        429, "too-many-attempts", "Too many attempts", detail, headers={"Retry-After": str(seconds)}
    )


def too_many_requests(seconds: int) -> Refusal:
    """429: the tenant or the user has used its requests per second."""
    detail = f"Your tenant, or you, may send no more requests now; try again in {seconds} s"
    return Refusal(
        429, "too-many-requests", "Too many requests", detail, headers={"Retry-After": str(seconds)}
    )


def bad_request() -> Refusal:
    """400: the data is not HTTP."""
    return Refusal(400, "malformed", "Bad Request", "This is not an HTTP/1.1 request; check the client")


_CONFLICTS: Mapping[str, tuple[str, str]] = {
    MISMATCH: ("approval-mismatch", "Read the request again and send the args_digest that it has now"),
    EXPIRED: ("approval-expired", "The call is denied, as no one decided in time; read the execution"),
    RESOLVED: ("approval-resolved", "The request is already decided; read the execution to see its status"),
}
"""Refusals by their text: the slug, and what to do."""


def refusal_of(error: Exception) -> Refusal:
    """The error response for an exception."""
    match error:
        case Refusal():
            return error
        case NotPermitted():
            return forbidden(str(error))
        case ContextForbidden():
            return forbidden(str(error) or "This context is not allowed; choose another one")
        case InvalidInput():
            return _unusable(error)
        case NotFound():
            return Refusal(404, "not-found", "Not found", f"{error}; check its id")
        case _:
            return _conflict(error) or _outage(error) or _internal_error(error)


def _unusable(error: InvalidInput) -> Refusal:
    if isinstance(error, MessageTooLong):
        return Refusal(413, "message-too-long", "The message is too long", str(error))
    return invalid_request(str(error) or "The request is invalid; correct it and send it again")


def is_refusal(error: Exception) -> bool:
    """Whether a request was refused before anything was created; False if it failed midway."""
    match error:
        case Refusal() | HTTPException():
            status = error.status if isinstance(error, Refusal) else error.status_code
            return status < HTTPStatus.INTERNAL_SERVER_ERROR
        case RequestValidationError() | ContextForbidden() | NotPermitted() | InvalidInput() | NotFound():
            return True
        case _:
            return _conflict(error) is not None


def _conflict(error: Exception) -> Refusal | None:
    match error:
        case SessionBusy():
            # Deleting and forking a session raise it as well as sending a message.
            detail = "Wait for the running execution or cancel it; a message may use another on_busy"
            return Refusal(409, "session-busy", str(error), detail)
        case SessionNotActive():
            return Refusal(409, "session-not-active", "Session is not active", str(error))
        case CannotRetry():
            return Refusal(409, "cannot-retry", "The execution cannot be retried", str(error))
        case Refused() if str(error) in _CONFLICTS:
            slug, what_to_do = _CONFLICTS[str(error)]
            return Refusal(409, slug, str(error), what_to_do)
        case Refused() | ExecutionEnded() | QuestionClosed():
            return _not_now(error)
        case _:
            return None


def _not_now(error: Exception) -> Refusal:
    if isinstance(error, SettingRefused):
        return Refusal(409, "not-now", f"The {error.kind} does not accept this now", str(error))
    detail = f"{error}; read the execution to see its status"
    return Refusal(409, "not-now", "The execution does not accept this now", detail)


def _outage(error: Exception) -> Refusal | None:
    match error:
        case ContextPolicySlow():
            logger.warning("%s", error)
            return unavailable("The context policy")
        case StoreUnavailable():
            logger.warning("the store is unavailable: %s", error)
            return unavailable("The database")
        case Ending():
            return unavailable("The execution is ending and")
        case WorkflowUpdateRPCTimeoutOrCancelledError():
            return unavailable("The execution's worker")
        case RPCError():
            return _temporal_refusal(error)
        case _:
            return None


def _temporal_refusal(error: RPCError) -> Refusal | None:
    if is_failing_task(error):
        logger.warning("the task of a workflow fails: %s", error)
        return Refusal(503, "unavailable", "Try again", WORKFLOW_FAILS, headers={"Retry-After": "1"})
    match meaning_of(error):
        case ErrorMeaning.TRANSIENT:
            logger.warning("Temporal is unavailable (%s): %s", error.status.name, error)
            return unavailable("Temporal")
        case ErrorMeaning.DENIED:
            logger.error(
                "Temporal denies access: %s; check TEMPORAL_API_KEY and TEMPORAL_NAMESPACE",
                error,
            )
            return unavailable("Temporal")
        case ErrorMeaning.NOT_NOW:
            logger.warning("Temporal refuses (%s): %s", error.status.name, error)
            detail = "Its workflow does not exist or has ended; read the execution to see its status"
            return Refusal(409, "not-now", "The execution does not accept this now", detail)
        case ErrorMeaning.FAULT:
            return None


def _internal_error(error: Exception) -> Refusal:
    logger.error("a request failed", exc_info=error)
    detail = "The server failed; its log has the details under this request's id"
    return Refusal(500, "fault", "Internal error", detail)


def problem_response(refusal: Refusal, request_id: str | None) -> JSONResponse:
    """Render a refusal as a response with a problem document."""
    document: dict[str, Any] = {
        "type": f"urn:everstep:problem:{refusal.slug}",
        "title": refusal.title,
        "status": refusal.status,
        "detail": truncate(escape_unstorable(refusal.detail), MAX_DETAIL),
        "request_id": request_id,
    }
    if refusal.errors:
        document["errors"] = refusal.errors
    return JSONResponse(document, refusal.status, refusal.headers, media_type=MEDIA_TYPE)


def refusal_from_validation(error: RequestValidationError) -> Refusal:
    """The refusal for invalid input, with each invalid place; the input itself is not repeated."""
    faults = described_faults(cast("Sequence[Mapping[str, Any]]", error.errors()))
    first = "; ".join(f"{fault['at']}: {fault['message']}" for fault in faults[:3])
    return invalid_request(f"Correct these parts of the request: {first}", faults[:20])


def refusal_from_http(error: HTTPException) -> Refusal:
    """The refusal for an error of the router."""
    status = HTTPStatus(error.status_code)
    match status:
        case HTTPStatus.NOT_FOUND:
            detail = "There is no such route; /docs lists all routes"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow") or "one that /docs lists"
            detail = f"The route does not support this method; use {allowed}"
        case HTTPStatus.BAD_REQUEST:
            detail = "The body could not be read; send JSON in UTF-8"
        case _:
            detail = status.description or status.phrase
    slug = status.phrase.lower().replace(" ", "-")
    return Refusal(error.status_code, slug, status.phrase, detail, headers=error.headers)


def refusal_of_any(error: Exception) -> Refusal:
    """The refusal for an exception, also for those of the framework."""
    match error:
        case RequestValidationError():
            return refusal_from_validation(error)
        case ValidationError():
            return refusal_from_validation(RequestValidationError(error.errors()))
        case HTTPException():
            return refusal_from_http(error)
        case _:
            return refusal_of(error)


def _with_all_methods(app: FastAPI, request: Request, error: HTTPException) -> HTTPException:
    """Name all methods of a path: the router names those of the first route that has it."""
    if "Allow" not in (error.headers or {}):
        return error
    names = ("type", "path", "root_path", "headers", "query_string")
    asked = {name: request.scope[name] for name in names if name in request.scope}

    def is_supported(method: str) -> bool:
        scope = {**asked, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in app.router.routes)

    methods = [method for method in HTTPMethod if is_supported(method)]
    return HTTPException(error.status_code, headers={**(error.headers or {}), "Allow": ", ".join(methods)})


def install(app: FastAPI) -> None:
    """Add exception handlers that render problem documents."""

    def answer(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error = _with_all_methods(app, request, error)
        refusal = refusal_of_any(error)
        return problem_response(refusal, getattr(request.state, "request_id", None))

    for kind in (RequestValidationError, HTTPException, EverstepError, RPCError):
        app.add_exception_handler(kind, answer)
