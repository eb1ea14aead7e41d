"""Counting the input of a request by the provider."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from everstep.agent_domain.agents.token_counting import count_input, provider_count
from everstep.agent_domain.errors import ModelError, ModelTimeout, ModelUnavailable
from everstep.agent_domain.messages.token_estimate import estimate_request
from everstep.inference.fallback import FallbackModel
from tests.everstep.inference.asking import WEATHER, a_request
from tests.everstep.inference.counterparts import a_model
from tests.everstep.inference.dialects import DIALECTS
from tests.everstep.inference.wire_server import Reply, StreamBreak, WireServer, wire_server

REQUEST = a_request("Hello", system="Be brief", tools=(WEATHER,))
COUNTED = Reply.json(200, {"input_tokens": 77, "object": "response.input_tokens"})
PATHS = {"openai": "/v1/responses/input_tokens", "anthropic": "/v1/messages/count_tokens"}


@pytest.fixture
async def server() -> AsyncIterator[WireServer]:
    async with wire_server() as server:
        yield server


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def connected_model(driver: str, server: WireServer, stack: AsyncExitStack, **settings: Any) -> Any:
    return a_model(driver, server.url + DIALECTS[driver].prefix, stack, **settings)


@pytest.mark.parametrize("driver", PATHS)
async def test_a_provider_counts_the_request_that_it_would_receive(
    driver: str, server: WireServer, stack: AsyncExitStack
) -> None:
    """14.3"""
    model = connected_model(driver, server, stack, max_output_tokens=100)
    server.answers(COUNTED)
    assert await model.count_input(REQUEST) == 77
    (received,) = server.requests
    body = model.body(REQUEST)
    assert received.path == PATHS[driver]
    assert received.body.items() <= body.items()
    assert {"stream", "max_tokens", "max_output_tokens", "store"}.isdisjoint(received.body)
    assert {"model", "tools"} <= received.body.keys()


async def test_the_provider_is_asked_only_if_the_estimate_does_not_fit(
    server: WireServer, stack: AsyncExitStack
) -> None:
    """14.3"""
    model, estimate = connected_model("anthropic", server, stack), estimate_request(REQUEST)
    server.answers(COUNTED)
    assert await count_input(model, REQUEST) == estimate
    assert await count_input(model, REQUEST, fits=estimate) == estimate
    assert server.requests == []
    assert await count_input(model, REQUEST, fits=estimate - 1) == 77
    assert await count_input(object(), REQUEST, fits=0) == estimate


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply.json(404, {"error": {"message": "no such path"}}), ModelError),
        (Reply.json(529, {"error": {"type": "overloaded_error", "message": "busy"}}), ModelUnavailable),
        (Reply((StreamBreak.STALL,)), ModelTimeout),
    ],
    ids=["unknown", "busy", "stuck"],
)
async def test_without_a_count_the_estimate_holds(
    reply: Reply, error: type[ModelError], server: WireServer, stack: AsyncExitStack
) -> None:
    """14.3"""
    model = connected_model("openai", server, stack, timeout_seconds=0.2)
    server.answers(reply)
    with pytest.raises(error):
        await model.count_input(REQUEST)
    assert await count_input(model, REQUEST, fits=0) == estimate_request(REQUEST)


async def test_a_chain_has_the_largest_count_and_none_if_one_cannot_count(
    server: WireServer, stack: AsyncExitStack
) -> None:
    claude = connected_model("anthropic", server, stack)
    gpt, chat = connected_model("openai", server, stack), connected_model("openai-chat", server, stack)
    server.answers(COUNTED, Reply.json(200, {"input_tokens": 90}))
    assert await provider_count(FallbackModel([claude, gpt]), REQUEST) == 90
    assert await provider_count(chat, REQUEST) is None
    assert await provider_count(FallbackModel([claude, chat]), REQUEST) is None
