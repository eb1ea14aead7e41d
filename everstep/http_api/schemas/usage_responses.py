"""Response models of usage reports."""

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal

from pydantic import Field

from everstep.agent_domain.storage.usage_report import TimeRange, UsageAccount, UsageGroup, total_cost
from everstep.http_api.schemas.text import Moment, ResponseModel, Usd


class UsageCounts(ResponseModel):
    """Counters of executions; each token is counted once."""

    executions: int
    failed: int
    steps: int | None = Field(description="Null for a model, as a step may use several.")
    input: int
    output: int
    cached: int
    reasoning: int
    total: int
    cost_usd: Usd | None = Field(description="Null: the cost of a part is unknown.")
    known_cost_usd: Usd = Field(description="The cost of the part whose cost is known.")


class AgentUsage(UsageCounts):
    """The usage of one agent's executions; each token is counted once."""

    agent: str


class GroupUsage(UsageCounts):
    """The usage of a group of executions."""

    name: str | None = Field(
        description="The agent, the user, the model, or the day in UTC on which the executions began; null "
        "for executions without a user, and for models without a name."
    )


class UsageResponse(ResponseModel):
    """The usage in a time span."""

    since: Moment
    until: Moment
    total_tokens: int
    cost_usd: Usd | None = Field(description="What all of it cost; null: the cost of a part is unknown.")
    known_cost_usd: Usd = Field(description="The cost of the part whose cost is known.")
    group_by: UsageGroup
    groups: list[GroupUsage]
    agents: list[AgentUsage] = Field(description="The same as `groups` by agent; empty for other groups.")

    @classmethod
    def of(cls, span: TimeRange, group: UsageGroup, accounts: Sequence[UsageAccount]) -> "UsageResponse":
        """Sum up the accounts of a time span."""
        counted = list(map(asdict, accounts))
        agents = counted if group is UsageGroup.AGENT else []
        return cls(
            since=span.since,
            until=span.until,
            total_tokens=sum(account.total for account in accounts),
            cost_usd=total_cost(accounts),
            known_cost_usd=sum((account.known_cost_usd for account in accounts), Decimal(0)),
            group_by=group,
            groups=[GroupUsage(**counts) for counts in counted],
            agents=[AgentUsage(agent=counts["name"], **counts) for counts in agents],
        )
