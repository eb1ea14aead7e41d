"""The contract of every store.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, envelope_id, request_id
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts, StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import Message, Role, assistant, tool_message, user
from everstep.agent_domain.storage.calls import Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded, ExecutionSpec, NewExecution, Page
from everstep.agent_domain.storage.requests import RequestState, Resolution
from everstep.agent_domain.storage.steps import BegunStep, RetryWait
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.store.memory import MemoryStore
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    AT,
    OTHERS,
    TENANT,
    TestClock,
    a_call,
    a_failure,
    a_ref,
    accepted,
    answer,
    answers,
    begin,
    ended,
    new,
    of_another_tenant,
    reply,
    settled,
    stepped,
    telling,
    texts,
    told,
)

CANCELLED = "Error: Cancelled before it finished"
TERMINAL = [ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED]
OUTCOME = frozen_map({"decision": "request", "shouldContinue": True, "evaluations": [{"reason": "more"}]})


async def all_told(store: ExecutionStore, ref: ExecutionRef) -> tuple[StoredEnvelope, ...]:
    return await store.envelopes(ref.tenant_id, ref.stream_id)


async def keys_told(store: ExecutionStore, ref: ExecutionRef) -> list[Any]:
    """The keys of the stream's envelopes, in order; each payload carries its key."""
    return [envelope.payload.get("key") for envelope in await all_told(store, ref)]


def news(*keys: str) -> list[EventRecord]:
    return [told(key, key=key) for key in keys]


class TestAccepting:
    async def test_an_accepted_execution_waits_to_begin(self, store: ExecutionStore) -> None:
        """8.2.1: it is `pending`, and none of its steps has begun."""
        ref = a_ref(session_id=uuid4())

        row = await store.accept(new(ref, "Hello", metadata=frozen_map({"topic": "tea"})))

        assert (row.ref, row.agent, row.status) == (ref, "helper", ExecutionStatus.PENDING)
        assert (row.step_count, row.started_at, row.completed_at) == (0, None, None)
        assert (row.output, row.stop_reason, row.error_message) == (None, None, None)
        assert row.usage == {"input": 0, "output": 0, "cached": 0, "reasoning": 0, "total": 0}
        assert row.metadata == {"topic": "tea"}
        assert row.created_at.tzinfo is not None
        assert await store.execution(ref) == row

    async def test_the_same_id_again_returns_the_stored_execution(self, store: ExecutionStore) -> None:
        ref = a_ref()
        first = await store.accept(new(ref, "Hello"))
        await store.begin_step(begin(ref))

        again = await store.accept(new(ref, "Something else", agent="another"))

        assert again == await store.execution(ref)
        assert again == replace(first, status=ExecutionStatus.RUNNING, started_at=again.started_at)
        assert texts(await store.transcript(ref)) == ["Hello"]

    async def test_of_many_concurrent_accepts_one_counts_and_all_see_it(self, store: ExecutionStore) -> None:
        ref = a_ref()

        rows = await asyncio.gather(*(store.accept(new(ref, f"Message {i}")) for i in range(10)))

        assert len(set(map(repr, rows))) == 1
        assert len(await store.transcript(ref)) == 1

    async def test_an_id_of_another_tenant_is_taken(self, store: ExecutionStore) -> None:
        ref = await accepted(store, "Hello")

        with pytest.raises(InvalidInput, match=f"the execution id {ref.execution_id} is taken"):
            await store.accept(new(of_another_tenant(ref), "Mine"))

        assert texts(await store.transcript(ref)) == ["Hello"]

    async def test_a_session_of_another_tenant_does_not_exist(self, store: ExecutionStore) -> None:
        session = uuid4()
        await accepted(store, session_id=session)
        intruder = a_ref(session_id=session, tenant=OTHERS)

        with pytest.raises(NotFound, match=f"There is no session {session}"):
            await store.accept(new(intruder))

        assert await store.execution(intruder) is None

    async def test_an_execution_does_not_continue_itself(self, store: ExecutionStore) -> None:
        ref = a_ref()

        with pytest.raises(InvalidInput, match="cannot continue itself"):
            await store.accept(new(ref, continues=ref.execution_id))

    @pytest.mark.parametrize("field", ["continues", "parent_execution_id"])
    async def test_a_referenced_execution_has_to_exist(self, store: ExecutionStore, field: str) -> None:
        ref, stranger = a_ref(), await accepted(store, tenant=OTHERS)

        for named in (uuid4(), stranger.execution_id):
            naming: dict[str, Any] = {field: named}
            with pytest.raises(NotFound, match=f"There is no execution {named}"):
                await store.accept(new(ref, **naming))

        assert await store.execution(ref) is None

    async def test_a_subagent_knows_its_parent(self, store: ExecutionStore) -> None:
        """8.1.2: linked by metadata as well, with the snapshot that the parent had at that time."""
        parent = await accepted(store)
        await store.settle(
            settled(parent, ExecutionStatus.PAUSED, snapshot=frozen_map({"status": "in_progress"}))
        )

        row = await store.accept(
            new(a_ref(), parent_execution_id=parent.execution_id, metadata=frozen_map({"own": 1}))
        )

        assert row.parent_execution_id == parent.execution_id
        assert row.metadata["parent_execution_id"] == str(parent.execution_id)
        assert UUID(row.metadata["parent_snapshot_id"])
        assert (await store.material(row.ref)).metadata == {"own": 1}

    async def test_the_agent_gets_an_id_and_keeps_it_in_continuations(self, store: ExecutionStore) -> None:
        """4.1.4: the ids of agents stay when a new execution continues the conversation."""
        parent_agent = uuid4()
        first = await accepted(store, parent_agent_id=parent_agent)
        second = await accepted(store, continues=first.execution_id)
        another = await accepted(store)

        of_first, of_second = await store.material(first), await store.material(second)

        assert (of_second.agent_id, of_second.parent_agent_id) == (of_first.agent_id, parent_agent)
        assert (await store.material(another)).agent_id != of_first.agent_id


async def test_without_a_clock_the_store_in_memory_uses_the_machine_clock() -> None:
    before = datetime.now(UTC)

    row = await MemoryStore().accept(new(a_ref()))

    assert before <= row.created_at <= datetime.now(UTC)


class TestMaterial:
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


