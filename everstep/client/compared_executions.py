"""Reads two executions and compares them."""

import asyncio

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.comparison import (
    ComparedExecution,
    Comparison,
    PlacedStep,
    compare,
)
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.client.ledgers import missing_execution


async def compare_executions(
    store: ExecutionStore, a: ExecutionRef, b: ExecutionRef, *, in_full: bool = False
) -> Comparison:
    """Compare two executions of a store.

    Args:
        store: The store of both.
        a: The one.
        b: The other one.
        in_full: Whether results contain the texts of errors, not only those for every viewer.

    Raises:
        NotFound: One of them does not exist, or was removed.
    """
    one, other = await _load(store, a), await _load(store, b)
    # In a thread: many steps take many milliseconds, in which a server answers others.
    return await asyncio.to_thread(compare, one, other, in_full=in_full)


async def _load(store: ExecutionStore, ref: ExecutionRef) -> ComparedExecution:
    row = await store.execution(ref)
    if row is None:
        raise await missing_execution(store, ref)
    material = await store.material(row.ref)
    own = await store.steps(row.ref, with_responses=True)
    return ComparedExecution(row, material.spec, material.plan, own, await _load_shared_steps(store, row))


async def _load_shared_steps(store: ExecutionStore, row: ExecutionRow) -> tuple[PlacedStep, ...]:
    """Load the steps of the executions from which a fork branched off, the oldest first."""
    steps = list[PlacedStep]()
    while row.continues is not None and row.continues_until is not None:
        until, ref = row.continues_until, ExecutionRef(row.continues, row.ref.tenant_id)
        origin = await store.execution(ref)
        if origin is None:
            break
        own = await store.steps(origin.ref, with_responses=True)
        steps[:0] = [PlacedStep(ref.execution_id, step) for step in own if step.number <= until]
        row = origin
    return tuple(steps)
