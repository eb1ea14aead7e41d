"""Runs in this process retry model calls and report each wait."""

import logging
from datetime import UTC, datetime

import pytest

from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.errors import ModelError, ModelTimeout, ModelUnavailable, RateLimited
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.events import Event, ModelCallDelayed
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.runtime.builder import AgentBuilder


class VirtualClock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.slept = list[float]()

    def now(self) -> datetime:
        return datetime(2026, 1, 16, 10, 5, tzinfo=UTC)

    def seconds(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.passed += seconds


class RecoveringModel:
    """A model that is not scripted: it needs time to recover."""

    def __init__(
        self, clock: VirtualClock, *failures: Exception, away_until: float = 0, heard: str = ""
    ) -> None:
        self.clock = clock
        self.failures = list(failures)
        self.away_until = away_until
        self.heard = heard
        self.requests = 0

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request
        self.requests += 1
        if self.heard:
            on_text(self.heard)
        if self.failures:
            raise self.failures.pop(0)
        if self.clock.passed < self.away_until:
            raise ModelUnavailable("503")
        return InferenceResponse("Done")


async def run(
    provider: RecoveringModel, builder: AgentBuilder | None = None
) -> tuple[AgentState, list[Event]]:
    heard = list[Event]()
    agent = (
        (builder or AgentBuilder.base()).with_driver(ToolCallingDriver(provider)).build(clock=provider.clock)
    )
    return await agent.wiretap(heard.append).arun("Go"), heard


async def test_a_short_outage_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """3.5.4, 3.5.5: each wait is an event and a log line."""
    provider = RecoveringModel(VirtualClock(), away_until=5)
    with caplog.at_level(logging.WARNING, "everstep"):
        state, heard = await run(provider)

    delays = [event for event in heard if isinstance(event, ModelCallDelayed)]
    assert (state.final_response, state.step_count) == ("Done", 1)
    assert [event.seconds for event in delays] == provider.clock.slept
    assert sum(provider.clock.slept) >= 5
    assert delays[0].detail.startswith("provider unavailable, next attempt in ")
    assert [record.getMessage() for record in caplog.records] == [
        f"step 1: {event.detail}: 503" for event in delays
    ]


async def test_a_caller_waits_at_most_half_a_minute() -> None:
    """3.5.4: in this process."""
    provider = RecoveringModel(VirtualClock(), away_until=1000)
    state, _ = await run(provider)

    assert state.status is AgentStatus.FAILED
    assert sum(provider.clock.slept) == pytest.approx(30, abs=0.01)
    (error,) = state.steps[0].errors
    assert error.message == (
        f"503. Given up after {provider.requests} tries: the retry budget of 30 s is used up"
    )


async def test_the_agent_configures_the_delay_and_the_number_of_retries() -> None:
    """3.5.1, 3.5.4"""
    long, short = (
        RecoveringModel(VirtualClock(), away_until=100),
        RecoveringModel(VirtualClock(), away_until=100),
    )
    state, _ = await run(long, AgentBuilder.base().with_retry_budget(120))
    assert state.final_response == "Done"

    await run(short, AgentBuilder.base().with_max_retries(2))
    assert short.requests == 2


async def test_a_requested_delay_is_the_minimum() -> None:
    """3.5.4: and a delay that does not fit ends the step at once."""
    fits = RecoveringModel(VirtualClock(), RateLimited("busy", 20))
    await run(fits)
    assert fits.clock.slept[0] >= 20

    late = RecoveringModel(VirtualClock(), RateLimited("busy", 600))
    state, _ = await run(late)
    assert (late.requests, late.clock.slept) == (1, [])
    assert "The provider asks to wait 600 s" in state.steps[0].errors[0].message


@pytest.mark.parametrize("error", [ModelError("refused"), RuntimeError("broken")])
async def test_a_permanent_error_is_not_retried(error: Exception) -> None:
    """3.5.2"""
    provider = RecoveringModel(VirtualClock(), error)
    state, _ = await run(provider)

    assert (provider.requests, state.status) == (1, AgentStatus.FAILED)


async def test_a_response_that_broke_off_after_its_first_chunk_is_not_retried() -> None:
    """3.5.4: listeners cannot retract the chunks that they received."""
    provider = RecoveringModel(VirtualClock(), ModelUnavailable("cut"), heard="Well, ")
    state, heard = await run(provider)

    assert (provider.requests, state.status) == (1, AgentStatus.FAILED)
    assert not [event for event in heard if isinstance(event, ModelCallDelayed)]


async def test_a_scripted_model_is_retried_without_waiting() -> None:
    """3.5.4: although its script asks to wait."""
    clock = VirtualClock()
    model = ScriptedModel(RateLimited("busy", 20), ModelTimeout("slow"), "Done")
    agent = AgentBuilder.base().with_driver(ToolCallingDriver(model)).build(clock=clock)

    assert (await agent.arun("Go")).final_response == "Done"
    assert clock.slept == []


async def test_a_scripted_model_that_never_recovers_uses_up_the_budget_without_waiting() -> None:
    """3.5.4"""
    clock, model = VirtualClock(), ScriptedModel(ModelUnavailable("away"))
    agent = AgentBuilder.base().with_driver(ToolCallingDriver(model)).build(clock=clock)
    state = await agent.arun("Go")

    assert (state.status, clock.slept) == (AgentStatus.FAILED, [])
    assert 3 < len(model.requests) < 20
    assert state.steps[0].errors[0].message.count("Given up after") == 1


async def test_a_tool_that_calls_a_model_waits_as_its_step_does() -> None:
    """3.5.4"""

    class CallingModel(RecoveringModel):
        async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
            if self.requests == 0:
                self.requests = 1
                return calls(("llm_query", {"query": "?"}))
            return await super().respond(request, on_text)

    provider = CallingModel(VirtualClock(), ModelUnavailable("503"))
    state, _ = await run(provider, AgentBuilder.base().with_tools([LlmQueryTool()]))

    assert (state.final_response, len(provider.clock.slept)) == ("Done", 1)
