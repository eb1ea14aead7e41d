"""A message to a running execution is refused and leaves nothing, or is processed exactly once."""

import asyncio
from collections import Counter
from random import Random
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.sessions import OnBusy, Route
from everstep.agent_domain.testing import calls, says
from everstep.capabilities.subagents import UseSubagents
from everstep.client.reconciler import Repairs
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, open_session_setup
from tests.workflows.harness import HeldModel, an_agent, eventually

SAID = """
    SELECT content #>> '{}' FROM agent_transcript
     WHERE tenant_id = :tenant AND role = 'user' AND content #>> '{}' LIKE 'steer%'
"""
"""A message is stored once in the conversations of a tenant for each time that it is processed: conversations
of continued executions are shared by reference.
"""

STORED = "SELECT key FROM agent_steered WHERE tenant_id = :tenant"


async def count_rows(store: PostgresSessions, parlour: SessionSetup, statement: str) -> Counter[str]:
    """The rows of this tenant that a statement selects."""
    async with store.engine.connect() as connection:
        found = await connection.execute(text(statement), {"tenant": parlour.scope.tenant_id})
        return Counter(found.scalars())


async def start_execution(parlour: SessionSetup, message: str = "Hello") -> UUID:
    """An execution without a session."""
    return (await parlour.sessions.client.start("agent", message)).id


