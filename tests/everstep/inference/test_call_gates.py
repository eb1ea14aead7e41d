"""The limits of a preset."""

import asyncio
from pathlib import Path

import pytest

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import InvalidInput, RateLimited
from everstep.agent_domain.fairness.rate_draws import RateDraw, RateGrant
from everstep.agent_domain.fairness.shares import Claimant
from everstep.inference.presets import Preset
from everstep.runtime.models import models_of
from everstep.runtime.settings import Settings
from everstep.steps.current_claimant import working_as
from everstep.steps.paced_calls import PacedCalls
from everstep.steps.shared_rates import LocalRates
from tests.everstep.inference.asking import ask

SCENARIO = """
turns:
  - {text: Well., usage: {input: 400, output: 100}}
"""
LIMITED = """
turns:
  - {text: Well., error: {type: rate_limit, retry_after: 40, times: 1}}
"""


class RecordedRates(LocalRates):
    """The rates of several workers, which remember what was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = list[RateDraw]()
        self.pauses = list[tuple[str, float]]()

    async def draw_rate(self, draw: RateDraw) -> RateGrant:
        self.draws.append(draw)
        return await super().draw_rate(draw)

    async def pause_rate(self, name: str, seconds: float) -> None:
        self.pauses.append((name, seconds))
        await super().pause_rate(name, seconds)


def a_preset(scenario: str, tmp_path: Path, **limits: object) -> Settings:
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario)
    section = {"driver": "scripted", "scenario": str(path), **limits}
    return Settings.read(presets={"fast": section}, preset="fast")


async def must_wait(model: Model) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await ask(model)
    except TimeoutError:
        return True
    return False


async def test_a_preset_without_limits_draws_nothing(tmp_path: Path) -> None:
    """18.2.12"""
    rates = RecordedRates()
    await ask(models_of(a_preset(SCENARIO, tmp_path), rates).model("fast"))
    assert rates.draws == []


@pytest.mark.parametrize("unit", ["requests", "tokens"])
async def test_calls_of_all_workers_share_the_limits_of_a_preset(tmp_path: Path, unit: str) -> None:
    """18.2.12: a request each five seconds, or ten tokens in a second, of which a call uses 500."""
    rates = RecordedRates()
    limit = {"requests": {"requests_per_minute": 12}, "tokens": {"tokens_per_minute": 600}}[unit]
    settings = a_preset(SCENARIO, tmp_path, **limit)
    first, second = (models_of(settings, rates).model("fast") for _ in range(2))
    await ask(first)
    if unit == "tokens":
        # The next call of the worker says what the first one used.
        assert await must_wait(first)
    assert await must_wait(second)
    assert {draw.name for draw in rates.draws} == {f"preset/fast/{unit}"}


async def test_a_refusal_with_retry_after_lets_the_calls_of_all_workers_wait(tmp_path: Path) -> None:
    """18.2.14"""
    rates = RecordedRates()
    settings = a_preset(LIMITED, tmp_path, requests_per_minute=6000)
    first, second = (models_of(settings, rates).model("fast") for _ in range(2))
    with pytest.raises(RateLimited):
        await ask(first)
    assert rates.pauses == [("preset/fast/requests", 40.0)]
    assert await must_wait(second)


async def test_a_call_that_waits_too_long_fails_like_one_that_the_provider_refused() -> None:
    """18.2.12"""
    paced = PacedCalls(LocalRates(), "fast", requests_per_minute=0.01, tokens_per_minute=None, patience=0.01)
    with working_as(Claimant("acme", "ann")):
        await paced.enter(10)
        with pytest.raises(RateLimited, match="for the limits of the preset 'fast'"):
            await paced.enter(10)


async def test_a_preset_with_a_fallback_waits_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.2.12"""
    monkeypatch.setattr("everstep.runtime.models.FALLBACK_PATIENCE_SECONDS", 0.01)
    settings = a_preset(SCENARIO, tmp_path, requests_per_minute=0.01, fallback=["demo"])
    model = models_of(settings).model("fast")
    texts = [(await ask(model)).text for _ in range(2)]
    assert texts[0] == "Well."
    assert texts[1].startswith("I am the scripted demo model")


@pytest.mark.parametrize("limit", [0, -1, "many", float("nan"), 1e12])
def test_a_limit_that_cannot_be_used_is_refused(limit: object) -> None:
    """18.2.12"""
    with pytest.raises(InvalidInput, match="preset 'fast': requests_per_minute"):
        Preset.read("fast", {"driver": "scripted", "requests_per_minute": limit})
