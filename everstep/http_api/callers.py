"""Callers: a person with a token of an identity provider, or a service with one of our keys.

A caller sees only data of its tenant, and within the tenant only its own, unless a scope changes this:

- `sessions:all` gives access to the data of all users of the tenant, and lets a service name the user it
  acts for;
- `approve` opens the requests of all users of the tenant and decides about calls, `approve:edit` also with
  other arguments;
- `answer`, `steer` and `cancel` do this for the executions of other users;
- `admin` opens the state of the installation, which belongs to no tenant;
- `read-only` forbids every change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self, cast
from uuid import UUID

from everstep.agent_domain.capabilities import rights
from everstep.agent_domain.capabilities.rights import Actor
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.requests import RequestAccess, RequestKind, RequestRow
from everstep.agent_domain.storage.sessions import limited_text
from everstep.agent_domain.values import valid_text

LEEWAY = 30
"""Seconds by which two clocks may differ."""

MAX_NAME = 200
"""The limit for names of tenants and users, in characters."""


OWN_USERS = frozenset({"anybody", "local"})
"""Users of the installation itself: of an API without authentication, and of the command line. They see all
data of a tenant, so only a token with that permission may name them."""


class Grant(StrEnum):
    """The scopes of tokens and keys that change permissions."""

    ALL_SESSIONS = rights.ALL_SESSIONS
    READ_ONLY = "read-only"
    APPROVE = rights.APPROVE
    EDIT = rights.EDIT
    ANSWER = rights.ANSWER
    STEER = rights.STEER
    CANCEL = rights.CANCEL
    ADMIN = rights.ADMIN


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
    signing_key: str | None = field(default=None, compare=False)
    """The id of the identity provider's key that signed the token, if one did."""
    is_session: bool = field(default=False, compare=False)
    """Whether the caller is a person with a session in a browser, which can end at any time."""

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

    def without_expiry(self) -> Self:
        """The same caller, whose credential does not expire."""
        return replace(self, expires_at=None)

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
    def sees_installation(self) -> bool:
        """Whether the caller sees the state of the installation, over all tenants."""
        return Grant.ADMIN in self.grants

    @property
    def scope(self) -> Scope:
        """The data that the caller may see."""
        return Scope(self.tenant_id, None if self.sees_all else self.user_id)

    @property
    def actor(self) -> Actor:
        """The caller as the sender of decisions and commands."""
        return Actor(self.user_id, self.scopes, self.roles, self.key_id)

    @property
    def request_access(self) -> RequestAccess:
        """The requests of other users that the caller sees."""
        kinds = (CallNeed.INPUT,) if Grant.ANSWER in self.grants else ()
        if Grant.APPROVE in self.grants:
            kinds = (CallNeed.INPUT, CallNeed.APPROVAL, RequestKind.BUDGET)
        return RequestAccess(kinds, self.actor.approver_names)

    def sees_request(self, row: RequestRow) -> bool:
        """Whether the caller sees this request."""
        return self.scope.covers(row.user_id) or self.request_access.covers(row)

    def acts_for(self, user_id: str | None) -> str | None:
        """The user to act for: the caller, or the named user; None if the caller may not act for it."""
        if user_id is None or user_id == self.user_id:
            return self.user_id
        return user_id if self.sees_all else None


def _split_names(value: object, what: str) -> tuple[str, ...]:
    """The names in a claim: a text with spaces between them, or a list of texts.

    Raises:
        InvalidInput: It is neither.
    """
    if value is None:
        return ()
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise InvalidInput(f"{what} must be a list of names, or a text with spaces between them")
    return tuple(valid_text(name, f"each name in {what}") for name in cast("Sequence[object]", names))


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
    """Validate the scopes of a new key; duplicates are removed.

    A scope that only agents name, as an approver, contains a colon, such as `shop:refund`, and resembles
    none of ours: otherwise a misspelt scope would be accepted and grant nothing.
    """
    unknown = [name for name in names if name not in tuple(Grant)]
    unknown = [name for name in unknown if did_you_mean(name, Grant) or not _is_own_scope(name)]
    if unknown:
        hint = did_you_mean(unknown[0], Grant)
        raise InvalidInput(
            f"unknown scope '{unknown[0]}'; use: {', '.join(Grant)}, or a scope of your agents, "
            f"which contains a colon, such as shop:refund{hint}"
        )
    return tuple(dict.fromkeys(names))


_OWN_PREFIXES = tuple(f"{grant.partition(':')[0]}:" for grant in Grant)


def _is_own_scope(name: str) -> bool:
    before, _, after = name.partition(":")
    return bool(before and after) and name == "".join(name.split()) and not name.startswith(_OWN_PREFIXES)
