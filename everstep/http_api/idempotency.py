"""`Idempotency-Key`: the same request again gets the same answer, whatever became of the first.

The ids of all that a request makes follow from tenant, user and key. So whoever is lost between the work
and the answer finds, with the next attempt, what the first had made. The answer is kept for those after
that. What was refused is not kept: nothing was made, and the same request may be accepted later.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from time import monotonic
from typing import Annotated, Any, cast
from uuid import UUID, uuid4, uuid5

from fastapi import Depends, Header
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.storage.keys import Answered
from everstep.agent_domain.values import json_text
from everstep.http_api.api import Api
from everstep.http_api.auth import READ, READS, admitted
from everstep.http_api.callers import Caller
from everstep.http_api.problems import Refusal, is_refusal, unavailable, unusable
from everstep.http_api.schemas.responses import told_of

logger = logging.getLogger(__name__)

HEADER = "idempotency-key"
REPLAYED = "Idempotency-Replayed"

_NAMESPACE = UUID("b0a4bb1c-31f2-4b3a-8d0c-6f7a2f2f5d11")
"""The namespace of ids that derive from requests; it must never change."""

PATIENCE = 15.0
"""Seconds in which a request is answered."""

CLAIM_SECONDS = 2.0
"""How long a request stays claimed by a process that was lost."""

_WAITS = (0.01, 0.02, 0.05, 0.1)
"""Seconds between two looks at a request that another process works on."""

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


@dataclass(frozen=True, slots=True)
class _Once:
    """A request with a key, of which one process at a time carries out one.

    The request is claimed with its digest before anything is made, and the claim ends with the answer that
    is kept. So another request under the key is refused even if the answer was lost, and whoever sends the
    same request meanwhile waits for its answer. The claim of a process that was lost expires soon, and the
    next attempt finds what that one had made.
    """

    api: Api
    caller: Caller
    key: str
    digest: str
    kind: object
    """What it is answered with."""

    @property
    def name(self) -> tuple[str, str, str]:
        return self.caller.tenant_id, self.caller.user_id, self.key

    async def response(self, request: Request, answer: Handler) -> Response:
        owner = uuid4()
        if before := await self._claimed(owner):
            return self._again(before)
        renewing = asyncio.create_task(
            keep_running(
                "the renewal of a claim",
                partial(self._renewed, owner),
                sleep=asyncio.sleep,
                clock=monotonic,
                log=logger,
            )
        )
        try:
            response = await _patiently(answer, request)
            answered = self._answered(response)
            kept = await self.api.keys.remember(*self.name, answered)
        except Exception as error:
            # Perhaps another process carried the same request out meanwhile.
            if before := await self.api.keys.answered(*self.name):
                return self._again(before)
            await self._give_up(owner, error)
            raise
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
        return response if kept == answered else self._again(kept)

    async def _claimed(self, owner: UUID) -> Answered | None:
        """The answer that was given before; None once this process may carry the request out."""
        deadline = monotonic() + PATIENCE
        for wait in chain(_WAITS, repeat(_WAITS[-1])):
            found = await self.api.keys.claim(*self.name, owner, digest=self.digest, seconds=CLAIM_SECONDS)
            if isinstance(found, Answered):
                return found
            if found.is_mine:
                return None
            if found.digest != self.digest:
                raise reused()
            if monotonic() > deadline:
                break
            await asyncio.sleep(wait)
        raise unavailable("The process that works on the same request")

    async def _give_up(self, owner: UUID, error: Exception) -> None:
        """What was refused made nothing. What failed may have, so the key stays that of this request."""
        try:
            await self.api.keys.unclaim(*self.name, owner, forget=is_refusal(error))
        except EverstepError as failure:
            logger.warning("the claim of a request stays until it expires: %s", failure)

    async def _renewed(self, owner: UUID) -> None:
        """Keep the claim while the request is worked on."""
        while True:
            await asyncio.sleep(CLAIM_SECONDS / 3)
            try:
                await self.api.keys.renew(*self.name, owner, seconds=CLAIM_SECONDS)
            except EverstepError as error:
                # It may expire. Whoever takes the request over does nothing twice.
                logger.warning("the claim of a request was not renewed: %s", error)

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
