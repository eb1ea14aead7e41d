"""An operator of NATS with an account, whose users log in with files of credentials."""

import base64
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import nkeys  # pyright: ignore[reportMissingTypeStubs]

UNLIMITED: Final = -1
LIMITS: Final = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), UNLIMITED),
    "wildcards": True,
}
SUBJECTS: Final = {"allow": ["everstep.>"]}
"""What Everstep's documentation says has to be permitted."""


class Key:
    """A key pair of one role."""

    def __init__(self, role: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), role)  # pyright: ignore[reportUnknownMemberType]
        self._pair: Any = nkeys.from_seed(bytearray(self.seed))  # pyright: ignore[reportUnknownMemberType]
        self.public = str(self._pair.public_key, "ascii")

    def sign(self, subject: "Key", claims: dict[str, Any], expires_at: datetime | None = None) -> str:
        """A JWT about another key."""
        body = {
            "jti": os.urandom(16).hex(),
            "iat": int(datetime.now(UTC).timestamp()),
            "iss": self.public,
            "sub": subject.public,
            "name": "test",
            "nats": {**claims, "version": 2},
            **({"exp": int(expires_at.timestamp())} if expires_at else {}),
        }
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        signed = ".".join(_encode(json.dumps(part).encode()) for part in (header, body))
        return f"{signed}.{_encode(self._pair.sign(signed.encode()))}"


class NatsOperator:
    """An operator with one account."""

    def __init__(self) -> None:
        self._operator, self._account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)

    def write_configuration(self, file: Path) -> None:
        """Write the configuration of a server that trusts this operator."""
        account = self._operator.sign(self._account, {"type": "account", "limits": LIMITS})
        settings = {
            "operator": self._operator.sign(self._operator, {"type": "operator"}),
            "resolver": "MEMORY",
            "resolver_preload": {self._account.public: account},
        }
        file.write_text(json.dumps(settings))

    def write_credentials(self, file: Path, expires_at: datetime | None = None) -> None:
        """Write the credentials of a new user, as `nsc generate creds` does."""
        user = Key(nkeys.PREFIX_BYTE_USER)
        limits = {"subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED}
        claims = {"type": "user", "pub": SUBJECTS, "sub": SUBJECTS, **limits}
        jwt = self._account.sign(user, claims, expires_at)
        stars = "*" * 25
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"{stars} IMPORTANT {stars}\nNKEYs are sensitive and should be treated as secrets.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n\n"
        )


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
