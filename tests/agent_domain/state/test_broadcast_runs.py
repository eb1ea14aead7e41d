"""Real runs in-process, as envelopes for their viewers."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest

from everstep.agent_domain.agents.drivers import OnText, Reply, StepDriver, ignore_text
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.state.broadcast_adapter import BroadcastConfig
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep
from everstep.agent_domain.testing import DeterministicAgentDriver, MockTool, ScenarioStep
from everstep.local.broadcast import AgentEventEnvelopeAdapter as LocalAdapter
from everstep.local.local_agent import Agent
from everstep.runtime.builder import AgentBuilder
from tests.agent_domain.state.broadcasts import (
    AT,
    DEBUG,
    EXECUTION,
    MINIMAL,
    NOW,
    SESSION,
    STANDARD,
    TRACED,
    Recorder,
    an_adapter,
)


class Ticking:
    """A clock that advances by a millisecond at each reading."""

    def __init__(self) -> None:
        self._ticks = count()

    def now(self) -> datetime:
        return AT + timedelta(milliseconds=next(self._ticks))

    def seconds(self) -> float:
        return next(self._ticks) / 1000


def an_agent(builder: AgentBuilder, config: BroadcastConfig) -> tuple[Agent, Recorder]:
    """An agent with an adapter."""
    adapter, recorder = an_adapter(config)
    return Agent(builder.definition(), clock=Ticking()).wiretap(adapter.wiretap()), recorder


def a_scripted_builder(*steps: ScenarioStep) -> AgentBuilder:
    tools = [MockTool.returning("look", "Look around", "a tree"), MockTool("fall", "Fall", failing)]
    return AgentBuilder.base().with_driver(DeterministicAgentDriver.from_steps(*steps)).with_tools(tools)


def failing(**_args: Any) -> None:
    raise RuntimeError("no ground")


LOOK = ScenarioStep.tool_call("look", {"far": True}, "Looking", Usage(input=5))
ANSWER = ScenarioStep.final("A tree", Usage(output=2))


def test_a_run_with_a_tool_call_sends_everything_in_order() -> None:
    """7.1.2, 7.2, 7.4.1, 7.4.2, 7.6.1, 7.6.2: an agent that looks and answers."""
    agent, recorder = an_agent(a_scripted_builder(LOOK, ANSWER), DEBUG)
    agent.run("What is there?")

    assert [envelope.type for envelope in recorder.sent] == [
        "agent.status",
        "agent.step.started",
        "agent.stream.chunk",
        "agent.stream.chunk",
        "agent.tool.started",
        "agent.tool.completed",
        "agent.step.completed",
        "agent.continuation",
        "agent.step.started",
        "agent.stream.chunk",
        "agent.stream.chunk",
        "agent.step.completed",
        "agent.continuation",
        "agent.status",
    ]
    assert recorder.summaries() == [
        "status processing",
        "step.started",
        "1.1#0 Looking",
        "1.1#1 (end)",
        "tool.started",
        "tool.completed",
        "step.completed",
        "continuation",
        "step.started",
        "2.1#0 A tree",
        "2.1#1 (end)",
        "step.completed",
        "continuation",
        "status completed",
    ]
    times = [envelope.timestamp for envelope in recorder.sent]
    assert times == sorted(times)
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)
    assert recorder.of("agent.tool.started")[0]["args"] == {"far": True}
    assert recorder.of("agent.tool.completed")[0]["result_summary"] == "a tree"
    assert [step["continuation"]["should_continue"] for step in recorder.of("agent.step.completed")] == [
        True,
        False,
    ]
    assert recorder.of("agent.status")[-1] == {
        "status": "completed",
        "previous_status": "processing",
        "step_count": 2,
        "error_message": None,
        "last_response": "A tree",
    }


@pytest.mark.parametrize(
    ("config", "left_out"), [(STANDARD, {"continuation"}), (MINIMAL, {"continuation", "stream.chunk"})]
)
def test_a_run_with_fewer_envelopes_sends_them_in_the_same_order(
    config: BroadcastConfig, left_out: set[str]
) -> None:
    """7.5."""
    (all_agent, everything), (agent, recorder) = (
        an_agent(a_scripted_builder(LOOK, ANSWER), each) for each in (DEBUG, config)
    )
    all_agent.run("What is there?")
    agent.run("What is there?")
    types = [envelope.type for envelope in everything.sent]
    kept = [kind for kind in types if kind.removeprefix("agent.") not in left_out]
    assert [envelope.type for envelope in recorder.sent] == kept


def test_a_failing_tool_ends_the_run_with_its_error() -> None:
    """7.4.1, 7.4.2: sent once, and last."""
    agent, recorder = an_agent(a_scripted_builder(ScenarioStep.tool_call("fall", {}, "")), TRACED)
    agent.run("Fall!")
    assert recorder.summaries() == [
        "status processing",
        "step.started",
        "tool.started",
        "tool.completed",
        "step.completed",
        "continuation",
        "status failed",
    ]
    assert recorder.of("agent.status")[-1]["error_message"] == "no ground"
    assert recorder.of("agent.tool.completed")[0]["error"] == "no ground"


class CutOff(StepDriver):
    """A model whose first call fails in the middle of its reply."""

    def __init__(self) -> None:
        self.answers = iter([False, True])

    async def infer(self, state: AgentState, on_text: OnText = ignore_text) -> Reply:
        on_text("A tr")
        if next(self.answers):
            on_text("ee")
            return ScenarioStep.final("A tree").reply()
        raise ModelError("connection lost")

    def said(self, step: AgentStep) -> Messages:
        return DeterministicAgentDriver().said(step)


def test_an_interrupted_stream_is_not_closed() -> None:
    """7.6.2: the step that follows is another one, and its chunks count from 0."""
    builder = AgentBuilder.base().with_driver(CutOff()).with_error_policy(ErrorPolicy.retry_all(2))
    agent, recorder = an_agent(builder, STANDARD)
    agent.run("What is there?")
    assert recorder.summaries() == [
        "status processing",
        *("step.started", "1.1#0 A tr", "step.completed"),
        *("step.started", "2.1#0 A tr", "2.1#1 ee", "2.1#2 (end)", "step.completed"),
        "status completed",
    ]


@pytest.mark.parametrize(("steps", "kinds"), [(0, []), (1, ["step.started", "step.completed"])])
def test_a_run_at_its_limit_is_stopped(steps: int, kinds: list[str]) -> None:
    """7.4.1, 1.2.1: also before its first step, when nothing else is sent."""
    script = a_scripted_builder(ScenarioStep.tool_call("look", execute_tools=False)).with_max_steps(steps)
    agent, recorder = an_agent(script, STANDARD)
    agent.run("What is there?")
    began = ["status processing"] if steps else []
    assert recorder.summaries() == [*began, *kinds, "status stopped"]


class Cancelling(AgentHook):
    """A person who cancels."""

    def after_step(self, state: AgentState) -> AgentState:
        return state.with_stop_signal(StopSignal(StopReason.USER_REQUESTED, "enough"))


def test_a_run_that_a_person_ends_is_cancelled() -> None:
    """7.4.1, 1.2.1."""
    agent, recorder = an_agent(a_scripted_builder(LOOK).add_hook(Cancelling()), MINIMAL)
    agent.run("What is there?")
    assert recorder.summaries()[-1] == "status cancelled"
    assert recorder.of("agent.status")[-1]["error_message"] is None


def broken(state: AgentState) -> ContinuationDecision:
    if state.step_count > 0:
        raise ValueError("no idea")
    return ContinuationDecision.ALLOW


def broken_at_once(_state: AgentState) -> ContinuationDecision:
    raise ValueError("no idea")


@pytest.mark.parametrize(("criterion", "steps"), [(broken, 2), (broken_at_once, 1)])
def test_a_run_whose_criterion_raises_fails_once_at_its_end(
    criterion: Callable[[AgentState], ContinuationDecision], steps: int
) -> None:
    """7.4.2, 2.2.7: the failure step is sent before the status."""
    builder = a_scripted_builder(ANSWER).add_continuation_criteria(ContinuationCriteria.when(criterion))
    agent, recorder = an_agent(builder, MINIMAL)
    agent.run("What is there?")
    assert recorder.summaries() == [
        "status processing",
        *["step.started", "step.completed"] * steps,
        "status failed",
    ]
    assert recorder.of("agent.status")[-1]["error_message"] == "no idea"


def test_a_conversation_continues_through_the_same_adapter() -> None:
    """7.4.2: one execution after the other, each sent in full."""
    agent, recorder = an_agent(a_scripted_builder(ANSWER), DEBUG)
    state = agent.run("What is there?")
    once = recorder.summaries()
    agent.run(state.with_user_message("And now?"))
    assert recorder.summaries() == [*once, *once]
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


def test_an_adapter_in_a_process_uses_the_clock_of_the_machine() -> None:
    """7.1.2: the four arguments of the adapter suffice there."""
    recorder = Recorder()
    adapter = LocalAdapter(recorder, SESSION, EXECUTION, BroadcastConfig.minimal())
    adapter.on_agent_status_changed("processing")
    agent = AgentBuilder.base().with_driver(DeterministicAgentDriver.from_responses("Hi")).build()
    agent.wiretap(adapter.wiretap()).run("Hello")
    assert recorder.summaries() == ["status processing", "step.started", "step.completed", "status completed"]
    assert recorder.sent[0].timestamp > AT


def test_an_adapter_in_a_process_accepts_another_clock() -> None:
    """7.1.2."""
    recorder = Recorder()
    LocalAdapter(recorder, SESSION, EXECUTION, clock=lambda: NOW).on_agent_status_changed("paused")
    assert recorder.sent[0].timestamp == NOW
