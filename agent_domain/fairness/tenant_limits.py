"""The weight and the limits of tenants and of their users, which the operator sets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.fairness_keys import LARGEST_WEIGHT, LEAST_WEIGHT, fairness_key
from everstep.agent_domain.fairness.shares import Claimant, ShareTerms
from everstep.agent_domain.values import is_hidden

EVERYONE: Final = "*"
"""As a tenant: each one without limits of its own. As a user: each user without limits of their own."""
MAX_NAME: Final = 200
"""The limit for names of tenants and users, in characters: tokens and keys have no longer ones."""
LARGEST_LIMIT: Final = 2**31 - 1
LIMITS: Final = ("max_running", "max_model_calls", "requests_per_second", "tokens_per_minute")


def tenant_tokens_name(tenant_id: str) -> str:
    """The name of the rate of a tenant's tokens."""
    return f"tenant/{fairness_key(tenant_id, None)}/tokens"


def user_tokens_name(user_key: str) -> str:
    """The name of the rate of a user's tokens, by the fairness key of the user."""
    return f"user/{user_key}/tokens"


class TokenTerms(NamedTuple):
    """The tokens per minute of a tenant and of its user; None is no limit."""

    tenant: float | None = None
    user: float | None = None


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant, or of a user of it; None is no limit.

    Raises:
        InvalidInput: A name is blank, or a limit cannot be used.
    """

    tenant_id: str
    user_id: str | None = None
    """None: of the tenant as a whole."""
    weight: float | None = None
    """The share of the tenant, in proportion to other tenants; None is 1."""
    max_running: int | None = None
    """How many executions run at once; with 0 none starts. Further ones wait in a queue."""
    max_model_calls: int | None = None
    """How many model calls each worker makes at once."""
    requests_per_second: float | None = None
    """How many requests each API process accepts."""
    tokens_per_minute: int | None = None
    """How many tokens the model calls of all workers use."""

    def __post_init__(self) -> None:
        for name in (self.tenant_id, self.user_id):
            if name is not None and not name.strip():
                raise InvalidInput("the names of tenants and users are not blank")
            if name is not None and any(map(is_hidden, name)):
                raise InvalidInput(f"the name {name!r} has invisible characters; write it without them")
        if self.weight is not None and not LEAST_WEIGHT <= self.weight <= LARGEST_WEIGHT:
            allowed = f"one from {LEAST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
            raise InvalidInput(f"the weight is {self.weight:g}; use {allowed}")
        if self.weight is not None and self.user_id is not None:
            raise InvalidInput("only tenants have a weight; the users of a tenant share it equally")
        for name in ("max_running", "max_model_calls"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= LARGEST_LIMIT:
                raise InvalidInput(
                    f"{name} is {count}; use a number from 0, with which nothing runs, to {LARGEST_LIMIT}"
                )
        for name in ("requests_per_second", "tokens_per_minute"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate <= LARGEST_LIMIT:
                raise InvalidInput(
                    f"{name} is {rate}; use a number above 0 and up to {LARGEST_LIMIT}, "
                    "or max_running 0 so that nothing starts"
                )

    @property
    def is_empty(self) -> bool:
        """Whether it limits nothing."""
        return all(getattr(self, field.name) is None for field in fields(self)[2:])

    @property
    def is_paused(self) -> bool:
        """Whether nothing starts, or no model call begins."""
        return 0 in {self.max_running, self.max_model_calls}

    @property
    def text(self) -> str:
        """The limits in words."""
        words = [
            f"{name.replace('_', ' ')} {getattr(self, name):g}"
            for name in ("weight", *LIMITS)
            if getattr(self, name) is not None
        ]
        paused = (
            "nothing starts until max_running is raised"
            if self.max_running == 0
            else ("no model call begins until max_model_calls is raised")
        )
        return (f"paused: {paused}; " if self.is_paused else "") + (", ".join(words) or "no limits")

    @property
    def owner_text(self) -> str:
        """The tenant or the user in words."""
        tenant = "each other tenant" if self.tenant_id == EVERYONE else self.tenant_id
        if self.user_id is None:
            return tenant
        return f"{tenant}, " + ("each other user" if self.user_id == EVERYONE else f"user {self.user_id}")


class LimitBook:
    """The limits of all tenants and users.

    A tenant with limits of its own has none of those that are set for every tenant, and a user accordingly.
    """

    def __init__(self, limits: Iterable[TenantLimits] = ()) -> None:
        self._limits: Mapping[tuple[str, str | None], TenantLimits] = {
            (each.tenant_id, each.user_id): each for each in limits
        }
        # Workers know users by their keys only.
        self._user_keys = {
            fairness_key(tenant, user): each for (tenant, user), each in self._limits.items() if user
        }

    def tenant(self, tenant_id: str) -> TenantLimits | None:
        """The limits of a tenant."""
        return self._limits.get((tenant_id, None)) or self._limits.get((EVERYONE, None))

    def user(self, tenant_id: str, user_id: str | None) -> TenantLimits | None:
        """The limits of a user."""
        names = ((tenant_id, user_id or ""), (tenant_id, EVERYONE), (EVERYONE, EVERYONE))
        return next((self._limits[name] for name in names if name in self._limits), None)

    def user_of(self, claimant: Claimant) -> TenantLimits | None:
        """The limits of a user who is known by the fairness key."""
        return self._user_keys.get(claimant.user) or self.user(claimant.tenant, None)

    def weight(self, tenant_id: str) -> float:
        """The weight of a tenant."""
        limits = self.tenant(tenant_id)
        return 1.0 if limits is None or limits.weight is None else limits.weight

    def place_terms(self, claimant: Claimant) -> ShareTerms:
        """The terms of the places of a worker."""
        return ShareTerms(self.weight(claimant.tenant))

    def model_call_terms(self, claimant: Claimant) -> ShareTerms:
        """The terms of the model calls of a worker."""
        tenant, user = self.tenant(claimant.tenant), self.user_of(claimant)
        return ShareTerms(
            self.weight(claimant.tenant), tenant and tenant.max_model_calls, user and user.max_model_calls
        )

    def token_terms(self, claimant: Claimant) -> TokenTerms:
        """The tokens per minute of a tenant and of its user."""
        tenant, user = self.tenant(claimant.tenant), self.user_of(claimant)
        return TokenTerms(tenant and tenant.tokens_per_minute, user and user.tokens_per_minute)
