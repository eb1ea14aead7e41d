"""The bus gets the committed envelopes, with the numbers that they have in the table."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.sessions import OnBusy
from everstep.agent_domain.stream.bus import Chunk
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope
from everstep.agent_domain.stream.session_messages import input_received
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from everstep.store.sessions import PostgresSessions
from everstep.streams.memory_bus import MemoryBus
from everstep.streams.ordering import InOrder
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    a_ref,
    accepted,
    answer,
    answers,
    begin,
    new,
    reply,
    settled,
    stepped,
    telling,
    told,
)
from tests.everstep.store.test_sessions import a_session, beginning, begun, said


def news(*keys: str) -> list[EventRecord]:
    return [told(key, key=key, ratio=1.0) for key in keys]


class TestPushing:
    async def test_every_method_pushes_the_envelopes_that_it_stored(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        """Follows rule 7.1.1: each envelope once, whole and in order, whether or not the session is named."""
        session = uuid4()
        ref = replace(await accepted(store, session_id=session), session_id=None)
        with bus.listening(session) as listener:
            await store.begin_step(begin(ref, events=telling(news("a", "b"))))
            await store.record_reply(reply(ref, "?", a_call("c0"), needs=CallNeed.INPUT, events=news("c")))
            await store.resolve(ref, request_id(ref.execution_id, "c0"), Resolution("answer"), news("d"))
            await store.reserve_call(ref, "c0", 1, telling(news("e")))
            await store.record_call(answers(ref, answer("c0"), events=news("f")))
            begins = replace(reply(ref, number=2, events=news("g")), begins=begin(ref, 2))
            await store.record_reply(begins)
            await store.settle(settled(ref, ExecutionStatus.COMPLETED, events=news("h", "i")))

            pushed = listener.waiting()

        assert pushed == await store.envelopes(TENANT, session)
        assert [e.seq for e in pushed if isinstance(e, StoredEnvelope)] == list(range(1, 10))

    async def test_envelopes_stored_before_are_not_pushed_again(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref, events=telling(news("a", "b"))))
        await store.record_reply(reply(ref, "", a_call(), events=news("c")))
        with bus.listening(ref.stream_id) as listener:
            await store.begin_step(begin(ref, attempt=2, events=telling(news("a", "b"))))
            await store.record_reply(reply(ref, "", a_call(), events=news("c")))
            await store.reserve_call(ref, "c1", 1, telling(news("b", "d", "a")))
            await store.record_call(answers(ref, events=news("d")))
            await store.record_call(answers(ref, events=news("e")))

            assert listener.waiting() == (await store.envelopes(TENANT, ref.stream_id))[3:]

    async def test_envelopes_of_a_failed_transaction_are_not_pushed(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        ref = await accepted(store)
        with bus.listening(ref.stream_id) as listener:
            with pytest.raises(InvalidInput):
                await store.begin_step(begin(ref, events=telling([*news("a"), told("b", x=float("nan"))])))

            assert listener.waiting() == ()

    async def test_envelopes_without_a_subscriber_are_not_pushed(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        ref, other = await accepted(store), await accepted(store)
        with bus.listening(other.stream_id) as listener:
            await store.begin_step(begin(ref, events=telling(news("a"))))

            assert listener.waiting() == ()


async def test_envelopes_of_concurrent_writers_are_pushed_in_order(database: str, bus: MemoryBus) -> None:
    """Follows rule 7.1.1: although the server's responses overtake each other."""
    store = PostgresStore(create_engine(database), InOrder(bus, moment=60))
    session = uuid4()
    refs = [await accepted(store, session_id=session) for _ in range(10)]
    writes = [
        settled(ref, ExecutionStatus.RUNNING, str(n), events=news(f"{n}", f"{n}+"))
        for n in range(5)
        for ref in refs
    ]
    with bus.listening(session) as listener:
        await store.settle(settled(refs[0], ExecutionStatus.RUNNING, events=news("first")))
        await asyncio.gather(*map(store.settle, writes))

        assert listener.waiting() == await store.envelopes(TENANT, session)
    await store.engine.dispose()


class BrokenBus:
    """Has a subscriber, and fails to publish."""

    def wants(self, stream_id: UUID) -> bool:
        del stream_id
        return True

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        raise ConnectionResetError(stream_id, envelopes)

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        raise ConnectionResetError(stream_id, chunk)


async def test_a_failing_bus_fails_nothing_else(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """Follows rule 7.8.1: a reader finds the missed envelopes in the table."""
    store = PostgresStore(create_engine(database), BrokenBus())
    ref = a_ref()
    await store.accept(new(ref))
    await store.begin_step(begin(ref, events=telling(news("a"))))
    await store.settle(settled(ref, ExecutionStatus.COMPLETED, events=news("b")))

    assert [e.payload["key"] for e in await store.envelopes(TENANT, ref.stream_id)] == ["a", "b"]
    assert "cannot push the stored envelopes" in caplog.text
    await store.engine.dispose()


@pytest_asyncio.fixture
async def sessions(database: str, bus: MemoryBus) -> AsyncGenerator[PostgresSessions]:
    engine = create_engine(database)
    yield PostgresSessions(engine, bus)
    await engine.dispose()


class TestSessions:
    async def test_messages_of_a_session_are_pushed(self, sessions: PostgresSessions, bus: MemoryBus) -> None:
        """Follows rule 7.7.1: posted, steered, and left over for the next execution."""
        session = await a_session(sessions)
        with bus.listening(session) as listener:
            ref = await begun(sessions, session)
            await sessions.post(said(session, on_busy=OnBusy.ENQUEUE))
            await sessions.post(said(session, "Hurry", on_busy=OnBusy.STEER))
            await sessions.steer(ref, "k", user("More"), input_received("More", None))
            await stepped(sessions, ref)
            await sessions.settle(settled(ref, ExecutionStatus.COMPLETED, events=news("end")))
            await sessions.release(TENANT, session)

            pushed = listener.waiting()

        stored = await sessions.envelopes(TENANT, session)
        assert pushed == stored
        assert [e.type for e in stored].count("execution.queued") == 4

    async def test_a_message_that_creates_its_session_is_pushed(
        self, sessions: PostgresSessions, bus: MemoryBus
    ) -> None:
        made = uuid4()
        with bus.listening(made) as listener:
            message = beginning(made)
            await sessions.post(message)
            await sessions.post(message)

            assert listener.waiting() == await sessions.envelopes(TENANT, made)

    async def test_a_fork_is_pushed(self, sessions: PostgresSessions, bus: MemoryBus) -> None:
        session = await a_session(sessions)
        ref = await begun(sessions, session)
        await stepped(sessions, ref)
        await sessions.settle(settled(ref, ExecutionStatus.COMPLETED))
        before = len(await sessions.envelopes(TENANT, session))
        with bus.listening(session) as listener:
            await sessions.fork(ref, 0, ExecutionRef(uuid4(), TENANT, session), "Hi again")

            assert listener.waiting() == (await sessions.envelopes(TENANT, session))[before:]
