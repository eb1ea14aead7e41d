"""`Idempotency-Key`: the same request again gets the same answer, whatever became of the first.

The ids of all that a request makes follow from tenant, user and key. So whoever is lost between the work
and the answer finds, with the next attempt, what the first had made. The answer is kept for those after
that. What was refused is not kept: nothing was made, and the same request may be accepted later.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, cast
from uuid import UUID, uuid4, uuid5
from weakref import WeakValueDictionary

from fastapi import Depends, Header
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agent_domain.sessions import Answered
from agent_domain.values import json_text
from everstep.http_api.answers import told_of
from everstep.http_api.api import Api
from everstep.http_api.auth import READ, READS, admitted
from everstep.http_api.callers import Caller
from everstep.http_api.problems import Refusal, unavailable, unusable

HEADER = "idempotency-key"
REPLAYED = "Idempotency-Replayed"

_NAMESPACE = UUID("b0a4bb1c-31f2-4b3a-8d0c-6f7a2f2f5d11")
"""The namespace of ids that derive from requests; it must never change."""

PATIENCE = 15.0
"""Seconds in which a request is answered."""

_USABLE = re.compile(r"[\x21-\x7e]{1,200}")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What names a request: its key, or without one something that nobody sends again."""

    caller: Caller
    key: str

    def id(self, kind: str) -> UUID:
        """The id of what the request makes."""
        return uuid5(_NAMESPACE, json_text([self.caller.tenant_id, self.caller.user_id, self.key, kind]))


async def _key(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=200,
            description="A name for this request, such as a UUID. Send the same request with the same key as "
            "often as you like: it is carried out once and answered alike.",
            examples=["7c9e6679-7425-40de-944b-e07fc1f90ae7"],
        ),
    ] = None,
) -> RequestKey:
    return RequestKey(request.state.caller, idempotency_key or str(uuid4()))


Key = Annotated[RequestKey, Depends(_key)]
"""The request's name, in a route: every POST takes it."""


def reused() -> Refusal:
    """The key names another request."""
    detail = "This Idempotency-Key was used for another request; draw a new one for each request"
    return Refusal(422, "key-reused", "Idempotency-Key was used before", detail)


class ApiRoute(APIRoute):
    """A route that knows who asks before anything else is looked at, and answers a repeated POST alike."""

    def get_route_handler(self) -> Handler:
        """The route's own handler, behind the door."""
        answer = super().get_route_handler()
        known = {parameter.alias for parameter in self.dependant.query_params}
        is_read = set[str](self.methods or ()) <= READS or READ in (self.openapi_extra or {})

        async def handler(request: Request) -> Response:
            api = cast("Api", request.app.state.api)
            caller = await admitted(request, api.authenticate, is_read=is_read)
            if unknown := [name for name in request.query_params if name not in known]:
                raise unusable(f"query.{unknown[0]} is nothing that this address knows; leave it out")
            # Nothing of the body is read before the caller is known.
            await request.body()
            key = request.headers.get(HEADER) if request.method == "POST" else None
            if key is None:
                return await _patiently(answer, request)
            if not _USABLE.fullmatch(key):
                raise unusable("An Idempotency-Key has 1 to 200 visible ASCII characters; a UUID does well")
            once = _Once(api, caller, key, await _digest(request), self.response_model)
            return await once.response(request, answer)

        return handler


async def _patiently(answer: Handler, request: Request) -> Response:
    """Wait for the answer, but not for ever: an execution that is told something may have no worker."""
    limit = asyncio.timeout(PATIENCE)
    try:
        async with limit:
            return await answer(request)
    except Exception:
        # What is interrupted may say so in its own words.
        if limit.expired():
            raise unavailable("The execution's worker, or a server behind this one,") from None
        raise


async def _digest(request: Request) -> str:
    """What tells two requests apart."""
    url = request.url
    named = json_text([request.method, url.path, url.query]).encode()
    return hashlib.sha256(named + b"\n" + await request.body()).hexdigest()


_UNDER_WAY: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
"""Requests that this process works on; two of one key go one after the other."""


@dataclass(frozen=True, slots=True)
class _Once:
    api: Api
    caller: Caller
    key: str
    digest: str
    kind: object
    """What it is answered with."""

    async def response(self, request: Request, answer: Handler) -> Response:
        name = (self.caller.tenant_id, self.caller.user_id, self.key)
        lock = _UNDER_WAY.setdefault(name, asyncio.Lock())
        async with lock:
            before = await self.api.keys.answered(*name)
            if before is not None:
                return self._again(before)
            try:
                response = await _patiently(answer, request)
            except Exception:
                # Perhaps another process carried the same request out meanwhile.
                if before := await self.api.keys.answered(*name):
                    return self._again(before)
                raise
            answered = self._answered(response)
            kept = await self.api.keys.remember(*name, answered)
            return response if kept == answered else self._again(kept)

    def _answered(self, response: Response) -> Answered:
        text = bytes(response.body)
        body = json.loads(text) if text else None
        return Answered(response.status_code, body, self.digest, **told_of(self.kind, body))

    def _again(self, before: Answered) -> Response:
        if before.digest != self.digest:
            raise reused()
        self.api.metrics.replayed()
        marked = {REPLAYED: "true"}
        if before.body is None:
            return Response(status_code=before.status, headers=marked)
        return JSONResponse(before.body, before.status, marked)
