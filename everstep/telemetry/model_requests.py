"""Counts requests to models where they are made: each once, however often its step is tried.

A request that a lost worker had made is not counted: its process took the counts along.
"""

import re
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from copy import copy
from time import perf_counter
from typing import TypeVar

from everstep.agent_domain.agents.drivers import Model, OnText, Reply, StepDriver, ignore_text
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.telemetry import metrics
from everstep.telemetry.genai import (
    ModelTarget,
    finish_chat,
    open_chat,
    record_first_chunk,
    record_usage,
)
from everstep.telemetry.tracing import TraceSpan

OK = "ok"
OWN = "own"
"""The preset of models that agents bring along."""

T = TypeVar("T")

Respond = Callable[[InferenceRequest, OnText], Awaitable[InferenceResponse]]


async def observe_request(
    target: ModelTarget, request: InferenceRequest, on_text: OnText, respond: Respond
) -> InferenceResponse:
    """Make a request, and count it with its outcome, tokens, cost and times."""

    async def send(forward: OnText) -> InferenceResponse:
        return await respond(request, forward)

    return await _observe(target, lambda: request, on_text, send, lambda response: response)


async def respond_with_counts(model: Model, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
    """Make a request, which is counted also if the agent brought the model along."""
    if getattr(model, "counts_requests", False):
        return await model.respond(request, on_text)
    return await observe_request(_own_target(model), request, on_text, model.respond)


def observing(driver: StepDriver) -> StepDriver:
    """Return a driver whose requests are counted, also if the agent has a model of its own.

    Models of presets count their requests themselves, which are then those of tools and processors, too.
    """
    model = driver.model
    if model is None or getattr(model, "counts_requests", False):
        return driver
    target = _own_target(model)
    infer = driver.infer

    async def infer_with_counts(state: AgentState, on_text: OnText = ignore_text) -> Reply:
        async def send(forward: OnText) -> Reply:
            return await infer(state, forward)

        return await _observe(
            target, lambda: driver.request(state), on_text, send, lambda reply: reply.response
        )

    driver = copy(driver)
    driver.infer = infer_with_counts
    return driver


def _own_target(model: Model) -> ModelTarget:
    return ModelTarget(OWN, type(model).__name__, OWN)


async def _observe(
    target: ModelTarget,
    request: Callable[[], InferenceRequest],
    on_text: OnText,
    send: Callable[[OnText], Awaitable[T]],
    response_of: Callable[[T], InferenceResponse],
) -> T:
    began, first = perf_counter(), None

    def forward(text: str) -> None:
        nonlocal first
        if first is None:
            first = perf_counter() - began
            metrics.FIRST_CHUNK_SECONDS.observe(first, target.preset)
            record_first_chunk(span, target, first)
        on_text(text)

    with open_chat(target, request) as span:
        try:
            result = await send(forward)
        except (Exception, CancelledError) as error:
            _count(target, outcome_of(error), perf_counter() - began, _usage_of(error), span)
            raise
        response = response_of(result)
        _count(target, OK, perf_counter() - began, response.usage, span)
        finish_chat(span, response)
        return result


def _count(target: ModelTarget, outcome: str, seconds: float, usage: Usage, span: TraceSpan) -> None:
    metrics.MODEL_CALLS.add(target.preset, outcome)
    metrics.MODEL_CALL_SECONDS.observe(seconds, target.preset)
    for kind in ("input", "output", "cache_write", "cache_read", "reasoning"):
        if tokens := getattr(usage, kind):
            metrics.TOKENS.add(target.preset, kind, amount=tokens)
    if usage.known_cost_usd:
        metrics.COST.add(target.preset, amount=float(usage.known_cost_usd))
    record_usage(span, target, usage, seconds, None if outcome == OK else outcome)


def _usage_of(error: BaseException) -> Usage:
    """Return what a failed request used, which its error keeps for the budget."""
    usage: object = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else Usage()


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a failed request: the name of its error, such as `rate_limited`."""
    if isinstance(error, CancelledError):
        return "cancelled"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
