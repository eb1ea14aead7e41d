"""Signed tokens (JWT) of users: signed with a shared secret, or with an identity provider's keys.

The accepted algorithms are fixed here and follow from the origin of the key, never from the token's own
header: otherwise an attacker could sign a token with a provider's public key as the secret.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.http_api.callers import LEEWAY, Caller
from everstep.http_api.jwks import BY_PROVIDER, KeySet
from everstep.http_api.problems import authentication_error

BY_SECRET = "HS256"  # noqa: S105 -- an algorithm

ANY = "any"
"""As an issuer or an audience: accept any."""
MIN_SECRET = 32
"""The minimum length of a secret in bytes. A shorter one can be guessed from a single token."""
MAX_TOKEN = 8192
LATEST = 2**53
"""The latest expiry in seconds since 1970; later ones are treated like it."""

_SEND_ANOTHER = "send a new one as `Authorization: Bearer ...`"


@dataclass(frozen=True)
class Tokens:
    """Verifies tokens with a shared secret, a provider's keys, or both."""

    secret: str | None = None
    keys: KeySet | None = None
    issuer: str | None = None
    """The required `iss`. Needed with keys of a provider; `ANY` accepts any."""
    audience: str | None = None
    """The required `aud`, likewise: a provider also signs tokens for other applications."""

    def __post_init__(self) -> None:
        if self.keys is not None:
            _require(self.issuer, "EVERSTEP_AUTH_ISSUER")
            _require(self.audience, "EVERSTEP_AUTH_AUDIENCE")
        if self.secret is not None and len(self.secret.encode()) < MIN_SECRET:
            raise InvalidInput(
                f"the secret that signs tokens is shorter than {MIN_SECRET} bytes; use a longer one"
            )

    async def caller(self, token: str) -> Caller:
        """Return the caller that a token identifies.

        Raises:
            Refusal: The token is invalid or expired, or its key is unavailable.
        """
        if len(token) > MAX_TOKEN:
            raise authentication_error(f"The token is longer than {MAX_TOKEN} characters; {_SEND_ANOTHER}")
        try:
            header = jwt.get_unverified_header(token)
            claims = await self._claims(token, header)
            tenant = claims.get("tenant", DEFAULT_TENANT)
            # A larger integer has no exact float; such a token never expires in practice.
            expires_at = float(min(int(claims["exp"]), LATEST) + LEEWAY)
            scopes, roles = claims.get("scope"), claims.get("roles")
            caller = Caller.from_claims(claims["sub"], tenant, scopes, expires_at, roles).as_person()
            return caller if header["alg"] == BY_SECRET else replace(caller, signing_key=header["kid"])
        except jwt.ExpiredSignatureError:
            raise authentication_error(f"The token has expired; {_SEND_ANOTHER}") from None
        except jwt.PyJWTError as error:
            raise authentication_error(
                f"The token is not valid ({type(error).__name__}); {_SEND_ANOTHER}"
            ) from None
        except InvalidInput as error:
            raise authentication_error(f"The token's {error}; {_SEND_ANOTHER}") from None
        except (ValueError, TypeError, OverflowError, RecursionError, KeyError):
            raise authentication_error(f"The token cannot be read; {_SEND_ANOTHER}") from None

    async def _claims(self, token: str, header: Mapping[str, Any]) -> Mapping[str, Any]:
        key, algorithms = await self._key(header)
        return jwt.decode(
            token,
            key,
            algorithms=[*algorithms],
            issuer=_none_if_any(self.issuer),
            audience=_none_if_any(self.audience),
            leeway=LEEWAY,
            options={"require": ["exp", "sub"], "verify_aud": _none_if_any(self.audience) is not None},
        )

    async def _key(self, header: Mapping[str, Any]) -> tuple[Any, Sequence[str]]:
        algorithm = header.get("alg")
        if self.secret is not None and algorithm == BY_SECRET:
            return self.secret, (BY_SECRET,)
        if self.keys is not None and algorithm in BY_PROVIDER:
            key = await self.keys.key(header.get("kid"))
            if key.algorithm_name != algorithm:
                raise jwt.InvalidAlgorithmError("the key is for another algorithm")
            return key.key, (algorithm,)
        raise jwt.InvalidAlgorithmError("no key for this algorithm")


def _require(value: str | None, setting: str) -> None:
    if not value:
        raise InvalidInput(
            f"EVERSTEP_AUTH_JWKS_URL is set without {setting}, so tokens for other applications would be "
            f"accepted; set it, or {setting}={ANY} to accept any"
        )


def _none_if_any(value: str | None) -> str | None:
    return None if value == ANY else value


def sign_token(
    secret: str,
    user_id: str,
    tenant_id: str = DEFAULT_TENANT,
    scope: str = "",
    *,
    days: float = 30,
    issuer: str | None = None,
    audience: str | None = None,
) -> str:
    """Sign a token with the secret of a local installation."""
    now = datetime.now(UTC)
    named = {"iss": _none_if_any(issuer), "aud": _none_if_any(audience)}
    claims = {
        **{name: value for name, value in named.items() if value is not None},
        "sub": user_id,
        "tenant": tenant_id,
        "scope": scope,
        "iat": now,
        "exp": now + timedelta(days=days),
    }
    return jwt.encode(claims, secret, BY_SECRET)
