"""Who asks: a person with a token of an identity provider, or a service with a key of ours.

Everything that a caller is shown belongs to the caller's tenant, and to the caller as a person, unless a
scope says otherwise. There are two:

- `sessions:all` opens the things of everybody in the tenant, and lets a service name the person it acts for;
- `read-only` closes everything that changes something.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.sessions import bounded
from everstep.agent_domain.values import listed

LEEWAY = 30
"""Seconds that two clocks may be apart."""

MAX_NAME = 200
"""Characters of a tenant's and of a user's name."""


OWN_USERS = frozenset({"anybody", "local"})
"""Users of an installation itself: of an API without authentication, and of the command line. They see all of
a tenant, so a token that sees all may name them."""


class Grant(StrEnum):
    """What a token or a key may do beside the usual."""

    ALL_SESSIONS = "sessions:all"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request."""

    user_id: str
    tenant_id: str = DEFAULT_TENANT
    grants: frozenset[Grant] = field(default_factory=frozenset[Grant])
    expires_at: float | None = field(default=None, compare=False)
    """When the token is no good any more, in seconds since 1970; None for never. Who asks does not change."""
    scopes: tuple[str, ...] = field(default=(), compare=False)
    """All that the token or key names, also those that mean nothing here."""
    roles: tuple[str, ...] = field(default=(), compare=False)
    key_id: UUID | None = field(default=None, compare=False)
    """The API key that it sent, if it did."""

    @classmethod
    def named(
        cls,
        user_id: object,
        tenant_id: object,
        scopes: object,
        expires_at: float | None = None,
        roles: object = (),
    ) -> "Caller":
        """A caller as a token or a key says; scopes that are none of ours are for others."""
        names = _words(scopes, "scope")
        grants = frozenset(Grant(name) for name in names if name in tuple(Grant))
        user, tenant = valid_name("sub", user_id), valid_name("tenant", tenant_id)
        return cls(user, tenant, grants, expires_at, names, _words(roles, "roles"))

    def in_context(self, user_id: str) -> ContextCaller:
        """The same for a policy about contexts, acting for this user."""
        return ContextCaller(user_id, self.tenant_id, self.scopes, self.roles)

    def as_person(self) -> Self:
        """The caller of a token, whose issuer chose the name: reserved ones are refused."""
        require_person("sub", self.user_id)
        if self.user_id in OWN_USERS and not self.sees_all:
            raise InvalidInput(f"sub is '{self.user_id}', a user of the installation; choose another name")
        return self

    def may_watch_until(self, now: float) -> float | None:
        """When a viewer has to show a newer token; None for never.

        That is when the token says, and not so much later as clocks may be apart. A token that is shown after
        that is good for the rest of this time.
        """
        if self.expires_at is None:
            return None
        exact = self.expires_at - LEEWAY
        return exact if now < exact else self.expires_at

    @property
    def may_write(self) -> bool:
        """Whether anything may be changed."""
        return Grant.READ_ONLY not in self.grants

    @property
    def sees_all(self) -> bool:
        """Whether the things of everybody in the tenant may be seen."""
        return Grant.ALL_SESSIONS in self.grants

    @property
    def scope(self) -> Scope:
        """Whose things may be seen."""
        return Scope(self.tenant_id, None if self.sees_all else self.user_id)

    def acts_for(self, user_id: str | None) -> str | None:
        """The person whose things are made: the caller, or whom a service names; None if it may not."""
        if user_id is None or user_id == self.user_id:
            return self.user_id
        return user_id if self.sees_all else None


def _words(value: object, what: str) -> tuple[str, ...]:
    return (*value.split(),) if isinstance(value, str) else (*map(str, listed(value or (), what)),)


KEY_USER = "key:"
"""What the user of a key begins with that acts as itself."""


def require_person(what: str, user_id: object) -> None:
    """Refuse a name that only a key can have: whoever chose it would own the key's things."""
    if isinstance(user_id, str) and user_id.startswith(KEY_USER):
        raise InvalidInput(
            f"{what} begins with '{KEY_USER}', which is reserved for keys; choose another name"
        )


def valid_name(what: str, value: object) -> str:
    """The name of a tenant, a person or a key."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{what} has to be text that is not empty")
    return bounded(what, value, MAX_NAME)


def grants_of(names: Sequence[str]) -> tuple[str, ...]:
    """The scopes that a key is to have."""
    unknown = [name for name in names if name not in tuple(Grant)]
    if unknown:
        raise InvalidInput(f"there is no scope '{unknown[0]}'; use: {', '.join(Grant)}")
    return tuple(dict.fromkeys(names))