async def test_a_queued_execution_processes_it_once_it_has_begun(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2: sent while another execution of the session is in progress."""
    model = HeldModel("One", "Two")
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        session_id = await parlour.session()
        first = await parlour.post(session_id)
        await model.begun.wait()
        second = await parlour.post(session_id, "And?")
        ref = parlour.execution(second).ref
        steering = await parlour.sessions.steer(ref, "steer!")
        model.go_on.set()
        await parlour.wait_for_completion(second)
        del first

        assert not steering.is_moved
        heard = await parlour.conversation(second)
        assert heard[:3] == ["Hello", "One", "And?"]
        assert heard[-2:] == ["steer!", "Two"]
        assert await count_rows(store, parlour, SAID) == {"steer!": 1}


async def test_an_execution_without_a_worker_processes_it_once_there_is_one(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2: a pending execution whose workflow was never started."""
    parlour = a_session_setup(temporal, store, an_agent("One", "Two"))
    sent = await parlour.post(await parlour.session())
    saying = asyncio.create_task(parlour.sessions.steer(parlour.execution(sent).ref, "steer!"))

    async def is_stored() -> bool:
        commands, _ = await store.commands(parlour.settings.task_queue, 0.0)
        return any(command.kind is CommandKind.STEER for command in commands)

    await eventually(is_stored)
    async with parlour.worker():
        steering = await saying
        await parlour.wait_for_completion(sent)

        assert not steering.is_moved
        assert await count_rows(store, parlour, SAID) == {"steer!": 1}


async def test_a_caller_that_gives_up_stops_waiting_for_a_worker(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.2.9: also where an earlier command is delivered first; the message is stored."""
    parlour = a_session_setup(temporal, store, an_agent("One"))
    sent = await parlour.post(await parlour.session())
    ref = parlour.execution(sent).ref
    await store.steer(ref, "k-1", user("steer first"))

    # Less than the timeout of the first delivery.
    limited = asyncio.wait_for(parlour.sessions.steer(ref, "steer!", "k-2"), 2.0)
    steering = asyncio.create_task(limited)
    finished, _ = await asyncio.wait({steering}, timeout=60)

    assert finished
    with pytest.raises(TimeoutError):
        await steering
    assert set(await count_rows(store, parlour, STORED)) == {"k-1", "k-2"}


async def test_an_ending_execution_leaves_it_to_the_next_one(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2: and the sender gets the id of that one, and the same one for the same key."""
    async with open_session_setup(temporal, store, an_agent("One", "Two")) as parlour:
        async with parlour.store.hold("settle") as settling:
            sent = await parlour.post(await parlour.session())
            await settling.wait()
            ref = parlour.execution(sent).ref
            steering = await parlour.sessions.steer(ref, "steer!", "k-1")
        await parlour.wait_for_completion(sent)
        follower = steering.heard_by.execution_id
        await parlour.wait_for_other_completion(follower)

        assert steering.is_moved
        assert await parlour.conversation(follower) == ["Hello", "One", "steer!", "Two"]
        assert (await parlour.sessions.steer(ref, "steer!", "k-1")).heard_by == steering.heard_by
        assert await count_rows(store, parlour, SAID) == {"steer!": 1}


async def test_a_message_that_steers_an_ending_execution_says_that_it_waits(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2"""
    async with open_session_setup(temporal, store, an_agent("One", "Two")) as parlour:
        session_id = await parlour.session()
        async with parlour.store.hold("settle") as settling:
            first = await parlour.post(session_id)
            await settling.wait()
            sent = await parlour.post(session_id, "steer!", on_busy=OnBusy.STEER, key="k-1")
        again = await parlour.post(session_id, "steer!", on_busy=OnBusy.STEER, key="k-1")
        await parlour.wait_for_other_completion(sent.execution_id)

        assert sent.route is Route.QUEUE
        assert sent.execution_id != first.execution_id
        assert (again.route, again.execution_id) == (sent.route, sent.execution_id)
        assert await count_rows(store, parlour, SAID) == {"steer!": 1}


async def test_an_ended_execution_refuses_and_nothing_is_stored(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2"""
    async with open_session_setup(temporal, store, an_agent("One")) as parlour:
        session_id = await parlour.session()
        sent = await parlour.post(session_id)
        await parlour.wait_for_completion(sent)
        before = await parlour.messages(session_id)
        for key in (None, "k-1", "k-1"):
            with pytest.raises(ExecutionEnded):
                await parlour.sessions.steer(parlour.execution(sent).ref, "steer!", key)

        assert await parlour.messages(session_id) == before
        assert await count_rows(store, parlour, STORED) == {}
        assert len(await parlour.executions(session_id)) == 1


@pytest.mark.parametrize("forgetful", [False, True], ids=["the worker", "the reconciler"])
async def test_without_a_session_the_next_execution_processes_all_messages(
    temporal: TemporalClient, store: PostgresSessions, *, forgetful: bool
) -> None:
    """8.3.2: where a guard forbids another step."""
    model = HeldModel("One", "Two")
    parlour = a_session_setup(temporal, store, an_agent(model=model).with_max_steps(1))
    async with parlour.worker(forgetful=forgetful):
        first = await start_execution(parlour)
        await model.begun.wait()
        ref = parlour.execution(first).ref
        said = [await parlour.sessions.steer(ref, f"steer {n}", f"k-{n}") for n in range(2)]
        model.go_on.set()
        await parlour.wait_for_completion(first)
        if forgetful:
            assert await parlour.reconciler.once() == Repairs(handed_over=1)
        steering = await store.steering(ref, "k-0")
        assert steering
        follower = steering.heard_by.execution_id
        await parlour.wait_for_other_completion(follower)

        assert [each.is_moved for each in said] == [False, False]
        assert await parlour.conversation(follower) == ["Hello", "One", "steer 0", "steer 1", "Two"]
        assert not await parlour.reconciler.once()


async def test_messages_that_a_subagent_did_not_process_are_sent_to_its_parent(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2"""
    model = HeldModel(
        calls(("spawn_subagent", {"subagent": "aide", "prompt": "Go"})), "Aide", "Boss", "Boss again", holds=2
    )
    registry = AgentSpecRegistry([AgentSpec("aide", "Does one thing", "You are an aide.")])
    agent = an_agent(model=model).with_capability(UseSubagents(registry))
    async with open_session_setup(temporal, store, agent) as parlour:
        sent = await parlour.post(await parlour.session())
        await model.begun.wait()
        (child,) = await parlour.execution(sent).subagents()
        steering = await parlour.sessions.steer(child.ref, "steer!", "k-1")
        await parlour.sessions.cancel(child.ref)
        await parlour.wait_for_completion(sent)

        assert not steering.is_moved
        moved = await store.steering(child.ref, "k-1")
        assert moved
        assert moved.heard_by.execution_id == sent.execution_id
        assert "steer!" in await parlour.conversation(sent)
        assert await count_rows(store, parlour, SAID) == {"steer!": 1}


@pytest.mark.parametrize("is_session", [True, False], ids=["in a session", "without a session"])
async def test_messages_around_the_end_are_processed_once_or_refused(
    temporal: TemporalClient, store: PostgresSessions, *, is_session: bool
) -> None:
    """8.3.2: from several processes with the same key, at random moments."""
    dice = Random(5)  # noqa: S311 -- no secret
    accepted, refused = set[str](), set[str]()
    async with open_session_setup(temporal, store, an_agent(*[says("Done")] * 80)) as parlour:

        async def send_messages(number: int) -> None:
            if is_session:
                execution_id = (await parlour.post(await parlour.session())).execution_id
            else:
                execution_id = await start_execution(parlour)
            await asyncio.sleep(dice.uniform(0, 0.15))
            ref = parlour.execution(execution_id).ref
            said = (parlour.sessions.steer(ref, f"steer {number}", f"k-{number}") for _ in range(3))
            outcomes = await asyncio.gather(*said, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, ExecutionEnded):
                    refused.add(f"steer {number}")
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    accepted.add(f"steer {number}")

        await asyncio.gather(*(send_messages(number) for number in range(8)))

        async def has_processed_all() -> bool:
            await parlour.reconciler.once()
            return set(await count_rows(store, parlour, SAID)) == accepted

        await eventually(has_processed_all)
        assert not accepted & refused
        assert set((await count_rows(store, parlour, SAID)).values()) <= {1}
        assert accepted


async def test_a_cancelled_execution_processes_nothing_and_nothing_is_lost(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.2"""
    model = HeldModel("One", "Two")
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        session_id = await parlour.session()
        sent = await parlour.post(session_id)
        await model.begun.wait()
        ref = parlour.execution(sent).ref
        await parlour.sessions.steer(ref, "steer!", "k-1")
        await parlour.sessions.cancel(ref, str(uuid4()))
        await parlour.wait_for_status(sent, ExecutionStatus.CANCELLED)
        steering = await store.steering(ref, "k-1")
        assert steering
        await parlour.wait_for_other_completion(steering.heard_by.execution_id)

        assert await count_rows(store, parlour, SAID) == {"steer!": 1}
