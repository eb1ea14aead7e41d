"""`Idempotency-Key`: a repeated request gets the same response, even if the first attempt was interrupted.

The ids of everything that a request creates derive from tenant, user and key. If a process crashes between
the work and the response, the next attempt therefore finds what the first one created. The response is stored
for later attempts. A refusal is not stored: nothing was created, and the request may be accepted later.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from time import monotonic
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID, uuid4, uuid5

from fastapi import Depends, Header
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.storage.keys import StoredResponse
from everstep.agent_domain.values import json_text
from everstep.http_api.auth import READ_MARKER, READ_METHODS, SECRET_MARKER, admit
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.multipart_forms import form_boundary
from everstep.http_api.problems import Refusal, invalid_request, is_refusal, unavailable
from everstep.http_api.schemas.responses import subject_of

logger = logging.getLogger(__name__)

HEADER = "idempotency-key"
REPLAYED = "Idempotency-Replayed"

_NAMESPACE = UUID("b0a4bb1c-31f2-4b3a-8d0c-6f7a2f2f5d11")
"""The namespace of ids that derive from requests; it must never change."""

PATIENCE = 15.0
"""The time limit of a request in seconds."""

CLAIM_SECONDS = 2.0
"""Seconds after which the claim of a crashed process expires."""

_POLL_SECONDS = (0.01, 0.02, 0.05, 0.1)
"""Seconds between two polls of a request that another process has claimed."""

USABLE_KEY = re.compile(r"[\x21-\x7e]{1,200}")

T = TypeVar("T")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The identity of a request: its idempotency key, or a random value if it has none."""

    caller: Caller
    key: str

    def id(self, kind: str) -> UUID:
        """The id of an object of this kind that the request creates."""
        return uuid5(_NAMESPACE, json_text([self.caller.tenant_id, self.caller.user_id, self.key, kind]))


async def _key(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=200,
            description="A unique name for this request, such as a UUID. A request that is repeated with the "
            "same key is carried out once, and gets the same response each time.",
            examples=["7c9e6679-7425-40de-944b-e07fc1f90ae7"],
        ),
    ] = None,
) -> RequestKey:
    return RequestKey(request.state.caller, idempotency_key or str(uuid4()))


KeyDep = Annotated[RequestKey, Depends(_key)]
"""The type of a route's parameter for the request's key; every POST has one."""


def key_conflict() -> Refusal:
    """The refusal of a key that was used for another request."""
    detail = "This Idempotency-Key was used for a different request; use a new key for each request"
    return Refusal(422, "key-reused", "Idempotency-Key already used", detail)


class EarlyBodyRoute(APIRoute):
    """A route that reads the body before FastAPI does, which would report every refusal of it as 400."""

    def get_route_handler(self) -> Handler:
        """Read the body, and then call the route's handler."""
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            await request.body()
            return await answer(request)

        return handler


class ApiRoute(APIRoute):
    """A route that authenticates before it reads the request, and makes POST requests idempotent."""

    def get_route_handler(self) -> Handler:
        """Wrap the route's handler in authentication and idempotency."""
        answer = super().get_route_handler()
        known = {parameter.alias for parameter in self.dependant.query_params}
        markers = set(self.openapi_extra or {})
        is_read = set[str](self.methods or ()) <= READ_METHODS or READ_MARKER in markers
        is_repeatable = SECRET_MARKER not in markers

        async def handler(request: Request) -> Response:
            api = cast("Api", request.app.state.api)
            caller = admit(request, await api.caller_of(request), is_read=is_read)
            require_known(request.query_params, known)
            # The body is read only after the caller is authenticated.
            await request.body()
            key = request.headers.get(HEADER) if request.method == "POST" and is_repeatable else None
            if key is None:
                return await run_with_timeout(answer, request)
            if not USABLE_KEY.fullmatch(key):
                raise invalid_request("An Idempotency-Key has 1 to 200 visible ASCII characters; use a UUID")
            once = _IdempotentRequest(api, caller, key, await _digest(request), self.response_model)
            return await once.response(request, answer)

        return handler


