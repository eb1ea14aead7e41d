"""The fixture runs agents as in production, and a wait that times out reports the execution's state."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from everstep import (
    AgentBuilder,
    CallNeed,
    InvalidInput,
    StopReason,
    ToolCallingDriver,
    ToolOptions,
)
from everstep.testing import DurableAgents, ManualClock, MockTool, ScriptedModel, calls
from everstep.testing.durable import NotReached

Durable = Callable[..., AbstractAsyncContextManager[DurableAgents]]


def clerk(*script: Any, tools: Any = (), name: str = "clerk") -> AgentBuilder:
    driver = ToolCallingDriver(ScriptedModel(*script))
    return AgentBuilder.base().with_name(name).with_driver(driver).with_tools(tools)


def ask(wait_seconds: float | None = None) -> MockTool:
    options = ToolOptions(need=CallNeed.INPUT, wait_seconds=wait_seconds)

    def default_answer(**_args: object) -> str:
        return "no answer"

    return MockTool("ask", handler=default_answer, options=options)


async def test_an_agent_runs_to_its_end(durable_agents: Durable) -> None:
    look = MockTool("look", handler=lambda: "a room")
    async with durable_agents(clerk(calls(("look", {})), "There is a room", tools=[look])) as agents:
        execution = await agents.start("Is there a room?")
        result = await agents.wait_for_end(execution)

        assert result.stop_reason is StopReason.COMPLETED
        texts = [message.text for message in await agents.messages(execution)]
        assert texts == ["Is there a room?", "", "a room", "There is a room"]
        assert [each.type for each in await agents.envelopes(execution)][-1] == "agent.status"


async def test_a_question_waits_for_its_answer(durable_agents: Durable) -> None:
    async with durable_agents(clerk(calls(("ask", {"prompt": "When?"})), "Booked", tools=[ask()])) as agents:
        execution = await agents.start("Book a room", "clerk")
        request = await agents.wait_for_request(execution)
        assert request.args["prompt"] == "When?"
        await execution.submit_input("Friday", request_id=request.id)
        await agents.wait_for_envelope(execution, "agent.input.received")
        await agents.wait_for_end(execution)

        assert [message.text for message in await agents.messages(execution)][2:] == ["Friday", "Booked"]


async def test_a_week_passes_in_an_instant(durable_agents: Durable) -> None:
    week = timedelta(days=7)
    tools = [ask(week.total_seconds())]
    async with durable_agents(clerk(calls(("ask", {"prompt": "When?"})), "Closed", tools=tools)) as agents:
        execution = await agents.start("Book a room")
        await agents.wait_for_request(execution)
        await agents.skip(execution, week + timedelta(seconds=1))
        await agents.wait_for_end(execution)

        assert [message.text for message in await agents.messages(execution)][2:] == ["no answer", "Closed"]


async def test_a_wait_that_times_out_reports_the_executions_state(durable_agents: Durable) -> None:
    async with durable_agents(clerk("Done"), patience=2.0) as agents:
        execution = await agents.start("Go")
        await agents.wait_for_end(execution)
        with pytest.raises(NotReached, match=r"open request was not reached.* is completed.*agent\.status"):
            await agents.wait_for_request(execution)
        with pytest.raises(NotReached, match=r"agent\.input\.requested"):
            await agents.wait_for_envelope(execution, "agent.input.requested")

    async with durable_agents(clerk(calls(("ask", {"prompt": "?"})), tools=[ask()]), patience=2.0) as agents:
        execution = await agents.start("Go")
        await agents.wait_for_request(execution)
        with pytest.raises(NotReached, match="is paused"):
            await agents.wait_for_end(execution)


async def test_agents_need_different_names(durable_agents: Durable) -> None:
    for builders in ((), (clerk(), clerk())):
        with pytest.raises(InvalidInput, match="different names"):
            async with durable_agents(*builders):
                pass


async def test_several_agents_run_side_by_side(durable_agents: Durable) -> None:
    async with durable_agents(clerk("One", name="one"), clerk("Two", name="two")) as agents:
        executions = [await agents.start("Go", name) for name in ("one", "two")]
        results = [await agents.wait_for_end(each) for each in executions]
        assert [result.status for result in results] == ["completed", "completed"]


# A clock that tests move.


def test_a_clock_moves_when_a_test_moves_it() -> None:
    clock = ManualClock(datetime(2030, 5, 1, tzinfo=UTC))
    clock.advance(timedelta(minutes=1))
    clock.advance(30)
    assert clock.now() == datetime(2030, 5, 1, 0, 1, 30, tzinfo=UTC)
    assert clock.seconds() == 90


def test_a_clock_does_not_go_back_and_needs_a_time_zone() -> None:
    with pytest.raises(InvalidInput, match="does not go back"):
        ManualClock().advance(-1)
    with pytest.raises(InvalidInput, match="time zone"):
        ManualClock(datetime(2030, 5, 1))  # noqa: DTZ001 -- refused for that


def test_a_limit_on_time_follows_the_clock() -> None:
    clock = ManualClock()
    slow = MockTool("slow", handler=lambda: clock.advance(timedelta(hours=1)))
    agent = clerk(calls(("slow", {})), "Done", tools=[slow]).with_timeout(60).build(clock=clock)
    outcome = agent.run("Go").last_outcome
    assert outcome is not None
    assert outcome.stop_reason is StopReason.TIME_LIMIT
