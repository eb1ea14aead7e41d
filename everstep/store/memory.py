"""An in-memory execution store for tests, demos and installations without a database.

It behaves like the PostgreSQL store, and the same tests cover both. No method awaits between its reads and
its writes, so each is atomic. Everything that can be refused is validated before anything is changed.
"""

import sys
from dataclasses import replace
from decimal import Decimal
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.usage import sum_costs
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.executions import ExecutionRow, ExecutionSpec, NewExecution, Page
from everstep.agent_domain.storage.ledger import Chain
from everstep.agent_domain.storage.metadata_changes import MetadataHistory
from everstep.agent_domain.storage.steps import StepInput
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.store import bodies, ledger_entries, transcripts
from everstep.store.bodies import encode
from everstep.store.cursors import Cursor, page_size
from everstep.store.memory_calls import MemoryCalls
from everstep.store.memory_commands import MemoryCommands
from everstep.store.memory_ledger import MemoryLedger, accepted_values
from everstep.store.memory_recorded import MemoryRecords
from everstep.store.memory_records import MemoryExecution, MemoryStream, as_stored
from everstep.store.memory_status import MemoryStatus
from everstep.store.memory_steps import MemorySteps
from everstep.store.memory_text_search import MemoryTextSearch


class MemoryStore(
    MemorySteps, MemoryCalls, MemoryStatus, MemoryCommands, MemoryRecords, MemoryLedger, MemoryTextSearch
):
    """An execution store that lives and ends with its process."""

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; a repeated id returns the stored one."""
        ref = new.ref
        if new.continues == ref.execution_id:
            raise InvalidInput("an execution cannot continue itself; give the new one a different id")
        continued = self._find_by_id(ref, new.continues)
        parent = self._find_by_id(ref, new.parent_execution_id)
        known = self._executions.get(ref.execution_id)
        if known:
            if known.ref.tenant_id != ref.tenant_id:
                raise InvalidInput(f"the execution id {ref.execution_id} is taken; choose another one")
            return self._row(known)
        stream = self._streams.get(ref.stream_id)
        if stream and stream.tenant_id != ref.tenant_id:
            raise NotFound("session", ref.stream_id)
        execution = MemoryExecution(
            ref=ref,
            spec=ExecutionSpec.model_validate(
                as_stored(new.spec.model_dump(mode="json"), "the agent's definition")
            ),
            agent_id=continued.agent_id if continued else bodies.first_agent_id(ref.execution_id),
            parent_agent_id=new.parent_agent_id
            or (parent.agent_id if parent else None)
            or (continued.parent_agent_id if continued else None),
            parent_execution_id=new.parent_execution_id,
            continues=new.continues,
            continues_until=new.continues_until,
            agent_metadata=as_stored(new.metadata, "the agent's metadata"),
            metadata=_origin_of(parent).merged(new.notes),
            created_at=self._now(),
            user_id=new.user_id or (parent.user_id if parent else None),
            plan=as_stored(new.plan, "the plan"),
            clocks=_clocks(new, continued),
            request=as_stored(new.request, "the request") or (parent.request if parent else EMPTY),
        )
        execution.add_lines(0, transcripts.lines(new.messages))
        execution.ledger = Chain(ref.execution_id)
        values = accepted_values(execution, new)
        execution.sent = values["input"]
        execution.record(self._now(), ledger_entries.acceptance_entry(new, values))
        self._streams.setdefault(ref.stream_id, MemoryStream(ref.tenant_id))
        self._executions[ref.execution_id] = execution
        if not new.is_queued:
            self._queue_for_place(execution)
        return self._row(execution)

    async def material(self, ref: ExecutionRef) -> StepInput:
        """Return the inputs of the next step."""
        return self._step_inputs(self._require_execution(ref))

    async def record_tools(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; an earlier record wins."""
        execution = self._require_execution(ref)
        kept = execution.toolset_tools
        if kept is None:
            kept = execution.toolset_tools = frozen_map(as_stored(tools, "the tools that were listed"))
            entry = ledger_entries.tools_entry({"listed": encode(kept)})
            execution.record(self._now(), entry)
        return kept

    async def recorded_tools(self, ref: ExecutionRef) -> FrozenDict | None:
        """Return the recorded tools of this execution's toolsets, or None."""
        execution = self._find(ref)
        return execution.toolset_tools if execution else None

    async def metadata_history(self, ref: ExecutionRef) -> MetadataHistory:
        """Return the metadata at the start of an execution, and the changes of its calls."""
        execution = self._require_execution(ref)
        initial = self._metadata(execution, (0, -sys.maxsize))
        calls = {
            (step, index - 1): changes
            for (step, idx), changes in execution.notes.items()
            if (index := transcripts.call_of_note(idx))
        }
        return MetadataHistory(initial, calls)

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """Return one execution."""
        execution = self._find(ref)
        if execution is None:
            return None
        return replace(
            self._row(execution),
            definition_hash=execution.spec.definition_hash or None,
            tree_cost_usd=self._tree_cost(execution),
        )

    def _row(self, execution: MemoryExecution) -> ExecutionRow:
        """Return an execution as clients see it, with its position in the queue of its tenant."""
        position = self._queue_position(execution)
        return replace(execution.row, is_waiting=position is not None, queue_position=position)

    def _tree_cost(self, execution: MemoryExecution) -> Decimal | None:
        """Return what an execution and its child executions cost."""
        own, cost = execution.ref.execution_id, execution.cost_usd
        for other in self._executions.values():
            if other.parent_execution_id == own:
                cost = sum_costs(cost, self._tree_cost(other))
        return cost

    async def executions(
        self,
        tenant_id: str,
        *,
        status: ExecutionStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """Return a page of executions, newest first."""
        size = page_size(limit)
        before = Cursor.parse(cursor) if cursor is not None else None
        ours = (e for e in self._executions.values() if e.ref.tenant_id == tenant_id)
        wanted = (e for e in ours if status is None or e.status is status)
        placed = sorted(
            ((Cursor(e.created_at, e.ref.execution_id), e) for e in wanted), key=_cursor_of, reverse=True
        )
        left = [(place, e) for place, e in placed if before is None or place < before]
        page = left[:size]
        return Page(tuple(self._row(e) for _, e in page), page[-1][0].text if len(left) > size else None)

    async def transcript(self, ref: ExecutionRef) -> Messages:
        """Return the conversation of an execution, including that of the executions it continues."""
        execution = self._find(ref)
        return self._conversation(execution) if execution else ()

    async def envelopes(
        self, tenant_id: str, stream_id: UUID, after: int = 0, limit: int = 1000
    ) -> tuple[StoredEnvelope, ...]:
        """Return stored envelopes of a stream in order, after a position."""
        size = page_size(limit)
        stream = self._streams.get(stream_id)
        if stream is None or stream.tenant_id != tenant_id:
            return ()
        return tuple(stream.envelopes[max(0, after) :][:size])

    async def envelope_range(self, tenant_id: str, stream_id: UUID) -> tuple[int, int]:
        """Return the first and the last `seq` that are stored of a stream; (0, 0) if there are none."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.tenant_id != tenant_id or not stream.envelopes:
            return 0, 0
        return stream.envelopes[0].seq, stream.envelopes[-1].seq


def _cursor_of(placed: tuple[Cursor, MemoryExecution]) -> Cursor:
    return placed[0]


def _origin_of(parent: MemoryExecution | None) -> FrozenDict:
    return bodies.origin_metadata(parent.ref.execution_id, parent.last_snapshot_id) if parent else EMPTY


def _clocks(new: NewExecution, continued: MemoryExecution | None) -> StateInfo:
    """Return the clocks at the start. This store has no sessions, so chains of executions take their part."""
    if continued is None:
        return StateInfo(session_execution_seconds=new.session_seconds or 0.0)
    before = continued.clocks
    return StateInfo(
        started_at=before.started_at or continued.started_at,
        session_execution_seconds=before.session_execution_seconds + continued.worked_seconds,
    )
