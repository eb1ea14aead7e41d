"""Sign-ins of people in browsers: their values, and the port that stores them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID


class SignInKind(StrEnum):
    """What the secret of a sign-in is for."""

    CODE = "code"
    """Of a link: exchanged once for a session."""
    SESSION = "session"
    """In a browser's cookie: identifies the caller of each request."""
    TICKET = "ticket"
    """For one connection to the gateway, by a page that holds no token."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """The caller that a secret stands for; the secret itself is stored as a digest."""

    tenant_id: str
    user_id: str
    expires_at: datetime
    scopes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    key_id: UUID | None = None
    """The API key with which the person signed in; its revocation ends the sign-in."""


class SignInStore(Protocol):
    """Stores sign-ins under digests of their secrets."""

    async def add_sign_in(self, kind: SignInKind, digest: str, sign_in: SignIn) -> None:
        """Store a sign-in, and remove those that have expired."""
        ...

    async def find_sign_in(self, kind: SignInKind, digest: str) -> SignIn | None:
        """The sign-in of this kind, unless it has expired or its key is revoked."""
        ...

    async def take_sign_in(self, kind: SignInKind, digest: str) -> SignIn | None:
        """Remove a sign-in and return it, unless it has expired or its key is revoked."""
        ...

    async def remove_sign_in(self, kind: SignInKind, digest: str) -> None:
        """Remove a sign-in, if there is one."""
        ...
