"""What executions consumed, added up."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.values import moment

LONGEST = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Span:
    """From a moment on, until before another."""

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        # Both have a time zone, or this says that they have not.
        for at in (self.since, self.until):
            moment(at, 0)
        if self.since >= self.until:
            raise InvalidInput("since has to be earlier than until")
        if self.until - self.since > LONGEST:
            raise InvalidInput(f"from since to until are more than {LONGEST.days} days; ask for less")


@dataclass(frozen=True, slots=True)
class Account:
    """What the executions of one agent consumed that began in a span of time."""

    agent: str
    executions: int
    failed: int
    steps: int
    input: int
    output: int
    cached: int
    reasoning: int
    total: int


class AccountStore(Protocol):
    """Adds up."""

    async def accounts(self, scope: Scope, span: Span) -> Sequence[Account]:
        """What was consumed, agent by agent."""
        ...
