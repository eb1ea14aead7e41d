"""Authentication of the HTTP API, by the settings."""

import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.capabilities.rights import OWN_SCOPES
from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.storage.keys import KeyStore
from everstep.agent_domain.stream.channels import Channel, StreamStore
from everstep.broadcast_gateway.ports import Guest, NotAdmitted
from everstep.http_api.auth import Authenticate, Authenticator, allow_all
from everstep.http_api.authorities import Authority
from everstep.http_api.callers import Caller
from everstep.http_api.channel_authorization import Signer
from everstep.http_api.identity_provider import IdentityProvider
from everstep.http_api.jwks import KeySet
from everstep.http_api.problems import Refusal
from everstep.http_api.sign_ins import LOCAL_USER, TICKET_PREFIX, BrowserSessions
from everstep.http_api.tokens import ANY, Tokens, sign_token
from everstep.runtime.settings import Settings
from everstep.store.keys import PostgresKeys
from everstep.store.sign_ins import PostgresSignIns
from everstep.store.streams import PostgresStreams

logger = logging.getLogger(__name__)


def local_token(settings: Settings, tenant_id: str = DEFAULT_TENANT) -> str | None:
    """Return a token for the user of this machine."""
    if settings.auth_secret is None:
        return None
    return sign_token(
        settings.auth_secret,
        LOCAL_USER,
        tenant_id,
        scope=" ".join(OWN_SCOPES),
        issuer=settings.auth_issuer,
        audience=settings.auth_audience,
    )


def build_authenticator(settings: Settings, keys: KeyStore) -> Authenticate:
    """Return the function that authenticates callers."""
    if settings.auth == "off":
        return allow_all()
    jwks = KeySet(settings.auth_jwks_url) if settings.auth_jwks_url else None
    if settings.auth_secret is None and jwks is None:
        logger.warning(
            "neither EVERSTEP_AUTH_SECRET nor EVERSTEP_AUTH_JWKS_URL is set: only API keys are accepted"
        )
        return Authenticator(None, keys)
    tokens = Tokens(settings.auth_secret, jwks, settings.auth_issuer, settings.auth_audience)
    return Authenticator(tokens, keys)


def build_browser_sessions(engine: AsyncEngine, authenticate: Authenticate) -> BrowserSessions:
    """Return the sessions of browsers, which are bound to what verifies tokens."""
    tokens = authenticate.tokens if isinstance(authenticate, Authenticator) else None
    return BrowserSessions(PostgresSignIns(engine), Authority.of(tokens))


def build_identity_provider(settings: Settings) -> IdentityProvider | None:
    """Return the identity provider at which people sign in to the console, if one is configured."""
    if settings.auth == "off" or settings.console_client_id is None:
        return None
    issuer = settings.require("auth_issuer", "EVERSTEP_CONSOLE_CLIENT_ID is a client of this issuer")
    if issuer == ANY:
        raise InvalidInput(
            "EVERSTEP_AUTH_ISSUER is 'any', but EVERSTEP_CONSOLE_CLIENT_ID belongs to one; set its URL"
        )
    return IdentityProvider(
        issuer, settings.console_client_id, settings.console_client_secret, settings.console_scope
    )


def channel_signer(settings: Settings) -> Signer | None:
    """Return the signer of browser subscriptions to the gateway's channels."""
    secret = settings.gateway_secret
    return None if secret is None else Signer(settings.broadcast_key, secret)


def build_gateway_access(settings: Settings, engine: AsyncEngine) -> "ApiGatewayAccess":
    """Return the gateway's access control."""
    keys = PostgresKeys(engine)
    authenticate = build_authenticator(settings, keys)
    sessions = build_browser_sessions(engine, authenticate)
    return ApiGatewayAccess(authenticate, PostgresStreams(engine), keys, sessions)


@dataclass(frozen=True, slots=True)
class ApiGatewayAccess:
    """Admits subscribers by the authentication of the HTTP API."""

    authenticate: Authenticate
    streams: StreamStore
    keys: KeyStore
    browser_sessions: BrowserSessions

    async def authenticate_viewer(self, token: str) -> Guest:
        """Return the caller with this token, or with this ticket of a page.

        Raises:
            NotAdmitted: The token is not valid.
            StoreUnavailable: The token cannot be checked now.
        """
        try:
            if not token.startswith(TICKET_PREFIX):
                caller = await self.authenticate(f"Bearer {token}")
            elif (caller := await self.browser_sessions.take_ticket(token)) is None:
                raise NotAdmitted("the ticket is not valid; get a new one")
        except Refusal as refusal:
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                raise NotAdmitted(refusal.detail) from None
            # The identity provider's keys have not been fetched yet.
            raise StoreUnavailable(refusal.detail) from None
        return _guest(caller)

    async def is_good_key(self, key_id: UUID) -> bool:
        """Return whether an API key is still valid."""
        return await self.keys.is_good_key(key_id)

    async def find_stream(self, channel: Channel, guest: Guest | None) -> UUID | None:
        """Return the stream of a channel if the caller may subscribe to it."""
        scope = None if guest is None else Scope(guest.tenant_id, guest.user_id)
        return await self.streams.stream(channel, scope)


def _guest(caller: Caller) -> Guest:
    return Guest(caller.tenant_id, caller.scope.user_id, caller.may_watch_until(time.time()))
