"""Building models from presets."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import InvalidInput, RateLimited
from everstep.inference.anthropic_messages import AnthropicMessages
from everstep.inference.fallback import FallbackModel
from everstep.inference.models import Models
from everstep.inference.openai_chat import OpenAIChat
from everstep.inference.openai_responses import OpenAIResponses
from everstep.inference.presets import Presets
from everstep.inference.scripted import ScenarioModel
from tests.everstep.inference.asking import ask
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import Answer
from tests.everstep.inference.wire_server import Reply, WireServer

KEYS = {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-a"}
CHAT = {"chat": {"driver": "openai-chat", "model": "m"}}


def models(sections: dict[str, Any] | None = None, **options: Any) -> Models:
    return Models(Presets.read(sections or {}, KEYS), KEYS, **options)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai", OpenAIResponses),
        ("chat", OpenAIChat),
        ("anthropic", AnthropicMessages),
        ("demo", ScenarioModel),
    ],
)
async def test_every_driver_has_its_model(name: str, kind: type[Model]) -> None:
    made = models(CHAT)

    assert isinstance(made.model(name), kind)

    await made.aclose()


async def test_a_preset_keeps_its_model_and_its_connections() -> None:
    made = models()

    assert made.model("openai") is made.model()
    assert made.model("anthropic") is not made.model()

    await made.aclose()


async def test_fallbacks_are_called_in_their_order() -> None:
    made = models({"openai": {"fallback": ["anthropic", "demo"]}})

    chain = made.model("openai")

    assert isinstance(chain, FallbackModel)
    assert [type(model) for model in chain.models] == [OpenAIResponses, AnthropicMessages, ScenarioModel]
    assert chain.models[1] is made.model("anthropic")

    await made.aclose()


@pytest.mark.parametrize("sections", [{}, {"demo": {"fallback": ["openai"]}}])
def test_a_missing_key_is_reported_before_any_request(sections: dict[str, Any]) -> None:
    name = "demo" if sections else "openai"

    with pytest.raises(InvalidInput, match="preset 'openai' needs a key; set OPENAI_API_KEY"):
        Models(Presets.read(sections, {}), {}).model(name)


async def test_without_keys_a_demo_model_answers_and_says_so() -> None:
    response = await ask(Models(Presets.read({}, {}), {}).model(), "Hello")

    assert response.text.startswith("I am the scripted demo model")
    assert "OPENAI_API_KEY or ANTHROPIC_API_KEY" in response.text


async def test_a_scripted_preset_plays_its_file(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("turns: [{text: Hello, pace: {seconds: 3}}]")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    made = models({"mine": {"driver": "scripted", "scenario": str(file)}}, sleep=sleep)

    assert (await ask(made.model("mine"), "Hi")).text == "Hello"
    assert slept == [3]


async def test_dates_are_counted_from_the_clock_that_was_passed(server: WireServer) -> None:
    """3.5.1: `Retry-After` may be a date."""
    server.answers(Reply.json(429, {}, Retry_After="Fri, 16 Jan 2026 10:05:30 GMT"))
    section = {"driver": "openai-chat", "model": "m", "base_url": server.url}
    made = models({"local": section}, now=lambda: datetime(2026, 1, 16, 10, 5, tzinfo=UTC))

    with pytest.raises(RateLimited) as refused:
        await ask(made.model("local"), "Hello")

    assert refused.value.retry_after == 30
    await made.aclose()


async def test_aclose_closes_the_connections(wire: WireModelServer) -> None:
    wire.server.answers(wire.dialect.events(Answer(("Hello",))))
    url = wire.server.url + wire.dialect.prefix
    made = models({"local": {"driver": wire.dialect.driver, "model": "m", "base_url": url}})
    await ask(made.model("local"), "Hello")

    await made.aclose()

    await asyncio.wait_for(wire.server.hung_up.wait(), 10)
