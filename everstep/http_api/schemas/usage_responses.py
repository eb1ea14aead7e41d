"""Response models of usage reports."""

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Self

from pydantic import Field

from everstep.agent_domain.storage.usage_report import (
    LatencyAccount,
    LatencyReport,
    Percentiles,
    TimeRange,
    UsageAccount,
    UsageGroup,
    total_cost,
)
from everstep.http_api.schemas.text import Moment, ResponseModel, Usd


class Latency(ResponseModel):
    """Percentiles in milliseconds."""

    p50: float = Field(description="Half of all times are up to this.")
    p95: float = Field(description="95 of 100 times are up to this.")

    @classmethod
    def of(cls, times: Percentiles | None) -> "Latency | None":
        """Convert percentiles in seconds."""
        return times and cls(p50=round(times.p50 * 1000, 3), p95=round(times.p95 * 1000, 3))


class Latencies(ResponseModel):
    """How long steps took that did not wait for people."""

    steps: int = Field(description="How many such steps have ended.")
    first_text_ms: Latency | None = Field(
        description="From the request to the model until its first text; null if no step has text."
    )
    step_ms: Latency | None = Field(description="From the start of a step to its end, with its calls.")

    @classmethod
    def of(cls, account: LatencyAccount) -> Self:
        """Convert the latency of a group."""
        first, step = Latency.of(account.first_text), Latency.of(account.step)
        return cls(steps=account.steps, first_text_ms=first, step_ms=step)


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
    latency: Latencies | None = Field(default=None, description="With `latency`, and if a step has ended.")


class AgentUsage(UsageCounts):
    """The usage of one agent's executions; each token is counted once."""

    agent: str


class GroupUsage(UsageCounts):
    """The usage of a group of executions."""

    name: str | None = Field(
        description="The agent, the user, the model, the tenant, or the day in UTC on which the executions "
        "began; null for executions without a user, and for models without a name."
    )


class UsageResponse(ResponseModel):
    """The usage in a time span."""

    since: Moment
    until: Moment
    total_tokens: int
    cost_usd: Usd | None = Field(description="What all of it cost; null: the cost of a part is unknown.")
    known_cost_usd: Usd = Field(description="The cost of the part whose cost is known.")
    latency: Latencies | None = Field(default=None, description="Of all steps, with `latency`.")
    group_by: UsageGroup
    groups: list[GroupUsage]
    agents: list[AgentUsage] = Field(description="The same as `groups` by agent; empty for other groups.")

    @classmethod
    def of(
        cls,
        span: TimeRange,
        group: UsageGroup,
        accounts: Sequence[UsageAccount],
        latency: LatencyReport | None = None,
    ) -> "UsageResponse":
        """Sum up the accounts of a time span."""
        timed = {each.name: Latencies.of(each) for each in latency.groups} if latency else {}
        counted: list[dict[str, Any]] = [
            {**asdict(account), "latency": timed.get(account.name)} for account in accounts
        ]
        agents = counted if group is UsageGroup.AGENT else []
        return cls(
            since=span.since,
            until=span.until,
            total_tokens=sum(account.total for account in accounts),
            cost_usd=total_cost(accounts),
            known_cost_usd=sum((account.known_cost_usd for account in accounts), Decimal(0)),
            latency=latency and Latencies.of(latency.total),
            group_by=group,
            groups=[GroupUsage(**counts) for counts in counted],
            agents=[AgentUsage(agent=counts["name"], **counts) for counts in agents],
        )
