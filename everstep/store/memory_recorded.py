"""Recorded executions in the memory store."""

from collections.abc import Iterator
from dataclasses import replace

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.recorded_executions import (
    RecordedCall,
    RecordedExecution,
    RecordedStep,
    RecordFilter,
)
from everstep.store.cursors import Cursor, page_size
from everstep.store.memory_base import MemoryBase
from everstep.store.memory_records import MemoryCall, MemoryExecution
from everstep.store.recorded_reading import recorded_processing


class MemoryRecords(MemoryBase):
    """Reads recorded executions."""

    async def count_records(self, scope: Scope, wanted: RecordFilter) -> int:
        """Return how many executions of a scope the filter matches."""
        return sum(1 for _ in self._wanted(scope, wanted))

    async def load_records(
        self,
        scope: Scope,
        wanted: RecordFilter,
        *,
        cursor: str | None = None,
        limit: int = 200,
        with_models: bool = False,
    ) -> Page[RecordedExecution]:
        """Return a page of executions of a scope, newest first, with all of their steps."""
        size = page_size(limit)
        before = Cursor.parse(cursor) if cursor is not None else None
        placed = {
            Cursor(each.created_at, each.ref.execution_id): each for each in self._wanted(scope, wanted)
        }
        left = [place for place in sorted(placed, reverse=True) if before is None or place < before]
        page = left[:size]
        found = tuple(_execution(placed[place], with_models=with_models) for place in page)
        return Page(found, page[-1].text if len(left) > size else None)

    def _wanted(self, scope: Scope, wanted: RecordFilter) -> Iterator[MemoryExecution]:
        for each in self._executions.values():
            if each.ref.tenant_id != scope.tenant_id or not scope.covers(each.user_id):
                continue
            if wanted.agent is not None and each.spec.agent != wanted.agent:
                continue
            if wanted.execution_id is not None and each.ref.execution_id != wanted.execution_id:
                continue
            if wanted.status is not None and each.status is not wanted.status:
                continue
            is_early = wanted.since is not None and each.created_at < wanted.since
            is_late = wanted.until is not None and each.created_at >= wanted.until
            if not is_early and not is_late:
                yield each


def _execution(execution: MemoryExecution, *, with_models: bool) -> RecordedExecution:
    return RecordedExecution(
        execution.ref,
        execution.spec.agent,
        execution.status,
        execution.stop_reason,
        execution.plan,
        tuple(_step(execution, number, with_models=with_models) for number in sorted(execution.steps)),
        execution.created_at,
        execution.started_at,
        execution.completed_at,
        execution.step_count,
        execution.clocks,
        execution.spec.llm_preset,
        execution.run.ids,
        execution.parent_execution_id,
    )


def _step(execution: MemoryExecution, number: int, *, with_models: bool) -> RecordedStep:
    step = execution.steps[number]
    calls = sorted(
        (call for call in execution.calls.values() if call.step == number), key=lambda call: call.idx
    )
    processed = step.processed
    return RecordedStep(
        number,
        step.facts,
        tuple(map(_call, calls)),
        step.outcome,
        step.boundary,
        None if processed is None else recorded_processing(processed["facts"], processed.get("raised")),
        step.started_at,
        step.completed_at,
        step.response.get("model") if with_models and step.response else None,
    )


def _call(call: MemoryCall) -> RecordedCall:
    record, error = call.record, call.record.error if call.record else None
    made = RecordedCall(call.call.id, call.call.name, record is not None, digest=call.digest)
    made = replace(made, starts_child=call.need is CallNeed.SUBAGENT)
    if record is None:
        return made
    own_error = error and replace(error, message="", tool_name=call.call.name)
    return replace(made, error=own_error, seconds=record.seconds, besides=record.besides)
