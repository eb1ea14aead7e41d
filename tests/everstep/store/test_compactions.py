"""Compactions in both stores: recorded once, beside a conversation that stays whole."""

from dataclasses import replace

import pytest

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.compaction_planning import compacted_messages
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.compactions import ContinuedInput, RecordCompaction
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.storage.steps import HookAdditions
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    result_record,
)

FIRST = Compaction(
    2, ("They met.",), 3, ((2, 40),), step=2, messages=2, results=1, tokens_before=90, usage=Usage(7, 2)
)


def a_record(ref: ExecutionRef, compaction: Compaction = FIRST, ordinal: int = 0) -> RecordCompaction:
    return RecordCompaction(ref, ordinal, compaction, [an_event(f"compaction/{compaction.step}/{ordinal}")])


async def say(store: ExecutionStore, ref: ExecutionRef, *numbers: int) -> None:
    for number in numbers:
        await store.begin_step(a_step_start(ref, number))
        await store.record_reply(a_reply(ref, f"Reply {number}", number=number))


async def read_request(store: ExecutionStore, ref: ExecutionRef) -> list[str]:
    """The conversation as requests contain it."""
    material = await store.material(ref)
    shown = compacted_messages(material.messages, material.compaction)
    return [m.text.split("\n")[3] if m.text.startswith("<") else m.text for m in shown]


async def test_a_compaction_is_recorded_once(store: ExecutionStore) -> None:
    """14.6"""
    ref = await accept_execution(store, "Hello")
    await say(store, ref, 1)
    assert await store.record_compaction(a_record(ref)) == FIRST
    other = replace(FIRST, summaries=("Another attempt's",))
    assert await store.record_compaction(a_record(ref, other)) == FIRST

    material = await store.material(ref)
    assert (material.compaction, material.compactions) == (FIRST, (FIRST,))
    assert (material.compactions_of(2), material.compactions_of(1)) == ((FIRST,), ())
    assert [m.text for m in material.messages] == ["Hello", "Reply 1"]
    assert (await store.preview_step(ref, 2)).material.compaction == FIRST
    stored = await store.envelopes(ref.tenant_id, ref.stream_id)
    assert len([each for each in stored if each.type == "agent.status"]) == 1
    await say(store, ref, 2)
    one, two = await store.steps(ref)
    assert (one.compactions, two.compactions) == ((), (FIRST,))
    assert ([m.text for m in two.messages], two.heard, two.processed) == (["Reply 2"], 0, 0)
    assert [m.text for m in await store.transcript(ref)] == ["Hello", "Reply 1", "Reply 2"]
    material, steps = await store.material_with_steps(ref, 5)
    assert (material.compactions, [step.number for step in steps]) == ((FIRST,), [1, 2])
    assert [(step.messages, step.compactions, step.outcome) for step in steps] == [((), (), None)] * 2
    assert (await store.steps_after(ref, 1)).rows[0].compactions == (FIRST,)


async def test_later_executions_and_forks_begin_with_it(store: ExecutionStore) -> None:
    """14.6: also a fork or a retry from the step before it, whose conversation is the same."""
    ref = await accept_execution(store, "Hello")
    await say(store, ref, 1)
    await store.record_compaction(a_record(ref))
    await say(store, ref, 2)
    assert await read_request(store, ref) == ["They met.", "Reply 2"]
    second = replace(FIRST, replaced=3, summaries=("They met.", "Then again."), step=3)
    await store.record_compaction(a_record(ref, second))
    await say(store, ref, 3)

    more = await accept_execution(store, "More", continues=ref.execution_id)
    assert await read_request(store, more) == ["They met.", "Then again.", "Reply 3", "More"]
    assert (await store.material(more)).compactions == ()
    start, before, between = [
        await accept_execution(store, "Other", continues=ref.execution_id, continues_until=step)
        for step in (0, 1, 2)
    ]
    assert await read_request(store, start) == ["Hello", "Other"]
    assert await read_request(store, before) == ["They met.", "Other"]
    assert await read_request(store, between) == ["They met.", "Then again.", "Other"]
    assert (await store.material(between)).compactions == ()
    third = replace(FIRST, replaced=5, summaries=("All.",), step=1)
    await store.record_compaction(a_record(more, third))
    assert await read_request(store, more) == ["All."]


async def test_a_compaction_after_the_fork_that_replaces_more_is_not_taken(store: ExecutionStore) -> None:
    """14.6: the one before it holds, and what it says of later messages is left out."""
    ref = await accept_execution(store, "Hello")
    await say(store, ref, 1)
    await store.record_compaction(a_record(ref))
    too_much = replace(FIRST, replaced=3, summaries=("They met, and more.",))
    await store.record_compaction(a_record(ref, too_much, ordinal=1))

    fork = await accept_execution(store, "Other", continues=ref.execution_id, continues_until=1)

    assert await read_request(store, fork) == ["They met.", "Other"]
    assert (await store.material(fork)).compaction == replace(FIRST, results_before=2, shortened=())


async def test_messages_that_hooks_put_before_the_conversation_later_are_sent(store: ExecutionStore) -> None:
    """14.6"""
    first = await accept_execution(store, "Hello")
    await say(store, first, 1)
    ref = await accept_execution(store, "More", continues=first.execution_id)
    earlier = replace(a_reply(ref, "Reply 1"), added=HookAdditions((user("Day 1"),)))
    await store.begin_step(a_step_start(ref))
    await store.record_reply(earlier)
    # Hello, Reply 1, Day 1, More | Reply 1
    await store.record_compaction(a_record(ref, replace(FIRST, replaced=4, results_before=0, shortened=())))
    notes = MetadataChanges(frozen_map({"a": 1}))
    await store.begin_step(a_step_start(ref, 2))
    added = HookAdditions((user("Day 2"),), (), notes)
    await store.record_reply(replace(a_reply(ref, "Reply 2", number=2), added=added))
    assert await read_request(store, ref) == ["Day 2", "They met.", "Reply 1", "Reply 2"]
    assert (await store.material(ref)).metadata == {"a": 1}


async def test_an_execution_that_has_ended_has_no_further_ones(store: ExecutionStore) -> None:
    ref = await accept_execution(store, "Hello")
    await say(store, ref, 1)
    await store.record_compaction(a_record(ref))
    await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED))
    assert await store.record_compaction(a_record(ref)) == FIRST
    with pytest.raises(ExecutionEnded):
        await store.record_compaction(a_record(ref, ordinal=1))


async def test_the_last_request_of_the_continued_execution_is_known(store: ExecutionStore) -> None:
    """14.4"""
    ref = await accept_execution(store, "Hello")
    assert await store.continued_input(ref) is None
    for number in (1, 2, 3):
        await store.begin_step(a_step_start(ref, number))
        call = a_call(f"c{number}")
        reply = a_reply(ref, f"Reply {number}", call, number=number, tokens=100 * number)
        await store.record_reply(reply)
        await store.record_call(result_record(ref, a_result(call.id), step=number))
    whole = await accept_execution(store, "More", continues=ref.execution_id)
    fork = await accept_execution(store, "More", continues=ref.execution_id, continues_until=2)
    start = await accept_execution(store, "More", continues=ref.execution_id, continues_until=0)
    assert await store.continued_input(whole) == ContinuedInput(Usage(300), 2)
    assert await store.continued_input(fork) == ContinuedInput(Usage(200), 2)
    assert await store.continued_input(start) is None
    assert await store.continued_input(replace(whole, tenant_id="umbrella")) is None
