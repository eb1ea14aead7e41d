"""The work time of a session: each of its executions begins with the work time of the earlier ones."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.state.events import AgentStateUpdated
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.values import format_moment
from everstep.capabilities.subagents import UseSubagents
from everstep.client.sessions import SendResult
from everstep.local.runner import LocalRunner
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, open_session_setup
from tests.workflows.harness import HeldModel, an_agent, progress
from tests.workflows.test_people import asks, user_input
from tests.workflows.test_subagents import a_boss, a_hand, hires


async def clocks_of(parlour: SessionSetup, sent: SendResult | UUID) -> StateInfo:
    """The clocks of an execution's workflow, while it runs or after its end."""
    return (await progress(parlour.execution(sent))).facts.state_info


async def snapshot_of(parlour: SessionSetup, sent: SendResult) -> Any:
    """The latest stored state of an execution."""
    page = await parlour.port.snapshots(parlour.execution(sent).ref)
    return page.rows[0].state


def slow_agent(*script: Any) -> DefinitionBuilder:
    """An agent whose steps take time."""
    turns = [calls(("look", {})), "Done"] * 3
    return an_agent(*(script or turns), tools=[MockTool("look"), user_input()])


async def test_an_execution_begins_with_the_work_time_of_its_session(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """2.7.5, 6.2, 8.2.3: in its clocks and in its snapshot; the age of its session is included."""
    async with open_session_setup(temporal, store, slow_agent()) as parlour:
        session_id, worked = await parlour.session(), list[float]()
        for number in range(3):
            sent = await parlour.post(session_id)
            await parlour.wait_for_completion(sent)
            info = await clocks_of(parlour, sent)
            worked.append(info.cumulative_execution_seconds)
            assert info.session_execution_seconds == pytest.approx(sum(worked)), number
            written = (await snapshot_of(parlour, sent))["execution"]
            assert written["session_seconds"] == info.session_execution_seconds
            session = await parlour.port.session(parlour.scope, session_id)
            assert session
            assert (info.started_at, written["started_at"]) == (
                session.created_at,
                format_moment(session.created_at, 0),
            )

    assert all(seconds > 0 for seconds in worked)


async def test_a_time_limit_of_a_session_counts_earlier_executions(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """2.7.3, 2.7.5: and stops the next one before its first step."""
    agent = slow_agent(*[calls(("look", {}))] * 3).with_cumulative_timeout(1e-6, scope="session")
    async with open_session_setup(temporal, store, agent) as parlour:
        session_id = await parlour.session()
        first = await parlour.wait_for_completion(await parlour.post(session_id))
        second = await parlour.wait_for_completion(await parlour.post(session_id))
        elsewhere = await parlour.wait_for_completion(await parlour.post(await parlour.session()))

    assert [(row.step_count, row.stop_reason) for row in (first, second, elsewhere)] == [
        (1, StopReason.TIME_LIMIT),
        (0, StopReason.TIME_LIMIT),
        (1, StopReason.TIME_LIMIT),
    ]


async def test_a_queued_execution_counts_those_that_end_before_it_begins(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """2.7.5, 8.3.1: the time is read when the execution begins, not when it is accepted."""
    model = HeldModel("One", "Two", "Three")
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        session_id = await parlour.session()
        sent = [await parlour.post(session_id, f"message {number}") for number in range(3)]
        await model.begun.wait()
        model.go_on.set()
        for each in sent:
            await parlour.wait_for_completion(each)
        infos = [await clocks_of(parlour, each) for each in sent]

    total = 0.0
    for info in infos:
        total += info.cumulative_execution_seconds
        assert info.session_execution_seconds == pytest.approx(total)


@pytest.mark.parametrize("lost", ["cancelled", "terminated"])
async def test_the_work_of_an_incomplete_execution_counts(
    temporal: TemporalClient, store: PostgresSessions, lost: str
) -> None:
    """2.7.5: regardless of the process that recorded its end."""
    script = [calls(("look", {})), asks("?"), "Done"]
    async with open_session_setup(temporal, store, slow_agent(*script)) as parlour:
        session_id = await parlour.session()
        first = await parlour.post(session_id)
        await parlour.wait_for_status(first, ExecutionStatus.PAUSED)
        execution = parlour.execution(first)
        if lost == "cancelled":
            await execution.cancel()
            ended = ExecutionStatus.CANCELLED
        else:
            await execution.workflow.terminate()
            ended = ExecutionStatus.FAILED
            # Not only what Temporal lists, as its lists lag.
            await parlour.reconciler.once(thorough=True)
        await parlour.wait_for_status(first, ended)
        steps = await execution.steps()
        worked = sum(step.facts.seconds for step in steps if step.facts)
        second = await parlour.post(session_id)
        await parlour.wait_for_completion(second)
        info = await clocks_of(parlour, second)

    before = info.session_execution_seconds - info.cumulative_execution_seconds
    assert 0 < worked <= before + 1e-6
    assert before == pytest.approx(worked, abs=0.1)


async def test_a_fork_begins_with_the_work_time_of_the_session(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """2.7.5, 8.2.5: and one without a session with that of the execution that it continues."""
    async with open_session_setup(temporal, store, slow_agent()) as parlour:
        session_id = await parlour.session()
        sent = await parlour.post(session_id)
        await parlour.wait_for_completion(sent)
        alone = await parlour.sessions.client.start("agent", "Go", user_id="ann")
        await parlour.wait_for_completion(alone.id)
        for origin in (parlour.execution(sent), alone):
            fork = await parlour.sessions.fork(origin.ref, 1)
            await parlour.wait_for_completion(fork.id)
            before, after = await clocks_of(parlour, origin.id), await clocks_of(parlour, fork.id)
            assert after.session_execution_seconds == pytest.approx(
                before.session_execution_seconds + after.cumulative_execution_seconds
            )
            row = await fork.get()
            assert after.started_at
            assert after.started_at < row.created_at


async def test_a_subagent_includes_the_work_time_of_its_parents_session(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """2.7.5, 9.6.2: and its own work counts once, as the call's."""
    boss, hand = a_boss(hires("hand"), "Done", hires("hand"), "Done"), a_hand("Did", "Did")
    async with open_session_setup(temporal, store, boss, hand) as parlour:
        session_id, worked = await parlour.session(), 0.0
        for _ in range(2):
            sent = await parlour.post(session_id)
            await parlour.wait_for_completion(sent)
            info = await clocks_of(parlour, sent)
            child = next(
                row
                for row in await _children(parlour, session_id)
                if row.parent_execution_id == sent.execution_id
            )
            of_child = await clocks_of(parlour, child.ref.execution_id)
            before = of_child.session_execution_seconds - of_child.cumulative_execution_seconds
            assert before > worked
            worked += info.cumulative_execution_seconds
            assert of_child.cumulative_execution_seconds < info.cumulative_execution_seconds
            assert info.session_execution_seconds == pytest.approx(worked)
            session = await parlour.port.session(parlour.scope, session_id)
            assert session
            assert session.last_execution_id == sent.execution_id


async def _children(parlour: SessionSetup, session_id: UUID) -> list[ExecutionRow]:
    return [row for row in await parlour.executions(session_id) if row.parent_execution_id]


async def test_the_session_has_its_last_accepted_execution_and_latest_snapshot(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.1: before any execution has ended; a queued message counts."""
    parlour = a_session_setup(temporal, store, slow_agent(asks("?"), "Done"))
    session_id = await parlour.session()
    first = await parlour.post(session_id)
    second = await parlour.post(session_id)

    async def last() -> tuple[UUID | None, UUID | None]:
        session = await parlour.port.session(parlour.scope, session_id)
        assert session
        return session.last_execution_id, session.last_snapshot_id

    assert await last() == (second.execution_id, None)
    async with parlour.worker():
        row = await parlour.wait_for_status(first, ExecutionStatus.PAUSED)
        (paused,) = (await parlour.port.snapshots(parlour.execution(first).ref)).rows
        assert await last() == (second.execution_id, paused.id)
        assert row.last_snapshot_id == paused.id
        await parlour.execution(first).submit_input("Blue")
        row = await parlour.wait_for_completion(first)
        final, _ = (await parlour.port.snapshots(parlour.execution(first).ref)).rows
        assert row.last_snapshot_id == final.id


async def test_an_execution_may_name_a_session_that_is_created_with_it(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.1: it belongs to the user that started the execution."""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        session_id = uuid4()
        execution = await parlour.sessions.client.start(
            "agent", "Go", session_id=session_id, user_id=parlour.scope.user_id
        )
        await parlour.wait_for_completion(execution.id)
        session = await parlour.port.session(parlour.scope, session_id)
        others = await parlour.port.session(replace(parlour.scope, user_id="ben"), session_id)

    assert session
    assert (session.user_id, session.last_execution_id) == (parlour.scope.user_id, execution.id)
    assert others is None


async def test_a_subagent_in_process_includes_the_work_time_of_its_parents_session() -> None:
    """2.7.5"""
    spawn = calls(("spawn_subagent", {"subagent": "helper", "prompt": "Look"}))
    helper = AgentSpecRegistry([AgentSpec("helper", "Helps", "You help.")])
    agent = an_agent(spawn, "Blue", "Thanks").with_capability(UseSubagents(helper))
    updates = list[AgentStateUpdated]()
    runner = LocalRunner(agent.definition())
    runner.events.on_event(AgentStateUpdated, updates.append)
    before = AgentState.empty().with_messages("Go")
    worked = replace(before.facts, state_info=StateInfo(session_execution_seconds=100.0))
    after = await runner.run(replace(before, facts=worked))

    (of_child,) = [each.state["execution"] for each in updates if each.parent_agent_id]
    assert of_child["session_seconds"] > 100 + of_child["cumulative_seconds"] > 100
    info = after.state_info
    assert info.session_execution_seconds == pytest.approx(100 + info.cumulative_execution_seconds)
