"""Sign-ins of people in browsers: their values, and the port that stores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, Self
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
    authority: str | None = None
    """A digest of the configuration under which it began; None for the code of a link, which has none yet."""
    signing_key: str | None = None
    """The id of the identity provider's key that signed the person's token, if one did."""
    user_agent: str | None = None
    """The browser, as it names itself."""


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A session, as lists show it."""

    id: UUID
    """Derived from the digest of its secrets."""
    created_at: datetime
    sign_in: SignIn

    @classmethod
    def stored(cls, digest: str, created_at: datetime, sign_in: SignIn) -> Self:
        """A session that is stored under this digest."""
        return cls(UUID(digest[:32]), created_at, sign_in)

    def has_digest(self, digest: str | None) -> bool:
        """Whether it is stored under this digest."""
        return digest is not None and self.id == UUID(digest[:32])


MAX_SESSIONS = 50
"""How many sessions a user has at most; the oldest one ends when another begins."""

MAX_LISTED = 500
"""How many sessions a list has at most, newest first."""


class SignInStore(Protocol):
    """Stores sign-ins under digests of their secrets."""

    async def add_sign_in(self, kind: SignInKind, digest: str, sign_in: SignIn) -> None:
        """Store a sign-in, and remove those that have expired.

        Of a user's sessions, the oldest ones over the limit are removed.
        """
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

    async def sessions(self, tenant_id: str, user_id: str | None = None) -> Sequence[BrowserSession]:
        """The newest sessions of a tenant, or of one of its users."""
        ...

    async def end_session(self, tenant_id: str, user_id: str | None, session_id: UUID) -> bool:
        """End a session of a tenant, or of one of its users; return False if there is none."""
        ...

    async def end_sessions(self, tenant_id: str, user_id: str | None = None) -> Sequence[UUID]:
        """End all sessions of a tenant or of one of its users, with tickets and links; return their ids."""
        ...