def require_known(given: Iterable[str], known: Collection[str]) -> None:
    """Refuse parameters that a route does not have.

    Raises:
        Refusal: There is one.
    """
    if unknown := [name for name in given if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise invalid_request(f"query.{unknown[0]} is not a parameter of this route; remove it{hint}")


async def run_with_timeout(answer: Handler, request: Request) -> Response:
    """Run the handler with a time limit: an execution may have no worker to accept an update."""
    return await within_patience(answer(request))


async def within_patience(work: Awaitable[T]) -> T:
    """Wait for work of a request with its time limit.

    Raises:
        Refusal: The time is over.
    """
    limit = asyncio.timeout(PATIENCE)
    try:
        async with limit:
            return await work
    except Exception:
        # The interrupted code may raise another error than a timeout.
        if limit.expired():
            raise unavailable("The execution's worker, or a server behind this one,") from None
        raise


async def _digest(request: Request) -> str:
    """A digest of method, URL and body, which identifies the content of a request."""
    url, body = request.url, await request.body()
    if boundary := form_boundary(request.headers.get("content-type")):
        # Browsers choose another one when they send the same form again.
        body = body.replace(boundary, b"")
    named = json_text([request.method, url.path, url.query]).encode()
    return hashlib.sha256(named + b"\n" + body).hexdigest()


@dataclass(frozen=True, slots=True)
class _IdempotentRequest:
    """A request with a key, which at most one process carries out at a time.

    The process claims the key with the digest of the request before it creates anything, and the claim ends
    when the response is stored. So a different request with the same key is refused even if the response was
    lost, and a concurrent attempt of the same request waits for its response. The claim of a crashed process
    expires soon, and the next attempt finds what that process created.
    """

    api: Api
    caller: Caller
    key: str
    digest: str
    kind: object
    """The type of the response."""

    @property
    def name(self) -> tuple[str, str, str]:
        return self.caller.tenant_id, self.caller.user_id, self.key

    async def response(self, request: Request, answer: Handler) -> Response:
        owner = uuid4()
        if stored := await self._claim(owner):
            return self._replay(stored)
        renewing = asyncio.create_task(
            keep_running(
                "the renewal of a claim",
                partial(self._renew_claim, owner),
                sleep=asyncio.sleep,
                clock=monotonic,
                log=logger,
            )
        )
        try:
            response = await run_with_timeout(answer, request)
            answered = self._stored_response(response)
            kept = await self.api.keys.remember(*self.name, answered)
        except Exception as error:
            # Another process may have carried out the same request in the meantime.
            if stored := await self.api.keys.find_response(*self.name):
                return self._replay(stored)
            await self._release_claim(owner, error)
            raise
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
        return response if kept == answered else self._replay(kept)

    async def _claim(self, owner: UUID) -> StoredResponse | None:
        """Claim the request; return the stored response if there is one."""
        deadline = monotonic() + PATIENCE
        for wait in chain(_POLL_SECONDS, repeat(_POLL_SECONDS[-1])):
            claim = await self.api.keys.claim(*self.name, owner, digest=self.digest, seconds=CLAIM_SECONDS)
            if isinstance(claim, StoredResponse):
                return claim
            if claim.is_mine:
                return None
            if claim.digest != self.digest:
                raise key_conflict()
            if monotonic() > deadline:
                break
            await asyncio.sleep(wait)
        raise unavailable("Another process that handles the same request")

    async def _release_claim(self, owner: UUID, error: Exception) -> None:
        """Release the claim; its digest is kept unless the request was refused, so created nothing."""
        try:
            await self.api.keys.release_claim(*self.name, owner, forget=is_refusal(error))
        except EverstepError as failure:
            logger.warning("the claim of a request was not released and will expire: %s", failure)

    async def _renew_claim(self, owner: UUID) -> None:
        """Renew the claim until the request is done."""
        while True:
            await asyncio.sleep(CLAIM_SECONDS / 3)
            try:
                await self.api.keys.renew(*self.name, owner, seconds=CLAIM_SECONDS)
            except EverstepError as error:
                # If it expires, another process repeats the work, safely: ids derive from the key.
                logger.warning("the claim of a request was not renewed: %s", error)

    def _stored_response(self, response: Response) -> StoredResponse:
        text = bytes(response.body)
        body = json.loads(text) if text else None
        return StoredResponse(response.status_code, body, self.digest, **subject_of(self.kind, body))

    def _replay(self, stored: StoredResponse) -> Response:
        if stored.digest != self.digest:
            raise key_conflict()
        self.api.metrics.count_replay()
        marked = {REPLAYED: "true"}
        if stored.body is None:
            return Response(status_code=stored.status, headers=marked)
        return JSONResponse(stored.body, stored.status, marked)
