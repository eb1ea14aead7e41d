"""The contract of every store: steps, their replies, and failed attempts.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts, StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.steps import BegunStep, PartialText, PartialTextOutcome
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    OUTCOME,
    TERMINAL,
    WAIT,
    WAIT_EVENT,
    a_call,
    a_ref,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    all_envelopes,
    an_event,
    end_execution,
    envelope_keys,
    events_with_keys,
    of_another_tenant,
    publishing,
    result_record,
    run_step,
    texts,
)


class TestBeginningAStep:
    async def test_the_first_step_starts_the_execution(self, store: ExecutionStore) -> None:
        """8.2.3: a start sets `running` and `started_at`."""
        ref = await accept_execution(store, "Hello")

        begun = await store.begin_step(a_step_start(ref))

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
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        started = await store.execution(ref)

        await store.begin_step(a_step_start(ref, attempt=2))
        await run_step(store, ref)
        await store.begin_step(a_step_start(ref, 2))

        now = await store.execution(ref)
        assert started
        assert now
        assert now.started_at == started.started_at

    async def test_the_step_before_is_settled(self, store: ExecutionStore) -> None:
        """2.2.1: its outcome keeps every evaluation."""
        ref = await accept_execution(store)
        await run_step(store, ref)

        await store.begin_step(a_step_start(ref, 2, outcome=OUTCOME))
        await store.begin_step(a_step_start(ref, 2, 2, outcome=frozen_map({"decision": "other"})))

        first, second = await store.steps(ref)
        assert first.outcome == OUTCOME
        assert first.completed_at
        assert (second.outcome, second.completed_at) == (None, None)
        row = await store.execution(ref)
        assert row
        assert row.step_count == 1

    async def test_an_attempt_learns_which_attempt_had_begun(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))

        assert (await store.begin_step(a_step_start(ref, attempt=2))).previous_attempt == 1
        assert (await store.begin_step(a_step_start(ref, attempt=4))).previous_attempt == 2
        # An attempt that arrives late changes nothing.
        assert (await store.begin_step(a_step_start(ref, attempt=3))).previous_attempt == 4
        assert (await store.steps(ref))[0].attempt == 4

    async def test_an_attempt_learns_whether_the_one_before_failed_without_text(
        self, store: ExecutionStore
    ) -> None:
        """Follows rule 7.6.3: the failure of a lost attempt is unknown."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        assert not (await store.begin_step(a_step_start(ref, attempt=2))).was_silent
        await store.note_failure(ref, 1, 2)
        assert (await store.begin_step(a_step_start(ref, attempt=3))).was_silent

        await store.note_partial(ref, 1, 3, "Well, ")
        await store.note_failure(ref, 1, 3)
        assert not (await store.begin_step(a_step_start(ref, attempt=4))).was_silent
        assert not (await store.begin_step(a_step_start(ref, attempt=5))).was_silent

    async def test_a_step_start_has_the_seq_that_its_text_follows(self, store: ExecutionStore) -> None:
        """Follows rule 7.2: `after_seq`, also when all envelopes were published before."""
        ref = await accept_execution(store)
        tells = publishing(events_with_keys("a", "b"))

        assert (await store.begin_step(a_step_start(ref, events=tells))).after_seq == 2
        assert (
            await store.begin_step(
                a_step_start(ref, attempt=2, events=publishing(events_with_keys("b", "c")))
            )
        ).after_seq == 3
        assert (await store.begin_step(a_step_start(ref, attempt=2, events=tells))).after_seq == 3
        assert (await store.begin_step(a_step_start(ref, attempt=3))).after_seq is None
        assert (await store.preview_step(ref, 1)).after_seq is None

    async def test_a_recorded_step_is_returned_and_nothing_is_written(self, store: ExecutionStore) -> None:
        """1.1.1: the model is not called again."""
        ref = await accept_execution(store)
        await run_step(store, ref)
        given = a_reply(ref, "Look", a_call(), number=2, tokens=7)
        await store.begin_step(a_step_start(ref, 2))
        await store.record_reply(given)
        await store.steer(ref, "k", user("Hurry"))
        before = await store.steps(ref), await store.transcript(ref), await store.execution(ref)

        again = a_step_start(
            ref, 2, 2, outcome=OUTCOME, hears=1, events=publishing(events_with_keys("again"))
        )
        begun = await store.begin_step(again)

        assert begun.recorded == given.facts
        assert begun.previous_attempt == 1
        assert (await store.steps(ref), await store.transcript(ref), await store.execution(ref)) == before
        assert await envelope_keys(store, ref) == []

    async def test_a_preview_shows_the_step_start_and_writes_nothing(self, store: ExecutionStore) -> None:
        """1.1.1: a recorded step is returned, too."""
        ref = await accept_execution(store, "Hello")
        await run_step(store, ref)
        before = await store.steps(ref), await store.transcript(ref), await store.execution(ref)

        first, second = await store.preview_step(ref, 1), await store.preview_step(ref, 2)

        assert (first.recorded, first.previous_attempt) == (a_reply(ref).facts, 1)
        assert (second.recorded, second.previous_attempt) == (None, None)
        assert (await store.steps(ref), await store.transcript(ref), await store.execution(ref)) == before
        assert second == await store.begin_step(a_step_start(ref, 2))
        assert await store.preview_step(ref, 2) == replace(second, previous_attempt=1)

    async def test_an_execution_that_has_ended_has_no_preview(self, store: ExecutionStore) -> None:
        """8.2.1: nor has one that does not exist."""
        ref = await accept_execution(store)
        await end_execution(store, ref)

        with pytest.raises(ExecutionEnded):
            await store.preview_step(ref, 1)
        with pytest.raises(NotFound):
            await store.preview_step(of_another_tenant(ref), 1)

    async def test_envelopes_of_a_step_start_are_built_from_the_loaded_state(
        self, store: ExecutionStore
    ) -> None:
        ref = await accept_execution(store, "Hello", "Are you there?")

        def count(begun: BegunStep) -> Sequence[EventRecord]:
            return [an_event("step/1/started", message_count=len(begun.material.messages))]

        await store.begin_step(a_step_start(ref, events=count))
        await store.begin_step(a_step_start(ref, attempt=2, events=count))

        assert [envelope.payload for envelope in await all_envelopes(store, ref)] == [{"message_count": 2}]

    async def test_a_step_does_not_begin_if_its_envelopes_cannot_be_built(
        self, store: ExecutionStore
    ) -> None:
        ref = await accept_execution(store)
        await store.steer(ref, "k", user("Hurry"))

        def raising(_: BegunStep) -> Sequence[EventRecord]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.begin_step(a_step_start(ref, hears=1, events=raising))

        assert await store.steps(ref) == ()
        assert texts(await store.transcript(ref)) == ["Hello"]
        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PENDING

    async def test_concurrent_attempts_load_the_same_state(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        for key in ("a", "b"):
            await store.steer(ref, key, user(key))

        begun = await asyncio.gather(
            *(store.begin_step(a_step_start(ref, 1, i, hears=2)) for i in range(1, 9))
        )

        assert {tuple(texts(each.material.messages)) for each in begun} == {("Hello", "a", "b")}
        assert [each.previous_attempt for each in begun].count(None) == 1

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_an_execution_that_has_ended_takes_no_more_steps(
        self, store: ExecutionStore, status: ExecutionStatus
    ) -> None:
        """8.2.1: a pending execution that is cancelled never starts."""
        ref = await accept_execution(store)
        await end_execution(store, ref, status)

        with pytest.raises(ExecutionEnded, match=f"has ended as {status}") as caught:
            await store.begin_step(a_step_start(ref))

        assert caught.value.status is status
        assert await store.steps(ref) == ()

    async def test_a_paused_execution_stays_paused_until_it_is_resumed(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.settle(a_settlement(ref, ExecutionStatus.PAUSED))

        await store.begin_step(a_step_start(ref, attempt=2))

        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PAUSED

    async def test_a_new_step_sets_a_paused_execution_to_running(self, store: ExecutionStore) -> None:
        """1.2.1: steps run, so the execution is `running`."""
        ref = await accept_execution(store)
        await run_step(store, ref)
        await store.settle(a_settlement(ref, ExecutionStatus.PAUSED))

        await store.begin_step(a_step_start(ref, 2))

        row = await store.execution(ref)
        assert row
        assert row.status is ExecutionStatus.RUNNING


class TestThePartialText:
    async def test_late_joiners_see_the_text_so_far(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))

        assert await store.note_partial(ref, 1, 1, "Once")
        assert await store.note_partial(ref, 1, 1, "Once upon")

        assert (await store.steps(ref))[0].partial_text == "Once upon"

    async def test_it_is_sent_in_parts(self, store: ExecutionStore) -> None:
        """18.1.2: a part replaces all after its offset, and the same part twice is stored once. The text
        before it has to be there.
        """
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        replaced, stored = PartialTextOutcome.REPLACED, PartialTextOutcome.STORED

        assert await store.note_partial(ref, 1, 1, "Café ")
        for _ in range(2):
            assert await store.note_partial(ref, 1, 1, "noir", offset=5)
        assert (await store.steps(ref))[0].partial_text == "Café noir"
        assert not await store.note_partial(ref, 1, 1, "!", offset=10)
        assert await store.note_partials([PartialText(ref, 1, 1, "!", offset=10)]) == [replaced]
        for text in ("crème", "crème brûlée"):
            assert await store.note_partials([PartialText(ref, 1, 1, text, offset=5)]) == [stored]

        assert (await store.steps(ref))[0].partial_text == "Café crème brûlée"

    async def test_it_names_the_chunk_that_continues_it(self, store: ExecutionStore) -> None:
        """7.8.4: until another attempt begins, or the reply is stored; no position, no continuation."""
        ref = await accept_execution(store)

        async def place() -> tuple[int | None, int | None]:
            (step,) = await store.steps(ref)
            return step.next_index, step.after_seq

        await store.begin_step(a_step_start(ref))
        assert await place() == (None, None)
        await store.note_partial(ref, 1, 1, "Once", next_index=2, after_seq=7)
        assert await place() == (2, 7)
        await store.begin_step(a_step_start(ref))
        assert await place() == (2, 7)
        await store.begin_step(a_step_start(ref, attempt=2))
        assert await place() == (None, None)
        await store.note_partial(ref, 1, 2, "There", next_index=1, after_seq=8)
        await store.note_partial(ref, 1, 2, "There was")
        assert await place() == (None, None)
        await store.note_partial(ref, 1, 2, "There was", next_index=3, after_seq=8)
        await store.record_reply(a_reply(ref, "There was one", attempt=2))
        assert await place() == (None, None)

    async def test_an_abandoned_attempt_cannot_change_the_text(self, store: ExecutionStore) -> None:
        """7.6.3: viewers drop the text of an abandoned attempt."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.note_partial(ref, 1, 1, "Once")

        await store.begin_step(a_step_start(ref, attempt=2))
        assert (await store.steps(ref))[0].partial_text == ""
        assert await store.note_partial(ref, 1, 2, "There was")
        assert not await store.note_partial(ref, 1, 1, "Once upon a time")

        assert (await store.steps(ref))[0].partial_text == "There was"

    async def test_the_texts_of_several_steps_are_stored_together(self, store: ExecutionStore) -> None:
        """18.1.2: each unless its attempt was replaced."""
        refs = [await accept_execution(store) for _ in range(3)]
        for ref in refs:
            await store.begin_step(a_step_start(ref))
        await store.begin_step(a_step_start(refs[1], attempt=2))

        outcomes = await store.note_partials(
            [PartialText(ref, 1, 1, f'"{index}" \\{{}}', index, 7) for index, ref in enumerate(refs)]
            + [PartialText(a_ref(), 1, 1, "Once"), PartialText(replace(refs[0], tenant_id="other"), 1, 1, "")]
        )

        replaced = PartialTextOutcome.REPLACED
        assert outcomes == [
            PartialTextOutcome.STORED,
            replaced,
            PartialTextOutcome.STORED,
            replaced,
            replaced,
        ]
        (first,), (second,), (third,) = [await store.steps(ref) for ref in refs]
        assert (first.partial_text, first.next_index, first.after_seq) == ('"0" \\{}', 0, 7)
        assert second.partial_text == ""
        assert (third.partial_text, third.next_index, third.after_seq) == ('"2" \\{}', 2, 7)

    async def test_the_text_of_a_cancelled_execution_is_stored_as_such(self, store: ExecutionStore) -> None:
        """18.1.2: the process that writes it learns of the cancel."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.command(ref, "cancel/1", CommandKind.CANCEL)

        assert await store.note_partials([PartialText(ref, 1, 1, "Once")]) == [PartialTextOutcome.CANCELLED]
        assert (await store.steps(ref))[0].partial_text == "Once"

    async def test_the_reply_replaces_it(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.note_partial(ref, 1, 1, "Once upon")

        await store.record_reply(a_reply(ref, "Once upon a time"))
        assert not await store.note_partial(ref, 1, 1, "Once upon")

        assert (await store.steps(ref))[0].partial_text == ""

    async def test_a_step_that_never_began_has_none(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        assert not await store.note_partial(ref, 1, 1, "Once")
        assert not await store.note_partial(a_ref(), 1, 1, "Once")

        assert await store.steps(ref) == ()


class TestTransportFailures:
    async def test_each_attempt_counts_once(self, store: ExecutionStore) -> None:
        """3.5.1: the number of attempts in all, including those that crashed after counting."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))

        counts = [await store.note_failure(ref, 1, attempt) for attempt in (1, 1, 2, 4, 2)]

        assert counts == [1, 1, 2, 3, 3]

    async def test_each_step_counts_its_own_attempts(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.note_failure(ref, 1, 1)
        await run_step(store, ref)
        await store.begin_step(a_step_start(ref, 2))

        assert await store.note_failure(ref, 2, 1) == 1

    async def test_a_step_that_never_began_cannot_fail(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        with pytest.raises(NotFound, match="There is no step 1"):
            await store.note_failure(ref, 1, 1)


class TestWaiting:
    async def test_a_step_waits_until_its_next_attempt(self, store: ExecutionStore) -> None:
        """3.5.5: viewers are notified; the next attempt knows when the wait began."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.note_wait(ref, 1, WAIT, [WAIT_EVENT])

        (step,) = await store.steps(ref)
        assert step.waits == step.wait == WAIT
        begun = await store.begin_step(replace(a_step_start(ref), attempt=2))
        assert begun.wait == WAIT
        (step,) = await store.steps(ref)
        assert (step.waits, step.wait) == (None, WAIT)
        assert (await store.envelopes(ref.tenant_id, ref.stream_id))[-1].type == "agent.status"

    async def test_an_attempt_that_was_overtaken_does_not_wait(self, store: ExecutionStore) -> None:
        """3.5.5: nor does a step that has its reply, nor an execution that has ended."""
        ref = await accept_execution(store)
        await store.begin_step(replace(a_step_start(ref), attempt=2))
        await store.note_wait(ref, 1, WAIT, [WAIT_EVENT])
        assert (await store.steps(ref))[0].wait is None
        await store.note_wait(ref, 2, WAIT, [WAIT_EVENT])
        await run_step(store, ref)
        before = await store.envelopes(ref.tenant_id, ref.stream_id)
        await store.note_wait(ref, 1, replace(WAIT, attempt=2), [WAIT_EVENT])

        assert (await store.steps(ref))[0].wait is None
        assert await store.envelopes(ref.tenant_id, ref.stream_id) == before


class TestRecordingAReply:
    async def test_it_is_in_the_facts_the_conversation_and_the_ledger(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store, "Where is it?")
        await store.begin_step(a_step_start(ref))
        given = a_reply(
            ref, "Let me look", a_call("c1", z=1, a=2), a_call("c2"), events=events_with_keys("replied")
        )

        assert await store.record_reply(given) == given.facts

        (step,) = await store.steps(ref)
        assert step.facts == given.facts
        assert step.messages == given.messages
        assert [(row.call, row.state, row.attempts, row.record) for row in step.calls] == [
            (told.call, "told", 0, None) for told in given.calls
        ]
        assert list(step.calls[0].call.args) == ["z", "a"]
        assert await store.transcript(ref) == (user("Where is it?"), *given.messages)
        assert await envelope_keys(store, ref) == ["replied"]

    async def test_facts_are_stored_without_loss(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
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
        await store.begin_step(a_step_start(ref))

        await store.record_reply(replace(a_reply(ref), facts=facts, errors=errors))

        begun = await store.begin_step(a_step_start(ref, attempt=2))
        assert begun.recorded == facts
        assert (await store.steps(ref))[0].errors == errors

    async def test_the_first_reply_counts_from_any_attempt(self, store: ExecutionStore) -> None:
        """1.1.1: the recorded reply is returned, and the later one is dropped."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.begin_step(a_step_start(ref, attempt=2))
        first = a_reply(ref, "From the straggler", attempt=1, tokens=5, events=events_with_keys("replied"))
        await store.record_reply(first)
        before = await store.steps(ref), await store.execution(ref)

        late = a_reply(
            ref, "Too late", a_call(), attempt=2, tokens=9, events=events_with_keys("replied", "more")
        )
        assert await store.record_reply(late) == first.facts

        assert (await store.steps(ref), await store.execution(ref)) == before
        assert texts(await store.transcript(ref)) == ["Hello", "From the straggler"]
        assert await envelope_keys(store, ref) == ["replied"]

    async def test_of_concurrent_replies_one_wins_and_all_see_it(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        given = [
            a_reply(
                ref,
                f"Answer {i}",
                a_call(f"c{i}"),
                attempt=i,
                tokens=i,
                events=events_with_keys(f"replied {i}"),
            )
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
        assert await envelope_keys(store, ref) == [f"replied {winner.attempt}"]

    async def test_usage_adds_up_by_kind(self, store: ExecutionStore) -> None:
        """4.2.1: in the database, disjoint counters and their sum."""
        ref = await accept_execution(store)
        for number, usage in enumerate((Usage(100, 40, 1, 29, 10), Usage(1, 2, 3, 4, 5)), 1):
            await store.begin_step(a_step_start(ref, number))
            facts = StepFacts(number, usage=usage)
            await store.record_reply(replace(a_reply(ref, number=number), facts=facts))

        row = await store.execution(ref)

        assert row
        assert row.usage == {"input": 101, "output": 42, "cached": 37, "reasoning": 15, "total": 195}

    async def test_a_step_is_counted_once_it_is_complete(self, store: ExecutionStore) -> None:
        """2.6.1: a step with calls is complete when they have their results."""
        ref = await accept_execution(store)
        counts: list[int] = []

        async def count() -> None:
            row = await store.execution(ref)
            counts.append(row.step_count if row else -1)

        await store.begin_step(a_step_start(ref))
        await count()
        await store.record_reply(a_reply(ref, "Look", a_call()))
        await count()
        await store.record_call(result_record(ref))
        await store.begin_step(a_step_start(ref, 2))
        await count()
        await store.record_reply(a_reply(ref, "Done", number=2))
        await count()

        assert counts == [0, 0, 1, 2]

    async def test_a_reply_without_a_step_start_is_stored(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        await store.record_reply(a_reply(ref, attempt=3))

        (step,) = await store.steps(ref)
        assert (step.number, step.attempt) == (1, 3)

    @pytest.mark.parametrize("first_written", [False, True])
    async def test_a_reply_may_include_its_step_start(
        self, store: ExecutionStore, *, first_written: bool
    ) -> None:
        """8.2.3: a short step is written in one transaction, also if it was begun in the meantime."""
        ref = await accept_execution(store)
        await run_step(store, ref)
        second = a_step_start(ref, 2, 3, outcome=OUTCOME, events=publishing(events_with_keys("begins")))
        if first_written:
            await store.begin_step(second)

        given = replace(
            a_reply(ref, "Done", number=2, attempt=3, events=events_with_keys("begins", "replied")),
            begins=second,
        )
        assert await store.record_reply(given) == given.facts
        assert await store.record_reply(given) == given.facts

        one, two = await store.steps(ref)
        assert (one.outcome, one.completed_at is not None) == (OUTCOME, True)
        assert (two.facts, two.attempt) == (given.facts, 3)
        assert texts(await store.transcript(ref)) == ["Hello", "Hi", "Done"]
        assert await envelope_keys(store, ref) == ["begins", "replied"]

    async def test_a_step_that_began_with_its_reply_took_as_long_as_the_model(
        self, store: ExecutionStore
    ) -> None:
        """8.2.3: and it starts the execution."""
        ref = await accept_execution(store)
        given = a_reply(ref)

        await store.record_reply(replace(given, begins=a_step_start(ref)))
        await store.begin_step(a_step_start(ref, 2))

        (first, _), row = await store.steps(ref), await store.execution(ref)
        assert first.duration_ms
        assert first.duration_ms >= given.facts.seconds * 1000
        assert row
        assert (row.status, row.started_at is not None) == (ExecutionStatus.RUNNING, True)

    async def test_a_reply_after_the_end_begins_no_step(self, store: ExecutionStore) -> None:
        """1.1.5: nor is the previous step evaluated again."""
        ref = await accept_execution(store)
        await run_step(store, ref)
        await end_execution(store, ref, ExecutionStatus.CANCELLED)
        before = await store.steps(ref), await store.execution(ref)

        late = replace(
            a_reply(ref, number=2),
            begins=a_step_start(ref, 2, outcome=OUTCOME),
            events=events_with_keys("begins"),
        )
        with pytest.raises(ExecutionEnded):
            await store.record_reply(late)

        assert (await store.steps(ref), await store.execution(ref)) == before
        assert await envelope_keys(store, ref) == []

    async def test_a_call_id_is_used_once_in_an_execution(self, store: ExecutionStore) -> None:
        """1.1.3: each call has its own result, so the ids have to differ."""
        ref = await accept_execution(store)
        await run_step(store, ref, 1, "Look", a_call("call_0"))
        before = await store.steps(ref), await store.transcript(ref), await store.execution(ref)

        again = a_reply(ref, "Again", a_call("call_0"), number=2)
        with pytest.raises(InvalidInput, match=r"a call of step 2 \(call_0\) has the id of another one"):
            await store.record_reply(replace(again, begins=a_step_start(ref, 2)))

        assert (await store.steps(ref), await store.transcript(ref), await store.execution(ref)) == before

    async def test_two_executions_may_use_the_same_call_id(self, store: ExecutionStore) -> None:
        for _ in range(2):
            await run_step(store, await accept_execution(store), 1, "Look", a_call("call_0"))

    async def test_calls_that_no_worker_has_to_run_are_not_in_the_ledger(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        given = a_reply(ref, "Look", a_call("c1"), a_call("c2"), needs=CallNeed.INPUT)
        settled_one = replace(given.facts.calls[0], is_settled=True)
        facts = replace(given.facts, calls=(settled_one, given.facts.calls[1]))
        await store.begin_step(a_step_start(ref))

        await store.record_reply(replace(given, facts=facts))

        assert [row.call.id for row in (await store.steps(ref))[0].calls] == ["c2"]
        assert [row.call_id for row in await store.open_requests(ref)] == ["c2"]
        assert (await store.reserve_call(ref, "c2", 1)).index == 1

    async def test_a_reply_after_the_end_is_not_written(self, store: ExecutionStore) -> None:
        """1.1.5: the calls of such a reply would never be answered."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await end_execution(store, ref, ExecutionStatus.CANCELLED)

        with pytest.raises(ExecutionEnded):
            await store.record_reply(a_reply(ref, "Look", a_call()))

        assert texts(await store.transcript(ref)) == ["Hello"]
        assert (await store.steps(ref))[0].facts is None

    async def test_a_reply_recorded_before_the_end_is_still_returned(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        given = a_reply(ref)
        await store.record_reply(given)
        await end_execution(store, ref)

        assert await store.record_reply(a_reply(ref, "Too late")) == given.facts

    async def test_malformed_arguments_are_kept_as_the_model_sent_them(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        call = ToolCall("c1", "look", malformed='{"path": ')
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", call))

        assert (await store.reserve_call(ref, "c1", 1)).call == call

    async def test_a_reply_holds_a_thousand_messages(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))

        with pytest.raises(InvalidInput, match="at most 1000 messages, not 1001"):
            await store.record_reply(replace(a_reply(ref), messages=(user("again"),) * 1001))
        await store.record_reply(replace(a_reply(ref, "", a_call()), messages=(user("again"),) * 1000))
        await store.record_call(result_record(ref))

        assert len(await store.transcript(ref)) == 1002
