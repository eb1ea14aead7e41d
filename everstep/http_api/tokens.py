"""Signed tokens (JWT) of people: by a secret that both sides know, or by an identity provider's keys.

Which algorithms are accepted is fixed here and follows from where a key comes from, never from what a
token says of itself: a provider's public key is no secret to sign with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.http_api.callers import LEEWAY, Caller
from everstep.http_api.jwks import BY_PROVIDER, KeySet
from everstep.http_api.problems import unauthorized

BY_SECRET = "HS256"  # noqa: S105 -- an algorithm

ANY = "any"
"""Instead of an issuer or an audience: every one is accepted."""
MIN_SECRET = 32
"""Bytes. A shorter secret can be guessed from a single token."""
MAX_TOKEN = 8192
LATEST = 2**53
"""Seconds since 1970: whatever expires later comes to the same."""

_SEND_ANOTHER = "send a new one as `Authorization: Bearer ...`"


@dataclass(frozen=True)
class Tokens:
    """Reads tokens; what signs them is given, one or both."""

    secret: str | None = None
    keys: KeySet | None = None
    issuer: str | None = None
    """What `iss` has to be. Required with keys of a provider; `ANY` for any."""
    audience: str | None = None
    """What `aud` has to be, likewise: a provider signs tokens for other applications, too."""

    def __post_init__(self) -> None:
        if self.keys is not None:
            _require(self.issuer, "EVERSTEP_AUTH_ISSUER")
            _require(self.audience, "EVERSTEP_AUTH_AUDIENCE")
        if self.secret is not None and len(self.secret.encode()) < MIN_SECRET:
            raise InvalidInput(
                f"the secret that signs tokens is shorter than {MIN_SECRET} bytes; draw a longer one"
            )

    async def caller(self, token: str) -> Caller:
        """Whose token this is; `Refusal` if it is no good."""
        if len(token) > MAX_TOKEN:
            raise unauthorized(f"The token is longer than {MAX_TOKEN} characters; {_SEND_ANOTHER}")
        try:
            claims = await self._claims(token)
            tenant = claims.get("tenant", DEFAULT_TENANT)
            # What has no place in a float is as good as never.
            expires_at = float(min(int(claims["exp"]), LATEST) + LEEWAY)
            scopes, roles = claims.get("scope"), claims.get("roles")
            return Caller.named(claims["sub"], tenant, scopes, expires_at, roles).as_person()
        except jwt.ExpiredSignatureError:
            raise unauthorized(f"The token has expired; {_SEND_ANOTHER}") from None
        except jwt.PyJWTError as error:
            raise unauthorized(f"The token is not valid ({type(error).__name__}); {_SEND_ANOTHER}") from None
        except InvalidInput as error:
            raise unauthorized(f"The token's {error}; {_SEND_ANOTHER}") from None
        except (ValueError, TypeError, OverflowError, RecursionError, KeyError):
            raise unauthorized(f"The token cannot be read; {_SEND_ANOTHER}") from None

    async def _claims(self, token: str) -> Mapping[str, Any]:
        header = jwt.get_unverified_header(token)
        key, algorithms = await self._key(header)
        return jwt.decode(
            token,
            key,
            algorithms=[*algorithms],
            issuer=_exactly(self.issuer),
            audience=_exactly(self.audience),
            leeway=LEEWAY,
            options={"require": ["exp", "sub"], "verify_aud": _exactly(self.audience) is not None},
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
            f"EVERSTEP_AUTH_JWKS_URL is set without {setting}, so tokens for other applications would open "
            f"this one; set it, or {setting}={ANY} to accept any"
        )


def _exactly(value: str | None) -> str | None:
    return None if value == ANY else value


def signed(
    secret: str,
    user_id: str,
    tenant_id: str = DEFAULT_TENANT,
    scope: str = "",
    *,
    days: float = 30,
    issuer: str | None = None,
    audience: str | None = None,
) -> str:
    """A token for a local installation, whose secret is at hand."""
    now = datetime.now(UTC)
    named = {"iss": _exactly(issuer), "aud": _exactly(audience)}
    claims = {
        **{name: value for name, value in named.items() if value is not None},
        "sub": user_id,
        "tenant": tenant_id,
        "scope": scope,
        "iat": now,
        "exp": now + timedelta(days=days),
    }
    return jwt.encode(claims, secret, BY_SECRET)
