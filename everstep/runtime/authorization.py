"""Authentication of the HTTP API, by the settings."""

import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.capabilities.rights import OPERATOR_SCOPES
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.keys import KeyStore
from everstep.agent_domain.stream.channels import Channel, StreamStore
from everstep.broadcast_gateway.ports import Guest, NotAdmitted
from everstep.http_api.auth import Authenticate, Authenticator, allow_all
from everstep.http_api.channel_authorization import Signer
from everstep.http_api.jwks import KeySet
from everstep.http_api.problems import Refusal
from everstep.http_api.tokens import Tokens, sign_token
from everstep.runtime.settings import Settings
from everstep.store.keys import PostgresKeys
from everstep.store.streams import PostgresStreams

logger = logging.getLogger(__name__)

LOCAL_USER = "local"


def local_token(settings: Settings) -> str | None:
    """Return a token for the user of this machine."""
    if settings.auth_secret is None:
        return None
    return sign_token(
        settings.auth_secret,
        LOCAL_USER,
        scope=" ".join(OPERATOR_SCOPES),
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


def channel_signer(settings: Settings) -> Signer | None:
    """Return the signer of browser subscriptions to the gateway's channels."""
    secret = settings.gateway_secret
    return None if secret is None else Signer(settings.broadcast_key, secret)


def build_gateway_access(settings: Settings, engine: AsyncEngine) -> "ApiGatewayAccess":
    """Return the gateway's access control."""
    keys = PostgresKeys(engine)
    return ApiGatewayAccess(build_authenticator(settings, keys), PostgresStreams(engine), keys)


@dataclass(frozen=True, slots=True)
class ApiGatewayAccess:
    """Admits subscribers by the authentication of the HTTP API."""

    authenticate: Authenticate
    streams: StreamStore
    keys: KeyStore

    async def authenticate_viewer(self, token: str) -> Guest:
        """Return the caller with this token.

        Raises:
            NotAdmitted: The token is not valid.
            StoreUnavailable: The token cannot be checked now.
        """
        try:
            caller = await self.authenticate(f"Bearer {token}")
        except Refusal as refusal:
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                raise NotAdmitted(refusal.detail) from None
            # The identity provider's keys have not been fetched yet.
            raise StoreUnavailable(refusal.detail) from None
        return Guest(caller.tenant_id, caller.scope.user_id, caller.may_watch_until(time.time()))

    async def is_good_key(self, key_id: UUID) -> bool:
        """Return whether an API key is still valid."""
        return await self.keys.is_good_key(key_id)

    async def find_stream(self, channel: Channel, guest: Guest | None) -> UUID | None:
        """Return the stream of a channel if the caller may subscribe to it."""
        scope = None if guest is None else Scope(guest.tenant_id, guest.user_id)
        return await self.streams.stream(channel, scope)
