"""Retries of model calls for runs in this process."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.loop.retries import LOCAL_SECONDS, IsScripted, budget_of
from everstep.local.clock import Clock, sleep_on_clock
from everstep.steps.provider_retry import OnPause, retry_within

T = TypeVar("T")


class ModelRetry:
    """Retries model calls within the budget of the agent, its model's preset, or the default."""

    def __init__(self, plan: ExecutionPlan, clock: Clock) -> None:
        self.plan = plan
        self.clock = clock

    async def retry(
        self,
        model: object,
        ask: Callable[[], Awaitable[T]],
        on_pause: OnPause,
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """Call `ask`, which uses this model, and retry it within the budget."""
        budget = budget_of(self.plan.retry_seconds, model, LOCAL_SECONDS, self.plan.model_attempts)
        is_scripted = isinstance(model, IsScripted) and model.is_scripted
        sleep = _no_sleep if is_scripted else partial(sleep_on_clock, self.clock)
        return await retry_within(
            budget, ask, sleep, on_pause, clock=self.clock.seconds, may_repeat=may_repeat
        )


async def _no_sleep(_seconds: float) -> None:
    """A scripted model does not recover by waiting."""
