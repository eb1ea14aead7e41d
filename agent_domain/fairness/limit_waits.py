"""What the limits of a tenant or of its user let an execution wait for, in words.

It is computed when it is read: while executions run, nothing counts or stores it. A limit of model calls
applies in each worker. So a call may wait for it once the calls of all workers are as many, and not before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.rate_draws import RateDraw
from everstep.agent_domain.fairness.tenant_limits import (
    LimitBook,
    TenantLimits,
    tenant_tokens_name,
    user_tokens_name,
)

LimitedUser: TypeAlias = tuple[str, str | None]
"""A tenant, and one of its users; None if an execution names no user."""


class RateLevel(NamedTuple):
    """How much is left of a rate."""

    level: float
    seconds: float
    """For how long it has grown since."""


@dataclass(frozen=True, slots=True)
class LimitUse:
    """What is used of limits now."""

    model_calls: Mapping[LimitedUser, int] = field(default_factory=dict[LimitedUser, int])
    """How many model calls are made for each user, in all workers."""
    levels: Mapping[str, RateLevel] = field(default_factory=dict[str, RateLevel])
    """What is left of rates, by name."""

    def calls_of(self, tenant_id: str) -> int:
        """How many model calls are made for a tenant."""
        return sum(count for (tenant, _), count in self.model_calls.items() if tenant == tenant_id)


class LimitWaits(NamedTuple):
    """What executions of a user wait for, as ends of sentences; None if no limit holds them."""

    start: str | None = None
    """In the queue of the tenant."""
    call: str | None = None
    """Before a model call."""


NO_LIMIT: Final = LimitWaits()


class _Owned(NamedTuple):
    """Limits that apply to an execution."""

    owner: str
    """The tenant or the user who has them, in words."""
    limits: TenantLimits
    is_user: bool


def _limits_of(book: LimitBook, user: LimitedUser) -> list[_Owned]:
    tenant_id, user_id = user
    owned: list[_Owned] = []
    if limits := book.tenant(tenant_id):
        owned.append(_Owned(f"the tenant '{tenant_id}'", limits, is_user=False))
    if limits := book.user(tenant_id, user_id):
        owner = (
            f"the user '{user_id}'" if user_id else f"executions of the tenant '{tenant_id}' without a user"
        )
        owned.append(_Owned(owner, limits, is_user=True))
    return owned


def has_call_limits(book: LimitBook, user: LimitedUser) -> bool:
    """Whether model calls of an execution may have to wait for a limit."""
    return any(
        limits.max_model_calls is not None or limits.tokens_per_minute is not None
        for _, limits, _ in _limits_of(book, user)
    )


def rate_names(users: Iterable[LimitedUser]) -> set[str]:
    """The names of the rates of tokens of these users and of their tenants."""
    return {_rate_name(user, is_user=is_user) for user in users for is_user in (False, True)}


def _rate_name(user: LimitedUser, *, is_user: bool) -> str:
    return user_tokens_name(fairness_key(*user)) if is_user else tenant_tokens_name(user[0])


def limit_waits(book: LimitBook, use: LimitUse, user: LimitedUser) -> LimitWaits:
    """What executions of a user wait for.

    Args:
        book: The limits.
        use: What is used of them.
        user: The user.
    """
    return LimitWaits(_start_text(book, user), _call_text(book, use, user))


def _start_text(book: LimitBook, user: LimitedUser) -> str | None:
    bounds = [
        (owner, limits.max_running)
        for owner, limits, _ in _limits_of(book, user)
        if limits.max_running is not None
    ]
    for owner, bound in bounds:
        if bound == 0:
            return f"until max_running of {owner} is raised from 0"
    reached = " and ".join(f"max_running of {owner} is {bound}" for owner, bound in bounds)
    return f"as {reached}" if bounds else None


def _call_text(book: LimitBook, use: LimitUse, user: LimitedUser) -> str | None:
    owned = _limits_of(book, user)
    for owner, limits, _ in owned:
        if limits.max_model_calls == 0:
            return f"until max_model_calls of {owner} is raised from 0"
    for owner, limits, is_user in owned:
        if limits.tokens_per_minute is not None:
            seconds = _seconds_without_tokens(
                use, _rate_name(user, is_user=is_user), limits.tokens_per_minute
            )
            if seconds:
                bound = f"tokens_per_minute of {owner} is {limits.tokens_per_minute}"
                return f"for about {seconds} s until tokens may be used again, as {bound}"
    for owner, limits, is_user in owned:
        made = use.model_calls.get(user, 0) if is_user else use.calls_of(user[0])
        if limits.max_model_calls is not None and made >= limits.max_model_calls:
            bound = f"max_model_calls of {owner} is {limits.max_model_calls} in each worker"
            return f"until another model call ends, as {bound}"
    return None


def _seconds_without_tokens(use: LimitUse, name: str, per_minute: float) -> int:
    if name not in use.levels:
        return 0
    draw, (level, seconds) = RateDraw(name, per_minute, need=1.0), use.levels[name]
    left = min(draw.capacity, level + seconds * draw.per_second)
    return max(0, ceil((draw.floor - left) / draw.per_second))
