"""What vouches for sign-ins: the configuration of the API under which they began.

A session outlives the request with the token that began it, so it is bound to what made the API accept that
token: the secret, the issuer, the audience, and the key of the provider that signed it. A change of any of
them ends the session, as it ends the token.
"""

import hashlib
from dataclasses import dataclass
from typing import Self

import jwt

from everstep.agent_domain.storage.sign_ins import SignIn
from everstep.agent_domain.values import json_text
from everstep.http_api.jwks import KeySet
from everstep.http_api.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Authority:
    """The part of an API's configuration that decides which tokens it accepts."""

    digest: str
    keys: KeySet | None = None

    @classmethod
    def of(cls, tokens: Tokens | None) -> Self:
        """The authority of an API that accepts these tokens; None if it accepts keys only."""
        if tokens is None:
            return cls("keys")
        url = None if tokens.keys is None else tokens.keys.url
        named = json_text([tokens.secret, url, tokens.issuer, tokens.audience])
        return cls(hashlib.sha256(f"everstep sign-ins {named}".encode()).hexdigest(), tokens.keys)

    async def vouches_for(self, sign_in: SignIn) -> bool:
        """Whether the sign-in began under this configuration, with a key that is still the provider's.

        Raises:
            Refusal: The provider's keys have not been read yet, and it is unavailable.
        """
        if sign_in.authority != self.digest:
            return False
        if sign_in.signing_key is None:
            return True
        if self.keys is None:
            return False
        try:
            await self.keys.key(sign_in.signing_key)
        except jwt.InvalidKeyError:
            return False
        return True
