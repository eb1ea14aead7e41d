"""The bus gets the committed envelopes, with the numbers that they have in the table."""

import asyncio
import json
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
from everstep.agent_domain.stream.bus import TextChunk
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope
from everstep.agent_domain.stream.session_messages import input_received_announcement
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from everstep.store.sessions import PostgresSessions
from everstep.streams.memory_bus import MemoryBus
from everstep.streams.ordering import OrderedBus
from everstep.streams.publisher import DirectBus
from tests.broadcast_gateway.gateways import SECRET, Table, open_gateway, open_viewer
from tests.engines import open_engine
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    publishing,
    result_record,
    run_step,
)
from tests.everstep.store.test_sessions import a_first_message, a_message, new_session_id, start_execution


def pushed_events(*keys: str) -> list[EventRecord]:
    return [an_event(key, key=key, ratio=1.0) for key in keys]


class TestPushing:
    async def test_every_method_pushes_the_envelopes_that_it_stored(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        """Follows rule 7.1.1: each envelope once, whole and in order, whether or not the session is named."""
        session = uuid4()
        ref = replace(await accept_execution(store, session_id=session), session_id=None)
        with bus.open_listener(session) as listener:
            await store.begin_step(a_step_start(ref, events=publishing(pushed_events("a", "b"))))
            await store.record_reply(
                a_reply(ref, "?", a_call("c0"), needs=CallNeed.INPUT, events=pushed_events("c"))
            )
            await store.resolve(
                ref, request_id(ref.execution_id, "c0"), Resolution("answer"), pushed_events("d")
            )
            await store.reserve_call(ref, "c0", 1, publishing(pushed_events("e")))
            await store.record_call(result_record(ref, a_result("c0"), events=pushed_events("f")))
            begins = replace(a_reply(ref, number=2, events=pushed_events("g")), begins=a_step_start(ref, 2))
            await store.record_reply(begins)
            await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=pushed_events("h", "i")))

            pushed = listener.take_frames()

        assert pushed == await store.envelopes(TENANT, session)
        assert [e.seq for e in pushed if isinstance(e, StoredEnvelope)] == list(range(1, 10))

    async def test_envelopes_stored_before_are_not_pushed_again(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref, events=publishing(pushed_events("a", "b"))))
        await store.record_reply(a_reply(ref, "", a_call(), events=pushed_events("c")))
        with bus.open_listener(ref.stream_id) as listener:
            await store.begin_step(a_step_start(ref, attempt=2, events=publishing(pushed_events("a", "b"))))
            await store.record_reply(a_reply(ref, "", a_call(), events=pushed_events("c")))
            await store.reserve_call(ref, "c1", 1, publishing(pushed_events("b", "d", "a")))
            await store.record_call(result_record(ref, events=pushed_events("d")))
            await store.record_call(result_record(ref, events=pushed_events("e")))

            assert listener.take_frames() == (await store.envelopes(TENANT, ref.stream_id))[3:]

    async def test_envelopes_of_a_failed_transaction_are_not_pushed(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        ref = await accept_execution(store)
        with bus.open_listener(ref.stream_id) as listener:
            with pytest.raises(InvalidInput):
                await store.begin_step(
                    a_step_start(ref, events=publishing([*pushed_events("a"), an_event("b", x=float("nan"))]))
                )

            assert listener.take_frames() == ()

    async def test_envelopes_without_a_subscriber_are_not_pushed(
        self, store: ExecutionStore, bus: MemoryBus
    ) -> None:
        ref, other = await accept_execution(store), await accept_execution(store)
        with bus.open_listener(other.stream_id) as listener:
            await store.begin_step(a_step_start(ref, events=publishing(pushed_events("a"))))

            assert listener.take_frames() == ()


async def test_envelopes_of_concurrent_writers_are_pushed_in_order(database: str, bus: MemoryBus) -> None:
    """Follows rule 7.1.1: although the server's responses overtake each other."""
    store = PostgresStore(create_engine(database), OrderedBus(bus, wait_seconds=60))
    session = uuid4()
    refs = [await accept_execution(store, session_id=session) for _ in range(10)]
    writes = [
        a_settlement(ref, ExecutionStatus.RUNNING, str(n), events=pushed_events(f"{n}", f"{n}+"))
        for n in range(5)
        for ref in refs
    ]
    with bus.open_listener(session) as listener:
        await store.settle(a_settlement(refs[0], ExecutionStatus.RUNNING, events=pushed_events("first")))
        await asyncio.gather(*map(store.settle, writes))

        assert listener.take_frames() == await store.envelopes(TENANT, session)
    await store.engine.dispose()


class BrokenBus:
    """Has a subscriber, and fails to publish."""

    def has_subscribers(self, stream_id: UUID) -> bool:
        del stream_id
        return True

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        raise ConnectionResetError(stream_id, envelopes)

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        raise ConnectionResetError(stream_id, chunk)


async def test_a_failing_bus_fails_nothing_else(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """Follows rule 7.8.1: a reader finds the missed envelopes in the table."""
    store = PostgresStore(create_engine(database), BrokenBus())
    ref = a_ref()
    await store.accept(a_new_execution(ref))
    await store.begin_step(a_step_start(ref, events=publishing(pushed_events("a"))))
    await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=pushed_events("b")))

    assert [e.payload["key"] for e in await store.envelopes(TENANT, ref.stream_id)] == ["a", "b"]
    assert "cannot push the stored envelopes" in caplog.text
    await store.engine.dispose()


