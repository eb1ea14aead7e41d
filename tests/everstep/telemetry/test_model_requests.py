"""Requests to models are counted where they are made."""

import asyncio
from contextlib import suppress
from decimal import Decimal

import pytest

from everstep.agent_domain.agents.drivers import OnText, ignore_text
from everstep.agent_domain.errors import ModelError, ModelTimeout, RateLimited
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext, InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.telemetry import metrics
from everstep.telemetry.model_requests import ModelTarget, observe_request

REQUEST = InferenceRequest.compile((user("hello"),), CachedContext())


async def test_a_request_is_counted_with_its_tokens_and_its_cost() -> None:
    """18.3.2"""
    usage = Usage(10, 5, reasoning=2).with_cost(Decimal("0.25"))

    async def respond(_request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        on_text("Hel")
        on_text("lo")
        return InferenceResponse(text="Hello", usage=usage)

    heard = list[str]()
    await observe_request(ModelTarget("one", "gpt"), REQUEST, heard.append, respond)

    assert heard == ["Hel", "lo"]
    assert metrics.MODEL_CALLS.values["one", "ok"] == 1
    tokens = {kind: count for (preset, kind), count in metrics.TOKENS.values.items() if preset == "one"}
    assert tokens == {"input": 10, "output": 5, "reasoning": 2}
    assert metrics.COST.values[("one",)] == 0.25
    assert sum(metrics.FIRST_CHUNK_SECONDS.values[("one",)].counts) == 1
    assert sum(metrics.MODEL_CALL_SECONDS.values[("one",)].counts) == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RateLimited("wait"), "rate_limited"),
        (ModelTimeout("slow"), "model_timeout"),
        (ModelError("refused"), "model_error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
async def test_a_failure_is_counted_by_its_kind(error: BaseException, outcome: str) -> None:
    """18.3.2: and what it used stays with the error, for budgets."""
    preset = f"fails-{outcome}"
    if isinstance(error, ModelError):
        error.usage = Usage(7)

    async def respond(_request: InferenceRequest, _on_text: OnText) -> InferenceResponse:
        raise error

    with suppress(type(error)):
        await observe_request(ModelTarget(preset, "gpt"), REQUEST, ignore_text, respond)

    assert metrics.MODEL_CALLS.values[preset, outcome] == 1
    if isinstance(error, ModelError):
        assert metrics.TOKENS.values[preset, "input"] == 7
        assert error.usage == Usage(7)
