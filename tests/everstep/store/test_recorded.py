"""The contract of every store: reading recorded executions in bulk, without their bodies."""

from dataclasses import replace
from datetime import timedelta

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import Besides, CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.recorded_executions import RecordedExecution, RecordFilter
from everstep.agent_domain.storage.steps import RecordProcessing
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    AT,
    OTHERS,
    OUTCOME,
    TENANT,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    result_record,
)

PLAN = frozen_map({"max_steps": 3})
BOUNDARY = Boundary(1.25, 0.5, steered=1)


async def only(store: ExecutionStore, **fields: object) -> RecordedExecution:
    """The only recorded execution."""
    (record,) = (await store.load_records(Scope(TENANT), RecordFilter(), **fields)).rows  # type: ignore[arg-type]
    return record


async def test_an_execution_is_read_with_what_its_decisions_read(store: ExecutionStore) -> None:
    """15.2.2"""
    ref = await accept_execution(store, plan=PLAN)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "", a_call(), tokens=7))
    error = StepError("secret", ErrorType.TOOL, "look", "Oops")
    besides = Besides(Usage(5), 9)
    record = replace(a_result(), error=error, success=False, seconds=2.5, besides=besides)
    await store.record_call(replace(result_record(ref, record), digest="0123abcd"))
    processed = {"facts": {"seconds": 0.25, "besides": {"wishes": {"another_step": True}}}}
    await store.record_processing(RecordProcessing(ref, 1, frozen_map(processed)))
    await store.begin_step(a_step_start(ref, 2, outcome=OUTCOME, boundary=BOUNDARY))

    found = await only(store)
    assert (found.ref, found.agent, found.status) == (ref, "helper", ExecutionStatus.RUNNING)
    assert found.plan == PLAN
    first, second = found.steps
    assert first.facts
    assert (first.facts.usage.total, first.outcome, first.boundary) == (7, OUTCOME, BOUNDARY)
    (call,) = first.calls
    assert (call.has_result, call.seconds, call.besides, call.digest) == (True, 2.5, besides, "0123abcd")
    assert call.error == replace(error, message="")
    assert first.processing
    assert (first.processing.seconds, first.processing.besides.wishes) == (0.25, Wishes(another_step=True))
    assert (second.facts, second.outcome, second.boundary) == (None, None, None)


async def test_the_boundary_of_an_end_belongs_to_the_last_step(store: ExecutionStore) -> None:
    """15.2.2"""
    ref = await accept_execution(store, plan=PLAN)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref))
    ended = a_settlement(ref, ExecutionStatus.COMPLETED, stop_reason=StopReason.COMPLETED)
    await store.settle(replace(ended, outcome=OUTCOME, boundary=BOUNDARY))
    found = await only(store)
    assert found.steps[-1].boundary == BOUNDARY
    assert found.stop_reason is StopReason.COMPLETED


async def test_an_outcome_that_is_recorded_keeps_its_boundary(store: ExecutionStore) -> None:
    """15.2.2: a step that was begun again, or abandoned, does not change what the decision before it read."""
    ref = await accept_execution(store, plan=PLAN)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref))
    await store.begin_step(a_step_start(ref, 2, outcome=OUTCOME, boundary=BOUNDARY))
    await store.begin_step(a_step_start(ref, 2, 2))
    other = Boundary(9.0, 9.0)
    ended = a_settlement(ref, ExecutionStatus.CANCELLED, stop_reason=StopReason.USER_REQUESTED)
    await store.settle(replace(ended, outcome=OUTCOME, boundary=other))
    assert (await only(store)).steps[0].boundary == BOUNDARY


async def test_models_and_subagents_are_read(store: ExecutionStore) -> None:
    """15.2.6"""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    reply = a_reply(ref, "", a_call(), needs=CallNeed.SUBAGENT)
    await store.record_reply(replace(reply, response=frozen_map({"model": "gpt-x"})))
    assert (await only(store)).steps[0].model is None
    (step,) = (await only(store, with_models=True)).steps
    assert step.model == "gpt-x"
    assert step.calls[0].starts_child


class TestPages:
    async def test_each_execution_comes_once_newest_first(self, store: ExecutionStore) -> None:
        """15.2.1"""
        refs = [await accept_execution(store) for _ in range(5)]
        read, cursor = list[RecordedExecution](), None
        while True:
            page = await store.load_records(Scope(TENANT), RecordFilter(), cursor=cursor, limit=2)
            read += page.rows
            if (cursor := page.cursor) is None:
                break
        assert [record.ref for record in read] == refs[::-1]
        assert await store.count_records(Scope(TENANT), RecordFilter()) == 5

    async def test_filters_and_scopes_leave_others_out(self, store: ExecutionStore) -> None:
        """15.2.1: of a tenant or a user, and with a filter."""
        ann = a_ref()
        await store.accept(a_new_execution(ann, agent="clerk", user_id="ann"))
        await store.accept(a_new_execution(a_ref(), user_id="bob"))
        foreign = a_ref(tenant=OTHERS)
        await store.accept(a_new_execution(foreign, user_id="ann"))
        for scope, wanted in (
            (Scope(TENANT, "ann"), RecordFilter()),
            (Scope(TENANT), RecordFilter(agent="clerk")),
            (Scope(TENANT), RecordFilter(execution_id=ann.execution_id)),
        ):
            assert [row.ref for row in (await store.load_records(scope, wanted)).rows] == [ann]
            assert await store.count_records(scope, wanted) == 1
        for empty in (
            RecordFilter(status=ExecutionStatus.FAILED),
            RecordFilter(execution_id=foreign.execution_id),
            RecordFilter(since=AT + timedelta(days=99_999)),
            RecordFilter(until=AT - timedelta(days=1)),
        ):
            assert (await store.load_records(Scope(TENANT), empty)).rows == ()

    async def test_bad_pages_are_refused(self, store: ExecutionStore) -> None:
        """15.2.5"""
        with pytest.raises(InvalidInput):
            await store.load_records(Scope(TENANT), RecordFilter(), limit=0)
        with pytest.raises(InvalidInput):
            await store.load_records(Scope(TENANT), RecordFilter(), cursor="nonsense")
        with pytest.raises(InvalidInput):
            RecordFilter(since=AT, until=AT)
