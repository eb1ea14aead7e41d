"""Usage reports: the summed consumption of executions by agent, user, model or day."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.usage import NO_COST, sum_costs
from everstep.agent_domain.values import format_moment

MAX_RANGE = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range that includes `since` and excludes `until`."""

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        # Raises if one of them has no time zone.
        for at in (self.since, self.until):
            format_moment(at, 0)
        if self.since >= self.until:
            raise InvalidInput("since must be earlier than until")
        if self.until - self.since > MAX_RANGE:
            raise InvalidInput(f"since and until are more than {MAX_RANGE.days} days apart; request less")


class UsageGroup(StrEnum):
    """By what a report sums up executions."""

    AGENT = "agent"
    USER = "user"
    MODEL = "model"
    DAY = "day"
    """The day in UTC on which they began."""
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class UsageAccount:
    """The consumption of a group: of executions that began in a time range, and of titles made in it."""

    name: str | None
    """The agent, the user, the model, or the day such as `2026-01-16`; None if there is none."""
    executions: int
    failed: int
    steps: int | None
    """None for a model, as a step may use several."""
    input: int
    output: int
    cached: int
    reasoning: int
    total: int
    cost_usd: Decimal | None
    """What it cost, in US dollars; None if the cost of a part is unknown."""
    known_cost_usd: Decimal
    """What the part with known costs cost."""

    def plus(self, other: "UsageAccount") -> "UsageAccount":
        """The sum of two accounts of the same name."""
        steps = None if self.steps is None or other.steps is None else self.steps + other.steps
        return UsageAccount(
            self.name,
            self.executions + other.executions,
            self.failed + other.failed,
            steps,
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.total + other.total,
            sum_costs(self.cost_usd, other.cost_usd),
            self.known_cost_usd + other.known_cost_usd,
        )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How long something took: half of all times are up to `p50`, 95 of 100 up to `p95`, in seconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class LatencyAccount:
    """The latency of the steps of a group."""

    name: str | None
    """As in `UsageAccount`."""
    steps: int
    """How many steps have ended without waiting for people."""
    first_text: Percentiles | None
    """From the request to the model until its first text; None if no step has text."""
    step: Percentiles | None
    """From the start of a step to its end, with its calls."""


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """The latency of all steps, and of each group."""

    total: LatencyAccount
    groups: Sequence[LatencyAccount]


def total_cost(accounts: Iterable[UsageAccount]) -> Decimal | None:
    """What all of them cost, in US dollars; None if the cost of a part is unknown."""
    total: Decimal | None = NO_COST
    for account in accounts:
        total = sum_costs(total, account.cost_usd)
    return total


def merge_accounts(accounts: Iterable[UsageAccount]) -> list[UsageAccount]:
    """Sum up the accounts of each name, in the order of the names; the one without a name is last."""
    merged: dict[str | None, UsageAccount] = {}
    for account in accounts:
        known = merged.get(account.name)
        merged[account.name] = account if known is None else known.plus(account)
    return [merged[name] for name in sorted(merged, key=lambda name: (name is None, name or ""))]


class UsageReportStore(Protocol):
    """Sums up usage."""

    async def accounts(
        self,
        scope: Scope,
        time_range: TimeRange,
        group: UsageGroup = UsageGroup.AGENT,
        *,
        every_tenant: bool = False,
    ) -> Sequence[UsageAccount]:
        """The consumption of each group in a time range, by name; of the scope, or of all tenants."""
        ...

    async def latencies(
        self,
        scope: Scope,
        time_range: TimeRange,
        group: UsageGroup = UsageGroup.AGENT,
        *,
        every_tenant: bool = False,
    ) -> LatencyReport:
        """The latency of the steps of executions that began in a time range."""
        ...
