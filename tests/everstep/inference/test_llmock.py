"""Faults injected by the package `llmock`, and its verdict on how the client handled them.

Its fixture comes with the package. Each test acts as the owner of the retries: it sends one more request
after a retryable error, and none after any other.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import (
    RETRYABLE,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    UnreadableAnswer,
)
from everstep.agent_domain.state.steps import InferenceResponse
from tests.everstep.inference.asking import WEATHER, ask, with_results
from tests.everstep.inference.counterparts import a_model
from tests.everstep.inference.dialects import DIALECTS

PROVIDERS = {"openai": "openai", "openai-chat": "openai", "anthropic": "anthropic"}


class FaultyProvider:
    """One driver and its server."""

    def __init__(self, driver: str, faults: LLMock, stack: AsyncExitStack) -> None:
        self.driver = driver
        self.faults = faults
        self._stack = stack

    def model(self, **settings: Any) -> Model:
        url = self.faults.base_url(PROVIDERS[self.driver])
        return a_model(self.driver, url, self._stack, **settings)

    async def answer_of_retry(self, error: type[ModelError]) -> InferenceResponse:
        """The response to a second attempt, after the first one failed like this."""
        model = self.model()
        with pytest.raises(ModelError) as failed:
            await ask(model, "Hello")
        assert type(failed.value) is error
        await asyncio.sleep(getattr(failed.value, "retry_after", None) or 0)
        return await ask(model, "Hello")

    def assert_resilient(self, attempts: int = 2) -> None:
        """All faults were handled well, and the client did not retry by itself."""
        assert len(self.faults.requests) == attempts
        self.faults.assert_resilient(strict=True)


@pytest.fixture(params=DIALECTS)
async def side(request: pytest.FixtureRequest, llmock: LLMock) -> AsyncIterator[FaultyProvider]:
    async with AsyncExitStack() as stack:
        yield FaultyProvider(request.param, llmock, stack)


async def test_an_answer_is_read(side: FaultyProvider) -> None:
    side.faults.reply("Hello, how are you?")

    response = await ask(side.model(), "Hello")

    assert response.text == "Hello, how are you?"
    assert response.finish_reason == "stop"
    assert response.usage.total > 0
    side.assert_resilient(attempts=1)


async def test_a_tool_is_called_and_its_result_is_used(side: FaultyProvider) -> None:
    side.faults.call_tool("weather", {"city": "Paris"}, text="Let me look")
    model = side.model()

    first = await ask(model, "How is Paris?", tools=(WEATHER,))
    second = await ask(model, "How is Paris?", *with_results(first, "sunny"), tools=(WEATHER,))

    (call,) = first.tool_calls
    assert (first.text, call.name, call.args) == ("Let me look", "weather", {"city": "Paris"})
    assert first.finish_reason == "tool_calls"
    # After a result, it responds with text.
    assert second.tool_calls == ()
    assert second.text


async def test_arguments_that_are_not_json_are_kept(side: FaultyProvider) -> None:
    """5.4.3"""
    side.faults.break_tool_call("malformed_arguments")

    (call,) = (await ask(side.model(), "How is Paris?", tools=(WEATHER,))).tool_calls

    assert call.name == "weather"
    assert call.malformed


async def test_a_rate_limit_is_waited_out(side: FaultyProvider) -> None:
    """3.5.1"""
    side.faults.rate_limit(retry_after=0.2)

    assert (await side.answer_of_retry(RateLimited)).text
    side.assert_resilient()


@pytest.mark.parametrize("status", [408, 409, 500, 503, 529])
async def test_an_outage_is_retryable(side: FaultyProvider, status: int) -> None:
    """3.5.1"""
    side.faults.fail(status, retry_after=0.1)

    assert (await side.answer_of_retry(ModelUnavailable)).text
    side.assert_resilient()


@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_a_stream_that_ends_early_is_not_used(side: FaultyProvider, chunks: int) -> None:
    """3.5.1"""
    side.faults.truncate(after_chunks=chunks)

    assert (await side.answer_of_retry(ModelUnavailable)).text
    side.assert_resilient()


@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_a_stream_that_is_dropped_is_not_used(side: FaultyProvider, chunks: int) -> None:
    """3.5.1"""
    side.faults.disconnect(after_chunks=chunks)

    assert (await side.answer_of_retry(ModelUnavailable)).text
    side.assert_resilient()


async def test_a_corrupted_event_is_detected(side: FaultyProvider) -> None:
    """3.5.3"""
    # In all three it is a chunk of the text. The verdict cannot show whether the client detected it: the
    # rest of so short a stream is sent before the client closes the connection.
    side.faults.corrupt(after_chunks=5).reply("Hello, how are you doing on this fine day?", times=2)

    assert (await side.answer_of_retry(UnreadableAnswer)).text == "Hello, how are you doing on this fine day?"


async def test_a_stall_is_a_timeout(side: FaultyProvider) -> None:
    """3.5.1"""
    side.faults.stall(after_chunks=2, seconds=20)

    with pytest.raises(ModelTimeout):
        await ask(side.model(timeout_seconds=0.3), "Hello")

    assert (await ask(side.model(), "Hello")).text
    side.assert_resilient()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_permanent_error_is_not_retryable(side: FaultyProvider, status: int) -> None:
    """3.5.2"""
    side.faults.fail(status)

    with pytest.raises(ModelError) as failed:
        await ask(side.model(), "Hello")

    assert not isinstance(failed.value, RETRYABLE)
    side.assert_resilient(attempts=1)


async def test_a_conversation_that_is_too_long_has_a_remedy(side: FaultyProvider) -> None:
    """3.5.2"""
    side.faults.limits(context_window=10)

    with pytest.raises(ModelError, match="The conversation is too long for this model"):
        await ask(side.model(), "Hello " * 100)

    side.assert_resilient(attempts=1)
