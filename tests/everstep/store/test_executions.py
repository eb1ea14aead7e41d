"""The contract of every store: accepting, listing and ending executions.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import request_id
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import Message, Role, tool_message, user
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import (
    CancelComesFirst,
    ExecutionEnded,
    ExecutionSpec,
    NewExecution,
    Page,
)
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.values import frozen_map
from everstep.store.memory import MemoryStore
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    CANCELLED,
    OTHERS,
    OUTCOME,
    TENANT,
    TERMINAL,
    WAIT,
    WAIT_EVENT,
    TestClock,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    end_execution,
    envelope_keys,
    events_with_keys,
    of_another_tenant,
    publishing,
    readable_fields,
    result_record,
    run_step,
    texts,
)


class TestAccepting:
    async def test_an_accepted_execution_waits_to_begin(self, store: ExecutionStore) -> None:
        """8.2.1: it is `pending`, and none of its steps has begun."""
        ref = a_ref(session_id=uuid4())

        row = await store.accept(a_new_execution(ref, "Hello", metadata=frozen_map({"topic": "tea"})))

        assert (row.ref, row.agent, row.status) == (ref, "helper", ExecutionStatus.PENDING)
        assert (row.step_count, row.started_at, row.completed_at) == (0, None, None)
        assert (row.output, row.stop_reason, row.error_message) == (None, None, None)
        assert row.usage == {"input": 0, "output": 0, "cached": 0, "reasoning": 0, "total": 0}
        assert row.metadata == {"topic": "tea"}
        assert row.created_at.tzinfo is not None
        assert await store.execution(ref) == row

    async def test_the_same_id_again_returns_the_stored_execution(self, store: ExecutionStore) -> None:
        ref = a_ref()
        first = await store.accept(a_new_execution(ref, "Hello"))
        await store.begin_step(a_step_start(ref))

        again = await store.accept(a_new_execution(ref, "Something else", agent="another"))

        assert again == await store.execution(ref)
        assert again == replace(first, status=ExecutionStatus.RUNNING, started_at=again.started_at)
        assert texts(await store.transcript(ref)) == ["Hello"]

    async def test_of_many_concurrent_accepts_one_counts_and_all_see_it(self, store: ExecutionStore) -> None:
        ref = a_ref()

        rows = await asyncio.gather(*(store.accept(a_new_execution(ref, f"Message {i}")) for i in range(10)))

        assert len(set(map(repr, rows))) == 1
        assert len(await store.transcript(ref)) == 1

    async def test_an_id_of_another_tenant_is_taken(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store, "Hello")

        with pytest.raises(InvalidInput, match=f"the execution id {ref.execution_id} is taken"):
            await store.accept(a_new_execution(of_another_tenant(ref), "Mine"))

        assert texts(await store.transcript(ref)) == ["Hello"]

    async def test_a_session_of_another_tenant_does_not_exist(self, store: ExecutionStore) -> None:
        session = uuid4()
        await accept_execution(store, session_id=session)
        intruder = a_ref(session_id=session, tenant=OTHERS)

        with pytest.raises(NotFound, match=f"There is no session {session}"):
            await store.accept(a_new_execution(intruder))

        assert await store.execution(intruder) is None

    async def test_an_execution_does_not_continue_itself(self, store: ExecutionStore) -> None:
        ref = a_ref()

        with pytest.raises(InvalidInput, match="cannot continue itself"):
            await store.accept(a_new_execution(ref, continues=ref.execution_id))

    @pytest.mark.parametrize("field", ["continues", "parent_execution_id"])
    async def test_a_referenced_execution_has_to_exist(self, store: ExecutionStore, field: str) -> None:
        ref, stranger = a_ref(), await accept_execution(store, tenant=OTHERS)

        for named in (uuid4(), stranger.execution_id):
            naming: dict[str, Any] = {field: named}
            with pytest.raises(NotFound, match=f"There is no execution {named}"):
                await store.accept(a_new_execution(ref, **naming))

        assert await store.execution(ref) is None

    async def test_a_subagent_knows_its_parent(self, store: ExecutionStore) -> None:
        """8.1.2: linked by metadata as well, with the snapshot that the parent had at that time."""
        parent = await accept_execution(store)
        await store.settle(
            a_settlement(parent, ExecutionStatus.PAUSED, snapshot=frozen_map({"status": "in_progress"}))
        )

        row = await store.accept(
            a_new_execution(a_ref(), parent_execution_id=parent.execution_id, metadata=frozen_map({"own": 1}))
        )

        assert row.parent_execution_id == parent.execution_id
        assert row.metadata["parent_execution_id"] == str(parent.execution_id)
        assert UUID(row.metadata["parent_snapshot_id"])
        assert (await store.material(row.ref)).metadata == {"own": 1}

    async def test_the_agent_gets_an_id_and_keeps_it_in_continuations(self, store: ExecutionStore) -> None:
        """4.1.4: the ids of agents stay when a new execution continues the conversation."""
        parent_agent = uuid4()
        first = await accept_execution(store, parent_agent_id=parent_agent)
        second = await accept_execution(store, continues=first.execution_id)
        another = await accept_execution(store)

        of_first, of_second = await store.material(first), await store.material(second)

        assert (of_second.agent_id, of_second.parent_agent_id) == (of_first.agent_id, parent_agent)
        assert (await store.material(another)).agent_id != of_first.agent_id


async def test_without_a_clock_the_store_in_memory_uses_the_machine_clock() -> None:
    before = datetime.now(UTC)

    row = await MemoryStore().accept(a_new_execution(a_ref()))

    assert before <= row.created_at <= datetime.now(UTC)


class TestLoadedState:
    async def test_it_is_the_input_with_which_the_execution_was_accepted(self, store: ExecutionStore) -> None:
        """0.4: keys keep their order, and numbers keep their type."""
        context = CachedContext.from_dict(
            {
                "tools": [{"name": "z", "a": {"long key": 1, "b": 2.0, "a": 1e22, "ä": "/\u2028"}}],
                "responseFormat": {"schema": {"reasoning": {}, "answer": {}}},
            }
        )
        spec = ExecutionSpec(
            agent="helper",
            llm_preset="fast",
            cached_context=frozen_map(context.to_dict()),
            approvals=frozen_map({"send": "always"}),
            definition_hash="abc",
        )
        parts = Message(Role.USER, [{"type": "text", "text": "Look"}, {"type": "image", "url": "x"}])  # type: ignore[arg-type]
        ref = a_ref()
        await store.accept(
            NewExecution(ref, spec, (parts,), metadata=frozen_map({"zeta": 1, "alpha": [2.5, None]}))
        )

        material = await store.material(ref)
        row = await store.execution(ref)

        assert row
        assert row.definition_hash == "abc"
        assert material.spec == spec
        assert material.messages == (parts,)
        assert repr(material.spec.cached_context) == repr(dict(spec.cached_context))
        assert list(material.metadata.items()) == [("zeta", 1), ("alpha", [2.5, None])]
        assert CachedContext.from_dict(material.spec.cached_context) == context

    async def test_an_unknown_execution_has_none(self, store: ExecutionStore) -> None:
        ref = a_ref()

        with pytest.raises(NotFound, match=f"There is no execution {ref.execution_id}"):
            await store.material(ref)


class TestChangingStatus:
    async def test_the_end_is_stored(self, store: ExecutionStore) -> None:
        """8.2.3: output, `completed_at`, `step_count`, tokens; 1.2.1: the stop reason, in metadata too."""
        ref = await accept_execution(store, metadata=frozen_map({"topic": "tea"}))
        await run_step(store, ref)
        output = frozen_map({"response": "Hi", "stop_reason": "steps_limit"})

        assert await store.settle(
            a_settlement(
                ref,
                ExecutionStatus.COMPLETED,
                outcome=OUTCOME,
                stop_reason=StopReason.STEPS_LIMIT,
                step_count=3,
                usage=Usage(1, 2, 3, 4, 5),
                output=output,
                events=events_with_keys("completed"),
            )
        )

        row = await store.execution(ref)
        assert row
        assert (row.status, row.stop_reason) == (ExecutionStatus.COMPLETED, StopReason.STEPS_LIMIT)
        assert (row.step_count, row.output, row.error_message) == (3, output, None)
        assert row.usage == {"input": 1, "output": 2, "cached": 7, "reasoning": 5, "total": 15}
        assert row.metadata == {"topic": "tea", "stop_reason": "steps_limit"}
        assert row.completed_at
        assert row.started_at
        assert row.completed_at >= row.started_at
        (step,) = await store.steps(ref)
        assert step.outcome == OUTCOME
        assert step.completed_at
        assert await envelope_keys(store, ref) == ["completed"]

    async def test_paid_usage_is_not_taken_back(self, store: ExecutionStore) -> None:
        """4.2.1: an incomplete step counts, also if another writer changes the status at the same time."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(replace(a_reply(ref), facts=StepFacts(1, usage=Usage(100, 40, 1, 29, 10))))
        totals: list[int] = []

        for key, usage in (("one", Usage()), ("two", None), ("three", Usage(200))):
            await store.settle(a_settlement(ref, ExecutionStatus.PAUSED, key=key, usage=usage))
            row = await store.execution(ref)
            assert row
            assert sum(row.usage.values()) == 2 * row.usage["total"]
            totals.append(row.usage["total"])

        assert totals == [180, 180, 200]

    async def test_metadata_of_everstep_are_not_visible_to_the_agent(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.settle(a_settlement(ref, ExecutionStatus.PAUSED, stop_reason=StopReason.GUARD))

        assert (await store.material(ref)).metadata == {}

    async def test_a_failure_stores_its_reason(self, store: ExecutionStore) -> None:
        """8.2.3: a failure sets `error_message`."""
        ref = await accept_execution(store)

        await store.settle(a_settlement(ref, ExecutionStatus.FAILED, error_message="The model is gone"))

        row = await store.execution(ref)
        assert row
        assert (row.status, row.error_message) == (ExecutionStatus.FAILED, "The model is gone")

    async def test_a_pause_and_a_resume(self, store: ExecutionStore) -> None:
        """8.2.1: `running` and `paused` alternate; fields that an update omits stay."""
        ref = await accept_execution(store)
        await run_step(store, ref, 1, "Hi")
        statuses: list[ExecutionStatus] = []
        for number, status in enumerate([ExecutionStatus.PAUSED, ExecutionStatus.RUNNING] * 2):
            assert await store.settle(a_settlement(ref, status, f"change/{number}"))
            row = await store.execution(ref)
            assert row
            assert (row.completed_at, row.step_count) == (None, 1)
            statuses.append(row.status)

        assert statuses == [ExecutionStatus.PAUSED, ExecutionStatus.RUNNING] * 2
        # The step is not evaluated yet, so it is not complete.
        assert (await store.steps(ref))[0].completed_at is None

    async def test_running_starts_the_execution(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING))
        first = await store.execution(ref)

        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "again"))

        second = await store.execution(ref)
        assert first
        assert first.started_at
        assert second == first

    async def test_an_update_key_applies_once(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        assert await store.settle(
            a_settlement(ref, ExecutionStatus.PAUSED, "k", events=events_with_keys("paused"))
        )
        assert not await store.settle(
            a_settlement(ref, ExecutionStatus.RUNNING, "k", events=events_with_keys("resumed"))
        )

        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PAUSED
        assert await envelope_keys(store, ref) == ["paused"]

    async def test_of_concurrent_updates_with_one_key_one_applies(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        given = [
            a_settlement(ref, ExecutionStatus.PAUSED, "k", events=events_with_keys(f"paused {i}"))
            for i in range(10)
        ]

        results = [bool(each) for each in await asyncio.gather(*map(store.settle, given))]

        assert results.count(True) == 1
        assert await envelope_keys(store, ref) == [f"paused {results.index(True)}"]

    @pytest.mark.parametrize("status", TERMINAL)
    @pytest.mark.parametrize("then", [*TERMINAL, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED])
    async def test_an_ended_execution_does_not_change(
        self, store: ExecutionStore, status: ExecutionStatus, then: ExecutionStatus
    ) -> None:
        """7.4.2: the terminal `agent.status` is the last envelope of an execution."""
        ref = await accept_execution(store)
        await store.settle(
            a_settlement(ref, status, "first", events=events_with_keys("ended"), error_message="this")
        )
        before = await store.execution(ref)

        late = a_settlement(
            ref, then, "second", events=events_with_keys("late"), error_message="that", step=StepFacts(1)
        )
        assert not await store.settle(late)

        assert await store.execution(ref) == before
        assert await store.steps(ref) == ()
        assert await envelope_keys(store, ref) == ["ended"]

    async def test_a_stored_cancel_comes_before_an_end_that_yields(self, store: ExecutionStore) -> None:
        """8.2.1: nothing of the end is stored, whether the cancel was delivered or not."""
        ref = await accept_execution(store)
        end = replace(
            a_settlement(ref, ExecutionStatus.COMPLETED, "end", events=events_with_keys("ended")),
            yields_to_cancel=True,
        )
        cancel, _ = await store.command(ref, "cancel/1", CommandKind.CANCEL)
        for _ in range(2):
            with pytest.raises(CancelComesFirst):
                await store.settle(end)
            await store.confirm_delivery(cancel)

        assert await envelope_keys(store, ref) == []
        assert await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED, "cancelled"))
        assert await store.settle(end) is None

    async def test_an_end_that_yields_is_stored_once(self, store: ExecutionStore) -> None:
        """8.2.3: without a cancel it is an end like any other."""
        ref = await accept_execution(store)
        end = replace(a_settlement(ref, ExecutionStatus.COMPLETED), yields_to_cancel=True)
        assert await store.settle(end)
        assert await store.settle(end) is None

    async def test_of_concurrent_ends_one_counts(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        ends = await asyncio.gather(*(store.settle(a_settlement(ref, status)) for status in TERMINAL))
        results = [bool(each) for each in ends]

        assert results.count(True) == 1
        row = await store.execution(ref)
        assert row
        assert row.status is TERMINAL[results.index(True)]

    async def test_a_failure_step_is_recorded(self, store: ExecutionStore) -> None:
        """4.3.4: a step that no activity reported."""
        ref = await accept_execution(store)
        await run_step(store, ref)
        error = StepError("it broke", ErrorType.UNKNOWN, None, "RuntimeError")
        facts = StepFacts(2, own_errors=(StepError("", None, None, "RuntimeError"),), is_failure=True)

        await store.settle(
            a_settlement(ref, ExecutionStatus.RUNNING, "step/2/failed", step=facts, errors=[error])
        )
        await store.settle(a_settlement(ref, ExecutionStatus.FAILED, "end", outcome=OUTCOME))

        first, second = await store.steps(ref)
        assert (second.facts, second.errors, second.outcome) == (facts, (error,), OUTCOME)
        assert first.outcome is None
        assert first.completed_at
        assert second.completed_at

    async def test_the_outcome_belongs_to_the_named_step(self, store: ExecutionStore) -> None:
        """2.2.7: a criterion that raises ends the run with a failure step."""
        ref = await accept_execution(store)
        await run_step(store, ref)

        failed = StepFacts(2, is_failure=True)
        await store.settle(a_settlement(ref, ExecutionStatus.FAILED, step=failed, outcome=OUTCOME))

        assert [step.outcome for step in await store.steps(ref)] == [None, OUTCOME]

    async def test_an_abandoned_step_replaces_the_recorded_one(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.note_partial(ref, 1, 1, "Once upon")
        given = a_reply(ref, "Look", a_call())
        await store.record_reply(given)
        abandoned = given.facts.settled([CallFacts("c1", "look")])

        await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED, step=abandoned))

        (step,) = await store.steps(ref)
        assert (step.facts, step.partial_text, step.next_index) == (abandoned, "", None)

    async def test_a_step_without_a_reply_is_never_complete(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))

        await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED, outcome=OUTCOME))

        (step,) = await store.steps(ref)
        assert (step.outcome, step.completed_at) == (None, None)

    async def test_interrupted_calls_get_the_results_that_the_conversation_has(
        self, store: ExecutionStore
    ) -> None:
        """1.1.5: a call that has its result keeps it."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", *map(a_call, ("c0", "c1", "c2"))))
        await store.record_call(result_record(ref, a_result("c1"), index=1))

        cut = [(f"c{i}", i, (user(f"Observation: {CANCELLED} ({i})"),)) for i in range(3)]
        await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED, cancelled_calls=cut))

        said = texts(await store.transcript(ref))[2:]
        assert said == [f"Observation: {CANCELLED} (0)", "found", f"Observation: {CANCELLED} (2)"]
        records = [call.record for call in (await store.steps(ref))[0].calls]
        assert [(r.text, r.success, r.error, r.result) for r in records if r] == [
            (f"Observation: {CANCELLED} (0)", False, None, None),
            ("found", True, None, "found"),
            (f"Observation: {CANCELLED} (2)", False, None, None),
        ]

    async def test_no_call_is_left_open_at_the_end(self, store: ExecutionStore) -> None:
        """1.1.5: for example a call of a reply that the workflow never received."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call("c0"), a_call("c1")))
        await store.reserve_call(ref, "c1", 1)

        await end_execution(store, ref, ExecutionStatus.CANCELLED)

        assert (await store.transcript(ref))[2:] == tuple(
            tool_message(CANCELLED, call_id, "look") for call_id in ("c0", "c1")
        )

    async def test_no_call_of_a_failure_step_is_left_open(self, store: ExecutionStore) -> None:
        """1.1.5: the run may continue after it."""
        ref = await accept_execution(store)
        await run_step(store, ref, 1, "Look", a_call("c0"))
        await store.begin_step(a_step_start(ref, 2))
        await store.record_reply(a_reply(ref, "Look again", a_call("c1"), number=2))

        failed = StepFacts(2, is_failure=True)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, step=failed))

        assert texts(await store.transcript(ref)) == ["Hello", "Look", "found", "Look again", CANCELLED]

    async def test_a_pause_leaves_calls_open(self, store: ExecutionStore) -> None:
        """8.4.1: it continues in the same step."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call("c0")))

        await store.settle(a_settlement(ref, ExecutionStatus.PAUSED))

        assert (await store.reserve_call(ref, "c0", 1)).recorded is None

    async def test_a_late_result_is_not_written(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call("c0")))
        await store.reserve_call(ref, "c0", 1)
        await end_execution(store, ref, ExecutionStatus.CANCELLED)

        late = result_record(
            ref, a_result("c0"), metadata=frozen_map({"a": 1}), events=events_with_keys("late")
        )
        record = await store.record_call(late)

        assert record.text == CANCELLED
        assert texts(await store.transcript(ref)) == ["Hello", "Look", CANCELLED]
        assert (await store.material(ref)).metadata == {}
        assert await envelope_keys(store, ref) == []

    async def test_a_result_and_a_concurrent_end_leave_one_result(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        ids = [f"c{i}" for i in range(8)]
        await store.record_reply(a_reply(ref, "Look", *map(a_call, ids)))

        recorded = [
            store.record_call(
                result_record(ref, a_result(call_id), index=i, metadata=frozen_map({call_id: i}))
            )
            for i, call_id in enumerate(ids)
        ]
        await asyncio.gather(
            *recorded[:4], end_execution(store, ref, ExecutionStatus.CANCELLED), *recorded[4:]
        )

        said = texts(await store.transcript(ref))[2:]
        calls = (await store.steps(ref))[0].calls
        assert said == [call.record.text for call in calls if call.record]
        assert len(said) == len(ids)
        kept = {call.call.id for call in calls if call.record and call.record.success}
        assert set((await store.material(ref)).metadata) == kept

    async def test_the_end_closes_every_question(self, store: ExecutionStore) -> None:
        """8.6.3: an approval that was not given in time can no longer be given."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "May I?", a_call("c0"), needs=CallNeed.APPROVAL))

        await end_execution(store, ref, ExecutionStatus.CANCELLED)

        assert await store.open_requests(ref) == ()
        asked = request_id(ref.execution_id, "c0")
        assert not await store.resolve(ref, asked, Resolution("approve"))

    async def test_an_unknown_execution_cannot_change_status(self, store: ExecutionStore) -> None:
        with pytest.raises(NotFound, match="There is no execution"):
            await store.settle(a_settlement(a_ref(), ExecutionStatus.PAUSED))


