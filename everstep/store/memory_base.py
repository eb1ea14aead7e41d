"""The state of the memory store."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.fairness.rate_draws import RateBuckets
from everstep.agent_domain.fairness.tenant_limits import TenantLimits
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.storage.budget_ledger import BudgetOwner
from everstep.agent_domain.storage.metadata_changes import apply_changes
from everstep.agent_domain.storage.steps import EARLIER_EXECUTION, MessagePlace, PreviousStep, StepInput
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.store import bodies, transcripts
from everstep.store.memory_records import (
    MemoryBudget,
    MemoryCall,
    MemoryExecution,
    MemoryPlace,
    MemoryStream,
    processing_usage,
    require_active,
)

_MILLISECOND = timedelta(milliseconds=1)


def _system_clock() -> datetime:
    return datetime.now(UTC)


class MemoryBase:
    """The executions and streams of the memory store, and lookups in them."""

    def __init__(self, now: Callable[[], datetime] = _system_clock, bus: EnvelopeBus = NULL_BUS) -> None:
        self._now = now
        self._bus = bus
        self._executions: dict[UUID, MemoryExecution] = {}
        self._streams: dict[UUID, MemoryStream] = {}
        self._budgets: dict[UUID, MemoryBudget] = {}
        self._limits: dict[tuple[str, str], TenantLimits] = {}
        self._places: dict[UUID, MemoryPlace] = {}
        self._rates = RateBuckets()

    def _find(self, ref: ExecutionRef) -> MemoryExecution | None:
        execution = self._executions.get(ref.execution_id)
        return execution if execution and execution.ref.tenant_id == ref.tenant_id else None

    def _require_execution(self, ref: ExecutionRef) -> MemoryExecution:
        execution = self._find(ref)
        if execution is None:
            raise NotFound("execution", ref.execution_id)
        return execution

    def _find_by_id(self, ref: ExecutionRef, execution_id: UUID | None) -> MemoryExecution | None:
        return (
            None if execution_id is None else self._require_execution(replace(ref, execution_id=execution_id))
        )

    def _require_open(self, ref: ExecutionRef) -> MemoryExecution:
        execution = self._require_execution(ref)
        require_active(execution)
        return execution

    def _require_call(self, ref: ExecutionRef, call_id: str) -> tuple[MemoryExecution, MemoryCall]:
        execution = self._find(ref)
        call = execution.calls.get(call_id) if execution else None
        if execution is None or call is None:
            raise NotFound("call", call_id)
        return execution, call

    def _conversation(self, execution: MemoryExecution) -> Messages:
        own = (execution.messages[place] for place in sorted(execution.messages))
        return (*self._earlier_messages(execution), *own)

    def _earlier_messages(self, execution: MemoryExecution) -> Messages:
        """Return the messages of the executions that this one continues."""
        said = list[Message]()
        while execution.continues:
            until, execution = execution.continues_until, self._executions[execution.continues]
            places = sorted(
                place
                for place in execution.messages
                if until is None or transcripts.is_filled_by(place, until)
            )
            said[:0] = [execution.messages[place] for place in places]
        return tuple(said)

    def _metadata(self, execution: MemoryExecution, before: tuple[int, int] | None = None) -> FrozenDict:
        """Return the metadata, including that of the continued execution, optionally before a place."""
        earlier, until = EMPTY, execution.continues_until
        if execution.continues:
            end = None if until is None else (until + 1, -sys.maxsize)
            earlier = self._metadata(self._executions[execution.continues], end)
        began = transcripts.initial_metadata(earlier, execution.agent_metadata)
        return apply_changes(began, execution.ordered_notes(before))

    def _step_inputs(
        self,
        execution: MemoryExecution,
        number: int | None = None,
        read: Mapping[MessagePlace, Message] | None = None,
    ) -> StepInput:
        """Return the inputs of a step, with the messages that it is about to read."""
        earlier, own = self._earlier_messages(execution), {**execution.messages, **(read or {})}
        places = sorted(own)
        return StepInput(
            execution.spec.model_copy(update={"listed": execution.toolset_tools or execution.spec.listed}),
            (*earlier, *(own[place] for place in places)),
            self._metadata(execution),
            execution.agent_id,
            execution.parent_agent_id,
            execution.plan,
            _step_before(execution, number, self._now()),
            remembered_rules(execution),
            self._task(execution),
            execution.clocks,
            (*[EARLIER_EXECUTION] * len(earlier), *places),
            execution.run,
            transcripts.latest_compaction(self._parts(execution)),
            execution.part().compactions,
            self._operator_units(execution),
        )

    def _parts(self, execution: MemoryExecution) -> list[transcripts.OwnPart]:
        """Return the parts of a conversation, the continued executions first."""
        parts = [execution.part()]
        while execution.continues:
            until, execution = execution.continues_until, self._executions[execution.continues]
            parts.insert(0, execution.part(until))
        return parts

    def _operator_units(self, execution: MemoryExecution) -> tuple[BudgetUnit, ...]:
        """Return the units of the operator's budgets that apply to an execution."""
        ids = BudgetOwner(execution.ref, execution.user_id).operator_ids
        found = (self._budgets[identity].settings.unit for identity in ids if identity in self._budgets)
        return tuple(dict.fromkeys(found))

    def _task(self, execution: MemoryExecution) -> str | None:
        earlier = self._task(self._executions[execution.continues]) if execution.continues else None
        return transcripts.find_task(sorted(execution.messages.items()), earlier)

    def _append_envelopes(self, execution: MemoryExecution, envelopes: Iterable[bodies.NewEnvelope]) -> None:
        """Number the envelopes that are not stored yet; timestamps increase even if the clock does not."""
        stream_id = execution.ref.stream_id
        stream = self._streams[stream_id]
        head = len(stream.envelopes)
        for item in envelopes:
            if item.id in stream.ids:
                continue
            last = stream.envelopes[-1].created_at if stream.envelopes else None
            now = self._now()
            at = max(now, last + timedelta(microseconds=1)) if last else now
            payload = bodies.document(json.loads(item.payload_json), "the payload")
            seq, execution_id = len(stream.envelopes) + 1, execution.ref.execution_id
            stream.ids.add(item.id)
            stream.envelopes.append(
                StoredEnvelope(
                    stream_id, seq, item.id, item.type, execution_id, payload, at, item.payload_json
                )
            )
        if len(stream.envelopes) > head and self._bus.has_subscribers(stream_id):
            self._bus.publish(stream_id, stream.envelopes[head:])


def remembered_rules(execution: MemoryExecution) -> tuple[ApprovalRule, ...]:
    """Return the approval rules that people gave for the whole execution."""
    said = (request.resolution for request in execution.requests.values() if request.resolution)
    return tuple(resolution.remember for resolution in said if resolution.remember)


def _step_before(execution: MemoryExecution, number: int | None, now: datetime) -> PreviousStep | None:
    """Return the last answered step, or the one before a step that begins."""
    answered = [step for step, known in execution.steps.items() if known.facts]
    step = execution.steps.get(max(answered, default=0) if number is None else number - 1)
    if step is None or step.facts is None:
        return None
    calls = [call for call in execution.calls.values() if call.step == step.facts.number]
    failed = tuple(call.record.error for call in calls if call.record and call.record.error)
    inner = sum((call.record.besides.usage for call in calls if call.record), processing_usage(step))
    milliseconds = ((step.completed_at or now) - step.started_at) / _MILLISECOND
    return PreviousStep(step.facts, len(failed), milliseconds, inner, step.errors or failed)
