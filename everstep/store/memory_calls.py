"""Tool calls in the memory store."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from everstep.agent_domain.ids import ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.budget_ledger import BudgetSpending, BudgetTerms
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall, Reservation
from everstep.agent_domain.stream.records import EventRecord, no_event_records
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.store import bodies, ledger_entries, parameters, transcripts
from everstep.store.bodies import encode
from everstep.store.memory_base import remembered_rules
from everstep.store.memory_budgets import MemoryBudgets
from everstep.store.memory_records import MemoryRequest, as_stored, close_request, require_active


class MemoryCalls(MemoryBudgets):
    """Tool calls, and the model calls within a step."""

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that was approved; a repeated call changes nothing."""
        execution, call = self._require_call(ref, call_id)
        identity = question_id(ref.execution_id, call_id)
        kept = as_stored(request, "the request")
        if call.record is None and identity not in execution.requests:
            execution.requests[identity] = MemoryRequest(identity, call, CallNeed.INPUT, kept, self._now())
            entry = ledger_entries.asked_entry(identity, call_id, CallNeed.INPUT, encode(kept), None)
            execution.record(self._now(), entry)

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """Return the result of `reserve_call`; nothing is written."""
        execution, call = self._require_call(ref, call_id)
        asked = execution.requests.get(request_id(ref.execution_id, call_id))
        question = execution.requests.get(question_id(ref.execution_id, call_id))
        if call.record is None:
            require_active(execution)
        return Reservation(
            call=call.call,
            step_number=call.step,
            index=call.idx,
            metadata=self._metadata(execution, (call.step, 0)),
            recorded=call.record,
            is_uncertain=call.state == "reserved",
            resolution=asked.resolution if asked else None,
            answer=question.resolution if question else None,
            broadcast=execution.plan.get("broadcast", EMPTY),
            earlier=tuple(
                made.call
                for made in sorted(execution.calls.values(), key=lambda made: made.idx)
                if made.step == call.step and made.idx < call.idx
            ),
            allowed=remembered_rules(execution),
            run=execution.run,
        )

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = no_event_records,
    ) -> Reservation:
        """Reserve a call before it has any effect."""
        reservation = await self.preview_call(ref, call_id)
        if reservation.recorded:
            return reservation
        execution, call = self._require_call(ref, call_id)
        news = bodies.envelopes_from(ref.execution_id, events(reservation))

        call.state, call.attempts = "reserved", max(call.attempts + 1, attempt)
        call.started_at = call.started_at or self._now()
        self._append_envelopes(execution, news)
        return reservation

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; a result that an earlier attempt recorded wins."""
        execution, call = self._require_call(record.ref, record.record.call_id)
        if call.record:
            return call.record
        error = as_stored(record.record.error and record.record.error.to_dict(), "the error")
        kept = replace(
            record.record,
            result=as_stored(record.record.result, "the result"),
            error=bodies.parse_error(error),
        )
        encode(record.record.text, "the text")
        lines = transcripts.result_lines(record.messages, record.index)
        notes = transcripts.call_notes(record.notes, record.index)
        news = bodies.envelopes_from(record.ref.execution_id, record.events)

        call.state, call.record, call.started_at = "done", kept, kept.started_at
        call.attempts, call.digest = max(call.attempts, record.attempt), record.digest
        execution.add_lines(call.step, (*lines, *notes))
        close_request(execution, call)
        self._append_envelopes(execution, news)
        execution.record(self._now(), ledger_entries.call_entry(record, parameters.result_values(record)))
        return record.record

    async def inner_reply(self, ref: ExecutionRef, key: str) -> InnerReply | None:
        """Return the recorded reply to an inner model call, or None."""
        execution = self._find(ref)
        return execution.inner_replies.get(key) if execution else None

    async def preview_inner_call(self, ref: ExecutionRef, key: str) -> tuple[InnerReply | None, BudgetTerms]:
        """Return the recorded reply to an inner model call, and the budgets for it."""
        execution = self._require_execution(ref)
        terms = self._step_inputs(execution).budget_terms(execution.ref)
        return execution.inner_replies.get(key), terms

    async def record_inner_reply(
        self, ref: ExecutionRef, reply: InnerReply, usage: Usage, spending: BudgetSpending | None = None
    ) -> InnerReply:
        """Record the reply to an inner model call and its usage; a reply of an earlier attempt wins."""
        execution = self._require_execution(ref)
        known = execution.inner_replies.get(reply.key)
        if known and known.digest == reply.digest:
            return known
        require_active(execution)
        kept = replace(reply, response=as_stored(reply.response, "the response"))

        execution.inner_replies[reply.key] = kept
        execution.add_usage(usage)
        if spending:
            self._settle_budgets(ref, spending)
        values = parameters.inner_reply_values(reply, usage)
        execution.record(self._now(), ledger_entries.inner_reply_entry(reply, usage, values))
        return reply
