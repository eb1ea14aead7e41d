"""The request and the response of a what-if."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from pydantic import ConfigDict, Field

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.agents.plan import CriterionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.recorded_executions import RecordFilter
from everstep.agent_domain.values import EMPTY
from everstep.agent_domain.what_if.policy_change import PolicyChange, prices_of
from everstep.agent_domain.what_if.repeating import WhatIfResult
from everstep.agent_domain.what_if.report import WhatIfReport, comparison_data
from everstep.http_api.schemas.text import Instant, Map, RequestModel, ResponseModel, Text

MAX_LISTED = 20
MAX_EXAMINED = 1000

Count = Annotated[int | None, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]


class CriterionSent(RequestModel):
    """A registered criterion and its parameters."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "StepsLimit", "params": {"max_steps": 5}}]}
    )

    name: Annotated[Text, Field(max_length=200)]
    params: Map = EMPTY


class WhatIfSent(RequestModel):
    """What differs from the recorded policy, and which executions are examined."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_steps": 10, "agent": "travel-desk"}]})

    execution_id: Annotated[UUID | None, Field(description="Only this execution.")] = None
    agent: Annotated[Text | None, Field(max_length=200)] = None
    since: Instant | None = None
    until: Instant | None = None
    status: ExecutionStatus | None = None
    limit: int = Field(
        default=200, ge=1, le=MAX_EXAMINED, description="The number of executions, newest first."
    )
    cursor: Annotated[Text | None, Field(description="The `next_cursor` of the previous part.")] = None
    max_steps: Count = None
    max_tokens: Count = None
    timeout_seconds: Seconds = None
    cumulative_timeout_seconds: Seconds = None
    error_policy: Annotated[Text | None, Field(description="The name of a preset.")] = None
    max_retries: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    criteria: list[CriterionSent] = Field(default=[], max_length=MAX_LISTED)
    without_criteria: list[Text] = Field(default=[], max_length=MAX_LISTED)
    repeated_call_limit: Count = None
    budget_usd: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    budget_tokens: Count = None
    budget_steps: Count = None
    prices: dict[str, dict[str, float]] = Field(
        default={},
        max_length=MAX_LISTED,
        description="By preset or model: `input`, `output`, `cached_input`, `cache_write` and `reasoning`, "
        "in US dollars for a million tokens.",
    )

    @property
    def change(self) -> PolicyChange:
        """The other policy."""
        amounts = {"usd": self.budget_usd, "tokens": self.budget_tokens, "steps": self.budget_steps}
        has_budget = any(amount is not None for amount in amounts.values())
        return PolicyChange(
            self.max_steps,
            self.max_tokens,
            self.timeout_seconds,
            self.cumulative_timeout_seconds,
            self.error_policy,
            self.max_retries,
            tuple(CriterionRef(name=each.name, params=each.params) for each in self.criteria),
            tuple(self.without_criteria),
            self.repeated_call_limit,
            parse_budgets(amounts, "the budget") if has_budget else (),
            {name: prices_of(name, prices) for name, prices in self.prices.items()},
        )

    @property
    def wanted(self) -> RecordFilter:
        """Which executions are examined."""
        return RecordFilter(self.agent, self.status, self.since, self.until, self.execution_id)


class ChangedRun(ResponseModel):
    """An execution that ends otherwise under the other policy."""

    id: str
    parts_at_step: int = Field(description="The last step that both have; 0 is before the first one.")
    agent: str
    verdict: str = Field(description="`earlier`, `later` or `otherwise`.")
    status: str
    stop_reason: str | None
    would_stop_by: str | None = Field(description="Null if it goes on.")
    because: str
    tokens_saved: int
    cost_saved: float | None = Field(description="In US dollars; null if it is unknown.")
    seconds_saved: float
    note: str = Field(description="What the record lacks, for example because the execution runs.")


class WhatIfResponse(ResponseModel):
    """How executions would have ended under another policy."""

    examined: int
    ended_earlier: int
    ended_later: int
    undetermined: int = Field(description="Executions whose records do not say.")
    differing: int
    not_ended: int = Field(description="Executions that were examined up to their last recorded step.")
    tokens_saved: int
    cost_saved: float | None = Field(description="In US dollars; null if the cost of a part is unknown.")
    seconds_saved: float = Field(description="Seconds of work.")
    executions: list[ChangedRun] = Field(description="Those that differ.")
    reasons: dict[str, int] = Field(
        description="Why executions are undetermined, and how many for each reason."
    )
    next_cursor: str | None = Field(description="The `cursor` of the next part; null at the end.")

    @classmethod
    def of(
        cls, report: WhatIfReport, differing: Sequence[WhatIfResult], cursor: str | None
    ) -> "WhatIfResponse":
        """The response for a part of the executions."""
        runs = [ChangedRun.model_validate(comparison_data(each)) for each in differing]
        return cls(**report.to_dict(), executions=runs, reasons=dict(report.reasons), next_cursor=cursor)
