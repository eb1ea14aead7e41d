"""The user and the request of executions that begin from others of their session, or without one."""

from collections.abc import AsyncGenerator

import pytest_asyncio

from everstep.agent_domain.ids import follow_up_id
from everstep.agent_domain.loop.run_context import RunContext, request_data
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.sessions import OnBusy
from everstep.agent_domain.stream.session_messages import Context
from everstep.agent_domain.values import frozen_map
from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.everstep.store.session_words import (
    ANN,
    a_message,
    end_execution,
    finish_execution,
    new_reference,
    new_session_id,
    run_three_steps,
)
from tests.everstep.store.store_words import TENANT, a_step_start, accept_execution, run_step

GOLD = frozen_map({"plan": "gold"})


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine)


async def test_a_message_is_about_its_own_subject_or_its_sessions(store: PostgresSessions) -> None:
    """9.9.3: its metadata are its own."""
    session_id = await new_session_id(store, context=Context("order", "7"))
    own = await store.post(a_message(session_id, metadata=GOLD, context=Context("ticket", "8")))
    sessions = await store.post(a_message(session_id))

    expected = RunContext(ANN, TENANT, session_id, "ticket", "8", GOLD)
    assert (await store.material(own.execution)).run == expected
    assert own.launch
    assert own.launch.run == expected
    assert (await store.material(sessions.execution)).run == RunContext(ANN, TENANT, session_id, "order", "7")


async def test_a_follow_up_has_the_request_of_the_execution_it_comes_from(store: PostgresSessions) -> None:
    """9.9.3: in a session, where the message that was too late is queued."""
    session_id = await new_session_id(store)
    posted = await store.post(a_message(session_id, metadata=GOLD, context=Context("order", "7")))
    await store.begin_step(a_step_start(posted.execution))
    late = a_message(session_id, "Hurry", OnBusy.STEER, metadata=frozen_map({"plan": "other"}))
    await store.post(late)
    await finish_execution(store, posted.execution)
    ref = await store.release(TENANT, session_id)

    assert ref
    assert ref.execution_id == follow_up_id(posted.execution.execution_id, str(late.id))
    expected = RunContext(ANN, TENANT, session_id, "order", "7", GOLD)
    assert (await store.material(ref)).run == expected
    launch = await store.launch(ref)
    assert launch
    assert launch.run == expected
    launches = (await store.repair_candidates(launch.task_queue or "", 0.0)).launches
    assert [each.run for each in launches if each.ref == ref] == [expected]


async def test_so_has_one_without_a_session(store: PostgresSessions) -> None:
    """9.9.3"""
    ref = await accept_execution(store, user_id=ANN, request=request_data(GOLD))
    await store.begin_step(a_step_start(ref))
    await store.steer(ref, "late", user("Hurry"))
    await run_step(store, ref, 1, "Hi")
    await end_execution(store, ref)

    handover = await store.hand_over(ref)

    assert handover
    assert handover.launch
    assert (await store.material(handover.launch.ref)).run == RunContext(ANN, TENANT, request_metadata=GOLD)


async def test_a_fork_keeps_the_request_of_its_origin(store: PostgresSessions) -> None:
    """9.9.3"""
    session_id = await new_session_id(store, context=Context("order", "7"))
    ref = await run_three_steps(store, session_id)
    for step, content in ((2, None), (0, "Something else")):
        fork = new_reference(ref)
        await store.fork(ref, step, fork, content)
        assert (await store.material(fork)).run == RunContext(ANN, TENANT, session_id, "order", "7")
        await end_execution(store, fork)


async def test_an_execution_of_an_older_release_has_no_request(store: PostgresSessions) -> None:
    """9.9.3: its row has none, and its user is known."""
    ref = await accept_execution(store, user_id=ANN)

    assert (await store.material(ref)).run == RunContext(ANN, TENANT)
