"""The contract of every store: tool calls, their results, and questions.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.storage.calls import Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import RequestState, Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    CANCELLED,
    OTHERS,
    TENANT,
    a_call,
    a_failure,
    a_reply,
    a_result,
    a_step_start,
    accept_execution,
    end_execution,
    envelope_keys,
    events_with_keys,
    publishing,
    result_record,
    run_step,
    texts,
)


class TestReservingACall:
    @pytest.fixture
    async def ref(self, store: ExecutionStore) -> ExecutionRef:
        ref = await accept_execution(store, metadata=frozen_map({"topic": "tea"}))
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call("c0"), a_call("c1", path="x")))
        return ref

    async def test_it_returns_the_call_to_run(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        assert await store.reserve_call(ref, "c1", 1) == Reservation(
            a_call("c1", path="x"),
            1,
            1,
            frozen_map({"topic": "tea"}),
            earlier=(a_call("c0"),),
            run=RunContext(tenant_id=TENANT),
        )

    async def test_it_returns_how_much_viewers_may_see(self, store: ExecutionStore) -> None:
        """7.5: as the execution's plan has it."""
        broadcast = frozen_map({"include_tool_args": True, "max_arg_length": 7})
        ref = await accept_execution(store, plan=frozen_map({"agent": "helper", "broadcast": broadcast}))
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call()))

        assert (await store.preview_call(ref, "c1")).broadcast == broadcast
        assert (await store.reserve_call(ref, "c1", 1)).broadcast == broadcast
        assert (await store.material(ref)).broadcast == broadcast

    async def test_a_preview_returns_the_same_and_reserves_nothing(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        """1.1.3: for tools that are safe to run twice."""
        previewed = [await store.preview_call(ref, "c1") for _ in range(2)]

        assert previewed == [await store.reserve_call(ref, "c1", 1)] * 2
        record = await store.record_call(result_record(ref, a_result("c1"), index=1))
        assert (await store.preview_call(ref, "c1")).recorded == record
        for unknown in (replace(ref, tenant_id=OTHERS), await accept_execution(store)):
            with pytest.raises(NotFound, match="There is no call c1"):
                await store.preview_call(unknown, "c1")

    async def test_a_reservation_without_a_result_leaves_the_effect_unknown(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        """1.1.3: an activity that began and did not report is retried, and knows that it began before."""
        first = await store.reserve_call(ref, "c1", 1)
        # A local activity counts its attempts from 1 again when its worker is lost.
        second = await store.reserve_call(ref, "c1", 1)
        third = await store.reserve_call(ref, "c1", 2)

        assert [each.is_uncertain for each in (first, second, third)] == [False, True, True]
        call = (await store.steps(ref))[0].calls[1]
        assert (call.state, call.attempts) == ("reserved", 3)

    async def test_attempts_that_were_lost_before_the_reservation_count(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        reserved = await store.reserve_call(ref, "c1", 4)

        assert not reserved.is_uncertain
        assert (await store.steps(ref))[0].calls[1].attempts == 4

    async def test_a_result_is_returned_and_nothing_is_reserved(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        await store.reserve_call(ref, "c1", 1)
        record = a_result("c1", {"z": 1, "a": [None, 2.5]})
        await store.record_call(result_record(ref, record, index=1))

        reserved = await store.reserve_call(ref, "c1", 2, publishing(events_with_keys("started")))

        assert reserved.recorded
        assert reserved.recorded == record
        assert list(reserved.recorded.result) == ["z", "a"]
        assert not reserved.is_uncertain
        assert (await store.steps(ref))[0].calls[1].attempts == 1
        assert await envelope_keys(store, ref) == []

    async def test_of_concurrent_attempts_exactly_one_is_certain(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        reserved = await asyncio.gather(*(store.reserve_call(ref, "c1", i) for i in range(1, 11)))

        assert [each.is_uncertain for each in reserved].count(False) == 1

    async def test_viewers_are_notified_once(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        def start_events(reservation: Reservation) -> Sequence[EventRecord]:
            return events_with_keys(f"{reservation.call.id} started")

        for attempt in (1, 2):
            await store.reserve_call(ref, "c1", attempt, start_events)

        assert await envelope_keys(store, ref) == ["c1 started"]

    async def test_nothing_is_reserved_if_the_envelopes_cannot_be_built(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        def raising(_: Reservation) -> Sequence[EventRecord]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.reserve_call(ref, "c1", 1, raising)

        assert not (await store.reserve_call(ref, "c1", 1)).is_uncertain

    async def test_an_unknown_call_cannot_be_reserved(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        with pytest.raises(NotFound, match="There is no call c9"):
            await store.reserve_call(ref, "c9", 1)

    async def test_a_call_is_found_in_its_own_execution_only(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        another = await accept_execution(store)

        with pytest.raises(NotFound, match="There is no call c1"):
            await store.reserve_call(another, "c1", 1)

    async def test_after_the_end_no_call_runs(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        """8.2.1: cancelling abandons the current step."""
        await end_execution(store, ref, ExecutionStatus.CANCELLED)

        reserved = await store.reserve_call(ref, "c1", 1)

        assert reserved.recorded
        assert reserved.recorded.text == CANCELLED


class TestRecordingACall:
    async def create_calls(self, store: ExecutionStore, *ids: str, **fields: Any) -> ExecutionRef:
        ref = await accept_execution(store, **fields)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", *map(a_call, ids)))
        for call_id in ids:
            await store.reserve_call(ref, call_id, 1)
        return ref

    @pytest.mark.parametrize(
        "record",
        [
            a_result("c1", "found"),
            a_result("c1", None, text="null"),
            a_result("c1", {"z": [1, 2.5, True, None, "ä"], "a": {}}, text="a map"),
            a_result("c1", 1e22, text="1e22"),
            a_result("c1", ""),
            a_failure("c1"),
            a_result(
                "c1", None, error=StepError("late", ErrorType.TIMEOUT), text="Error: late", success=False
            ),
            a_result("c1", None, text="Denied by user", success=False),
        ],
        ids=lambda record: record.text or "empty",
    )
    async def test_a_result_is_stored_without_loss(self, store: ExecutionStore, record: Any) -> None:
        ref = await self.create_calls(store, "c1")

        assert await store.record_call(result_record(ref, record)) == record

        again = await store.record_call(result_record(ref, a_result("c1", "another")))
        assert again == record
        assert repr(again.result) == repr(record.result)
        assert (await store.steps(ref))[0].calls[0].record == record

    async def test_there_is_exactly_one_result(self, store: ExecutionStore) -> None:
        """1.1.3: each call has exactly one recorded result."""
        ref = await self.create_calls(store, "c1")
        first = result_record(
            ref,
            a_result("c1", "first"),
            metadata=frozen_map({"by": "first"}),
            events=events_with_keys("done"),
        )
        await store.record_call(first)

        late = result_record(
            ref,
            a_result("c1", "late"),
            metadata=frozen_map({"by": "late"}),
            events=events_with_keys("done", "late"),
        )
        assert await store.record_call(late) == first.record

        assert texts(await store.transcript(ref)) == ["Hello", "Look", "first"]
        assert (await store.material(ref)).metadata == {"by": "first"}
        assert await envelope_keys(store, ref) == ["done"]

    async def test_a_call_without_a_reservation_may_be_answered(self, store: ExecutionStore) -> None:
        """1.1.3: its result names the attempt."""
        ref = await accept_execution(store)
        await store.record_reply(a_reply(ref, "Look", a_call("c1")))

        await store.record_call(replace(result_record(ref), attempt=2))

        call = (await store.steps(ref))[0].calls[0]
        assert (call.state, call.attempts, call.record) == ("done", 2, a_result())

    async def test_of_concurrent_results_one_wins_and_all_see_it(self, store: ExecutionStore) -> None:
        """1.1.3: each call has exactly one recorded result."""
        ref = await self.create_calls(store, "c1")
        given = [
            result_record(
                ref,
                a_result("c1", f"result {i}"),
                metadata=frozen_map({f"key {i}": i}),
                events=events_with_keys(f"done {i}"),
            )
            for i in range(10)
        ]

        seen = await asyncio.gather(*(store.record_call(each) for each in given))

        assert {record.text for record in seen} == {seen[0].text}
        winner = next(i for i in range(10) if given[i].record == seen[0])
        assert texts(await store.transcript(ref)) == ["Hello", "Look", f"result {winner}"]
        assert (await store.material(ref)).metadata == {f"key {winner}": winner}
        assert await envelope_keys(store, ref) == [f"done {winner}"]

    async def test_results_are_in_the_order_of_the_calls(self, store: ExecutionStore) -> None:
        """5.4.1: not in the order in which they were completed."""
        ref = await self.create_calls(store, *(f"c{i}" for i in range(12)))

        for i in (11, 3, 0, 7, 1, 10, 2, 5, 4, 6, 9, 8):
            await store.record_call(result_record(ref, a_result(f"c{i}", f"result {i}"), index=i))
        await run_step(store, ref, 2, "Done")

        expected = ["Hello", "Look", *(f"result {i}" for i in range(12)), "Done"]
        assert texts(await store.transcript(ref)) == expected

    async def test_a_result_may_take_several_messages(self, store: ExecutionStore) -> None:
        """12.2: the decision, and the observation."""
        ref = await self.create_calls(store, "c0", "c1")
        for index in (1, 0):
            said = (assistant(f"Action {index}"), user(f"Observation {index}"))
            await store.record_call(result_record(ref, a_result(f"c{index}"), index=index, messages=said))

        assert texts(await store.transcript(ref))[2:] == [
            "Action 0",
            "Observation 0",
            "Action 1",
            "Observation 1",
        ]

    async def test_metadata_is_merged_by_key(self, store: ExecutionStore) -> None:
        """9.4.2: stored after the call; a new key comes last."""
        ref = await self.create_calls(store, "c0", "c1", metadata=frozen_map({"zeta": 1, "kept": {"a": 1}}))

        await store.record_call(
            result_record(ref, a_result("c0"), metadata=frozen_map({"zeta": 2, "new": [3]}))
        )
        await store.record_call(result_record(ref, a_result("c1"), index=1))

        metadata = (await store.material(ref)).metadata
        assert list(metadata.items()) == [("zeta", 2), ("kept", {"a": 1}), ("new", [3])]
        row = await store.execution(ref)
        assert row
        assert row.metadata == metadata

    async def test_no_key_is_lost_when_many_calls_write_concurrently(self, store: ExecutionStore) -> None:
        ids = [f"c{i}" for i in range(20)]
        ref = await self.create_calls(store, *ids)

        await asyncio.gather(
            *(
                store.record_call(
                    result_record(ref, a_result(call_id), index=i, metadata=frozen_map({call_id: i}))
                )
                for i, call_id in enumerate(ids)
            )
        )

        assert (await store.material(ref)).metadata == {call_id: i for i, call_id in enumerate(ids)}

    async def test_an_unknown_call_has_no_result(self, store: ExecutionStore) -> None:
        ref = await self.create_calls(store, "c1")

        with pytest.raises(NotFound, match="There is no call c9"):
            await store.record_call(result_record(ref, a_result("c9")))
        with pytest.raises(NotFound, match="There is no call c9"):
            await store.record_call(result_record(ref, a_result("c9"), metadata=frozen_map({"a": 1})))

        assert (await store.material(ref)).metadata == {}

    async def test_a_result_closes_the_question(self, store: ExecutionStore) -> None:
        """8.5.5: after a timeout the call fails, and its question accepts no answer."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "?", a_call("c1"), needs=CallNeed.INPUT))
        asked = request_id(ref.execution_id, "c1")

        await store.record_call(result_record(ref, a_failure("c1")))

        assert await store.open_requests(ref) == ()
        assert not await store.resolve(ref, asked, Resolution("answer", "late"), events_with_keys("answered"))
        row = await store.request(ref, asked)
        assert row
        assert (row.state, row.resolution) == (RequestState.RESOLVED, None)
        assert await envelope_keys(store, ref) == []


class TestQuestions:
    async def create_questions(
        self, store: ExecutionStore, *ids: str, need: CallNeed = CallNeed.INPUT, session: UUID | None = None
    ) -> ExecutionRef:
        ref = await accept_execution(store, session_id=session)
        await store.begin_step(a_step_start(ref))
        calls = [a_call(call_id, "user_input", prompt="Tea?", choices=["yes", "no"]) for call_id in ids]
        question = frozen_map({"prompt": "Tea?", "choices": ["yes", "no"]})
        await store.record_reply(a_reply(ref, "?", *calls, needs=need, request=question))
        return ref

    @pytest.mark.parametrize("need", [CallNeed.INPUT, CallNeed.APPROVAL])
    async def test_a_call_that_needs_an_answer_asks_for_it(
        self, store: ExecutionStore, need: CallNeed
    ) -> None:
        ref = await self.create_questions(store, "c1", need=need, session=uuid4())

        (row,) = await store.open_requests(ref)

        assert row.id == request_id(ref.execution_id, "c1")
        assert (row.ref, row.call_id, row.kind, row.state) == (ref, "c1", need, RequestState.OPEN)
        assert (row.tool, row.args) == ("user_input", {"prompt": "Tea?", "choices": ["yes", "no"]})
        assert row.args_digest == "digest of c1"
        assert row.request == {"prompt": "Tea?", "choices": ["yes", "no"]}
        assert row.resolution is None
        assert await store.request(ref, row.id) == row

    @pytest.mark.parametrize("need", [CallNeed.RUN, CallNeed.SUBAGENT])
    async def test_other_calls_ask_no_question(self, store: ExecutionStore, need: CallNeed) -> None:
        assert await store.open_requests(await self.create_questions(store, "c1", need=need)) == ()

    async def test_questions_are_answered_in_the_order_of_the_calls(self, store: ExecutionStore) -> None:
        """8.5.3: an answer is for the oldest question."""
        ref = await self.create_questions(store, "c9", "c1", "c5")

        assert [row.call_id for row in await store.open_requests(ref)] == ["c9", "c1", "c5"]

    async def test_an_answer_is_stored_and_reaches_the_call(self, store: ExecutionStore) -> None:
        ref = await self.create_questions(store, "c1")
        resolution = Resolution("edit", {"z": 1, "a": [2]}, "because")
        asked = request_id(ref.execution_id, "c1")

        assert await store.resolve(ref, asked, resolution, events_with_keys("answered"))

        assert await store.open_requests(ref) == ()
        row = await store.request(ref, asked)
        assert row
        assert (row.state, row.resolution) == (RequestState.RESOLVED, resolution)
        assert (await store.reserve_call(ref, "c1", 1)).resolution == resolution
        assert await envelope_keys(store, ref) == ["answered"]

    async def test_a_question_is_answered_once(self, store: ExecutionStore) -> None:
        """8.6.3: an approval is single use."""
        ref = await self.create_questions(store, "c1")
        asked = request_id(ref.execution_id, "c1")

        assert await store.resolve(ref, asked, Resolution("approve"), events_with_keys("first"))
        assert not await store.resolve(ref, asked, Resolution("deny"), events_with_keys("second"))

        row = await store.request(ref, asked)
        assert row
        assert row.resolution == Resolution("approve")
        assert await envelope_keys(store, ref) == ["first"]

    async def test_of_concurrent_answers_one_counts(self, store: ExecutionStore) -> None:
        """8.6.3: an approval is single use."""
        ref = await self.create_questions(store, "c1")
        asked = request_id(ref.execution_id, "c1")

        results = await asyncio.gather(
            *(
                store.resolve(ref, asked, Resolution("answer", i), events_with_keys(f"answer {i}"))
                for i in range(10)
            )
        )

        assert results.count(True) == 1
        row = await store.request(ref, asked)
        assert row
        assert row.resolution == Resolution("answer", results.index(True))
        assert await envelope_keys(store, ref) == [f"answer {results.index(True)}"]

    async def test_concurrent_answers_and_results_never_deadlock(self, store: ExecutionStore) -> None:
        """8.5.5: a person answers while the call times out; both publish envelopes."""
        refs = [await accept_execution(store) for _ in range(20)]
        for ref in refs:
            await store.record_reply(a_reply(ref, "", a_call(), needs=CallNeed.INPUT))

        answered = (
            store.resolve(
                ref,
                request_id(ref.execution_id, "c1"),
                Resolution("answer", "Tea"),
                events_with_keys("answered"),
            )
            for ref in refs
        )
        recorded = (
            store.record_call(result_record(ref, events=events_with_keys("recorded"))) for ref in refs
        )
        await asyncio.gather(*answered, *recorded)

        for ref in refs:
            assert set(await envelope_keys(store, ref)) <= {"answered", "recorded"}
            assert "recorded" in await envelope_keys(store, ref)

    async def test_an_unknown_question_cannot_be_answered(self, store: ExecutionStore) -> None:
        ref, another = await self.create_questions(store, "c1"), await self.create_questions(store, "c1")
        elsewhere = request_id(another.execution_id, "c1")

        for unknown in (uuid4(), elsewhere):
            assert await store.request(ref, unknown) is None
            with pytest.raises(NotFound, match=f"There is no request {unknown}"):
                await store.resolve(ref, unknown, Resolution("approve"))