class TestBeginningAStep:
    async def test_the_first_step_starts_the_execution(self, store: ExecutionStore) -> None:
        """8.2.3: a start sets `running` and `started_at`."""
        ref = await accepted(store, "Hello")

        begun = await store.begin_step(begin(ref))

        assert (begun.recorded, begun.previous_attempt) == (None, None)
        assert begun.material == await store.material(ref)
        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.RUNNING
        assert row.started_at
        assert row.started_at >= row.created_at
        (step,) = await store.steps(ref)
        assert (step.number, step.attempt, step.facts, step.completed_at) == (1, 1, None, None)

    async def test_only_the_first_start_sets_the_start_time(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        started = await store.execution(ref)

        await store.begin_step(begin(ref, attempt=2))
        await stepped(store, ref)
        await store.begin_step(begin(ref, 2))

        now = await store.execution(ref)
        assert started
        assert now
        assert now.started_at == started.started_at

    async def test_the_step_before_is_settled(self, store: ExecutionStore) -> None:
        """2.2.1: its outcome keeps every evaluation."""
        ref = await accepted(store)
        await stepped(store, ref)

        await store.begin_step(begin(ref, 2, outcome=OUTCOME))
        await store.begin_step(begin(ref, 2, 2, outcome=frozen_map({"decision": "other"})))

        first, second = await store.steps(ref)
        assert first.outcome == OUTCOME
        assert first.completed_at
        assert (second.outcome, second.completed_at) == (None, None)
        row = await store.execution(ref)
        assert row
        assert row.step_count == 1

    async def test_an_attempt_learns_which_attempt_had_begun(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))

        assert (await store.begin_step(begin(ref, attempt=2))).previous_attempt == 1
        assert (await store.begin_step(begin(ref, attempt=4))).previous_attempt == 2
        # An attempt that arrives late changes nothing.
        assert (await store.begin_step(begin(ref, attempt=3))).previous_attempt == 4
        assert (await store.steps(ref))[0].attempt == 4

    async def test_an_attempt_learns_whether_the_one_before_failed_without_text(
        self, store: ExecutionStore
    ) -> None:
        """Follows rule 7.6.3: the failure of a lost attempt is unknown."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        assert not (await store.begin_step(begin(ref, attempt=2))).was_silent
        await store.note_failure(ref, 1, 2)
        assert (await store.begin_step(begin(ref, attempt=3))).was_silent

        await store.note_partial(ref, 1, 3, "Well, ")
        await store.note_failure(ref, 1, 3)
        assert not (await store.begin_step(begin(ref, attempt=4))).was_silent
        assert not (await store.begin_step(begin(ref, attempt=5))).was_silent

    async def test_a_step_start_has_the_seq_that_its_text_follows(self, store: ExecutionStore) -> None:
        """Follows rule 7.2: `after_seq`, also when all envelopes were published before."""
        ref = await accepted(store)
        tells = telling(news("a", "b"))

        assert (await store.begin_step(begin(ref, events=tells))).after_seq == 2
        assert (await store.begin_step(begin(ref, attempt=2, events=telling(news("b", "c"))))).after_seq == 3
        assert (await store.begin_step(begin(ref, attempt=2, events=tells))).after_seq == 3
        assert (await store.begin_step(begin(ref, attempt=3))).after_seq is None
        assert (await store.preview_step(ref, 1)).after_seq is None

    async def test_a_recorded_step_is_returned_and_nothing_is_written(self, store: ExecutionStore) -> None:
        """1.1.1: the model is not called again."""
        ref = await accepted(store)
        await stepped(store, ref)
        given = reply(ref, "Look", a_call(), number=2, tokens=7)
        await store.begin_step(begin(ref, 2))
        await store.record_reply(given)
        await store.steer(ref, "k", user("Hurry"))
        before = await store.steps(ref), await store.transcript(ref), await store.execution(ref)

        again = begin(ref, 2, 2, outcome=OUTCOME, hears=1, events=telling(news("again")))
        begun = await store.begin_step(again)

        assert begun.recorded == given.facts
        assert begun.previous_attempt == 1
        assert (await store.steps(ref), await store.transcript(ref), await store.execution(ref)) == before
        assert await keys_told(store, ref) == []

    async def test_a_preview_shows_the_step_start_and_writes_nothing(self, store: ExecutionStore) -> None:
        """1.1.1: a recorded step is returned, too."""
        ref = await accepted(store, "Hello")
        await stepped(store, ref)
        before = await store.steps(ref), await store.transcript(ref), await store.execution(ref)

        first, second = await store.preview_step(ref, 1), await store.preview_step(ref, 2)

        assert (first.recorded, first.previous_attempt) == (reply(ref).facts, 1)
        assert (second.recorded, second.previous_attempt) == (None, None)
        assert (await store.steps(ref), await store.transcript(ref), await store.execution(ref)) == before
        assert second == await store.begin_step(begin(ref, 2))
        assert await store.preview_step(ref, 2) == replace(second, previous_attempt=1)

    async def test_an_execution_that_has_ended_has_no_preview(self, store: ExecutionStore) -> None:
        """8.2.1: nor has one that does not exist."""
        ref = await accepted(store)
        await ended(store, ref)

        with pytest.raises(ExecutionEnded):
            await store.preview_step(ref, 1)
        with pytest.raises(NotFound):
            await store.preview_step(of_another_tenant(ref), 1)

    async def test_envelopes_of_a_step_start_are_built_from_the_loaded_state(
        self, store: ExecutionStore
    ) -> None:
        ref = await accepted(store, "Hello", "Are you there?")

        def count(begun: BegunStep) -> Sequence[EventRecord]:
            return [told("step/1/started", message_count=len(begun.material.messages))]

        await store.begin_step(begin(ref, events=count))
        await store.begin_step(begin(ref, attempt=2, events=count))

        assert [envelope.payload for envelope in await all_told(store, ref)] == [{"message_count": 2}]

    async def test_a_step_does_not_begin_if_its_envelopes_cannot_be_built(
        self, store: ExecutionStore
    ) -> None:
        ref = await accepted(store)
        await store.steer(ref, "k", user("Hurry"))

        def raising(_: BegunStep) -> Sequence[EventRecord]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.begin_step(begin(ref, hears=1, events=raising))

        assert await store.steps(ref) == ()
        assert texts(await store.transcript(ref)) == ["Hello"]
        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PENDING

    async def test_concurrent_attempts_load_the_same_state(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        for key in ("a", "b"):
            await store.steer(ref, key, user(key))

        begun = await asyncio.gather(*(store.begin_step(begin(ref, 1, i, hears=2)) for i in range(1, 9)))

        assert {tuple(texts(each.material.messages)) for each in begun} == {("Hello", "a", "b")}
        assert [each.previous_attempt for each in begun].count(None) == 1

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_an_execution_that_has_ended_takes_no_more_steps(
        self, store: ExecutionStore, status: ExecutionStatus
    ) -> None:
        """8.2.1: a pending execution that is cancelled never starts."""
        ref = await accepted(store)
        await ended(store, ref, status)

        with pytest.raises(ExecutionEnded, match=f"has ended as {status}") as caught:
            await store.begin_step(begin(ref))

        assert caught.value.status is status
        assert await store.steps(ref) == ()

    async def test_a_paused_execution_stays_paused_until_it_is_resumed(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.settle(settled(ref, ExecutionStatus.PAUSED))

        await store.begin_step(begin(ref, attempt=2))

        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PAUSED

    async def test_a_new_step_sets_a_paused_execution_to_running(self, store: ExecutionStore) -> None:
        """1.2.1: steps run, so the execution is `running`."""
        ref = await accepted(store)
        await stepped(store, ref)
        await store.settle(settled(ref, ExecutionStatus.PAUSED))

        await store.begin_step(begin(ref, 2))

        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.RUNNING


class TestThePartialText:
    async def test_late_joiners_see_the_text_so_far(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))

        assert await store.note_partial(ref, 1, 1, "Once")
        assert await store.note_partial(ref, 1, 1, "Once upon")

        assert (await store.steps(ref))[0].partial_text == "Once upon"

    async def test_it_names_the_chunk_that_continues_it(self, store: ExecutionStore) -> None:
        """7.8.4: until another attempt begins, or the reply is stored; no position, no continuation."""
        ref = await accepted(store)

        async def place() -> tuple[int | None, int | None]:
            (step,) = await store.steps(ref)
            return step.next_index, step.after_seq

        await store.begin_step(begin(ref))
        assert await place() == (None, None)
        await store.note_partial(ref, 1, 1, "Once", next_index=2, after_seq=7)
        assert await place() == (2, 7)
        await store.begin_step(begin(ref))
        assert await place() == (2, 7)
        await store.begin_step(begin(ref, attempt=2))
        assert await place() == (None, None)
        await store.note_partial(ref, 1, 2, "There", next_index=1, after_seq=8)
        await store.note_partial(ref, 1, 2, "There was")
        assert await place() == (None, None)
        await store.note_partial(ref, 1, 2, "There was", next_index=3, after_seq=8)
        await store.record_reply(reply(ref, "There was one", attempt=2))
        assert await place() == (None, None)

    async def test_an_abandoned_attempt_cannot_change_the_text(self, store: ExecutionStore) -> None:
        """7.6.3: viewers drop the text of an abandoned attempt."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.note_partial(ref, 1, 1, "Once")

        await store.begin_step(begin(ref, attempt=2))
        assert (await store.steps(ref))[0].partial_text == ""
        assert await store.note_partial(ref, 1, 2, "There was")
        assert not await store.note_partial(ref, 1, 1, "Once upon a time")

        assert (await store.steps(ref))[0].partial_text == "There was"

    async def test_the_reply_replaces_it(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.note_partial(ref, 1, 1, "Once upon")

        await store.record_reply(reply(ref, "Once upon a time"))
        assert not await store.note_partial(ref, 1, 1, "Once upon")

        assert (await store.steps(ref))[0].partial_text == ""

    async def test_a_step_that_never_began_has_none(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        assert not await store.note_partial(ref, 1, 1, "Once")
        assert not await store.note_partial(a_ref(), 1, 1, "Once")

        assert await store.steps(ref) == ()


class TestTransportFailures:
    async def test_each_attempt_counts_once(self, store: ExecutionStore) -> None:
        """3.5.1: the number of attempts in all, including those that crashed after counting."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))

        counts = [await store.note_failure(ref, 1, attempt) for attempt in (1, 1, 2, 4, 2)]

        assert counts == [1, 1, 2, 3, 3]

    async def test_each_step_counts_its_own_attempts(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.note_failure(ref, 1, 1)
        await stepped(store, ref)
        await store.begin_step(begin(ref, 2))

        assert await store.note_failure(ref, 2, 1) == 1

    async def test_a_step_that_never_began_cannot_fail(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        with pytest.raises(NotFound, match="There is no step 1"):
            await store.note_failure(ref, 1, 1)


class TestWaiting:
    WAIT = RetryWait(1, AT, AT + timedelta(seconds=12), "provider unavailable, next attempt in 12 s", "503")
    TOLD = EventRecord("status/wait/1/1", "agent.status", EMPTY)

    async def test_a_step_waits_until_its_next_attempt(self, store: ExecutionStore) -> None:
        """3.5.5: viewers are notified; the next attempt knows when the wait began."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.note_wait(ref, 1, self.WAIT, [self.TOLD])

        (step,) = await store.steps(ref)
        assert step.waits == step.wait == self.WAIT
        begun = await store.begin_step(replace(begin(ref), attempt=2))
        assert begun.wait == self.WAIT
        (step,) = await store.steps(ref)
        assert (step.waits, step.wait) == (None, self.WAIT)
        assert (await store.envelopes(ref.tenant_id, ref.stream_id))[-1].type == "agent.status"

    async def test_an_attempt_that_was_overtaken_does_not_wait(self, store: ExecutionStore) -> None:
        """3.5.5: nor does a step that has its reply, nor an execution that has ended."""
        ref = await accepted(store)
        await store.begin_step(replace(begin(ref), attempt=2))
        await store.note_wait(ref, 1, self.WAIT, [self.TOLD])
        assert (await store.steps(ref))[0].wait is None
        await store.note_wait(ref, 2, self.WAIT, [self.TOLD])
        await stepped(store, ref)
        before = await store.envelopes(ref.tenant_id, ref.stream_id)
        await store.note_wait(ref, 1, replace(self.WAIT, attempt=2), [self.TOLD])

        assert (await store.steps(ref))[0].wait is None
        assert await store.envelopes(ref.tenant_id, ref.stream_id) == before


class TestRecordingAReply:
    async def test_it_is_in_the_facts_the_conversation_and_the_ledger(self, store: ExecutionStore) -> None:
        ref = await accepted(store, "Where is it?")
        await store.begin_step(begin(ref))
        given = reply(ref, "Let me look", a_call("c1", z=1, a=2), a_call("c2"), events=news("replied"))

        assert await store.record_reply(given) == given.facts

        (step,) = await store.steps(ref)
        assert step.facts == given.facts
        assert step.messages == given.messages
        assert [(row.call, row.state, row.attempts, row.record) for row in step.calls] == [
            (told.call, "told", 0, None) for told in given.calls
        ]
        assert list(step.calls[0].call.args) == ["z", "a"]
        assert await store.transcript(ref) == (user("Where is it?"), *given.messages)
        assert await keys_told(store, ref) == ["replied"]

    async def test_facts_are_stored_without_loss(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        failed = StepError("no such file", ErrorType.TIMEOUT, "look", "TimeoutError")
        facts = StepFacts(
            1,
            (
                CallFacts("c1", "look", CallNeed.SUBAGENT),
                CallFacts("c2", "look", is_settled=True, error=failed),
            ),
            "length",
            Usage(1, 2, 3, 4, 5),
            (StepError("", ErrorType.VALIDATION),),
            (StepError("", None, None, "ValueError"),),
            StepType.ERROR,
            is_failure=True,
            seconds=0.1,
        )
        errors = (StepError("all of the message", ErrorType.MODEL, "look", "ValueError"),)
        await store.begin_step(begin(ref))

        await store.record_reply(replace(reply(ref), facts=facts, errors=errors))

        begun = await store.begin_step(begin(ref, attempt=2))
        assert begun.recorded == facts
        assert (await store.steps(ref))[0].errors == errors

    async def test_the_first_reply_counts_from_any_attempt(self, store: ExecutionStore) -> None:
        """1.1.1: the recorded reply is returned, and the later one is dropped."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.begin_step(begin(ref, attempt=2))
        first = reply(ref, "From the straggler", attempt=1, tokens=5, events=news("replied"))
        await store.record_reply(first)
        before = await store.steps(ref), await store.execution(ref)

        late = reply(ref, "Too late", a_call(), attempt=2, tokens=9, events=news("replied", "more"))
        assert await store.record_reply(late) == first.facts

        assert (await store.steps(ref), await store.execution(ref)) == before
        assert texts(await store.transcript(ref)) == ["Hello", "From the straggler"]
        assert await keys_told(store, ref) == ["replied"]

    async def test_of_concurrent_replies_one_wins_and_all_see_it(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        given = [
            reply(ref, f"Answer {i}", a_call(f"c{i}"), attempt=i, tokens=i, events=news(f"replied {i}"))
            for i in range(1, 9)
        ]

        facts = await asyncio.gather(*(store.record_reply(each) for each in given))

        assert len(set(facts)) == 1
        winner = next(each for each in given if each.facts == facts[0])
        assert await store.transcript(ref) == (user("Hello"), *winner.messages)
        (step,) = await store.steps(ref)
        assert (step.attempt, [row.call for row in step.calls]) == (winner.attempt, [winner.calls[0].call])
        row = await store.execution(ref)
        assert row
        assert row.usage["total"] == winner.attempt
        assert await keys_told(store, ref) == [f"replied {winner.attempt}"]

    async def test_usage_adds_up_by_kind(self, store: ExecutionStore) -> None:
        """4.2.1: in the database, disjoint counters and their sum."""
        ref = await accepted(store)
        for number, usage in enumerate((Usage(100, 40, 1, 29, 10), Usage(1, 2, 3, 4, 5)), 1):
            await store.begin_step(begin(ref, number))
            facts = StepFacts(number, usage=usage)
            await store.record_reply(replace(reply(ref, number=number), facts=facts))

        row = await store.execution(ref)

        assert row
        assert row.usage == {"input": 101, "output": 42, "cached": 37, "reasoning": 15, "total": 195}

    async def test_a_step_is_counted_once_it_is_complete(self, store: ExecutionStore) -> None:
        """2.6.1: a step with calls is complete when they have their results."""
        ref = await accepted(store)
        counts: list[int] = []

        async def count() -> None:
            row = await store.execution(ref)
            counts.append(row.step_count if row else -1)

        await store.begin_step(begin(ref))
        await count()
        await store.record_reply(reply(ref, "Look", a_call()))
        await count()
        await store.record_call(answers(ref))
        await store.begin_step(begin(ref, 2))
        await count()
        await store.record_reply(reply(ref, "Done", number=2))
        await count()

        assert counts == [0, 0, 1, 2]

    async def test_a_reply_without_a_step_start_is_stored(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        await store.record_reply(reply(ref, attempt=3))

        (step,) = await store.steps(ref)
        assert (step.number, step.attempt) == (1, 3)

    @pytest.mark.parametrize("first_written", [False, True])
    async def test_a_reply_may_include_its_step_start(
        self, store: ExecutionStore, *, first_written: bool
    ) -> None:
        """8.2.3: a short step is written in one transaction, also if it was begun in the meantime."""
        ref = await accepted(store)
        await stepped(store, ref)
        second = begin(ref, 2, 3, outcome=OUTCOME, events=telling(news("begins")))
        if first_written:
            await store.begin_step(second)

        given = replace(
            reply(ref, "Done", number=2, attempt=3, events=news("begins", "replied")), begins=second
        )
        assert await store.record_reply(given) == given.facts
        assert await store.record_reply(given) == given.facts

        one, two = await store.steps(ref)
        assert (one.outcome, one.completed_at is not None) == (OUTCOME, True)
        assert (two.facts, two.attempt) == (given.facts, 3)
        assert texts(await store.transcript(ref)) == ["Hello", "Hi", "Done"]
        assert await keys_told(store, ref) == ["begins", "replied"]

    async def test_a_step_that_began_with_its_reply_took_as_long_as_the_model(
        self, store: ExecutionStore
    ) -> None:
        """8.2.3: and it starts the execution."""
        ref = await accepted(store)
        given = reply(ref)

        await store.record_reply(replace(given, begins=begin(ref)))
        await store.begin_step(begin(ref, 2))

        (first, _), row = await store.steps(ref), await store.execution(ref)
        assert first.duration_ms
        assert first.duration_ms >= given.facts.seconds * 1000
        assert row
        assert (row.status, row.started_at is not None) == (ExecutionStatus.RUNNING, True)

    async def test_a_reply_after_the_end_begins_no_step(self, store: ExecutionStore) -> None:
        """1.1.5: nor is the previous step evaluated again."""
        ref = await accepted(store)
        await stepped(store, ref)
        await ended(store, ref, ExecutionStatus.CANCELLED)
        before = await store.steps(ref), await store.execution(ref)

        late = replace(reply(ref, number=2), begins=begin(ref, 2, outcome=OUTCOME), events=news("begins"))
        with pytest.raises(ExecutionEnded):
            await store.record_reply(late)

        assert (await store.steps(ref), await store.execution(ref)) == before
        assert await keys_told(store, ref) == []

    async def test_a_call_id_is_used_once_in_an_execution(self, store: ExecutionStore) -> None:
        """1.1.3: each call has its own result, so the ids have to differ."""
        ref = await accepted(store)
        await stepped(store, ref, 1, "Look", a_call("call_0"))
        before = await store.steps(ref), await store.transcript(ref), await store.execution(ref)

        again = reply(ref, "Again", a_call("call_0"), number=2)
        with pytest.raises(InvalidInput, match=r"a call of step 2 \(call_0\) has the id of another one"):
            await store.record_reply(replace(again, begins=begin(ref, 2)))

        assert (await store.steps(ref), await store.transcript(ref), await store.execution(ref)) == before

    async def test_two_executions_may_use_the_same_call_id(self, store: ExecutionStore) -> None:
        for _ in range(2):
            await stepped(store, await accepted(store), 1, "Look", a_call("call_0"))

    async def test_calls_that_no_worker_has_to_run_are_not_in_the_ledger(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        given = reply(ref, "Look", a_call("c1"), a_call("c2"), needs=CallNeed.INPUT)
        settled_one = replace(given.facts.calls[0], is_settled=True)
        facts = replace(given.facts, calls=(settled_one, given.facts.calls[1]))
        await store.begin_step(begin(ref))

        await store.record_reply(replace(given, facts=facts))

        assert [row.call.id for row in (await store.steps(ref))[0].calls] == ["c2"]
        assert [row.call_id for row in await store.open_requests(ref)] == ["c2"]
        assert (await store.reserve_call(ref, "c2", 1)).index == 1

    async def test_a_reply_after_the_end_is_not_written(self, store: ExecutionStore) -> None:
        """1.1.5: the calls of such a reply would never be answered."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await ended(store, ref, ExecutionStatus.CANCELLED)

        with pytest.raises(ExecutionEnded):
            await store.record_reply(reply(ref, "Look", a_call()))

        assert texts(await store.transcript(ref)) == ["Hello"]
        assert (await store.steps(ref))[0].facts is None

    async def test_a_reply_recorded_before_the_end_is_still_returned(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        given = reply(ref)
        await store.record_reply(given)
        await ended(store, ref)

        assert await store.record_reply(reply(ref, "Too late")) == given.facts

    async def test_malformed_arguments_are_kept_as_the_model_sent_them(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        call = ToolCall("c1", "look", malformed='{"path": ')
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", call))

        assert (await store.reserve_call(ref, "c1", 1)).call == call

    async def test_a_reply_holds_a_thousand_messages(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))

        with pytest.raises(InvalidInput, match="at most 1000 messages, not 1001"):
            await store.record_reply(replace(reply(ref), messages=(user("again"),) * 1001))
        await store.record_reply(replace(reply(ref, "", a_call()), messages=(user("again"),) * 1000))
        await store.record_call(answers(ref))

        assert len(await store.transcript(ref)) == 1002


class TestReservingACall:
    @pytest.fixture
    async def ref(self, store: ExecutionStore) -> ExecutionRef:
        ref = await accepted(store, metadata=frozen_map({"topic": "tea"}))
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call("c0"), a_call("c1", path="x")))
        return ref

    async def test_it_returns_the_call_to_run(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        assert await store.reserve_call(ref, "c1", 1) == Reservation(
            a_call("c1", path="x"), 1, 1, frozen_map({"topic": "tea"}), earlier=(a_call("c0"),)
        )

    async def test_it_returns_how_much_viewers_may_see(self, store: ExecutionStore) -> None:
        """7.5: as the execution's plan has it."""
        broadcast = frozen_map({"include_tool_args": True, "max_arg_length": 7})
        ref = await accepted(store, plan=frozen_map({"agent": "helper", "broadcast": broadcast}))
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call()))

        assert (await store.preview_call(ref, "c1")).broadcast == broadcast
        assert (await store.reserve_call(ref, "c1", 1)).broadcast == broadcast
        assert (await store.material(ref)).broadcast == broadcast

    async def test_a_preview_returns_the_same_and_reserves_nothing(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        """1.1.3: for tools that are safe to run twice."""
        previewed = [await store.preview_call(ref, "c1") for _ in range(2)]

        assert previewed == [await store.reserve_call(ref, "c1", 1)] * 2
        record = await store.record_call(answers(ref, answer("c1"), index=1))
        assert (await store.preview_call(ref, "c1")).recorded == record
        for unknown in (replace(ref, tenant_id=OTHERS), await accepted(store)):
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
        record = answer("c1", {"z": 1, "a": [None, 2.5]})
        await store.record_call(answers(ref, record, index=1))

        reserved = await store.reserve_call(ref, "c1", 2, telling(news("started")))

        assert reserved.recorded
        assert reserved.recorded == record
        assert list(reserved.recorded.result) == ["z", "a"]
        assert not reserved.is_uncertain
        assert (await store.steps(ref))[0].calls[1].attempts == 1
        assert await keys_told(store, ref) == []

    async def test_of_concurrent_attempts_exactly_one_is_certain(
        self, store: ExecutionStore, ref: ExecutionRef
    ) -> None:
        reserved = await asyncio.gather(*(store.reserve_call(ref, "c1", i) for i in range(1, 11)))

        assert [each.is_uncertain for each in reserved].count(False) == 1

    async def test_viewers_are_notified_once(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        def started(reservation: Reservation) -> Sequence[EventRecord]:
            return news(f"{reservation.call.id} started")

        for attempt in (1, 2):
            await store.reserve_call(ref, "c1", attempt, started)

        assert await keys_told(store, ref) == ["c1 started"]

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
        another = await accepted(store)

        with pytest.raises(NotFound, match="There is no call c1"):
            await store.reserve_call(another, "c1", 1)

    async def test_after_the_end_no_call_runs(self, store: ExecutionStore, ref: ExecutionRef) -> None:
        """8.2.1: cancelling abandons the current step."""
        await ended(store, ref, ExecutionStatus.CANCELLED)

        reserved = await store.reserve_call(ref, "c1", 1)

        assert reserved.recorded
        assert reserved.recorded.text == CANCELLED


class TestRecordingACall:
    async def with_calls(self, store: ExecutionStore, *ids: str, **fields: Any) -> ExecutionRef:
        ref = await accepted(store, **fields)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", *map(a_call, ids)))
        for call_id in ids:
            await store.reserve_call(ref, call_id, 1)
        return ref

    @pytest.mark.parametrize(
        "record",
        [
            answer("c1", "found"),
            answer("c1", None, text="null"),
            answer("c1", {"z": [1, 2.5, True, None, "ä"], "a": {}}, text="a map"),
            answer("c1", 1e22, text="1e22"),
            answer("c1", ""),
            a_failure("c1"),
            answer("c1", None, error=StepError("late", ErrorType.TIMEOUT), text="Error: late", success=False),
            answer("c1", None, text="Denied by user", success=False),
        ],
        ids=lambda record: record.text or "empty",
    )
    async def test_a_result_is_stored_without_loss(self, store: ExecutionStore, record: Any) -> None:
        ref = await self.with_calls(store, "c1")

        assert await store.record_call(answers(ref, record)) == record

        again = await store.record_call(answers(ref, answer("c1", "another")))
        assert again == record
        assert repr(again.result) == repr(record.result)
        assert (await store.steps(ref))[0].calls[0].record == record

    async def test_there_is_exactly_one_result(self, store: ExecutionStore) -> None:
        """1.1.3: each call has exactly one recorded result."""
        ref = await self.with_calls(store, "c1")
        first = answers(ref, answer("c1", "first"), metadata=frozen_map({"by": "first"}), events=news("done"))
        await store.record_call(first)

        late = answers(
            ref, answer("c1", "late"), metadata=frozen_map({"by": "late"}), events=news("done", "late")
        )
        assert await store.record_call(late) == first.record

        assert texts(await store.transcript(ref)) == ["Hello", "Look", "first"]
        assert (await store.material(ref)).metadata == {"by": "first"}
        assert await keys_told(store, ref) == ["done"]

    async def test_a_call_without_a_reservation_may_be_answered(self, store: ExecutionStore) -> None:
        """1.1.3: its result names the attempt."""
        ref = await accepted(store)
        await store.record_reply(reply(ref, "Look", a_call("c1")))

        await store.record_call(replace(answers(ref), attempt=2))

        call = (await store.steps(ref))[0].calls[0]
        assert (call.state, call.attempts, call.record) == ("done", 2, answer())

    async def test_of_concurrent_results_one_wins_and_all_see_it(self, store: ExecutionStore) -> None:
        """1.1.3: each call has exactly one recorded result."""
        ref = await self.with_calls(store, "c1")
        given = [
            answers(
                ref,
                answer("c1", f"result {i}"),
                metadata=frozen_map({f"key {i}": i}),
                events=news(f"done {i}"),
            )
            for i in range(10)
        ]

        seen = await asyncio.gather(*(store.record_call(each) for each in given))

        assert {record.text for record in seen} == {seen[0].text}
        winner = next(i for i in range(10) if given[i].record == seen[0])
        assert texts(await store.transcript(ref)) == ["Hello", "Look", f"result {winner}"]
        assert (await store.material(ref)).metadata == {f"key {winner}": winner}
        assert await keys_told(store, ref) == [f"done {winner}"]

    async def test_results_are_in_the_order_of_the_calls(self, store: ExecutionStore) -> None:
        """5.4.1: not in the order in which they were completed."""
        ref = await self.with_calls(store, *(f"c{i}" for i in range(12)))

        for i in (11, 3, 0, 7, 1, 10, 2, 5, 4, 6, 9, 8):
            await store.record_call(answers(ref, answer(f"c{i}", f"result {i}"), index=i))
        await stepped(store, ref, 2, "Done")

        expected = ["Hello", "Look", *(f"result {i}" for i in range(12)), "Done"]
        assert texts(await store.transcript(ref)) == expected

    async def test_a_result_may_take_several_messages(self, store: ExecutionStore) -> None:
        """12.2: the decision, and the observation."""
        ref = await self.with_calls(store, "c0", "c1")
        for index in (1, 0):
            said = (assistant(f"Action {index}"), user(f"Observation {index}"))
            await store.record_call(answers(ref, answer(f"c{index}"), index=index, messages=said))

        assert texts(await store.transcript(ref))[2:] == [
            "Action 0",
            "Observation 0",
            "Action 1",
            "Observation 1",
        ]

    async def test_metadata_is_merged_by_key(self, store: ExecutionStore) -> None:
        """9.4.2: stored after the call; a new key comes last."""
        ref = await self.with_calls(store, "c0", "c1", metadata=frozen_map({"zeta": 1, "kept": {"a": 1}}))

        await store.record_call(answers(ref, answer("c0"), metadata=frozen_map({"zeta": 2, "new": [3]})))
        await store.record_call(answers(ref, answer("c1"), index=1))

        metadata = (await store.material(ref)).metadata
        assert list(metadata.items()) == [("zeta", 2), ("kept", {"a": 1}), ("new", [3])]
        row = await store.execution(ref)
        assert row
        assert row.metadata == metadata

    async def test_no_key_is_lost_when_many_calls_write_concurrently(self, store: ExecutionStore) -> None:
        ids = [f"c{i}" for i in range(20)]
        ref = await self.with_calls(store, *ids)

        await asyncio.gather(
            *(
                store.record_call(answers(ref, answer(call_id), index=i, metadata=frozen_map({call_id: i})))
                for i, call_id in enumerate(ids)
            )
        )

        assert (await store.material(ref)).metadata == {call_id: i for i, call_id in enumerate(ids)}

    async def test_an_unknown_call_has_no_result(self, store: ExecutionStore) -> None:
        ref = await self.with_calls(store, "c1")

        with pytest.raises(NotFound, match="There is no call c9"):
            await store.record_call(answers(ref, answer("c9")))
        with pytest.raises(NotFound, match="There is no call c9"):
            await store.record_call(answers(ref, answer("c9"), metadata=frozen_map({"a": 1})))

        assert (await store.material(ref)).metadata == {}

    async def test_a_result_closes_the_question(self, store: ExecutionStore) -> None:
        """8.5.5: after a timeout the call fails, and its question accepts no answer."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "?", a_call("c1"), needs=CallNeed.INPUT))
        asked = request_id(ref.execution_id, "c1")

        await store.record_call(answers(ref, a_failure("c1")))

        assert await store.open_requests(ref) == ()
        assert not await store.resolve(ref, asked, Resolution("answer", "late"), news("answered"))
        row = await store.request(ref, asked)
        assert row
        assert (row.state, row.resolution) == (RequestState.RESOLVED, None)
        assert await keys_told(store, ref) == []


class TestChangingStatus:
    async def test_the_end_is_stored(self, store: ExecutionStore) -> None:
        """8.2.3: output, `completed_at`, `step_count`, tokens; 1.2.1: the stop reason, in metadata too."""
        ref = await accepted(store, metadata=frozen_map({"topic": "tea"}))
        await stepped(store, ref)
        output = frozen_map({"response": "Hi", "stop_reason": "steps_limit"})

        assert await store.settle(
            settled(
                ref,
                ExecutionStatus.COMPLETED,
                outcome=OUTCOME,
                stop_reason=StopReason.STEPS_LIMIT,
                step_count=3,
                usage=Usage(1, 2, 3, 4, 5),
                output=output,
                events=news("completed"),
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
        assert await keys_told(store, ref) == ["completed"]

    async def test_paid_usage_is_not_taken_back(self, store: ExecutionStore) -> None:
        """4.2.1: an incomplete step counts, also if another writer changes the status at the same time."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(replace(reply(ref), facts=StepFacts(1, usage=Usage(100, 40, 1, 29, 10))))
        totals: list[int] = []

        for key, usage in (("one", Usage()), ("two", None), ("three", Usage(200))):
            await store.settle(settled(ref, ExecutionStatus.PAUSED, key=key, usage=usage))
            row = await store.execution(ref)
            assert row
            assert sum(row.usage.values()) == 2 * row.usage["total"]
            totals.append(row.usage["total"])

        assert totals == [180, 180, 200]

    async def test_metadata_of_everstep_are_not_visible_to_the_agent(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.settle(settled(ref, ExecutionStatus.PAUSED, stop_reason=StopReason.GUARD))

        assert (await store.material(ref)).metadata == {}

    async def test_a_failure_stores_its_reason(self, store: ExecutionStore) -> None:
        """8.2.3: a failure sets `error_message`."""
        ref = await accepted(store)

        await store.settle(settled(ref, ExecutionStatus.FAILED, error_message="The model is gone"))

        row = await store.execution(ref)
        assert row
        assert (row.status, row.error_message) == (ExecutionStatus.FAILED, "The model is gone")

    async def test_a_pause_and_a_resume(self, store: ExecutionStore) -> None:
        """8.2.1: `running` and `paused` alternate; fields that an update omits stay."""
        ref = await accepted(store)
        await stepped(store, ref, 1, "Hi")
        statuses: list[ExecutionStatus] = []
        for number, status in enumerate([ExecutionStatus.PAUSED, ExecutionStatus.RUNNING] * 2):
            assert await store.settle(settled(ref, status, f"change/{number}"))
            row = await store.execution(ref)
            assert row
            assert (row.completed_at, row.step_count) == (None, 1)
            statuses.append(row.status)

        assert statuses == [ExecutionStatus.PAUSED, ExecutionStatus.RUNNING] * 2
        # The step is not evaluated yet, so it is not complete.
        assert (await store.steps(ref))[0].completed_at is None

    async def test_running_starts_the_execution(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.settle(settled(ref, ExecutionStatus.RUNNING))
        first = await store.execution(ref)

        await store.settle(settled(ref, ExecutionStatus.RUNNING, "again"))

        second = await store.execution(ref)
        assert first
        assert first.started_at
        assert second == first

    async def test_an_update_key_applies_once(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        assert await store.settle(settled(ref, ExecutionStatus.PAUSED, "k", events=news("paused")))
        assert not await store.settle(settled(ref, ExecutionStatus.RUNNING, "k", events=news("resumed")))

        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PAUSED
        assert await keys_told(store, ref) == ["paused"]

    async def test_of_concurrent_updates_with_one_key_one_applies(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        given = [settled(ref, ExecutionStatus.PAUSED, "k", events=news(f"paused {i}")) for i in range(10)]

        results = await asyncio.gather(*(store.settle(each) for each in given))

        assert results.count(True) == 1
        assert await keys_told(store, ref) == [f"paused {results.index(True)}"]

    @pytest.mark.parametrize("status", TERMINAL)
    @pytest.mark.parametrize("then", [*TERMINAL, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED])
    async def test_an_ended_execution_does_not_change(
        self, store: ExecutionStore, status: ExecutionStatus, then: ExecutionStatus
    ) -> None:
        """7.4.2: the terminal `agent.status` is the last envelope of an execution."""
        ref = await accepted(store)
        await store.settle(settled(ref, status, "first", events=news("ended"), error_message="this"))
        before = await store.execution(ref)

        late = settled(ref, then, "second", events=news("late"), error_message="that", step=StepFacts(1))
        assert not await store.settle(late)

        assert await store.execution(ref) == before
        assert await store.steps(ref) == ()
        assert await keys_told(store, ref) == ["ended"]

    async def test_of_concurrent_ends_one_counts(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        results = await asyncio.gather(*(store.settle(settled(ref, status)) for status in TERMINAL))

        assert results.count(True) == 1
        row = await store.execution(ref)
        assert row
        assert row.status is TERMINAL[results.index(True)]

    async def test_a_failure_step_is_recorded(self, store: ExecutionStore) -> None:
        """4.3.4: a step that no activity reported."""
        ref = await accepted(store)
        await stepped(store, ref)
        error = StepError("it broke", ErrorType.UNKNOWN, None, "RuntimeError")
        facts = StepFacts(2, own_errors=(StepError("", None, None, "RuntimeError"),), is_failure=True)

        await store.settle(settled(ref, ExecutionStatus.RUNNING, "step/2/failed", step=facts, errors=[error]))
        await store.settle(settled(ref, ExecutionStatus.FAILED, "end", outcome=OUTCOME))

        first, second = await store.steps(ref)
        assert (second.facts, second.errors, second.outcome) == (facts, (error,), OUTCOME)
        assert first.outcome is None
        assert first.completed_at
        assert second.completed_at

    async def test_the_outcome_belongs_to_the_named_step(self, store: ExecutionStore) -> None:
        """2.2.7: a criterion that raises ends the run with a failure step."""
        ref = await accepted(store)
        await stepped(store, ref)

        failed = StepFacts(2, is_failure=True)
        await store.settle(settled(ref, ExecutionStatus.FAILED, step=failed, outcome=OUTCOME))

        assert [step.outcome for step in await store.steps(ref)] == [None, OUTCOME]

    async def test_an_abandoned_step_replaces_the_recorded_one(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.note_partial(ref, 1, 1, "Once upon")
        given = reply(ref, "Look", a_call())
        await store.record_reply(given)
        abandoned = given.facts.settled([CallFacts("c1", "look")])

        await store.settle(settled(ref, ExecutionStatus.CANCELLED, step=abandoned))

        (step,) = await store.steps(ref)
        assert (step.facts, step.partial_text, step.next_index) == (abandoned, "", None)

    async def test_a_step_without_a_reply_is_never_complete(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))

        await store.settle(settled(ref, ExecutionStatus.CANCELLED, outcome=OUTCOME))

        (step,) = await store.steps(ref)
        assert (step.outcome, step.completed_at) == (None, None)

    async def test_interrupted_calls_get_the_results_that_the_conversation_has(
        self, store: ExecutionStore
    ) -> None:
        """1.1.5: a call that has its result keeps it."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", *map(a_call, ("c0", "c1", "c2"))))
        await store.record_call(answers(ref, answer("c1"), index=1))

        cut = [(f"c{i}", i, (user(f"Observation: {CANCELLED} ({i})"),)) for i in range(3)]
        await store.settle(settled(ref, ExecutionStatus.CANCELLED, cancelled_calls=cut))

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
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call("c0"), a_call("c1")))
        await store.reserve_call(ref, "c1", 1)

        await ended(store, ref, ExecutionStatus.CANCELLED)

        assert (await store.transcript(ref))[2:] == tuple(
            tool_message(CANCELLED, call_id, "look") for call_id in ("c0", "c1")
        )

    async def test_no_call_of_a_failure_step_is_left_open(self, store: ExecutionStore) -> None:
        """1.1.5: the run may continue after it."""
        ref = await accepted(store)
        await stepped(store, ref, 1, "Look", a_call("c0"))
        await store.begin_step(begin(ref, 2))
        await store.record_reply(reply(ref, "Look again", a_call("c1"), number=2))

        failed = StepFacts(2, is_failure=True)
        await store.settle(settled(ref, ExecutionStatus.RUNNING, step=failed))

        assert texts(await store.transcript(ref)) == ["Hello", "Look", "found", "Look again", CANCELLED]

    async def test_a_pause_leaves_calls_open(self, store: ExecutionStore) -> None:
        """8.4.1: it continues in the same step."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call("c0")))

        await store.settle(settled(ref, ExecutionStatus.PAUSED))

        assert (await store.reserve_call(ref, "c0", 1)).recorded is None

    async def test_a_late_result_is_not_written(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call("c0")))
        await store.reserve_call(ref, "c0", 1)
        await ended(store, ref, ExecutionStatus.CANCELLED)

        late = answers(ref, answer("c0"), metadata=frozen_map({"a": 1}), events=news("late"))
        record = await store.record_call(late)

        assert record.text == CANCELLED
        assert texts(await store.transcript(ref)) == ["Hello", "Look", CANCELLED]
        assert (await store.material(ref)).metadata == {}
        assert await keys_told(store, ref) == []

    async def test_a_result_and_a_concurrent_end_leave_one_result(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        ids = [f"c{i}" for i in range(8)]
        await store.record_reply(reply(ref, "Look", *map(a_call, ids)))

        recorded = [
            store.record_call(answers(ref, answer(call_id), index=i, metadata=frozen_map({call_id: i})))
            for i, call_id in enumerate(ids)
        ]
        await asyncio.gather(*recorded[:4], ended(store, ref, ExecutionStatus.CANCELLED), *recorded[4:])

        said = texts(await store.transcript(ref))[2:]
        calls = (await store.steps(ref))[0].calls
        assert said == [call.record.text for call in calls if call.record]
        assert len(said) == len(ids)
        kept = {call.call.id for call in calls if call.record and call.record.success}
        assert set((await store.material(ref)).metadata) == kept

    async def test_the_end_closes_every_question(self, store: ExecutionStore) -> None:
        """8.6.3: an approval that was not given in time can no longer be given."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "May I?", a_call("c0"), needs=CallNeed.APPROVAL))

        await ended(store, ref, ExecutionStatus.CANCELLED)

        assert await store.open_requests(ref) == ()
        asked = request_id(ref.execution_id, "c0")
        assert not await store.resolve(ref, asked, Resolution("approve"))

    async def test_an_unknown_execution_cannot_change_status(self, store: ExecutionStore) -> None:
        with pytest.raises(NotFound, match="There is no execution"):
            await store.settle(settled(a_ref(), ExecutionStatus.PAUSED))


class TestKeepingSnapshots:
    async def test_a_step_has_one_and_it_is_the_executions_last(self, store: ExecutionStore) -> None:
        """8.1.3: a second attempt stores no other; 8.1.2: a child records the last one."""
        ref = await accepted(store)
        await stepped(store, ref)
        seen: list[object] = []

        for number in (1, 1, 2, 1):
            seen.append(await store.keep_snapshot(ref, number, frozen_map({"number": number})))
            child = await store.accept(new(a_ref(), parent_execution_id=ref.execution_id))
            seen.append(child.metadata["parent_snapshot_id"])

        first, _, second = seen[1], seen[3], seen[5]
        assert first != second
        assert seen == [True, first, False, first, True, second, False, second]

    async def test_an_execution_that_has_ended_gets_no_more(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await ended(store, ref)

        with pytest.raises(ExecutionEnded):
            await store.keep_snapshot(ref, 1, frozen_map({}))


class TestSteering:
    async def test_messages_are_inserted_before_the_reply_oldest_first(self, store: ExecutionStore) -> None:
        """8.3.1: inserted at the next step boundary, never between a call and its result."""
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call("c0")))
        for key in ("b", "a", "c"):
            assert await store.steer(ref, key, user(f"Steered {key}"))
        assert texts(await store.transcript(ref)) == ["Hello", "Look"]
        await store.record_call(answers(ref, answer("c0")))

        begun = await store.begin_step(begin(ref, 2, hears=2))
        await store.record_reply(reply(ref, "Right", number=2))

        said = ["Hello", "Look", "found", "Steered b", "Steered a"]
        assert texts(begun.material.messages) == said
        assert texts(await store.transcript(ref)) == [*said, "Right"]
        assert texts((await store.steps(ref))[1].messages) == ["Steered b", "Steered a", "Right"]
        assert [step.heard for step in await store.steps(ref)] == [0, 2]

    async def test_a_second_attempt_gets_the_same_messages(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.steer(ref, "a", user("first"))
        await store.begin_step(begin(ref, hears=1))
        await store.steer(ref, "b", user("second"))

        begun = await store.begin_step(begin(ref, attempt=2, hears=1))

        assert texts(begun.material.messages) == ["Hello", "first"]
        await store.record_reply(reply(ref))
        begun = await store.begin_step(begin(ref, 2, hears=1))
        assert texts(begun.material.messages) == ["Hello", "first", "Hi", "second"]

    async def test_a_message_that_arrives_between_attempts_keeps_its_position(
        self, store: ExecutionStore
    ) -> None:
        ref = await accepted(store)
        await store.steer(ref, "a", user("first"))
        await store.begin_step(begin(ref, hears=2))
        await store.steer(ref, "b", user("second"))

        begun = await store.begin_step(begin(ref, attempt=2, hears=2))

        assert texts(begun.material.messages) == ["Hello", "first", "second"]

    async def test_a_message_is_stored_once(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        assert await store.steer(ref, "k", user("Hurry"))
        assert not await store.steer(ref, "k", user("Hurry up"))
        await store.begin_step(begin(ref, hears=5))
        assert not await store.steer(ref, "k", user("Hurry up"))

        assert texts(await store.transcript(ref)) == ["Hello", "Hurry"]

    async def test_of_concurrent_copies_of_a_message_one_is_stored(self, store: ExecutionStore) -> None:
        ref = await accepted(store)

        results = await asyncio.gather(*(store.steer(ref, "k", user(f"Hurry {i}")) for i in range(10)))

        assert results.count(True) == 1
        await store.begin_step(begin(ref, hears=5))
        assert texts(await store.transcript(ref)) == ["Hello", f"Hurry {results.index(True)}"]

    async def test_parts_and_metadata_are_stored(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        message = Message(Role.USER, [{"type": "text", "text": "Look"}], frozen_map({"z": 1, "a": 2}))  # type: ignore[arg-type]
        await store.steer(ref, "k", message)

        begun = await store.begin_step(begin(ref, hears=1))

        assert begun.material.messages[-1] == message

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_an_execution_that_has_ended_accepts_no_message(
        self, store: ExecutionStore, status: ExecutionStatus
    ) -> None:
        """8.3.1: an accepted message is never dropped, so it is not accepted."""
        ref = await accepted(store)
        await store.steer(ref, "before", user("Hurry"))
        await ended(store, ref, status)

        with pytest.raises(ExecutionEnded):
            await store.steer(ref, "after", user("Hurry"))
        assert not await store.steer(ref, "before", user("Hurry"))

    async def test_an_unknown_execution_cannot_be_steered(self, store: ExecutionStore) -> None:
        with pytest.raises(NotFound, match="There is no execution"):
            await store.steer(a_ref(), "k", user("Hurry"))


class TestQuestions:
    async def asking(
        self, store: ExecutionStore, *ids: str, need: CallNeed = CallNeed.INPUT, session: UUID | None = None
    ) -> ExecutionRef:
        ref = await accepted(store, session_id=session)
        await store.begin_step(begin(ref))
        calls = [a_call(call_id, "user_input", prompt="Tea?", choices=["yes", "no"]) for call_id in ids]
        question = frozen_map({"prompt": "Tea?", "choices": ["yes", "no"]})
        await store.record_reply(reply(ref, "?", *calls, needs=need, request=question))
        return ref

    @pytest.mark.parametrize("need", [CallNeed.INPUT, CallNeed.APPROVAL])
    async def test_a_call_that_needs_an_answer_asks_for_it(
        self, store: ExecutionStore, need: CallNeed
    ) -> None:
        ref = await self.asking(store, "c1", need=need, session=uuid4())

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
        assert await store.open_requests(await self.asking(store, "c1", need=need)) == ()

    async def test_questions_are_answered_in_the_order_of_the_calls(self, store: ExecutionStore) -> None:
        """8.5.3: an answer is for the oldest question."""
        ref = await self.asking(store, "c9", "c1", "c5")

        assert [row.call_id for row in await store.open_requests(ref)] == ["c9", "c1", "c5"]

    async def test_an_answer_is_stored_and_reaches_the_call(self, store: ExecutionStore) -> None:
        ref = await self.asking(store, "c1")
        resolution = Resolution("edit", {"z": 1, "a": [2]}, "because")
        asked = request_id(ref.execution_id, "c1")

        assert await store.resolve(ref, asked, resolution, news("answered"))

        assert await store.open_requests(ref) == ()
        row = await store.request(ref, asked)
        assert row
        assert (row.state, row.resolution) == (RequestState.RESOLVED, resolution)
        assert (await store.reserve_call(ref, "c1", 1)).resolution == resolution
        assert await keys_told(store, ref) == ["answered"]

    async def test_a_question_is_answered_once(self, store: ExecutionStore) -> None:
        """8.6.3: an approval is single use."""
        ref = await self.asking(store, "c1")
        asked = request_id(ref.execution_id, "c1")

        assert await store.resolve(ref, asked, Resolution("approve"), news("first"))
        assert not await store.resolve(ref, asked, Resolution("deny"), news("second"))

        row = await store.request(ref, asked)
        assert row
        assert row.resolution == Resolution("approve")
        assert await keys_told(store, ref) == ["first"]

    async def test_of_concurrent_answers_one_counts(self, store: ExecutionStore) -> None:
        """8.6.3: an approval is single use."""
        ref = await self.asking(store, "c1")
        asked = request_id(ref.execution_id, "c1")

        results = await asyncio.gather(
            *(store.resolve(ref, asked, Resolution("answer", i), news(f"answer {i}")) for i in range(10))
        )

        assert results.count(True) == 1
        row = await store.request(ref, asked)
        assert row
        assert row.resolution == Resolution("answer", results.index(True))
        assert await keys_told(store, ref) == [f"answer {results.index(True)}"]

    async def test_concurrent_answers_and_results_never_deadlock(self, store: ExecutionStore) -> None:
        """8.5.5: a person answers while the call times out; both publish envelopes."""
        refs = [await accepted(store) for _ in range(20)]
        for ref in refs:
            await store.record_reply(reply(ref, "", a_call(), needs=CallNeed.INPUT))

        answered = (
            store.resolve(
                ref, request_id(ref.execution_id, "c1"), Resolution("answer", "Tea"), news("answered")
            )
            for ref in refs
        )
        recorded = (store.record_call(answers(ref, events=news("recorded"))) for ref in refs)
        await asyncio.gather(*answered, *recorded)

        for ref in refs:
            assert set(await keys_told(store, ref)) <= {"answered", "recorded"}
            assert "recorded" in await keys_told(store, ref)

    async def test_an_unknown_question_cannot_be_answered(self, store: ExecutionStore) -> None:
        ref, another = await self.asking(store, "c1"), await self.asking(store, "c1")
        elsewhere = request_id(another.execution_id, "c1")

        for unknown in (uuid4(), elsewhere):
            assert await store.request(ref, unknown) is None
            with pytest.raises(NotFound, match=f"There is no request {unknown}"):
                await store.resolve(ref, unknown, Resolution("approve"))


class TestTheConversation:
    async def test_it_continues_from_execution_to_execution(self, store: ExecutionStore) -> None:
        """8.2.4: a new execution starts with the conversation so far."""
        session = uuid4()
        refs: list[ExecutionRef] = []
        for i in range(5):
            continues = refs[-1].execution_id if refs else None
            refs.append(await accepted(store, f"Question {i}", continues=continues, session_id=session))
            await stepped(store, refs[-1], 1, f"Thought {i}", a_call("c0"))
            await stepped(store, refs[-1], 2, f"Answer {i}")
            await ended(store, refs[-1])

        said = texts(await store.transcript(refs[-1]))
        assert said == [
            t for i in range(5) for t in (f"Question {i}", f"Thought {i}", "found", f"Answer {i}")
        ]
        assert texts(await store.transcript(refs[2])) == said[:12]
        assert [step.number for step in await store.steps(refs[2])] == [1, 2]

    async def test_later_messages_of_the_continued_execution_are_included(
        self, store: ExecutionStore
    ) -> None:
        """8.3.1: a queued execution starts when the earlier ones have ended."""
        first = await accepted(store, "One")
        second = await accepted(store, "Two", continues=first.execution_id)
        await stepped(store, first, 1, "First answer")

        begun = await store.begin_step(begin(second))

        assert texts(begun.material.messages) == ["One", "First answer", "Two"]

    async def test_two_executions_may_continue_the_same_one(self, store: ExecutionStore) -> None:
        first = await accepted(store, "One")
        left, right = [
            await accepted(store, text, continues=first.execution_id) for text in ("Left", "Right")
        ]

        assert texts(await store.transcript(left)) == ["One", "Left"]
        assert texts(await store.transcript(right)) == ["One", "Right"]

    async def test_every_message_is_stored_unchanged(self, store: ExecutionStore) -> None:
        said = (
            Message(Role.SYSTEM, "Be brief"),
            Message(Role.DEVELOPER, ""),
            Message(Role.USER, [{"type": "text", "text": "ä\U0001f600\\u0000"}, {"z": 1, "a": 1.0}]),  # type: ignore[arg-type]
            Message(Role.ASSISTANT, "", frozen_map({"tool_calls": [{"z": "1", "a": {"b": None}}]})),
            Message(Role.TOOL, "\x01\u2028", frozen_map({"tool_call_id": "c"})),
        )
        ref = await accepted(store, *said)

        assert repr(await store.transcript(ref)) == repr(said)

    async def test_an_unknown_execution_has_no_conversation(self, store: ExecutionStore) -> None:
        assert await store.transcript(a_ref()) == ()


class TestLists:
    async def test_steps_come_in_order_and_the_last_ones_alone(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        for number in range(1, 12):
            await stepped(store, ref, number, f"Answer {number}", a_call(f"c{number}"))

        steps = await store.steps(ref)

        assert [step.number for step in steps] == list(range(1, 12))
        assert [texts(step.messages)[0] for step in steps] == [f"Answer {n}" for n in range(1, 12)]
        assert [step.calls[0].call.id for step in steps] == [f"c{n}" for n in range(1, 12)]
        assert await store.steps(ref, last=3) == steps[-3:]
        assert await store.steps(ref, last=99) == steps
        assert await store.steps(ref, last=0) == ()

    async def test_provider_items_are_returned_on_request(self, store: ExecutionStore) -> None:
        """1.1.1: with the fields that the provider expects back."""
        ref = await accepted(store)
        response = reply(ref).response.merged({"items": [{"type": "reasoning", "z": 1, "a": 2.0}]})
        await store.record_reply(replace(reply(ref), response=response))
        await store.begin_step(begin(ref, 2))

        told, under_way = await store.steps(ref, with_responses=True)

        assert told.response == response
        assert under_way.response is None
        assert [step.response for step in await store.steps(ref)] == [None, None]

    async def test_steps_are_paged(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        for number in range(1, 6):
            await stepped(store, ref, number, f"Answer {number}", a_call(f"c{number}"))
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
        ref = await accepted(store)
        await stepped(store, ref)
        assert (await store.steps(ref))[0].duration_ms is None

        await store.begin_step(begin(ref, 2))

        duration = (await store.steps(ref))[0].duration_ms
        assert duration is not None
        assert duration > 0

    async def test_executions_are_paged_newest_first(self, store: ExecutionStore) -> None:
        refs = [await accepted(store) for _ in range(7)]
        await accepted(store, tenant=OTHERS)

        found = await paged(store, 3)

        assert found == [ref.execution_id for ref in reversed(refs)]

    async def test_executions_with_the_same_time_are_ordered_by_id(
        self, store: ExecutionStore, clock: TestClock
    ) -> None:
        """7.8.3: by time, ties by id."""
        clock.tick = timedelta(0)
        refs = [await accepted(store) for _ in range(7)]
        if isinstance(store, PostgresStore):
            async with store.engine.begin() as connection:
                await connection.execute(
                    text("UPDATE agent_executions SET created_at = '2026-01-16 10:05:00.5Z'")
                )

        for size in (1, 2, 3, 6, 7, 8):
            found = await paged(store, size)
            assert found == sorted((ref.execution_id for ref in refs), reverse=True)

    async def test_an_execution_accepted_while_paging_changes_no_later_page(
        self, store: ExecutionStore
    ) -> None:
        refs = [await accepted(store) for _ in range(4)]
        first = await store.executions(TENANT, limit=2)
        await accepted(store)

        second = await store.executions(TENANT, limit=2, cursor=first.cursor)

        assert [row.ref for row in (*first.rows, *second.rows)] == refs[::-1]
        assert second.cursor is None

    async def test_executions_can_be_filtered_by_status(self, store: ExecutionStore) -> None:
        refs = [await accepted(store) for _ in range(6)]
        for ref in refs[::2]:
            await ended(store, ref, ExecutionStatus.CANCELLED)

        assert await paged(store, 2, ExecutionStatus.CANCELLED) == [r.execution_id for r in refs[::2]][::-1]
        assert await paged(store, 2, ExecutionStatus.PENDING) == [r.execution_id for r in refs[1::2]][::-1]
        assert await paged(store, 2, ExecutionStatus.FAILED) == []

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


async def paged(store: ExecutionStore, size: int, status: ExecutionStatus | None = None) -> list[UUID]:
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


class TestEnvelopes:
    async def test_they_are_numbered_in_their_session_from_1(self, store: ExecutionStore) -> None:
        """7.1.1: `seq` is a gapless integer per session from 1, the id a uuid."""
        session = uuid4()
        one, two = [await accepted(store, session_id=session) for _ in range(2)]
        await store.settle(settled(one, ExecutionStatus.RUNNING, events=[told("a", z=1, a=2), told("b")]))
        await store.settle(
            settled(two, ExecutionStatus.RUNNING, events=[EventRecord("a", "agent.step.started", {})])
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
        refs = [await accepted(store) for _ in range(2)]
        for ref in refs:
            await store.settle(settled(ref, ExecutionStatus.RUNNING, events=news("a")))

        assert [[e.seq for e in await store.envelopes(TENANT, ref.execution_id)] for ref in refs] == [
            [1],
            [1],
        ]

    async def test_a_reference_without_its_session_publishes_in_the_session(
        self, store: ExecutionStore
    ) -> None:
        session = uuid4()
        ref = replace(await accepted(store, session_id=session), session_id=None)

        await store.begin_step(begin(ref, events=telling(news("a"))))
        await store.record_reply(reply(ref, "?", a_call("c0"), needs=CallNeed.INPUT, events=news("b")))
        await store.resolve(ref, request_id(ref.execution_id, "c0"), Resolution("answer"), news("c"))
        await store.reserve_call(ref, "c0", 1, telling(news("d")))
        await store.record_call(answers(ref, answer("c0"), events=news("e")))
        await store.settle(settled(ref, ExecutionStatus.COMPLETED, events=news("f")))

        assert [e.payload["key"] for e in await store.envelopes(TENANT, session)] == list("abcdef")
        assert (await store.executions(TENANT)).rows[0].ref.session_id == session

    async def test_a_stored_envelope_takes_no_new_number(self, store: ExecutionStore) -> None:
        ref = await accepted(store)
        await store.settle(settled(ref, ExecutionStatus.RUNNING, "1", events=news("a", "b")))
        await store.settle(settled(ref, ExecutionStatus.RUNNING, "2", events=news("b", "c", "a", "d", "c")))
        await store.settle(settled(ref, ExecutionStatus.RUNNING, "3", events=news("a")))
        await store.settle(settled(ref, ExecutionStatus.RUNNING, "4", events=news("e")))

        assert [(e.seq, e.payload["key"]) for e in await all_told(store, ref)] == list(enumerate("abcde", 1))

    async def test_numbers_have_no_gaps_with_concurrent_writers(self, store: ExecutionStore) -> None:
        """7.1.1: gapless, and in the order of time."""
        session = uuid4()
        refs = [await accepted(store, session_id=session) for _ in range(10)]

        async def write(writer: int) -> None:
            ref = refs[writer % len(refs)]
            for i in range(4):
                key = f"{writer}/{i}"
                # The second of each pair fails in its own transaction, and its numbers are used again.
                bad = [told("bad", value=float("nan"))] if i % 2 else []
                settlement = settled(ref, ExecutionStatus.RUNNING, key, events=[*news(key, f"{key}+"), *bad])
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
        ref = await accepted(store)
        await store.settle(settled(ref, ExecutionStatus.RUNNING, "1", events=news("a")))
        if isinstance(store, PostgresStore):
            async with store.engine.begin() as connection:
                moved = "SET {} = {} + interval '1 hour'"
                await connection.execute(text(f"UPDATE agent_streams {moved.format('last_at', 'last_at')}"))
                await connection.execute(
                    text(f"UPDATE agent_envelopes {moved.format('created_at', 'created_at')}")
                )
        clock.at -= timedelta(hours=1)

        await store.settle(settled(ref, ExecutionStatus.RUNNING, "2", events=news("b", "c")))

        first, *others = [e.created_at for e in await all_told(store, ref)]
        assert others == [first + timedelta(microseconds=1), first + timedelta(microseconds=2)]

    async def test_a_reader_continues_from_its_position(self, store: ExecutionStore) -> None:
        """7.8.1: later stored envelopes in order, without gap or duplicate."""
        ref = await accepted(store)
        await store.settle(settled(ref, ExecutionStatus.RUNNING, events=news(*"abcdefg")))
        stored = await all_told(store, ref)

        assert await store.envelopes(TENANT, ref.stream_id, after=3) == stored[3:]
        assert await store.envelopes(TENANT, ref.stream_id, after=3, limit=2) == stored[3:5]
        assert await store.envelopes(TENANT, ref.stream_id, after=7) == ()
        assert await store.envelopes(TENANT, ref.stream_id, after=-5) == stored
        assert await store.envelopes(TENANT, uuid4()) == ()


SAYS_NUL = "a\x00b"
HALF_A_PAIR = "a\ud800b"


def unchecked(**entries: Any) -> FrozenDict:
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
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "?", a_call("c0"), needs=CallNeed.INPUT))
        bad = unchecked(a=[value])
        asked = request_id(ref.execution_id, "c0")
        event = [EventRecord("bad", "agent.status", bad)]
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.accept(new(a_ref(), metadata=bad)),
            lambda: store.accept(new(a_ref(), plan=bad)),
            lambda: store.begin_step(begin(ref, 2, outcome=bad)),
            lambda: store.begin_step(begin(ref, 2, events=telling(event))),
            lambda: store.record_reply(replace(reply(ref, number=2), response=bad)),
            lambda: store.record_reply(
                reply(ref, "", a_call("c9"), number=2, needs=CallNeed.INPUT, request=bad)
            ),
            lambda: store.record_reply(reply(ref, number=2, events=event)),
            lambda: store.reserve_call(ref, "c0", 1, telling(event)),
            lambda: store.record_call(answers(ref, answer("c0", bad, text="bad"))),
            lambda: store.record_call(answers(ref, answer("c0"), metadata=bad)),
            lambda: store.record_call(answers(ref, answer("c0"), events=event)),
            lambda: store.settle(settled(ref, ExecutionStatus.FAILED, output=bad)),
            lambda: store.settle(settled(ref, ExecutionStatus.FAILED, outcome=bad)),
            lambda: store.settle(settled(ref, ExecutionStatus.FAILED, snapshot=bad)),
            lambda: store.keep_snapshot(ref, 1, bad),
            lambda: store.settle(settled(ref, ExecutionStatus.FAILED, events=event)),
            lambda: store.resolve(ref, asked, Resolution("answer", bad)),
            lambda: store.resolve(ref, asked, Resolution("answer"), event),
        ]
        before = await everything(store, ref)

        for attempt in attempts:
            with pytest.raises(InvalidInput, match=complaint):
                await attempt()

        assert await everything(store, ref) == before

    @pytest.mark.parametrize("bad", [SAYS_NUL, HALF_A_PAIR], ids=["NUL", "surrogate"])
    async def test_an_invalid_text_is_refused_and_nothing_is_written(
        self, store: ExecutionStore, bad: str
    ) -> None:
        ref = await accepted(store)
        await store.begin_step(begin(ref))
        await store.record_reply(reply(ref, "Look", a_call("c0")))
        error = StepError(bad)
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.note_partial(ref, 1, 1, bad),
            lambda: store.record_call(answers(ref, answer("c0", None, text=bad), messages=())),
            lambda: store.record_call(answers(ref, answer("c0", error=error))),
            lambda: store.record_reply(replace(reply(ref, number=2), errors=[error])),
            lambda: store.settle(settled(ref, ExecutionStatus.FAILED, error_message=bad)),
            lambda: store.settle(settled(ref, ExecutionStatus.FAILED, step=StepFacts(2), errors=[error])),
        ]
        before = await everything(store, ref)

        for attempt in attempts:
            with pytest.raises(InvalidInput):
                await attempt()

        assert await everything(store, ref) == before


async def everything(store: ExecutionStore, ref: ExecutionRef) -> tuple[Any, ...]:
    """All fields of an execution that any caller can read, with counts."""
    return (
        await store.execution(ref),
        await store.steps(ref),
        await store.transcript(ref),
        await store.open_requests(ref),
        await store.material(ref),
        await all_told(store, ref),
        len((await store.executions(ref.tenant_id)).rows),
    )


class TestTenants:
    async def test_another_tenant_cannot_read_or_change_an_execution(self, store: ExecutionStore) -> None:
        session = uuid4()
        ref = await accepted(store, session_id=session, metadata=frozen_map({"secret": 1}))
        await store.begin_step(begin(ref, events=telling(news("a"))))
        await store.record_reply(reply(ref, "?", a_call("c0"), a_call("c1"), needs=CallNeed.INPUT))
        theirs = of_another_tenant(ref)
        asked = request_id(ref.execution_id, "c0")
        before = await everything(store, ref)
        await store.note_wait(theirs, 1, TestWaiting.WAIT, [TestWaiting.TOLD])

        assert await store.execution(theirs) is None
        assert await store.steps(theirs) == ()
        assert await store.transcript(theirs) == ()
        assert await store.open_requests(theirs) == ()
        assert await store.request(theirs, asked) is None
        assert (await store.executions(OTHERS)).rows == ()
        assert (await store.executions(OTHERS, status=ExecutionStatus.RUNNING)).rows == ()
        assert await store.envelopes(OTHERS, session) == ()
        await store.note_partial(theirs, 1, 1, "Mine")
        refused: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.material(theirs),
            lambda: store.begin_step(begin(theirs, 1, 2)),
            lambda: store.note_failure(theirs, 1, 1),
            lambda: store.record_reply(reply(theirs, "Mine")),
            lambda: store.record_reply(reply(theirs, "Mine", number=2)),
            lambda: store.reserve_call(theirs, "c0", 1),
            lambda: store.record_call(answers(theirs, answer("c0"))),
            lambda: store.record_call(answers(theirs, answer("c0"), metadata=frozen_map({"mine": 1}))),
            lambda: store.settle(settled(theirs, ExecutionStatus.CANCELLED)),
            lambda: store.keep_snapshot(theirs, 1, frozen_map({})),
            lambda: store.steer(theirs, "k", user("Mine")),
            lambda: store.resolve(theirs, asked, Resolution("approve"), news("mine")),
            lambda: store.accept(new(a_ref(tenant=OTHERS), continues=ref.execution_id)),
            lambda: store.accept(new(a_ref(tenant=OTHERS), parent_execution_id=ref.execution_id)),
            lambda: store.accept(new(a_ref(tenant=OTHERS, session_id=session))),
        ]
        for attempt in refused:
            with pytest.raises(NotFound):
                await attempt()
        with pytest.raises(InvalidInput):
            await store.accept(new(theirs))

        assert await everything(store, ref) == before
        assert (await store.executions(OTHERS)).rows == ()