class LinkedGateway:
    """The directory of one gateway."""

    def __init__(self, port: int) -> None:
        self.found = [(uuid4(), f"ws://127.0.0.1:{port}")]

    async def active_gateways(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        del within_seconds
        return Table.epoch, self.found

    async def announce(self, gateway_id: UUID, url: str) -> None:
        raise NotImplementedError

    async def withdraw(self, gateway_id: UUID) -> None:
        raise NotImplementedError


async def test_an_envelope_is_encoded_once_from_its_record_to_the_frame_of_a_viewer(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follows rule 7.1.1: its writer encodes it for the table, and pushes the same text."""
    session, encoded, encode = uuid4(), list[str](), json.JSONEncoder.encode

    def count(encoder: json.JSONEncoder, value: object) -> str:
        encoded.append(encode(encoder, value))
        return encoded[-1]

    async with open_gateway(Table(streams={session: []})) as running, open_viewer(running) as viewer:
        bus = DirectBus(LinkedGateway(running.link_port), SECRET, refresh=0.01, first_pause=0.01)
        store = PostgresStore(create_engine(database), bus)
        ref = await accept_execution(store, session_id=session)
        await viewer.sub(f"agent.session.{session}")
        bus.start()
        async with asyncio.timeout(10):
            while not bus.has_subscribers(session):  # noqa: ASYNC110 -- there is no event for it
                await asyncio.sleep(0.001)
        with monkeypatch.context() as patch:
            patch.setattr(json.JSONEncoder, "encode", count)
            event = EventRecord("news", "agent.step.started", {"text": "ö mark"})
            await store.begin_step(a_step_start(ref, events=publishing([event])))
            frame = await viewer.next()
        await bus.aclose()
        (stored,) = await store.envelopes(TENANT, session)
        await store.engine.dispose()

    assert frame == Envelope.placed(stored).to_dict()
    assert [text for text in encoded if "ö mark" in text] == [stored.payload_json]


@pytest_asyncio.fixture
async def sessions(database: str, bus: MemoryBus) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine, bus)


class TestSessions:
    async def test_messages_of_a_session_are_pushed(self, sessions: PostgresSessions, bus: MemoryBus) -> None:
        """Follows rule 7.7.1: posted, steered, and left over for the next execution."""
        session = await new_session_id(sessions)
        with bus.open_listener(session) as listener:
            ref = await start_execution(sessions, session)
            await sessions.post(a_message(session, on_busy=OnBusy.ENQUEUE))
            await sessions.post(a_message(session, "Hurry", on_busy=OnBusy.STEER))
            await sessions.steer(ref, "k", user("More"), input_received_announcement("More", None))
            await run_step(sessions, ref)
            await sessions.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=pushed_events("end")))
            await sessions.release(TENANT, session)

            pushed = listener.take_frames()

        stored = await sessions.envelopes(TENANT, session)
        assert pushed == stored
        assert [e.type for e in stored].count("execution.queued") == 4

    async def test_a_message_that_creates_its_session_is_pushed(
        self, sessions: PostgresSessions, bus: MemoryBus
    ) -> None:
        made = uuid4()
        with bus.open_listener(made) as listener:
            message = a_first_message(made)
            await sessions.post(message)
            await sessions.post(message)

            assert listener.take_frames() == await sessions.envelopes(TENANT, made)

    async def test_a_fork_is_pushed(self, sessions: PostgresSessions, bus: MemoryBus) -> None:
        session = await new_session_id(sessions)
        ref = await start_execution(sessions, session)
        await run_step(sessions, ref)
        await sessions.settle(a_settlement(ref, ExecutionStatus.COMPLETED))
        before = len(await sessions.envelopes(TENANT, session))
        with bus.open_listener(session) as listener:
            await sessions.fork(ref, 0, ExecutionRef(uuid4(), TENANT, session), "Hi again")

            assert listener.take_frames() == (await sessions.envelopes(TENANT, session))[before:]
