"""Usage reports: the summed consumption of executions per agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
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


@dataclass(frozen=True, slots=True)
class UsageAccount:
    """The consumption of an agent's executions that began in a time range."""

    agent: str
    executions: int
    failed: int
    steps: int
    input: int
    output: int
    cached: int
    reasoning: int
    total: int


class UsageReportStore(Protocol):
    """Sums up usage."""

    async def accounts(self, scope: Scope, time_range: TimeRange) -> Sequence[UsageAccount]:
        """The consumption of each agent in a time range."""
        ...
