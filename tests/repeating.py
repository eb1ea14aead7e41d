"""The check that every decision of the executions in a store is reproduced from its record."""

from collections.abc import AsyncGenerator

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.recorded_executions import (
    RecordedExecution,
    RecordedExecutions,
    RecordFilter,
)
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.agent_domain.what_if.repeating import ChangedEnd, WhatIfResult, compare

RECORDED_POLICY = PolicyChange()

NO_PLAN = "its plan is not stored"
"""Executions that a test starts with only Temporal and the contracts have none."""


async def each_record(store: RecordedExecutions) -> AsyncGenerator[RecordedExecution]:
    """All executions of the default tenant."""
    cursor = None
    while True:
        page = await store.load_records(Scope(), RecordFilter(), cursor=cursor, limit=200)
        for record in page.rows:
            yield record
        if (cursor := page.cursor) is None:
            return


def difference(record: RecordedExecution) -> WhatIfResult | None:
    """How the recorded policy differs from the record; None if it reproduces every decision."""
    found = compare(record, RECORDED_POLICY)
    if found.verdict is ChangedEnd.SAME or found.because.startswith(NO_PLAN):
        return None
    return found


async def require_repeatable(store: RecordedExecutions) -> int:
    """Fail if a recorded decision is not reproduced; return how many were."""
    repeated = 0
    async for record in each_record(store):
        found = difference(record)
        assert found is None, f"{found}\n{record}"
        repeated += compare(record, RECORDED_POLICY).decisions
    return repeated
