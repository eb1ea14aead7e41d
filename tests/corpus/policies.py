"""The policies under which the recorded executions are repeated."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from everstep.agent_domain.agents.plan import CriterionRef
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.budget import Budget, BudgetUnit
from everstep.agent_domain.pricing.prices import Prices
from everstep.agent_domain.storage.recorded_executions import RecordedExecutions
from everstep.agent_domain.values import frozen_map
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.client.what_if import WhatIf

RECORDED: Final = "the recorded policy"

POLICIES: Final[Mapping[str, PolicyChange]] = {
    RECORDED: PolicyChange(),
    "at most one step": PolicyChange(max_steps=1),
    "more steps": PolicyChange(max_steps=100),
    "at most ten tokens": PolicyChange(max_tokens=10),
    "a timeout of a minute": PolicyChange(timeout_seconds=60),
    "errors of tools end it": PolicyChange(error_policy="stop_on_any_error"),
    "errors of tools are ignored": PolicyChange(error_policy="ignore_tool_errors"),
    "one failure in a row": PolicyChange(
        criteria=(CriterionRef(name="RetryLimit", params=frozen_map({"max_failures": 1})),)
    ),
    "without a limit of steps": PolicyChange(without_criteria=("StepsLimit",)),
    "a budget of one step": PolicyChange(budgets=(Budget(BudgetUnit.STEPS, Decimal(1)),)),
    "other prices": PolicyChange(prices={"small": Prices(input=Decimal(1), output=Decimal(2))}),
}


async def examine(store: RecordedExecutions, policy: str) -> dict[str, Any]:
    """The sums under a policy, and why executions are undetermined."""
    report = await WhatIf(store, Scope(), POLICIES[policy]).run()
    return {
        **report.to_dict(),
        "decisions": report.decisions,
        "reasons": dict(sorted(report.reasons.items())),
    }
