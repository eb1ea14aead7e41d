"""Routes with which people sign in and out in a browser, and a page's ticket for the gateway."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from starlette.requests import Request

from everstep.agent_domain.storage.sign_ins import SignIn, SignInKind
from everstep.http_api.auth import ANONYMOUS, READ_MARKER, SECRET_MARKER, CallerDep, acting_user
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import EarlyBodyRoute
from everstep.http_api.identity_provider import NO_PROVIDER
from everstep.http_api.problems import (
    Refusal,
    authentication_error,
    invalid_request,
    missing_scope,
    not_found,
)
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.request_bodies import UserName
from everstep.http_api.schemas.responses import PageResponse
from everstep.http_api.schemas.sign_in_schemas import (
    BrowserSessionResponse,
    EndedSignIns,
    GatewayTicket,
    ProviderAnswer,
    ProviderResponse,
    SignInResponse,
    SignInSent,
    SignOutSent,
)
from everstep.http_api.sign_ins import (
    TICKET_SECONDS,
    BrowserSessions,
    caller_of,
    digest_of,
    digest_of_request,
    require_own_page,
)

public_routes = APIRouter(route_class=EarlyBodyRoute, tags=["sign-in"])
routes = router("sign-in")

SignInId = Annotated[UUID, Path(description="The id of the session in a browser.")]


@public_routes.get("/sign-in")
async def read_sign_in(request: Request, api: ApiDep) -> SignInResponse:
    """Read who is signed in with this browser, and how to sign in."""
    description = await _describe(api)
    if not api.requires_sign_in:
        return description.with_caller(ANONYMOUS, api.temporal_workflows_url)
    session = await _sessions(api).find(request)
    return description if session is None else description.with_session(session, api.temporal_workflows_url)


@public_routes.post("/sign-in")
async def sign_in(body: SignInSent, request: Request, response: Response, api: ApiDep) -> SignInResponse:
    """Sign in with the code of a link, a token, a key, or the answer of an identity provider.

    The response sets the cookie of the session, which scripts cannot read, and has the page key, which the
    page sends as `Everstep-Page-Key` with each request.
    """
    require_own_page(request)
    sessions = _sessions(api)
    if body.code is not None:
        caller = await _caller_of_code(sessions, body.code)
    elif body.token is not None:
        caller = await api.authenticate(f"Bearer {body.token}")
    else:
        assert body.provider is not None, "the body has exactly one"  # noqa: S101 -- validated above
        caller = await _caller_of_provider(api, body.provider, request)
    await sessions.close(request, response)
    session = await sessions.open(request, response, caller)
    described = (await _describe(api)).with_session(session.sign_in, api.temporal_workflows_url)
    return described.model_copy(update={"page_key": session.page_key})


@public_routes.post("/sign-out")
async def sign_out(
    request: Request, response: Response, api: ApiDep, body: SignOutSent | None = None
) -> SignInResponse:
    """End the session of this browser, or all sessions of its user."""
    require_own_page(request)
    sessions = _sessions(api)
    if body and body.everywhere and (session := await sessions.find(request)):
        await sessions.store.end_sessions(session.tenant_id, session.user_id)
    await sessions.close(request, response)
    return await _describe(api)


@routes.get("/agent/sign-ins")
async def list_sign_ins(
    request: Request,
    api: ApiDep,
    caller: CallerDep,
    user_id: Annotated[UserName, Query(description="List those of this user.")] = None,
) -> PageResponse[BrowserSessionResponse]:
    """List the sessions of people in browsers, newest first, at most 500.

    Callers see their own; with `sessions:all` those of all users of the tenant.
    """
    digest = digest_of_request(request)
    found = await _sessions(api).store.sessions(caller.tenant_id, _user(caller, user_id))
    return PageResponse(
        items=[BrowserSessionResponse.of(each, is_current=each.has_digest(digest)) for each in found]
    )


@routes.delete("/agent/sign-ins/{sign_in_id}", status_code=204)
async def end_sign_in(sign_in_id: SignInId, api: ApiDep, caller: CallerDep) -> None:
    """End a session of a person in a browser."""
    store = _sessions(api).store
    if not await store.end_session(caller.tenant_id, _user(caller, None), sign_in_id):
        raise not_found("sign-in", sign_in_id)


@routes.delete("/agent/sign-ins")
async def end_sign_ins(
    api: ApiDep,
    caller: CallerDep,
    user_id: Annotated[UserName, Query(description="The user; default: the caller.")] = None,
    everyone: Annotated[
        bool, Query(description="End those of all users of the tenant; needs `sessions:all`.")
    ] = False,
) -> EndedSignIns:
    """End all sessions of a user in browsers, with the links and tickets that are not used yet."""
    if everyone and user_id is not None:
        raise invalid_request("Send either user_id or everyone")
    if everyone and not caller.sees_all:
        raise missing_scope(
            f"Ending the sessions of all users needs the scope '{Grant.ALL_SESSIONS}'", Grant.ALL_SESSIONS
        )
    user = None if everyone else acting_user(caller, user_id)
    return EndedSignIns(ended=[*await _sessions(api).store.end_sessions(caller.tenant_id, user)])


def _user(caller: Caller, named: str | None) -> str | None:
    """The user whose sessions the caller means; None for all users of the tenant."""
    return acting_user(caller, named) if named is not None else caller.scope.user_id


@routes.post("/agent/gateway/ticket", openapi_extra={READ_MARKER: True, SECRET_MARKER: True})
async def create_gateway_ticket(api: ApiDep, caller: CallerDep) -> GatewayTicket:
    """Create a ticket for one connection to the gateway, for a page whose session is in a cookie."""
    ticket = await _sessions(api).create_ticket(caller)
    return GatewayTicket(ticket=ticket, expires_in=TICKET_SECONDS)


def _sessions(api: Api) -> BrowserSessions:
    if api.browser_sessions is None:
        raise not_found("sign-in at", "this server")
    return api.browser_sessions


async def _caller_of_code(sessions: BrowserSessions, code: str) -> Caller:
    found: SignIn | None = await sessions.store.take_sign_in(SignInKind.CODE, digest_of(code))
    if found is None:
        raise authentication_error("The link was used or has expired; `everstep console` prints a new one")
    # The session outlasts the link.
    return caller_of(found).without_expiry()


async def _caller_of_provider(api: Api, answer: ProviderAnswer, request: Request) -> Caller:
    if api.identity_provider is None:
        raise NO_PROVIDER
    address = request.client.host if request.client else ""
    tokens = await api.identity_provider.tokens(
        answer.code, answer.verifier, answer.redirect_uri, address=address
    )
    return await _first_caller(api, tokens)


async def _first_caller(api: Api, tokens: Sequence[str]) -> Caller:
    """The caller of the first token that the API accepts: the access token, or else the ID token."""
    refused = authentication_error("The identity provider sent no token; check its client settings")
    for token in tokens:
        try:
            return await api.authenticate(f"Bearer {token}")
        except Refusal as refusal:
            if refusal.status != HTTPStatus.UNAUTHORIZED:
                raise
            refused = refusal
    raise refused


async def _describe(api: Api) -> SignInResponse:
    provider = api.identity_provider
    described = None
    if provider is not None:
        endpoint = await provider.authorization_endpoint()
        described = ProviderResponse(
            authorization_endpoint=endpoint, client_id=provider.client_id, scope=provider.scope
        )
    return SignInResponse(
        signed_in=False,
        required=api.requires_sign_in,
        provider=described,
    )
