"""What a record of a run reads beside its steps: commands, and metadata by call."""

from typing import Any

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_result,
    a_step_start,
    accept_execution,
    result_record,
)


async def test_commands_are_read_in_order_delivered_or_not(store: ExecutionStore) -> None:
    """15.3.2"""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    pause, _ = await store.command(ref, "pause/1", CommandKind.PAUSE)
    await store.confirm_delivery(pause)
    await store.command(ref, "resume/1", CommandKind.RESUME)
    await store.command(ref, "cancel/1", CommandKind.CANCEL)

    sent = await store.sent_commands(ref)

    assert [each.kind for each in sent] == [CommandKind.PAUSE, CommandKind.RESUME, CommandKind.CANCEL]
    assert sent[0].sent_at <= sent[1].sent_at <= sent[2].sent_at
    assert await store.sent_commands(await accept_execution(store)) == ()


async def two_calls(store: ExecutionStore, **given: Any) -> ExecutionRef:
    """An execution whose first step has two calls."""
    ref = await accept_execution(store, **given)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "", a_call("c1"), a_call("c2")))
    return ref


async def test_changes_of_metadata_are_read_by_call(store: ExecutionStore) -> None:
    """15.3.2"""
    ref = await two_calls(store, metadata=frozen_map({"order": 7}))
    seen = frozen_map({"seen": 1})
    await store.record_call(result_record(ref, a_result("c2"), index=1, metadata=seen))
    await store.record_call(result_record(ref, a_result("c1")))

    history = await store.metadata_history(ref)

    assert (history.initial, dict(history.calls)) == ({"order": 7}, {(1, 1): MetadataChanges(seen)})


async def test_the_metadata_of_a_continued_execution_is_part_of_the_beginning(store: ExecutionStore) -> None:
    """15.3.2"""
    first = await two_calls(store, metadata=frozen_map({"order": 7}))
    await store.record_call(result_record(first, a_result("c1"), metadata=frozen_map({"seen": 1})))
    second = await accept_execution(store, continues=first.execution_id, metadata=frozen_map({"day": 1}))

    history = await store.metadata_history(second)

    assert (history.initial, dict(history.calls)) == ({"order": 7, "seen": 1, "day": 1}, {})
