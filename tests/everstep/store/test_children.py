"""Child executions: the fields that they inherit, and the position of each call in its response."""

from everstep.agent_domain.loop.run_context import RunContext, request_data
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_step_start,
    accept_execution,
)


async def test_a_child_belongs_to_its_parent(store: ExecutionStore) -> None:
    """8.1.2: its execution and its agent; an execution that continues a child keeps the same parent."""
    parent = await accept_execution(store)
    child, later = a_ref(), a_ref()
    row = await store.accept(a_new_execution(child, parent_execution_id=parent.execution_id))
    await store.accept(a_new_execution(later, continues=child.execution_id))

    assert row.parent_execution_id == parent.execution_id
    assert row.metadata == {"parent_execution_id": str(parent.execution_id), "parent_snapshot_id": None}
    agent_id = (await store.material(parent)).agent_id
    assert (await store.material(child)).parent_agent_id == agent_id
    assert (await store.material(later)).parent_agent_id == agent_id


async def test_a_child_works_for_the_user_and_request_of_its_parent(store: ExecutionStore) -> None:
    """9.9.3: whatever metadata its agent begins with; steps, calls and reservations say the same."""
    request = request_data({"plan": "gold"}, "order", "7")
    parent = await accept_execution(store, user_id="ann", request=request)
    child, grandchild = a_ref(), a_ref()
    made_up = frozen_map({"plan": "made up"})
    for ref, above in ((child, parent), (grandchild, child)):
        await store.accept(a_new_execution(ref, parent_execution_id=above.execution_id, metadata=made_up))

    expected = RunContext("ann", TENANT, None, "order", "7", frozen_map({"plan": "gold"}))
    for ref in (parent, child, grandchild):
        begun = await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "?", a_call()))
        assert begun.material.run == expected
        assert (await store.preview_step(ref, 1)).material.run == expected
        assert (await store.material(ref)).run == expected
        assert (await store.preview_call(ref, "c1")).run == expected
        assert (await store.reserve_call(ref, "c1", 1)).run == expected


async def test_a_call_knows_its_position(store: ExecutionStore) -> None:
    """5.4.1: among all calls of its response."""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "?", a_call("c1"), a_call("c2"), needs=CallNeed.SUBAGENT))
    (step,) = await store.steps(ref)

    assert [(call.call.id, call.index) for call in step.calls] == [("c1", 0), ("c2", 1)]
