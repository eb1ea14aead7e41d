"""Who may use the HTTP API of an installation, by its settings."""

import logging

from agent_domain.sessions import KeyStore
from everstep.http_api.auth import Authenticate, Doorkeeper, open_door
from everstep.http_api.callers import Grant
from everstep.http_api.channels import Signer
from everstep.http_api.jwks import KeySet
from everstep.http_api.tokens import Tokens, signed
from everstep.runtime.settings import Settings

logger = logging.getLogger(__name__)

LOCAL_USER = "local"


def local_token(settings: Settings) -> str | None:
    """A token for whoever sits at this machine."""
    if settings.auth_secret is None:
        return None
    return signed(
        settings.auth_secret,
        LOCAL_USER,
        scope=Grant.ALL_SESSIONS,
        issuer=settings.auth_issuer,
        audience=settings.auth_audience,
    )


def door(settings: Settings, keys: KeyStore) -> Authenticate:
    """What lets callers in."""
    if settings.auth == "off":
        return open_door()
    jwks = KeySet(settings.auth_jwks_url) if settings.auth_jwks_url else None
    if settings.auth_secret is None and jwks is None:
        logger.warning(
            "neither EVERSTEP_AUTH_SECRET nor EVERSTEP_AUTH_JWKS_URL is set: only API keys open the API"
        )
        return Doorkeeper(None, keys)
    tokens = Tokens(settings.auth_secret, jwks, settings.auth_issuer, settings.auth_audience)
    return Doorkeeper(tokens, keys)


def signer(settings: Settings) -> Signer | None:
    """What lets browsers into channels of the gateway."""
    secret = settings.gateway_secret
    return None if secret is None else Signer(settings.broadcast_key, secret)
