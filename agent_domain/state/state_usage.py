"""What the model calls of a state used, and what they cost."""

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from everstep.agent_domain.loop.usage import Usage, sum_costs

if TYPE_CHECKING:
    from everstep.agent_domain.loop.facts import ExecutionFacts
    from everstep.agent_domain.state.state import AgentState
    from everstep.agent_domain.state.steps import AgentStep


class StateUsage:
    """The usage of a state. A cost is in US dollars, and None if the cost of a model call is unknown."""

    __slots__ = ()

    if TYPE_CHECKING:
        facts: ExecutionFacts

        @property
        def steps(self) -> tuple[AgentStep, ...]:
            """The completed steps."""
            ...

        @property
        def current_step(self) -> AgentStep | None:
            """The step in progress, or the last one."""
            ...

    @property
    def usage(self) -> Usage:
        """Tokens used, including those of the latest step."""
        return self.facts.usage

    @property
    def tokens(self) -> int:
        """All tokens used, including those of child executions."""
        return self.facts.tokens

    @property
    def cost_usd(self) -> Decimal | None:
        """What the execution cost, without its child executions."""
        if not self.usage.total and any(step.inference_response for step in self.steps):
            return None
        return self.usage.cost_usd

    @property
    def tree_cost_usd(self) -> Decimal | None:
        """What the execution and its child executions cost."""
        return sum_costs(self.cost_usd, self.facts.child_cost_usd)

    def usage_of_failure(self, failed: Usage) -> tuple[Usage, Usage]:
        """What a failure step used: the failed call or the reply before it, and the calls of its tools."""
        step = self.current_step if self.facts.pending else None
        return (failed + step.usage, step.inner_usage) if step else (failed, Usage())


def with_usage_of(state: "AgentState", later: "AgentState") -> "AgentState":
    """A copy of the state with all that a later state of the same step has used."""
    used, step = later.facts, state.current_step
    facts = replace(
        state.facts, usage=used.usage, child_tokens=used.child_tokens, child_cost_usd=used.child_cost_usd
    )
    if step and later.current_step:
        step = replace(step, inner_usage=later.current_step.inner_usage)
    return replace(state, facts=facts, execution=replace(state.execution, current_step=step))
