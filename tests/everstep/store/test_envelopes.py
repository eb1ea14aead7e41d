"""The contract of every store: envelopes, and content that cannot be stored.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import envelope_id, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import FrozenDict
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    AT,
    TENANT,
    TestClock,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    all_envelopes,
    an_event,
    events_with_keys,
    publishing,
    readable_fields,
    result_record,
)


class TestEnvelopes:
    async def test_their_range_is_known(self, store: ExecutionStore) -> None:
        """16.4.8: of this stream and tenant only."""
        session = uuid4()
        assert await store.envelope_range(TENANT, session) == (0, 0)
        ref = await accept_execution(store, session_id=session)
        await store.settle(
            a_settlement(ref, ExecutionStatus.RUNNING, events=[an_event("a", z=1), an_event("b")])
        )

        stored = await store.envelopes(TENANT, session)
        assert await store.envelope_range(TENANT, session) == (stored[0].seq, stored[-1].seq)
        assert stored[-1].seq == len(stored)
        assert await store.envelope_range("another", session) == (0, 0)

    async def test_they_are_numbered_in_their_session_from_1(self, store: ExecutionStore) -> None:
        """7.1.1: `seq` is a gapless integer per session from 1, the id a uuid."""
        session = uuid4()
        one, two = [await accept_execution(store, session_id=session) for _ in range(2)]
        await store.settle(
            a_settlement(one, ExecutionStatus.RUNNING, events=[an_event("a", z=1, a=2), an_event("b")])
        )
        await store.settle(
            a_settlement(two, ExecutionStatus.RUNNING, events=[EventRecord("a", "agent.step.started", {})])
        )

        stored = await store.envelopes(TENANT, session)

        assert [(e.stream_id, e.seq, e.type, e.execution_id) for e in stored] == [
            (session, 1, "agent.status", one.execution_id),
            (session, 2, "agent.status", one.execution_id),
            (session, 3, "agent.step.started", two.execution_id),
        ]
        assert [e.id for e in stored] == [
            envelope_id(one.execution_id, "a"),
            envelope_id(one.execution_id, "b"),
            envelope_id(two.execution_id, "a"),
        ]
        assert list(stored[0].payload.items()) == [("z", 1), ("a", 2)]

    async def test_an_execution_without_session_has_its_own_stream(self, store: ExecutionStore) -> None:
        """7.1.1: then `seq` is counted per execution."""
        refs = [await accept_execution(store) for _ in range(2)]
        for ref in refs:
            await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, events=events_with_keys("a")))

        assert [[e.seq for e in await store.envelopes(TENANT, ref.execution_id)] for ref in refs] == [
            [1],
            [1],
        ]

    async def test_a_reference_without_its_session_publishes_in_the_session(
        self, store: ExecutionStore
    ) -> None:
        session = uuid4()
        ref = replace(await accept_execution(store, session_id=session), session_id=None)

        await store.begin_step(a_step_start(ref, events=publishing(events_with_keys("a"))))
        await store.record_reply(
            a_reply(ref, "?", a_call("c0"), needs=CallNeed.INPUT, events=events_with_keys("b"))
        )
        await store.resolve(
            ref, request_id(ref.execution_id, "c0"), Resolution("answer"), events_with_keys("c")
        )
        await store.reserve_call(ref, "c0", 1, publishing(events_with_keys("d")))
        await store.record_call(result_record(ref, a_result("c0"), events=events_with_keys("e")))
        await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=events_with_keys("f")))

        assert [e.payload["key"] for e in await store.envelopes(TENANT, session)] == list("abcdef")
        assert (await store.executions(TENANT)).rows[0].ref.session_id == session

    async def test_a_stored_envelope_takes_no_new_number(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "1", events=events_with_keys("a", "b")))
        await store.settle(
            a_settlement(ref, ExecutionStatus.RUNNING, "2", events=events_with_keys("b", "c", "a", "d", "c"))
        )
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "3", events=events_with_keys("a")))
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "4", events=events_with_keys("e")))

        assert [(e.seq, e.payload["key"]) for e in await all_envelopes(store, ref)] == list(
            enumerate("abcde", 1)
        )

    async def test_numbers_have_no_gaps_with_concurrent_writers(self, store: ExecutionStore) -> None:
        """7.1.1: gapless, and in the order of time."""
        session = uuid4()
        refs = [await accept_execution(store, session_id=session) for _ in range(10)]

        async def write(writer: int) -> None:
            ref = refs[writer % len(refs)]
            for i in range(4):
                key = f"{writer}/{i}"
                # The second of each pair fails in its own transaction, and its numbers are used again.
                bad = [an_event("bad", value=float("nan"))] if i % 2 else []
                settlement = a_settlement(
                    ref, ExecutionStatus.RUNNING, key, events=[*events_with_keys(key, f"{key}+"), *bad]
                )
                try:
                    await store.settle(settlement)
                except InvalidInput:
                    assert bad

        await asyncio.gather(*(write(writer) for writer in range(50)))

        stored = await store.envelopes(TENANT, session)
        assert [e.seq for e in stored] == list(range(1, 201))
        keys = [e.payload["key"] for e in stored]
        assert len(set(keys)) == 200
        # Envelopes of one transaction are consecutive.
        assert all(keys[i + 1] == f"{keys[i]}+" for i in range(0, 200, 2))
        assert all(a.created_at < b.created_at for a, b in pairwise(stored))

    async def test_time_never_goes_back(self, store: ExecutionStore, clock: TestClock) -> None:
        ref = await accept_execution(store)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "1", events=events_with_keys("a")))
        if isinstance(store, PostgresStore):
            async with store.engine.begin() as connection:
                moved = "SET {} = {} + interval '1 hour'"
                await connection.execute(text(f"UPDATE agent_streams {moved.format('last_at', 'last_at')}"))
                await connection.execute(
                    text(f"UPDATE agent_envelopes {moved.format('created_at', 'created_at')}")
                )
        clock.at -= timedelta(hours=1)

        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "2", events=events_with_keys("b", "c")))

        first, *others = [e.created_at for e in await all_envelopes(store, ref)]
        assert others == [first + timedelta(microseconds=1), first + timedelta(microseconds=2)]

    async def test_a_reader_continues_from_its_position(self, store: ExecutionStore) -> None:
        """7.8.1: later stored envelopes in order, without gap or duplicate."""
        ref = await accept_execution(store)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, events=events_with_keys(*"abcdefg")))
        stored = await all_envelopes(store, ref)

        assert await store.envelopes(TENANT, ref.stream_id, after=3) == stored[3:]
        assert await store.envelopes(TENANT, ref.stream_id, after=3, limit=2) == stored[3:5]
        assert await store.envelopes(TENANT, ref.stream_id, after=7) == ()
        assert await store.envelopes(TENANT, ref.stream_id, after=-5) == stored
        assert await store.envelopes(TENANT, uuid4()) == ()


SAYS_NUL = "a\x00b"


HALF_A_PAIR = "a\ud800b"


def unchecked_map(**entries: Any) -> FrozenDict:
    """A map that bypassed the validation."""
    return FrozenDict(entries)


class TestInvalidContent:
    @pytest.mark.parametrize(
        ("value", "complaint"),
        [
            (SAYS_NUL, "contains a NUL character"),
            (HALF_A_PAIR, "half of a surrogate pair"),
            (float("nan"), "is nan, which JSON cannot hold"),
            (float("inf"), "is inf, which JSON cannot hold"),
            (AT, "is of type datetime"),
            ({SAYS_NUL: 1}, "contains a NUL character"),
        ],
        ids=["NUL", "surrogate", "nan", "inf", "object", "key with NUL"],
    )
    async def test_a_body_that_is_not_json_is_refused_and_nothing_is_written(
        self, store: ExecutionStore, value: Any, complaint: str
    ) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "?", a_call("c0"), needs=CallNeed.INPUT))
        bad = unchecked_map(a=[value])
        asked = request_id(ref.execution_id, "c0")
        event = [EventRecord("bad", "agent.status", bad)]
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.accept(a_new_execution(a_ref(), metadata=bad)),
            lambda: store.accept(a_new_execution(a_ref(), plan=bad)),
            lambda: store.begin_step(a_step_start(ref, 2, outcome=bad)),
            lambda: store.begin_step(a_step_start(ref, 2, events=publishing(event))),
            lambda: store.record_reply(replace(a_reply(ref, number=2), response=bad)),
            lambda: store.record_reply(
                a_reply(ref, "", a_call("c9"), number=2, needs=CallNeed.INPUT, request=bad)
            ),
            lambda: store.record_reply(a_reply(ref, number=2, events=event)),
            lambda: store.reserve_call(ref, "c0", 1, publishing(event)),
            lambda: store.record_call(result_record(ref, a_result("c0", bad, text="bad"))),
            lambda: store.record_call(result_record(ref, a_result("c0"), metadata=bad)),
            lambda: store.record_call(result_record(ref, a_result("c0"), events=event)),
            lambda: store.settle(a_settlement(ref, ExecutionStatus.FAILED, output=bad)),
            lambda: store.settle(a_settlement(ref, ExecutionStatus.FAILED, outcome=bad)),
            lambda: store.settle(a_settlement(ref, ExecutionStatus.FAILED, snapshot=bad)),
            lambda: store.keep_snapshot(ref, 1, bad),
            lambda: store.settle(a_settlement(ref, ExecutionStatus.FAILED, events=event)),
            lambda: store.resolve(ref, asked, Resolution("answer", bad)),
            lambda: store.resolve(ref, asked, Resolution("answer"), event),
        ]
        before = await readable_fields(store, ref)

        for attempt in attempts:
            with pytest.raises(InvalidInput, match=complaint):
                await attempt()

        assert await readable_fields(store, ref) == before

    @pytest.mark.parametrize("bad", [SAYS_NUL, HALF_A_PAIR], ids=["NUL", "surrogate"])
    async def test_an_invalid_text_is_refused_and_nothing_is_written(
        self, store: ExecutionStore, bad: str
    ) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call("c0")))
        error = StepError(bad)
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.note_partial(ref, 1, 1, bad),
            lambda: store.record_call(result_record(ref, a_result("c0", None, text=bad), messages=())),
            lambda: store.record_call(result_record(ref, a_result("c0", error=error))),
            lambda: store.record_reply(replace(a_reply(ref, number=2), errors=[error])),
            lambda: store.settle(a_settlement(ref, ExecutionStatus.FAILED, error_message=bad)),
            lambda: store.settle(
                a_settlement(ref, ExecutionStatus.FAILED, step=StepFacts(2), errors=[error])
            ),
        ]
        before = await readable_fields(store, ref)

        for attempt in attempts:
            with pytest.raises(InvalidInput):
                await attempt()

        assert await readable_fields(store, ref) == before
