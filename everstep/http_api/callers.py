"""Callers: a person with a token of an identity provider, or a service with one of our keys.

A caller sees only data of its tenant, and within the tenant only its own, unless a scope changes this:

- `sessions:all` gives access to the data of all users of the tenant, and lets a service name the user it
  acts for;
- `read-only` forbids every change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.sessions import limited_text
from everstep.agent_domain.values import as_list

LEEWAY = 30
"""Seconds by which two clocks may differ."""

MAX_NAME = 200
"""The limit for names of tenants and users, in characters."""


OWN_USERS = frozenset({"anybody", "local"})
"""Users of the installation itself: of an API without authentication, and of the command line. They see all
data of a tenant, so only a token with that permission may name them."""


class Grant(StrEnum):
    """The scopes of tokens and keys that change permissions."""

    ALL_SESSIONS = "sessions:all"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request."""

    user_id: str
    tenant_id: str = DEFAULT_TENANT
    grants: frozenset[Grant] = field(default_factory=frozenset[Grant])
    expires_at: float | None = field(default=None, compare=False)
    """When the token expires, in seconds since 1970; None for never. Not part of the identity."""
    scopes: tuple[str, ...] = field(default=(), compare=False)
    """All scopes of the token or key, including those that have no meaning here."""
    roles: tuple[str, ...] = field(default=(), compare=False)
    key_id: UUID | None = field(default=None, compare=False)
    """The id of the API key, if one was sent."""

    @classmethod
    def from_claims(
        cls,
        user_id: object,
        tenant_id: object,
        scopes: object,
        expires_at: float | None = None,
        roles: object = (),
    ) -> "Caller":
        """Build a caller from the claims of a token or a key; unknown scopes are kept but grant nothing."""
        names = _split_names(scopes, "scope")
        grants = frozenset(Grant(name) for name in names if name in tuple(Grant))
        user, tenant = validate_name("sub", user_id), validate_name("tenant", tenant_id)
        return cls(user, tenant, grants, expires_at, names, _split_names(roles, "roles"))

    def in_context(self, user_id: str) -> ContextCaller:
        """The caller as context policies see it, acting for this user."""
        return ContextCaller(user_id, self.tenant_id, self.scopes, self.roles)

    def as_person(self) -> Self:
        """Check the caller of a token, whose issuer chose the name.

        Raises:
            InvalidInput: The name is reserved.
        """
        require_person("sub", self.user_id)
        if self.user_id in OWN_USERS and not self.sees_all:
            raise InvalidInput(
                f"sub is '{self.user_id}', which is reserved for the installation; choose another name"
            )
        return self

    def may_watch_until(self, now: float) -> float | None:
        """The time until which a viewer may watch without a newer token; None for no limit.

        This is the token's exact expiry, without the leeway for clocks. A token that is presented after its
        exact expiry is valid for the rest of the leeway.
        """
        if self.expires_at is None:
            return None
        exact = self.expires_at - LEEWAY
        return exact if now < exact else self.expires_at

    @property
    def may_write(self) -> bool:
        """Whether the caller may change anything."""
        return Grant.READ_ONLY not in self.grants

    @property
    def sees_all(self) -> bool:
        """Whether the caller sees the data of all users of its tenant."""
        return Grant.ALL_SESSIONS in self.grants

    @property
    def scope(self) -> Scope:
        """The data that the caller may see."""
        return Scope(self.tenant_id, None if self.sees_all else self.user_id)

    def acts_for(self, user_id: str | None) -> str | None:
        """The user to act for: the caller, or the named user; None if the caller may not act for it."""
        if user_id is None or user_id == self.user_id:
            return self.user_id
        return user_id if self.sees_all else None


def _split_names(value: object, what: str) -> tuple[str, ...]:
    return (*value.split(),) if isinstance(value, str) else (*map(str, as_list(value or (), what)),)


KEY_USER_PREFIX = "key:"
"""The prefix of the user of a key that acts as itself."""


def require_person(what: str, user_id: object) -> None:
    """Refuse a user name that is reserved for keys: such a user would own the key's data."""
    if isinstance(user_id, str) and user_id.startswith(KEY_USER_PREFIX):
        raise InvalidInput(
            f"{what} begins with '{KEY_USER_PREFIX}', which is reserved for keys; choose another name"
        )


def validate_name(what: str, value: object) -> str:
    """Validate the name of a tenant, a user or a key."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{what} must be non-empty text")
    return limited_text(what, value, MAX_NAME)


def validate_scopes(names: Sequence[str]) -> tuple[str, ...]:
    """Validate the scopes of a new key; duplicates are removed."""
    unknown = [name for name in names if name not in tuple(Grant)]
    if unknown:
        hint = did_you_mean(unknown[0], Grant)
        raise InvalidInput(f"unknown scope '{unknown[0]}'; use: {', '.join(Grant)}{hint}")
    return tuple(dict.fromkeys(names))
