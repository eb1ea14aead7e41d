"""Every answer that says no: a problem document (RFC 9457), titled and saying what to do.

What is told is chosen here, error by error. What nobody foresaw, and whatever names a server, a statement
or a line of code, goes to the log and never into an answer.
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from everstep.agent_domain.capabilities.approvals import MISMATCH, RESOLVED
from everstep.agent_domain.errors import EverstepError, InvalidInput, NotFound, StoreUnavailable
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.sessions import (
    ContextForbidden,
    QuestionClosed,
    SessionBusy,
    SessionNotActive,
)
from everstep.agent_domain.values import cut, storable
from everstep.client.contexts import ContextPolicySlow
from everstep.client.errors import Ending, Refused
from everstep.client.outages import Meaning, meaning_of

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

LONGEST = 1000
"""Characters of a detail: some quote what was sent."""


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    at: str = Field(examples=["body.on_busy"])
    message: str = Field(examples=["Input should be 'enqueue', 'steer', 'interrupt' or 'reject'"])


class Problem(BaseModel):
    """Why a request was not answered as asked, and what to do."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:everstep:problem:session-busy"])
    title: str = Field(examples=["Session is busy"])
    status: int = Field(examples=[409])
    detail: str = Field(examples=["Wait for the execution under way, or cancel it"])
    request_id: str | None = Field(default=None, examples=["0b6f1c9a4f3e4f0f9d0c6a2f3c1b7a55"])
    errors: list[Fault] = Field(default_factory=list[Fault])


class Refusal(EverstepError):
    """An answer that says no."""

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


def unauthorized(detail: str) -> Refusal:
    """Nobody knows who asks."""
    headers = {"WWW-Authenticate": 'Bearer realm="everstep"'}
    return Refusal(401, "unauthorized", "Unauthorized", detail, headers=headers)


def forbidden(detail: str) -> Refusal:
    """Whoever asks may not."""
    return Refusal(403, "forbidden", "Forbidden", detail)


def unusable(detail: str, errors: Sequence[Mapping[str, str]] = ()) -> Refusal:
    """What was sent has to be changed."""
    return Refusal(422, "unusable", "The request cannot be used", detail, errors=errors)


def unavailable(what: str) -> Refusal:
    """The same request may be sent again."""
    detail = f"{what} cannot serve this now; send the same request again, with the same Idempotency-Key"
    return Refusal(503, "unavailable", "Try again", detail, headers={"Retry-After": "1"})


def missing(kind: str, name: object) -> Refusal:
    """There is none, or it is somebody else's."""
    return Refusal(404, "not-found", "Not found", f"There is no {kind} {name}; check its id")


def no_gateway() -> Refusal:
    """Nobody can watch here."""
    detail = "No gateway is configured here; set EVERSTEP_BROADCAST_SECRET"
    return Refusal(503, "no-gateway", "No gateway", detail)


def too_large(limit: int) -> Refusal:
    """The body is over the limit."""
    return Refusal(
        413, "too-large", "The request is too large", f"A request's body has at most {limit} bytes; send less"
    )


def head_too_large(limit: int, count: int) -> Refusal:
    """The request line and the headers are over the limit."""
    detail = (
        f"The request line and the headers have at most {limit} bytes, in at most {count} headers; send less"
    )
    headers = {"Connection": "close"}
    return Refusal(431, "head-too-large", "The request's head is too large", detail, headers=headers)


def too_slow(what: str = "body") -> Refusal:
    """The request does not arrive."""
    detail = f"The request's {what} did not arrive in time; send the same request again"
    return Refusal(408, "too-slow", "The request took too long", detail)


def overloaded() -> Refusal:
    """More is in memory than there is room for."""
    detail = "Too many requests are being read at once; send the same request again"
    return Refusal(503, "overloaded", "Try again", detail, headers={"Retry-After": "1"})


def crowded() -> Refusal:
    """There are too many connections."""
    detail = "There are too many connections, in all or from this address; close some, or try again later"
    return Refusal(503, "crowded", "Try again", detail, headers={"Retry-After": "5"})


def malformed() -> Refusal:
    """What was sent is not HTTP."""
    return Refusal(400, "malformed", "Bad Request", "This is no HTTP/1.1 request; check what sent it")


_CONFLICTS: Mapping[str, tuple[str, str]] = {
    MISMATCH: ("approval-mismatch", "Read the request again and send the args_digest of what it shows"),
    RESOLVED: ("approval-resolved", "Somebody has decided already; read the execution to see what follows"),
}
"""Refusals that a text names: what to do about them."""


def refusal_of(error: Exception) -> Refusal:
    """What an exception means to whoever sent the request."""
    match error:
        case Refusal():
            return error
        case ContextForbidden():
            return forbidden(str(error) or "You may not speak about this; choose something else")
        case InvalidInput():
            return unusable(str(error) or "What was sent cannot be used; change it and send it again")
        case NotFound():
            return Refusal(404, "not-found", "Not found", f"{error}; check its id")
        case _:
            return _conflict(error) or _outage(error) or _unforeseen(error)


