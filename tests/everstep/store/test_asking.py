"""Calls that ask a question after their approval: two requests of one call."""

from everstep.agent_domain.ids import ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import RequestState, Resolution
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    end_execution,
    result_record,
)

QUESTION = frozen_map({"prompt": "Tea?"})


async def create_approved_call(store: ExecutionStore) -> ExecutionRef:
    """A call that was approved and now asks a question."""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "?", a_call("c1"), needs=CallNeed.APPROVAL))
    await store.resolve(ref, request_id(ref.execution_id, "c1"), Resolution("approve"))
    await store.ask(ref, "c1", QUESTION)
    return ref


async def test_an_approved_call_asks_once(store: ExecutionStore) -> None:
    """8.6.2, 8.5.2."""
    ref = await create_approved_call(store)
    await store.ask(ref, "c1", frozen_map({"prompt": "Coffee?"}))

    (row,) = await store.open_requests(ref)

    assert row == await store.request(ref, question_id(ref.execution_id, "c1"))
    assert row == await store.find_request(ref.tenant_id, question_id(ref.execution_id, "c1"))
    assert (row.kind, row.state, row.request) == (CallNeed.INPUT, RequestState.OPEN, QUESTION)
    decided = await store.request(ref, request_id(ref.execution_id, "c1"))
    assert decided
    assert (decided.kind, decided.resolution) == (CallNeed.APPROVAL, Resolution("approve"))


async def test_decision_and_answer_are_both_known(store: ExecutionStore) -> None:
    """8.5.3, 8.6.2."""
    ref = await create_approved_call(store)
    before = await store.reserve_call(ref, "c1", 1)
    await store.resolve(ref, question_id(ref.execution_id, "c1"), Resolution("answer", "yes"))
    after = await store.reserve_call(ref, "c1", 2)

    assert (before.resolution, before.answer) == (Resolution("approve"), None)
    assert (after.resolution, after.answer) == (Resolution("approve"), Resolution("answer", "yes"))


async def test_an_answer_does_not_approve_the_call(store: ExecutionStore) -> None:
    """8.6.3: only a decision approves it."""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "?", a_call("c1"), needs=CallNeed.APPROVAL))
    await store.ask(ref, "c1", QUESTION)
    await store.resolve(ref, question_id(ref.execution_id, "c1"), Resolution("answer", "yes"))

    reserved = await store.reserve_call(ref, "c1", 1)

    assert (reserved.resolution, reserved.answer) == (None, Resolution("answer", "yes"))


async def test_a_question_closes_with_its_call(store: ExecutionStore) -> None:
    """8.5.5, 1.1.5: by a result, or by the end of the execution."""
    first, second = await create_approved_call(store), await create_approved_call(store)
    await store.record_call(result_record(first))
    await end_execution(store, second, ExecutionStatus.CANCELLED)
    await store.ask(first, "c1", QUESTION)

    assert await store.open_requests(first) == ()
    assert await store.open_requests(second) == ()
    closed = await store.request(first, question_id(first.execution_id, "c1"))
    assert closed
    assert (closed.state, closed.resolution) == (RequestState.RESOLVED, None)


async def test_an_answer_is_delivered_again_to_a_workflow_that_repeats_its_pause(
    store: ExecutionStore,
) -> None:
    """18.9.1: Temporal was restored from a backup, and has the workflow without the answer."""
    ref = await create_approved_call(store)
    pause = a_settlement(ref, ExecutionStatus.PAUSED, "settlement/1")
    await store.settle(pause)
    await store.command(ref, "pause/1", CommandKind.PAUSE)
    await store.command(ref, "resume/1", CommandKind.RESUME)
    for command in await store.pending_commands(ref):
        await store.confirm_delivery(command)

    assert await store.settle(pause) is None
    again = [command.kind for command in await store.pending_commands(ref)]
    assert again == [CommandKind.APPROVAL, CommandKind.RESUME]
    for command in await store.pending_commands(ref):
        await store.confirm_delivery(command)
    # A later pause of a person stays in force.
    pausing, _ = await store.command(ref, "pause/2", CommandKind.PAUSE)
    await store.confirm_delivery(pausing)
    await store.settle(pause)
    assert [command.kind for command in await store.pending_commands(ref)] == [CommandKind.APPROVAL]

    await end_execution(store, ref)
    await store.settle(pause)
    assert await store.pending_commands(ref) == ()
