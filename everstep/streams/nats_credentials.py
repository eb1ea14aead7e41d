"""Files of credentials for NATS (`.creds`): a JWT, which the server checks, and the seed of its key."""

import json
import re
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import nkeys  # pyright: ignore[reportMissingTypeStubs]
from nats.aio.client import RawCredentials

from everstep.agent_domain.errors import InvalidInput

_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+([\w-]+\.([\w-]+)\.[\w-]+)\s")
_SEED: Final = re.compile(r"-BEGIN USER NKEY SEED-+\s+(\w+)\s")
_CANONICAL: Final = (
    "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
    "-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
)
"""The client reads exactly this, and would read on without end if a part is missing."""


@dataclass(frozen=True, slots=True)
class NatsCredentials:
    """The content of a file of credentials."""

    text: RawCredentials
    expires_at: datetime | None
    """None if they are valid until the account revokes them."""

    @classmethod
    def read(cls, file: Path) -> "NatsCredentials":
        """Read a file.

        Raises:
            InvalidInput: It cannot be read, or is no file of credentials.
        """
        try:
            text = file.read_text()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InvalidInput(
                f"EVERSTEP_NATS_CREDENTIALS names '{file}', which cannot be read: {reason}"
            ) from None
        jwt, seed = _JWT.search(text), _SEED.search(text)
        try:
            if jwt and seed:
                nkeys.from_seed(bytearray(seed[1].encode()))  # pyright: ignore[reportUnknownMemberType]
                canonical = _CANONICAL.format(jwt=jwt[1], seed=seed[1])
                return cls(RawCredentials(canonical), _expiry(jwt[2]))
        except (nkeys.NkeysError, ValueError):
            pass
        raise InvalidInput(
            f"EVERSTEP_NATS_CREDENTIALS names '{file}', which is no file of credentials of NATS: "
            "it has a JWT and a seed"
        )


def _expiry(claims: str) -> datetime | None:
    """When a JWT with these encoded claims expires."""
    read: dict[str, Any] = json.loads(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    return datetime.fromtimestamp(read["exp"], UTC) if read.get("exp") else None


def refusal_advice(file: Path) -> str:
    """What to do if a server refuses the credentials of a file."""
    try:
        expires_at = NatsCredentials.read(file).expires_at
    except InvalidInput as error:
        return str(error)
    if expires_at and expires_at <= datetime.now(UTC):
        moment = f"{expires_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"those in EVERSTEP_NATS_CREDENTIALS ('{file}') expired at {moment}, so create new ones"
    return f"check that EVERSTEP_NATS_CREDENTIALS ('{file}') has those of a user of this server's accounts"