def is_refusal(error: Exception) -> bool:
    """Whether a request was refused before anything was made; false if it was broken off."""
    match error:
        case Refusal() | HTTPException():
            status = error.status if isinstance(error, Refusal) else error.status_code
            return status < HTTPStatus.INTERNAL_SERVER_ERROR
        case RequestValidationError() | ContextForbidden() | InvalidInput() | NotFound():
            return True
        case _:
            return _conflict(error) is not None


def _conflict(error: Exception) -> Refusal | None:
    """What stands against it now."""
    match error:
        case SessionBusy():
            # Sessions are deleted and forked as well.
            detail = (
                "Wait for the execution under way, or cancel it; messages may be sent with another on_busy"
            )
            return Refusal(409, "session-busy", str(error), detail)
        case SessionNotActive():
            return Refusal(409, "session-not-active", "Session is not active", str(error))
        case Refused() if str(error) in _CONFLICTS:
            slug, what_to_do = _CONFLICTS[str(error)]
            return Refusal(409, slug, str(error), what_to_do)
        case Refused() | ExecutionEnded() | QuestionClosed():
            detail = f"{error}; read the execution to see where it stands"
            return Refusal(409, "not-now", "The execution does not accept this now", detail)
        case _:
            return None


def _outage(error: Exception) -> Refusal | None:
    """What passes by itself."""
    match error:
        case ContextPolicySlow():
            logger.warning("%s", error)
            return unavailable("The context policy")
        case StoreUnavailable():
            logger.warning("the store is unavailable: %s", error)
            return unavailable("The database")
        case Ending():
            return unavailable("The execution is ending, so it")
        case WorkflowUpdateRPCTimeoutOrCancelledError():
            return unavailable("The execution's worker")
        case RPCError():
            return _of_temporal(error)
        case _:
            return None


def _of_temporal(error: RPCError) -> Refusal | None:
    """None for what no request could bring about."""
    match meaning_of(error):
        case Meaning.PASSES:
            logger.warning("Temporal is unavailable (%s): %s", error.status.name, error)
            return unavailable("Temporal")
        case Meaning.LOCKED:
            logger.error(
                "Temporal does not let this process in: %s; check TEMPORAL_API_KEY and TEMPORAL_NAMESPACE",
                error,
            )
            return unavailable("Temporal")
        case Meaning.NOT_NOW:
            logger.warning("Temporal refuses (%s): %s", error.status.name, error)
            detail = "Its workflow is not there, or has ended; read the execution to see where it stands"
            return Refusal(409, "not-now", "The execution does not accept this now", detail)
        case Meaning.FAULT:
            return None


def _unforeseen(error: Exception) -> Refusal:
    logger.error("a request failed", exc_info=error)
    detail = "This is a fault of the server, which its log tells about under this request's id"
    return Refusal(500, "fault", "Internal error", detail)


def rendered(refusal: Refusal, request_id: str | None) -> JSONResponse:
    """The document."""
    document: dict[str, Any] = {
        "type": f"urn:everstep:problem:{refusal.slug}",
        "title": refusal.title,
        "status": refusal.status,
        "detail": cut(storable(refusal.detail), LONGEST),
        "request_id": request_id,
    }
    if refusal.errors:
        document["errors"] = refusal.errors
    return JSONResponse(document, refusal.status, refusal.headers, media_type=MEDIA_TYPE)


def of_validation(error: RequestValidationError) -> Refusal:
    """What is wrong with what was sent, place by place; what was sent is not repeated."""
    faults = [
        {"at": storable(".".join(map(str, fault["loc"]))), "message": storable(_said(fault))}
        for fault in cast("Sequence[Mapping[str, Any]]", error.errors())
    ]
    first = "; ".join(f"{fault['at']}: {fault['message']}" for fault in faults[:3])
    return unusable(f"Change what is named here and send it again: {first}", faults[:20])


def _said(fault: Mapping[str, Any]) -> str:
    match fault:
        # What pydantic says of text that is checked before it is measured.
        case {"type": "too_long", "input": str(), "ctx": {"max_length": limit, "actual_length": length}}:
            return f"it has {length} characters; send at most {limit}"
        case _:
            return str(fault["msg"])


def of_http(error: HTTPException) -> Refusal:
    """What the router found."""
    status = HTTPStatus(error.status_code)
    match status:
        case HTTPStatus.NOT_FOUND:
            detail = "There is nothing at this address; /docs lists what there is"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow") or "what /docs lists"
            detail = f"This address does not know the method; use {allowed}"
        case HTTPStatus.BAD_REQUEST:
            detail = "The body could not be read; send JSON in UTF-8"
        case _:
            detail = status.description or status.phrase
    slug = status.phrase.lower().replace(" ", "-")
    return Refusal(error.status_code, slug, status.phrase, detail, headers=error.headers)


def install(app: FastAPI) -> None:
    """Answer every error with a problem document."""

    def answer(request: Request, error: Exception) -> JSONResponse:
        match error:
            case RequestValidationError():
                refusal = of_validation(error)
            case HTTPException():
                refusal = of_http(error)
            case _:
                refusal = refusal_of(error)
        return rendered(refusal, getattr(request.state, "request_id", None))

    for kind in (RequestValidationError, HTTPException, EverstepError, RPCError):
        app.add_exception_handler(kind, answer)
