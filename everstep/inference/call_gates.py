"""The limits of a preset: what a call waits for before its request is made.

A waiting call is not measured as a request, and costs nothing. A provider that refuses a request for a while
(429 with `Retry-After`) keeps all calls of the preset waiting until then, in every process.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from everstep.agent_domain.agents.token_counting import estimate_for
from everstep.agent_domain.errors import ModelError, RateLimited
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse


class CallGate(Protocol):
    """The limits of one preset, which all processes share."""

    async def enter(self, tokens: int) -> None:
        """Wait until a call with these input tokens may be made.

        Raises:
            RateLimited: That takes too long.
        """
        ...

    def count(self, expected: int, used: int) -> None:
        """Note how many tokens a call has used."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let calls wait, as the provider demands."""
        ...


async def respond_in_turn(
    gate: CallGate | None,
    model: object,
    request: InferenceRequest,
    respond: Callable[[], Awaitable[InferenceResponse]],
) -> InferenceResponse:
    """Make a call once the limits of its preset allow it."""
    if gate is None:
        return await respond()
    expected = estimate_for(model, request)
    await gate.enter(expected)
    try:
        response = await respond()
    except ModelError as error:
        if isinstance(error, RateLimited) and error.retry_after:
            await gate.pause(error.retry_after)
        used = error.usage
        gate.count(expected, used.total if isinstance(used, Usage) else 0)
        raise
    gate.count(expected, response.usage.total or expected)
    return response