class TestKeepingSnapshots:
    async def test_a_step_has_one_and_it_is_the_executions_last(self, store: ExecutionStore) -> None:
        """8.1.3: a second attempt stores no other; 8.1.2: a child records the last one."""
        ref = await accept_execution(store)
        await run_step(store, ref)
        seen: list[object] = []

        for number in (1, 1, 2, 1):
            seen.append(await store.keep_snapshot(ref, number, frozen_map({"number": number})))
            child = await store.accept(a_new_execution(a_ref(), parent_execution_id=ref.execution_id))
            seen.append(child.metadata["parent_snapshot_id"])

        first, _, second = seen[1], seen[3], seen[5]
        assert first != second
        assert seen == [True, first, False, first, True, second, False, second]

    async def test_an_execution_that_has_ended_gets_no_more(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await end_execution(store, ref)

        with pytest.raises(ExecutionEnded):
            await store.keep_snapshot(ref, 1, frozen_map({}))


class TestLists:
    async def test_steps_come_in_order_and_the_last_ones_alone(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        for number in range(1, 12):
            await run_step(store, ref, number, f"Answer {number}", a_call(f"c{number}"))

        steps = await store.steps(ref)

        assert [step.number for step in steps] == list(range(1, 12))
        assert [texts(step.messages)[0] for step in steps] == [f"Answer {n}" for n in range(1, 12)]
        assert [step.calls[0].call.id for step in steps] == [f"c{n}" for n in range(1, 12)]
        assert await store.steps(ref, last=3) == steps[-3:]
        assert await store.steps(ref, last=99) == steps
        assert await store.steps(ref, last=0) == ()

    async def test_provider_items_are_returned_on_request(self, store: ExecutionStore) -> None:
        """1.1.1: with the fields that the provider expects back."""
        ref = await accept_execution(store)
        response = a_reply(ref).response.merged({"items": [{"type": "reasoning", "z": 1, "a": 2.0}]})
        await store.record_reply(replace(a_reply(ref), response=response))
        await store.begin_step(a_step_start(ref, 2))

        told, under_way = await store.steps(ref, with_responses=True)

        assert told.response == response
        assert under_way.response is None
        assert [step.response for step in await store.steps(ref)] == [None, None]

    async def test_steps_are_paged(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        for number in range(1, 6):
            await run_step(store, ref, number, f"Answer {number}", a_call(f"c{number}"))
        steps = await store.steps(ref)

        assert await store.steps_after(ref, limit=2) == Page(steps[:2], "2")
        assert await store.steps_after(ref, 2, limit=2) == Page(steps[2:4], "4")
        assert await store.steps_after(ref, 4, limit=2) == Page(steps[4:])
        assert await store.steps_after(ref, 3, limit=2) == Page(steps[3:])
        assert await store.steps_after(ref, 5) == await store.steps_after(a_ref()) == Page(())
        assert await store.steps_after(of_another_tenant(ref)) == Page(())
        with pytest.raises(InvalidInput, match="limit is 0"):
            await store.steps_after(ref, limit=0)

    async def test_the_duration_of_a_step_is_known_once_it_is_complete(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await run_step(store, ref)
        assert (await store.steps(ref))[0].duration_ms is None

        await store.begin_step(a_step_start(ref, 2))

        duration = (await store.steps(ref))[0].duration_ms
        assert duration is not None
        assert duration > 0

    async def test_executions_are_paged_newest_first(self, store: ExecutionStore) -> None:
        refs = [await accept_execution(store) for _ in range(7)]
        await accept_execution(store, tenant=OTHERS)

        found = await read_pages(store, 3)

        assert found == [ref.execution_id for ref in reversed(refs)]

    async def test_executions_with_the_same_time_are_ordered_by_id(
        self, store: ExecutionStore, clock: TestClock
    ) -> None:
        """7.8.3: by time, ties by id."""
        clock.tick = timedelta(0)
        refs = [await accept_execution(store) for _ in range(7)]
        if isinstance(store, PostgresStore):
            async with store.engine.begin() as connection:
                await connection.execute(
                    text("UPDATE agent_executions SET created_at = '2026-01-16 10:05:00.5Z'")
                )

        for size in (1, 2, 3, 6, 7, 8):
            found = await read_pages(store, size)
            assert found == sorted((ref.execution_id for ref in refs), reverse=True)

    async def test_an_execution_accepted_while_paging_changes_no_later_page(
        self, store: ExecutionStore
    ) -> None:
        refs = [await accept_execution(store) for _ in range(4)]
        first = await store.executions(TENANT, limit=2)
        await accept_execution(store)

        second = await store.executions(TENANT, limit=2, cursor=first.cursor)

        assert [row.ref for row in (*first.rows, *second.rows)] == refs[::-1]
        assert second.cursor is None

    async def test_executions_can_be_filtered_by_status(self, store: ExecutionStore) -> None:
        refs = [await accept_execution(store) for _ in range(6)]
        for ref in refs[::2]:
            await end_execution(store, ref, ExecutionStatus.CANCELLED)

        assert (
            await read_pages(store, 2, ExecutionStatus.CANCELLED) == [r.execution_id for r in refs[::2]][::-1]
        )
        assert (
            await read_pages(store, 2, ExecutionStatus.PENDING) == [r.execution_id for r in refs[1::2]][::-1]
        )
        assert await read_pages(store, 2, ExecutionStatus.FAILED) == []

    @pytest.mark.parametrize("cursor", ["", "x", "äöü", "AAAA", "MjAyNg", "2026-01-16T10:05:00 x", "=" * 9])
    async def test_a_cursor_of_another_tenant_is_refused(self, store: ExecutionStore, cursor: str) -> None:
        with pytest.raises(InvalidInput, match="the cursor cannot be read"):
            await store.executions(TENANT, cursor=cursor)

    @pytest.mark.parametrize("limit", [0, -1, 1001, True])
    async def test_a_page_size_is_limited(self, store: ExecutionStore, limit: int) -> None:
        with pytest.raises(InvalidInput, match="pass a whole number from 1 to 1000"):
            await store.executions(TENANT, limit=limit)
        with pytest.raises(InvalidInput, match="pass a whole number from 1 to 1000"):
            await store.envelopes(TENANT, uuid4(), limit=limit)


async def read_pages(store: ExecutionStore, size: int, status: ExecutionStatus | None = None) -> list[UUID]:
    """All executions of the tenant, in pages of this size; only the last may be shorter."""
    found: list[UUID] = []
    cursor = None
    while True:
        page = await store.executions(TENANT, status=status, cursor=cursor, limit=size)
        found += [row.ref.execution_id for row in page.rows]
        if page.cursor is None:
            return found
        assert len(page.rows) == size
        cursor = page.cursor


class TestTenants:
    async def test_another_tenant_cannot_read_or_change_an_execution(self, store: ExecutionStore) -> None:
        session = uuid4()
        ref = await accept_execution(store, session_id=session, metadata=frozen_map({"secret": 1}))
        await store.begin_step(a_step_start(ref, events=publishing(events_with_keys("a"))))
        await store.record_reply(a_reply(ref, "?", a_call("c0"), a_call("c1"), needs=CallNeed.INPUT))
        theirs = of_another_tenant(ref)
        asked = request_id(ref.execution_id, "c0")
        before = await readable_fields(store, ref)
        await store.note_wait(theirs, 1, WAIT, [WAIT_EVENT])

        assert await store.execution(theirs) is None
        assert await store.steps(theirs) == ()
        assert await store.transcript(theirs) == ()
        assert await store.open_requests(theirs) == ()
        assert await store.request(theirs, asked) is None
        assert await store.find_request(theirs.tenant_id, asked) is None
        assert (await store.executions(OTHERS)).rows == ()
        assert (await store.executions(OTHERS, status=ExecutionStatus.RUNNING)).rows == ()
        assert await store.envelopes(OTHERS, session) == ()
        await store.note_partial(theirs, 1, 1, "Mine")
        refused: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.material(theirs),
            lambda: store.begin_step(a_step_start(theirs, 1, 2)),
            lambda: store.note_failure(theirs, 1, 1),
            lambda: store.record_reply(a_reply(theirs, "Mine")),
            lambda: store.record_reply(a_reply(theirs, "Mine", number=2)),
            lambda: store.reserve_call(theirs, "c0", 1),
            lambda: store.record_call(result_record(theirs, a_result("c0"))),
            lambda: store.record_call(
                result_record(theirs, a_result("c0"), metadata=frozen_map({"mine": 1}))
            ),
            lambda: store.settle(a_settlement(theirs, ExecutionStatus.CANCELLED)),
            lambda: store.keep_snapshot(theirs, 1, frozen_map({})),
            lambda: store.steer(theirs, "k", user("Mine")),
            lambda: store.resolve(theirs, asked, Resolution("approve"), events_with_keys("mine")),
            lambda: store.accept(a_new_execution(a_ref(tenant=OTHERS), continues=ref.execution_id)),
            lambda: store.accept(a_new_execution(a_ref(tenant=OTHERS), parent_execution_id=ref.execution_id)),
            lambda: store.accept(a_new_execution(a_ref(tenant=OTHERS, session_id=session))),
        ]
        for attempt in refused:
            with pytest.raises(NotFound):
                await attempt()
        with pytest.raises(InvalidInput):
            await store.accept(a_new_execution(theirs))

        assert await readable_fields(store, ref) == before
        assert (await store.executions(OTHERS)).rows == ()
