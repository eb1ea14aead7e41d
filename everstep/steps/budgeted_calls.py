"""Model calls within budgets: reserved before the call, for the worst case of its request.

The shells share this. A store, or a run in-process, keeps the reservations.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from decimal import Decimal
from typing import Final, Protocol

from everstep.agent_domain.agents.call_limits import CallLimits, call_limits_of, unknown_prices_text
from everstep.agent_domain.agents.drivers import Model, OnText, Reply, StepDriver
from everstep.agent_domain.agents.token_counting import (
    ContextWindow,
    estimate_for,
    provider_count,
    readable_files_of,
    window_of,
)
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetExhausted, BudgetReserved, BudgetUnit
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.token_estimate import estimate_messages, estimate_text
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.budget_ledger import (
    BudgetClaim,
    BudgetGrant,
    BudgetRefusal,
    BudgetSpending,
    BudgetTerms,
    Need,
    spending,
)
from everstep.agent_domain.values import json_text
from everstep.telemetry.model_requests import respond_with_counts

LOGGER = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two tries while other calls have reserved the rest of a budget."""

PATIENCE: Final = 30.0
"""Seconds after which a step lets other work of its worker go first."""


class Ledger(Protocol):
    """Keeps the reservations of budgets."""

    async def reserve_budget(self, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Reserve what a model call may use of every budget, or nothing."""
        ...

    async def settle_budget(self, ref: ExecutionRef, spending: BudgetSpending) -> None:
        """Replace the reservation of a model call by what it spent."""
        ...


class BudgetedCalls:
    """The model calls of a step, or of one question of a tool, under one reservation.

    Args:
        ledger: Keeps the reservations.
        terms: The budgets.
        key: The key of the reservation.
        steps: How many steps the calls count as.
        find_model: Finds the model of a cheaper preset.
        used: What earlier attempts have used.
        patience: Seconds to wait while other calls have reserved the rest of a budget; None: any time.
    """

    def __init__(
        self,
        ledger: Ledger,
        terms: BudgetTerms,
        key: str,
        *,
        steps: int,
        find_model: Callable[[str], Model],
        used: Usage | None = None,
        patience: float | None = PATIENCE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.ledger = ledger
        self.terms = terms
        self.key = key
        self.steps = steps
        self.used = used or Usage()
        self.cost = self.used.known_cost_usd
        """What the calls cost, in US dollars."""
        self.find_model = find_model
        self.patience = patience
        self.sleep = sleep

    def around(self, model: Model) -> "BudgetedModel":
        """The model, whose calls are reserved."""
        return BudgetedModel(model, self)

    async def infer(self, driver: StepDriver, state: AgentState, on_text: OnText) -> Reply:
        """Ask a driver. One without a model is reserved as a whole: its reply says what it used."""
        if driver.model is not None:
            return await driver.with_model(self.around(driver.model)).infer(state, on_text)
        await self.reserve_step(driver, state)
        reply = await driver.infer(state, on_text)
        self.used += reply.response.usage
        return reply

    async def reserve_step(self, driver: object, state: AgentState) -> None:
        """Reserve a step whose driver has no model that is known; its answer cannot be limited."""
        answer = await self._claim(CallLimits(), estimate_messages(state.messages), (0, 0), driver)
        if isinstance(answer, BudgetRefusal):
            await self._refuse(answer)

    async def respond(self, model: Model, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Reserve the call, and make it: with the model, or with a cheaper one.

        Raises:
            BudgetExhausted: A budget does not cover the call; it is not made.
            BudgetReserved: Other calls have reserved the rest of a budget for a while.
            ModelError: The call failed, or a budget in money applies and the prices are not known.
        """
        model, limited = await self._reserve(model, request)
        try:
            response = await respond_with_counts(model, limited, on_text)
        except ModelError as error:
            usage: object = getattr(error, "usage", None)
            if isinstance(usage, Usage):
                self._add(usage, model)
            raise
        usage = response.usage if response.usage.total else _estimate(estimate_for(model, request), response)
        self._add(usage, model)
        return response

    def _add(self, usage: Usage, model: object) -> None:
        self.used += usage
        self.cost += _most_expensive(usage, model) if usage.cost_usd is None else usage.known_cost_usd

    async def _reserve(self, model: Model, request: InferenceRequest) -> tuple[Model, InferenceRequest]:
        """The model that is paid for, and the request with the length of answer that is paid for."""
        tried: set[str] = set()
        while True:
            limits, tokens = call_limits_of(model), estimate_for(model, request)
            least, most = limits.output_range(model, tokens, request.max_output_tokens)
            answer = await self._claim(limits, tokens, (least, most), model)
            if isinstance(answer, BudgetGrant):
                is_shorter = answer.output < most
                return model, replace(request, max_output_tokens=answer.output) if is_shorter else request
            if answer.degrade_to is None or answer.degrade_to in tried:
                await self._refuse(answer)
            tried.add(answer.degrade_to or "")
            LOGGER.info("%s: asking %s", answer.exhausted and answer.exhausted.text, answer.degrade_to)
            model = self.find_model(answer.degrade_to or "")

    async def _refuse(self, answer: BudgetRefusal) -> None:
        if answer.exhausted is None:
            raise BudgetReserved
        if self.used.total:
            # Earlier calls of this step are paid for, although it is not taken.
            await self.ledger.settle_budget(self.terms.owner.ref, self.spending(steps=0))
        raise BudgetExhausted(answer.exhausted)

    async def _claim(
        self, limits: CallLimits, tokens: int, output: tuple[int, int], model: object
    ) -> BudgetGrant | BudgetRefusal:
        least, most = output
        claim = BudgetClaim(self.terms, self.key, self._needs(limits, tokens, model), least, most)
        pause, waited = FIRST_PAUSE, 0.0
        while True:
            answer = await self.ledger.reserve_budget(claim)
            is_reserved = isinstance(answer, BudgetRefusal) and answer.exhausted is None
            if not is_reserved or (self.patience is not None and waited >= self.patience):
                return answer
            seconds = pause * (0.5 + random.random())  # noqa: S311 -- jitter
            await self.sleep(seconds)
            pause, waited = min(2 * pause, LONGEST_PAUSE), waited + seconds

    def _needs(self, limits: CallLimits, tokens: int, model: object) -> dict[BudgetUnit, Need]:
        needs = {
            BudgetUnit.TOKENS: Need(Decimal(self.used.total + tokens), Decimal(1)),
            BudgetUnit.STEPS: Need(Decimal(self.steps)),
        }
        if BudgetUnit.USD in self.terms.units:
            if not limits.has_prices:
                raise prices_unknown(model)
            base = limits.worst_cost(tokens, 0)
            rate = limits.worst_cost(tokens, 1) - base
            needs[BudgetUnit.USD] = Need(self.cost + base, rate)
        return needs

    def spending(self, *, steps: int | None = None) -> BudgetSpending:
        """What the calls have spent so far."""
        return spending(self.key, self.cost, self.used.total, self.steps if steps is None else steps)

    async def keep_spent(self) -> None:
        """Reduce the reservation to what was spent, during a pause before the next attempt."""
        spent = self.spending(steps=self.steps).amounts
        needs = {unit: Need(amount) for unit, amount in spent.items() if unit in self.terms.units}
        await self.ledger.reserve_budget(BudgetClaim(self.terms, self.key, needs, 0, 0))

    async def settle(self) -> None:
        """Settle the reservation, where no record of the call does it."""
        await self.ledger.settle_budget(self.terms.owner.ref, self.spending())


class BudgetedModel:
    """A model whose calls are reserved."""

    def __init__(self, model: Model, calls: BudgetedCalls) -> None:
        self.model = model
        self.calls = calls

    @property
    def window(self) -> ContextWindow | None:
        """The context window of the model; None: not known."""
        return window_of(self.model)

    @property
    def readable_files(self) -> Collection[str] | None:
        """The kinds of files that the model reads."""
        return readable_files_of(self.model)

    @property
    def call_limits(self) -> CallLimits:
        """The limits of the model."""
        return call_limits_of(self.model)

    async def count_input(self, request: InferenceRequest) -> int | None:
        """The input tokens of a request, if the model's provider counts them."""
        return await provider_count(self.model, request)

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Reserve the call, and make it."""
        return await self.calls.respond(self.model, request, on_text)


def _most_expensive(usage: Usage, model: object) -> Decimal:
    """What a call cost that did not say it: the most that one of the models takes."""
    costs = (prices.cost(usage) for prices in call_limits_of(model).prices)
    return max((cost for cost in costs if cost is not None), default=Decimal(0))


def _estimate(tokens: int, response: InferenceResponse) -> Usage:
    """What a call used whose provider counted no tokens."""
    calls = "".join(f"{call.name} {json_text(call.args)}" for call in response.tool_calls)
    return Usage(input=tokens, output=estimate_text(response.text + calls))


def prices_unknown(model: object) -> ModelError:
    """The refusal of a budget in money for a model whose prices are not known."""
    preset: object = getattr(model, "preset", None)
    name = getattr(preset, "model", None) or type(model).__name__
    sentence = unknown_prices_text(name)
    return ModelError(sentence, advice=sentence)
