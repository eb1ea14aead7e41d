"""What a call costs: with the prices of its preset, also if it fails after the provider charged it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from decimal import Decimal

import pytest

from everstep.agent_domain.errors import ModelError, ModelUnavailable
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.testing import ScriptedModel
from everstep.inference.fallback import FallbackModel
from everstep.inference.scripted import ScenarioModel, Script, ScriptedTurn
from tests.everstep.inference.asking import ask
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import DIALECTS, Answer, sse
from tests.everstep.inference.wire_server import wire_server

PRICES = {"input_price": 2, "output_price": 10, "cached_input_price": 0.5}
ANSWER = Answer(("Hello",), usage=Usage(input=1000, output=200, cache_read=4000))
COST = Decimal("0.006")


@pytest.fixture(params=DIALECTS)
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[WireModelServer]:
    """Our server, in the wire format of each provider."""
    async with wire_server() as server:
        made = WireModelServer(DIALECTS[request.param], server)
        async with made.stack:
            yield made


async def test_a_call_costs_what_its_preset_says(wire: WireModelServer) -> None:
    """4.7.1"""
    await wire.script_answers(ANSWER)

    response = await ask(wire.model(**PRICES), "Hello")

    assert (response.usage, response.usage.cost_usd, response.model) == (ANSWER.usage, COST, "test-model")


async def test_without_prices_the_cost_is_unknown(wire: WireModelServer) -> None:
    """4.7.1"""
    await wire.script_answers(ANSWER)

    assert (await ask(wire.model(), "Hello")).usage.cost_usd is None


async def test_a_call_without_counters_has_an_unknown_cost(wire: WireModelServer) -> None:
    """4.7.1"""
    await wire.script_answers(Answer(("Hello",), usage=Usage()))

    response = await ask(wire.model(**PRICES), "Hello")

    assert (response.usage.total, response.usage.cost_usd) == (0, None)


async def test_a_call_that_breaks_off_without_its_counters_has_an_unknown_cost(wire: WireModelServer) -> None:
    """4.7.3"""
    await wire.script_break(ANSWER)

    with pytest.raises(ModelUnavailable) as broken:
        await ask(wire.model(**PRICES), "Hello")

    # The Messages API counts before its last event.
    expected = COST if wire.dialect.driver == "anthropic" else None
    assert take_usage(broken.value).cost_usd == expected
    assert take_usage(broken.value) == Usage()


async def test_a_refused_call_costs_nothing(wire: WireModelServer) -> None:
    """4.7.3"""
    await wire.script_error(503, "busy")

    with pytest.raises(ModelUnavailable) as refused:
        await ask(wire.model(**PRICES), "Hello")

    assert take_usage(refused.value).cost_usd == 0


async def test_the_counters_of_a_failed_answer_are_charged() -> None:
    """4.7.3"""
    failed = {
        "status": "failed",
        "error": {"code": "server_error", "message": "sorry"},
        "usage": {"input_tokens": 1000, "output_tokens": 200},
    }
    async with wire_server() as server, AsyncExitStack() as stack:
        made = WireModelServer(DIALECTS["openai"], server)
        stack.push_async_callback(made.stack.aclose)
        server.answers([sse({"type": "response.failed", "response": failed}, "response.failed")])
        with pytest.raises(ModelError) as error:
            await ask(made.model(**PRICES), "Hello")

    assert take_usage(error.value).cost_usd == Decimal("0.004")


async def test_a_chain_charges_its_failures_to_the_answer() -> None:
    """4.7.3"""
    used, own = Usage(input=1000).with_cost(Decimal("0.002")), Usage(output=100).with_cost(Decimal("0.001"))
    failure = ModelUnavailable("down")
    failure.usage = used
    last = ModelError("wrong key")
    last.usage = own
    unavailable, refusing = ScriptedModel(failure), ScriptedModel(last)

    with pytest.raises(ModelError) as error:
        await ask(FallbackModel([unavailable, refusing]), "Hello")

    assert take_usage(error.value).cost_usd == Decimal("0.003")
    failure.usage = used
    answering = ScenarioModel(Script.of(ScriptedTurn(text="Hi", usage=own)))
    response = await ask(FallbackModel([unavailable, answering]), "Hello")
    assert (response.usage.known_cost_usd, response.usage.total) == (Decimal("0.003"), 1100)
