"""Agents in this process: blocking calls, coroutines, and the builder."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from everstep.agent_domain.agents.contracts import AgentContract, AgentDescriptor
from everstep.agent_domain.errors import InvalidInput, ListenerFailed
from everstep.agent_domain.loop.loop import Infer, Stop
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.state.events import AgentFinished, AgentStepStarted, Event, EventBus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import DeterministicAgentDriver, MockTool, ScenarioStep
from everstep.local.local_agent import Agent, as_state
from everstep.runtime.builder import AgentBuilder
from tests.everstep.local.local_words import EventRecorder, WorkClock, a_conversation, a_scripted_driver

LOOK = MockTool.returning("look", "Looks", "seen")


def a_builder(*steps: ScenarioStep) -> AgentBuilder:
    return AgentBuilder.base().with_driver(a_scripted_driver(*steps)).with_tools([LOOK])


def an_agent(*steps: ScenarioStep) -> Agent:
    return a_builder(*steps).build()


TWO_STEPS = ScenarioStep.tool_call("look"), ScenarioStep.final("Done")


# Blocking.


def test_run_blocks_until_the_agent_has_stopped() -> None:
    """4.5.1, 1.1.6."""
    state = an_agent(*TWO_STEPS).run(a_conversation())
    assert (state.status, state.step_count, state.final_response) == (AgentStatus.COMPLETED, 2, "Done")


def test_the_final_step_is_the_state_after_the_run() -> None:
    """4.5.1."""
    state = an_agent(*TWO_STEPS).final_step(a_conversation())
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 2)


def test_steps_can_be_taken_one_by_one() -> None:
    """4.5.3."""
    agent, state, count = an_agent(*TWO_STEPS), a_conversation(), 0
    while agent.has_next_step(state):
        state, count = agent.next_step(state), count + 1
    assert (count, state.step_count, state.status) == (2, 2, AgentStatus.COMPLETED)
    assert agent.next_step(state) is state


def test_the_iterator_gives_each_step() -> None:
    """4.5.1."""
    states = list(an_agent(*TWO_STEPS).iterator(a_conversation()))
    assert [(state.step_count, state.status.value) for state in states] == [
        (1, "in_progress"),
        (2, "completed"),
    ]


def test_an_iterator_may_be_left_early() -> None:
    """4.5.1: its remaining work is cancelled, and the agent can be used again."""
    closed: list[str] = []

    class WatchedAgent(Agent):
        def aiterator(
            self, state: Any, *, context: Any = None, resources: Any = None
        ) -> AsyncGenerator[AgentState]:
            return watching(super().aiterator(state, context=context, resources=resources))

    async def watching(states: AsyncGenerator[AgentState]) -> AsyncGenerator[AgentState]:
        try:
            async for state in states:
                yield state
        finally:
            await asyncio.to_thread(closed.append, "closed")

    agent = WatchedAgent(a_builder(*TWO_STEPS).definition())
    states = agent.iterator(a_conversation())
    assert next(states).step_count == 1
    assert closed == []
    states.close()
    assert closed == ["closed"]
    assert agent.run(a_conversation()).status is AgentStatus.COMPLETED


def test_an_error_of_a_run_is_raised_by_the_iterator() -> None:
    """4.6.3: and ends it."""
    agent = an_agent().wiretap(lambda _event: 1 // 0)
    states = agent.iterator(a_conversation())
    with pytest.raises(ListenerFailed):
        next(states)
    assert list(states) == []


# In an event loop.


async def test_an_agent_runs_as_a_coroutine() -> None:
    """4.5.1, 4.5.3."""
    agent = an_agent()
    assert (await agent.arun("Hello")).step_count == 1
    assert (await agent.afinal_step("Hello")).step_count == 1
    assert (await agent.anext_step("Hello")).step_count == 1
    assert [state.step_count async for state in agent.aiterator("Hello")] == [1]
    assert agent.has_next_step("Hello")


@pytest.mark.parametrize("method", ["run", "final_step", "next_step", "iterator"])
async def test_a_blocking_call_is_refused_inside_an_event_loop(method: str) -> None:
    """4.5.1: at once, and the error names the method to use."""
    other = "run" if method == "final_step" else method
    with pytest.raises(InvalidInput) as refused:
        getattr(an_agent(), method)(a_conversation())
    assert str(refused.value) == (
        f"{other}() blocks, and an event loop is running here; use a{other}(...) instead"
    )


async def test_one_agent_runs_many_conversations_concurrently() -> None:
    """4.4.1."""
    agent = an_agent()
    states = await asyncio.gather(*(agent.arun(text) for text in ("a", "b", "c")))
    assert [state.messages[0].text for state in states] == ["a", "b", "c"]


# Input.


def test_text_or_a_message_begins_a_conversation() -> None:
    """4.1.2."""
    agent = an_agent()
    for given in ("Hello", user("Hello"), a_conversation("Hello")):
        assert agent.run(given).messages == (user("Hello"), assistant("ok"))
    state = a_conversation()
    assert as_state(state) is state


@pytest.mark.parametrize("given", [None, 5, b"Hello", ["Hello"], {"role": "user"}])
@pytest.mark.parametrize("method", ["run", "next_step", "has_next_step", "iterator"])
def test_anything_else_is_refused(method: str, given: Any) -> None:
    """4.5.1: the error names the accepted types."""
    with pytest.raises(InvalidInput) as refused:
        getattr(an_agent(), method)(given)
    expected = f"an agent runs on an AgentState, a message or text, not on {type(given).__name__}"
    assert str(refused.value) == expected


def test_text_that_cannot_be_stored_is_refused() -> None:
    """4.1.7."""
    with pytest.raises(InvalidInput, match="half of a surrogate pair"):
        an_agent().run("\ud800")


# Listeners.


def test_listeners_of_an_agent_get_its_events_and_return_the_agent() -> None:
    """4.6.3: all events or those of a class; None is not a listener."""
    agent, heard, started = an_agent(), EventRecorder(), EventRecorder()
    assert agent.wiretap(heard.append) is agent
    assert agent.on_event(AgentStepStarted, started.append) is agent
    assert (
        agent.wiretap(None) is agent.on_event(AgentFinished, None) is agent.with_event_handler(None) is agent
    )
    agent.run("Hello")
    assert heard.summary[0] == "AgentStepStarted 1"
    assert heard.summary[-1] == "AgentFinished"
    assert started.summary == ["AgentStepStarted 1"]


def test_a_listener_that_is_added_late_gets_the_remaining_events() -> None:
    """4.6.3."""
    agent, heard = an_agent(*TWO_STEPS), EventRecorder()
    states = agent.iterator("Hello")
    next(states)
    agent.on_event(AgentStepStarted, heard.append)
    list(states)
    assert heard.summary == ["AgentStepStarted 2"]


def test_listeners_of_one_agent_get_no_events_of_another() -> None:
    """11: agents of one builder share only its bus."""
    builder, heard = a_builder(), EventRecorder()
    builder.build().wiretap(heard.append)
    builder.build().run("Hello")
    assert heard == []


def test_one_bus_gets_the_events_of_the_loop_and_of_its_tools() -> None:
    """11: `with_events`; from every agent built with it, also for listeners added later."""
    bus, heard = EventBus(), EventRecorder()
    builder = a_builder(*TWO_STEPS).with_events(bus)
    agent, other = builder.build(), builder.build()
    bus.wiretap(heard.append)
    agent.run("Hello")
    assert {"AgentStepStarted 1", "AgentFinished"} <= set(heard.summary)
    assert [story.split()[0] for story in heard.summary].count("ToolCallStarted") == 1
    before = len(heard)
    other.run("Hello")
    assert len(heard) == 2 * before


def test_another_bus_replaces_the_first_and_listeners_stay() -> None:
    """4.6.3, 10.3.1."""
    first, second, own = EventRecorder(), EventRecorder(), EventRecorder()
    bus, other = EventBus(), EventBus()
    bus.wiretap(first.append)
    other.wiretap(second.append)
    agent = a_builder().with_events(bus).build().wiretap(own.append)
    assert agent.with_event_handler(other) is agent
    agent.run("Hello")
    assert (first, second) == ([], own)
    assert len(own) > 0
    agent.wiretap(own.append)
    assert len(other.listeners) == 1


# Interfaces.


def test_an_agent_implements_the_agent_contract() -> None:
    """10.3.1."""
    agent = a_builder().with_name("helper", "Helps").build()
    contract: AgentContract = agent
    assert isinstance(contract, AgentContract)
    assert agent.build() is agent
    assert agent.descriptor() == AgentDescriptor("helper", "Helps", ["look"])


def test_an_agent_takes_the_clock_that_it_is_given() -> None:
    """2.7."""
    clock, decisions = WorkClock(), list[object]()
    agent = Agent(a_builder().definition(), clock=clock, on_decision=decisions.append)
    clock.advance(5)
    assert agent.run("Hello").execution.started_at == clock.now()
    assert [type(decision) for decision in decisions] == [Infer, Stop]


# The builder.


def test_building_can_be_repeated_and_does_not_change_the_builder() -> None:
    """11: `build()`; each agent plays its script from the start."""
    builder = a_builder(ScenarioStep.final("one", Usage(input=1)), ScenarioStep.final("two"))
    first = builder.build()
    assert first.run("Hello").final_response == "one"
    assert first.run("Hello").final_response == "two"
    assert builder.build().run("Hello").final_response == "one"
    builder.with_max_steps(0)
    assert first.run("Hello").step_count == 1
    assert builder.build().run("Hello").step_count == 0


def test_build_hooks_transform_the_agent() -> None:
    """11: `on_build`, one after the other, each time."""
    told: list[Event] = []
    seen: list[object] = []

    def listening(agent: Agent) -> Agent:
        seen.append(agent)
        return agent.wiretap(told.append)

    def wrap(agent: Agent) -> Any:
        seen.append(agent)
        return ("wrapped", agent)

    builder = a_builder().on_build(listening)
    builder.build().run("Hello")
    assert len(told) > 0
    made: Any = builder.on_build(wrap).build()
    assert made[0] == "wrapped"
    assert seen[-2] is seen[-1] is made[1]
    assert len(seen) == 3


def test_builders_do_not_share_a_drivers_state() -> None:
    """11: two builders with one driver each play its script from the start."""
    driver = DeterministicAgentDriver.from_responses("one", "two")
    agents = [AgentBuilder.base().with_driver(driver).build() for _ in range(2)]
    assert [agent.run("Hello").final_response for agent in agents] == ["one", "one"]


def test_an_agent_has_one_runner() -> None:
    """4.4.4: its driver keeps its executor."""
    agent = an_agent(*TWO_STEPS)
    assert agent.runner is agent.runner
