"""Budgets of runs in this process: the agent's own, without other executions and without waiting."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from everstep import AgentBuilder, Attachment, Message
from everstep.agent_domain.agents.call_limits import CallLimits
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.messages.token_estimate import estimate_request
from everstep.agent_domain.pricing.prices import PriceList, Prices
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import (
    DeterministicAgentDriver,
    MockTool,
    ScenarioStep,
    ScriptedModel,
    calls,
    says,
)
from everstep.agent_domain.tools.inquiry import ModelChoice
from tests.agent_domain.test_media_types import PNG

HELLO = estimate_request(InferenceRequest((user("Hi"),)))
"""The estimated input of the first request, without tools."""


class PricedModel(ScriptedModel):
    """A scripted model with prices: 1 USD for a million tokens of input, and `output` for output."""

    def __init__(self, *script: InferenceResponse | str, output: int = 10, **limits: Any) -> None:
        super().__init__(*script)
        prices = PriceList(Prices(Decimal(1), Decimal(output)))
        self.call_limits = CallLimits((prices,), **limits)


def dollars(tokens: int, output: int) -> Decimal:
    """What so many tokens of input and output cost at the prices of a `PricedModel`."""
    return (Decimal(tokens) + 10 * Decimal(output)) / 1_000_000


def reason_of(state: AgentState) -> str:
    assert state.last_outcome is not None
    vote = state.last_outcome.forbidding_criterion()
    return vote.reason if vote else ""


@pytest.mark.parametrize(
    ("limit", "limits", "length"),
    [
        # The whole answer that the model can give is paid for, so its length is not set.
        (dollars(HELLO, 5000), {"most_output": 5000}, None),
        (dollars(HELLO, 5000), {"most_output": 5001}, 5000),
        (dollars(HELLO, 5000) + Decimal("0.000009"), {}, 5000),
        (dollars(HELLO, 1000), {}, 1000),
        (dollars(HELLO, 999), {}, "exhausted"),
        # A length that is set is reserved as it is.
        (dollars(HELLO, 300), {"max_output_tokens": 300}, None),
        (dollars(HELLO, 299), {"max_output_tokens": 300}, "exhausted"),
        (dollars(HELLO, 20), {"most_output": 20}, None),
    ],
)
def test_the_worst_case_of_the_request_is_reserved(
    limit: Decimal, limits: dict[str, Any], length: int | str | None
) -> None:
    """4.8.2"""
    model = PricedModel(says("Hello", usage=Usage(10, 5)), **limits)
    state = AgentBuilder.base().with_model(model).with_budget(usd=limit).build().run("Hi")

    if length == "exhausted":
        assert not model.requests
        assert state.last_outcome is not None
        assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 0)
        assert state.last_outcome.stop_reason is StopReason.GUARD
        assert state.last_outcome.resolved_by == "BudgetLimit"
        assert reason_of(state).startswith("The execution's budget of 0.0")
    else:
        (request,) = model.requests
        assert request.max_output_tokens == length
        assert state.final_response == "Hello"


def test_a_cheaper_preset_is_asked_when_the_budget_does_not_cover_the_own_one() -> None:
    """4.8.7: once neither is covered, the run ends."""
    dear = PricedModel(calls(("look", {}), usage=Usage(100, 100)), output=1000, max_output_tokens=100)
    cheap = PricedModel(calls(("look", {}), usage=Usage(100, 100)), output=10, max_output_tokens=100)

    def models(choice: ModelChoice) -> Model:
        assert choice == "cheap"
        return cheap

    builder = AgentBuilder.base().with_model(dear).with_tools([MockTool("look")])
    builder.with_budget(usd=0.106, on_exhausted="degrade", degrade_to="cheap")
    state = builder.build(models=models).run("Hi")

    assert (len(dear.requests), len(cheap.requests)) == (1, 4)
    assert state.step_count == 5
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.GUARD


@pytest.mark.parametrize(
    ("budget", "steps", "words"),
    [
        ({"steps": 2}, 2, "The execution's budget of 2 steps is exhausted: 0 steps left"),
        (
            {"steps": 1, "on_exhausted": "ask"},
            1,
            "cannot wait until it is raised, so run the agent on a worker",
        ),
        ({"steps": 1, "scope": "tenant"}, 1, "The execution's budget of 1 step is exhausted"),
        ({"tokens": 200}, 2, "0 tokens left, and the next model call needs up to"),
    ],
)
def test_a_driver_without_a_model_is_reserved_by_step(budget: Any, steps: int, words: str) -> None:
    """4.8.5, 4.8.6 and 4.8.8: a run in this process has every budget for itself, and cannot wait."""
    look = ScenarioStep.tool_call("look", usage=Usage(50, 50))
    driver = DeterministicAgentDriver.from_steps(look, look, look, ScenarioStep.final("Done"))
    builder = AgentBuilder.base().with_driver(driver).with_tools([MockTool("look")]).with_budget(**budget)
    agent = builder.build()

    for _ in range(2):
        # The script begins again.
        vars(agent.runner.driver)["_played"] = 0
        state = agent.run("Hi")
        assert state.step_count == steps
        assert words in reason_of(state)
    vars(agent.runner.driver)["_played"] = 0
    states = list(agent.iterator("Hi"))
    assert states[-1].step_count == steps


async def test_concurrent_runs_of_an_agent_do_not_share_its_budget() -> None:
    """4.8.8"""
    agent = AgentBuilder.base().with_model(PricedModel("Hello")).with_budget(steps=1).build()
    states = await asyncio.gather(*(agent.arun("Hi") for _ in range(5)))
    assert {state.final_response for state in states} == {"Hello"}


def test_a_budget_in_money_needs_prices() -> None:
    """4.8.9: one sentence, before anything is asked."""
    model = ScriptedModel("Hello")
    agent = AgentBuilder.base().with_model(model).with_budget(usd=1).build()
    with pytest.raises(
        InvalidInput, match=r"^A budget in USD needs the prices of ScriptedModel, which are not"
    ):
        agent.run("Hi")
    assert not model.requests


@pytest.mark.parametrize(("kinds", "asked"), [((), 1), (("pdf",), 1), (("image",), 0), (None, 0)])
def test_an_image_that_the_model_does_not_read_reserves_its_words(
    kinds: tuple[str, ...] | None, asked: int
) -> None:
    """14.1: it is sent in words, and counts as these."""
    model = PricedModel("A photo", max_output_tokens=100)
    vars(model)["readable_files"] = kinds
    agent = AgentBuilder.base().with_model(model).with_budget(tokens=1_000).build()

    agent.run(Message.user("Look", attachments=[Attachment.from_bytes("a.png", PNG)]))

    assert len(model.requests) == asked
