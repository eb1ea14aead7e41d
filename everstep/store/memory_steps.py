"""Steps in the memory store."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.storage.calls import AnsweredQuestion, CallRow
from everstep.agent_domain.storage.compactions import ContinuedInput, RecordCompaction
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.steps import (
    STEERING_END,
    BeginStep,
    BegunStep,
    CallToRecord,
    PartialText,
    PartialTextOutcome,
    RecordProcessing,
    RecordReply,
    RetryWait,
    StepInput,
    StepRow,
)
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.store import bodies, ledger_entries, parameters, transcripts
from everstep.store.bodies import HUMAN_NEEDS, encode
from everstep.store.cursors import page_size
from everstep.store.memory_budgets import MemoryBudgets
from everstep.store.memory_records import (
    MemoryCall,
    MemoryExecution,
    MemoryRequest,
    MemorySteering,
    MemoryStep,
    as_stored,
    as_stored_document,
    message_from,
    processing_usage,
    require_active,
)


class MemorySteps(MemoryBudgets):
    """Steps: their begin, their text so far, their replies and their processing."""

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """Return the result of `begin_step` without steering messages; nothing is written."""
        execution = self._require_open(ref)
        step, material = execution.steps.get(number), self._step_inputs(execution, number=number)
        if step is None:
            return BegunStep(material)
        was_silent = step.attempt in step.failed_attempts and not step.partial_text
        return BegunStep(material, step.facts, step.attempt, was_silent, wait=step.wait)

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Complete the previous step and mark this one as started; a recorded step is returned unchanged."""
        known = await self.preview_step(begin.ref, begin.number)
        if known.recorded:
            return known
        execution = self._require_open(begin.ref)
        outcome = as_stored_document(begin.outcome, "the outcome")
        heard = _steering_for(execution, begin)
        said = transcripts.lines([steered.message for steered, _ in heard])
        placed = [replace(line, idx=idx) for line, (_, idx) in zip(said, heard, strict=True)]
        read = {(begin.number, line.idx): message_from(line) for line in placed}
        material = self._step_inputs(execution, begin.number, read)
        begun = replace(known, material=material)
        news = bodies.envelopes_from(begin.ref.execution_id, begin.events(begun))

        for steered, _ in heard:
            steered.heard_at = begin.number
        execution.add_lines(begin.number, placed)
        self._start_step(execution, begin, outcome)
        self._append_envelopes(execution, news)
        self._record_begin(execution, begin)
        head = len(self._streams[execution.ref.stream_id].envelopes)
        return replace(begun, after_seq=head if news else None)

    def _start_step(
        self,
        execution: MemoryExecution,
        begin: BeginStep,
        outcome: FrozenDict | None,
        seconds_ago: float = 0.0,
    ) -> None:
        now, known = self._now(), execution.steps.get(begin.number)
        started_at = now - timedelta(seconds=seconds_ago)
        step = execution.steps.setdefault(begin.number, MemoryStep(started_at, begin.attempt))
        if begin.attempt > step.attempt:
            step.attempt, step.partial_text = begin.attempt, ""
            step.next_index = step.after_seq = None
        if previous := execution.steps.get(begin.number - 1):
            if previous.outcome is None:
                previous.outcome, previous.boundary = outcome, begin.boundary
            previous.completed_at = previous.completed_at or now
        # A new step sets the status to running: an earlier status write may be lost. A repeated step may be
        # paused.
        if execution.status is ExecutionStatus.PENDING or known is None:
            execution.status = ExecutionStatus.RUNNING
        execution.started_at = execution.started_at or now
        execution.step_count = max(execution.step_count, begin.number - 1)

    def _record_begin(self, execution: MemoryExecution, begin: BeginStep) -> None:
        entries = ledger_entries.begin_entries(begin, parameters.step_values(begin))
        execution.record(self._now(), *entries)

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
        offset: int = 0,
    ) -> bool:
        """Store more of the text for late subscribers; return False if the attempt is no longer current."""
        encode(text, "the text")
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        if step is None or step.attempt != attempt or step.facts is not None:
            return False
        before = step.partial_text[:offset]
        if len(before) < offset:
            return False
        step.partial_text, step.next_index, step.after_seq = before + text, next_index, after_seq
        return True

    async def note_partials(self, texts: Sequence[PartialText]) -> Sequence[PartialTextOutcome]:
        """Store the texts of several steps."""
        return [await self._note_partial(each) for each in texts]

    async def _note_partial(self, each: PartialText) -> PartialTextOutcome:
        is_stored = await self.note_partial(
            each.ref,
            each.number,
            each.attempt,
            each.text,
            next_index=each.next_index,
            after_seq=each.after_seq,
            offset=each.offset,
        )
        execution = self._find(each.ref)
        if not is_stored or execution is None:
            return PartialTextOutcome.REPLACED
        return PartialTextOutcome.CANCELLED if execution.is_cancel_stored else PartialTextOutcome.STORED

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a failed model call of this step; return the number of failures, this one included."""
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        if step is None:
            raise NotFound("step", number)
        step.failed_attempts.add(attempt)
        assert execution is not None  # noqa: S101
        execution.record(self._now(), ledger_entries.failed_attempt_entry(number, attempt))
        return len(step.failed_attempts)

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Record that a step waits for its next attempt, unless that attempt or a reply is recorded."""
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        news = bodies.envelopes_from(ref.execution_id, events)
        written = bodies.parse_wait(json.loads(bodies.dump_wait(wait)))
        if execution is None or step is None or step.attempt != wait.attempt or step.facts is not None:
            return
        if execution.status is not ExecutionStatus.RUNNING:
            return
        step.wait = written
        self._append_envelopes(execution, news)
        execution.record(self._now(), ledger_entries.wait_entry(number, wait, bodies.dump_wait(wait)))

    async def note_progress(
        self, ref: ExecutionRef, call_id: str, progress: Progress, events: Sequence[EventRecord] = ()
    ) -> None:
        """Store how far a call is, unless it has its result."""
        execution = self._find(ref)
        call = execution.calls.get(call_id) if execution else None
        if execution is None or call is None or call.state == "done" or execution.status.is_terminal:
            return
        call.progress = progress
        self._append_envelopes(execution, bodies.envelopes_from(ref.execution_id, events))

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record the model's reply; a reply that an earlier attempt recorded wins."""
        execution = self._require_execution(reply.ref)
        step = execution.steps.get(reply.number)
        if step and step.facts:
            return step.facts
        require_active(execution)
        settled = {call.id for call in reply.facts.calls if call.is_settled}
        open_calls = [(idx, call) for idx, call in enumerate(reply.calls) if call.call.id not in settled]
        if len({call.call.id for _, call in open_calls} - execution.calls.keys()) < len(open_calls):
            raise bodies.call_id_conflict(reply)
        calls = [_call_from(reply.number, idx, call) for idx, call in open_calls]
        now = self._now()
        asked = [
            _request_from(reply, call, given, now) for call, (_, given) in zip(calls, open_calls, strict=True)
        ]
        facts = bodies.parse_facts(json.loads(bodies.dump_facts(reply.facts)))
        errors = bodies.parse_errors(json.loads(bodies.dump_errors(reply.errors)))
        response = as_stored_document(reply.response, "the response")
        lines = transcripts.reply_lines(reply.messages)
        added = transcripts.hook_lines(reply.number, reply.added)
        news = bodies.envelopes_from(reply.ref.execution_id, reply.events)
        outcome = as_stored_document(reply.begins and reply.begins.outcome, "the outcome")

        if reply.begins:
            self._start_step(execution, reply.begins, outcome, reply.facts.seconds)
        step = execution.steps.setdefault(reply.number, MemoryStep(now, reply.attempt))
        step.attempt, step.facts, step.response = reply.attempt, facts, response
        step.errors, step.partial_text, step.next_index, step.after_seq = errors, "", None, None
        step.first_text_seconds = reply.first_text_seconds
        execution.add_lines(reply.number, lines)
        for number, line in added:
            execution.add_lines(number, [line])
        execution.calls |= {call.call.id: call for call in calls}
        execution.requests |= {request.id: request for request in asked if request.call.need in HUMAN_NEEDS}
        execution.add_usage(facts.usage, has_answer=not facts.is_failure or facts.usage.total > 0)
        completed = reply.number if facts.is_complete else reply.number - 1
        execution.step_count = max(execution.step_count, completed)
        if reply.spending:
            self._settle_budgets(reply.ref, reply.spending)
        self._append_envelopes(execution, news)
        if reply.begins:
            self._record_begin(execution, reply.begins)
        execution.record(self._now(), ledger_entries.reply_entry(reply, parameters.reply_values(reply)))
        return reply.facts

    async def record_compaction(self, record: RecordCompaction) -> Compaction:
        """Record a compaction; one that an earlier attempt recorded wins."""
        execution = self._require_execution(record.ref)
        line, number = transcripts.compaction_line(record), record.compaction.step
        if known := execution.compactions.get((number, line.idx)):
            return known
        require_active(execution)
        news = bodies.envelopes_from(record.ref.execution_id, record.events)

        execution.add_lines(number, [line])
        self._append_envelopes(execution, news)
        values = parameters.compaction_values(record)
        execution.record(self._now(), ledger_entries.compaction_entry(record, values))
        return record.compaction

    async def continued_input(self, ref: ExecutionRef) -> ContinuedInput | None:
        """Return the last request of the execution that this one continues, or None."""
        own = self._find(ref)
        earlier = self._find_by_id(ref, own.continues) if own else None
        if own is None or earlier is None:
            return None
        until = own.continues_until
        answered = [
            step.facts
            for number, step in sorted(earlier.steps.items(), key=itemgetter(0))
            if step.facts and (until is None or number <= until)
        ]
        if not answered:
            return None
        begin = (answered[-1].number, 0)
        later = [at for at in earlier.messages if at >= begin and (until is None or at[0] <= until)]
        return ContinuedInput(answered[-1].usage, len(later))

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record the result of a step's processors; a result that an earlier attempt recorded wins."""
        execution = self._require_execution(record.ref)
        step = execution.steps.get(record.number)
        if step is None or step.facts is None:
            raise NotFound("step", record.number)
        if step.processed is not None:
            return step.processed
        require_active(execution)
        outcome = as_stored(record.outcome, "what processors said")
        added = transcripts.processed_lines(record.number, record.added)

        step.processed = outcome
        for number, line in added:
            execution.add_lines(number, [line])
        values = parameters.processing_values(record)
        execution.record(self._now(), ledger_entries.processing_entry(record, values))
        return record.outcome

    async def processing(self, ref: ExecutionRef, number: int) -> FrozenDict | None:
        """Return the recorded result of a step's processors, or None."""
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        return step.processed if step else None

    async def steps(
        self, ref: ExecutionRef, last: int | None = None, *, with_responses: bool = False
    ) -> tuple[StepRow, ...]:
        """Return the steps of an execution, optionally only the last ones."""
        execution = self._find(ref)
        if execution is None:
            return ()
        numbers = sorted(execution.steps)
        wanted = numbers if last is None else numbers[len(numbers) - min(last, len(numbers)) :]
        found = (_step_row(execution, number) for number in wanted)
        if not with_responses:
            return tuple(found)
        return tuple(replace(row, response=execution.steps[row.number].response) for row in found)

    async def material_with_steps(
        self, ref: ExecutionRef, last: int
    ) -> tuple[StepInput, tuple[StepRow, ...]]:
        """Return the inputs of the next step, and the last steps without messages and outcomes."""
        steps = (
            replace(step, messages=(), compactions=(), heard=0, processed=0, message_keys=(), outcome=None)
            for step in await self.steps(ref, last)
        )
        return self._step_inputs(self._require_execution(ref)), tuple(steps)

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """Return a page of steps after a step number; the cursor is the `after` of the next page."""
        size = page_size(limit)
        execution = self._find(ref)
        if execution is None:
            return Page(())
        left = sorted(number for number in execution.steps if number > after)
        page = tuple(_step_row(execution, number) for number in left[:size])
        return Page(page, str(page[-1].number) if len(left) > size else None)


def _steering_for(execution: MemoryExecution, begin: BeginStep) -> list[tuple[MemorySteering, int]]:
    """Return the steering messages that this step receives, with their places before the reply."""
    received = sum(steered.heard_at == begin.number for steered in execution.steering.values())
    waiting = [steered for steered in execution.steering.values() if steered.heard_at is None]
    return list(zip(waiting, range(received - begin.hears + STEERING_END, STEERING_END), strict=False))


def _call_from(step: int, idx: int, call: CallToRecord) -> MemoryCall:
    encode(call.call.args, f"the arguments of {call.call.name}")
    return MemoryCall(call.call, step, idx, call.need, call.args_digest)


def _request_from(
    reply: RecordReply, call: MemoryCall, recorded: CallToRecord, now: datetime
) -> MemoryRequest:
    identity = request_id(reply.ref.execution_id, call.call.id)
    asked = as_stored(recorded.request or {}, "the request")
    policy = bodies.parse_policy(call.need, recorded.policy and json.loads(recorded.policy.model_dump_json()))
    written = bodies.dump_policy(recorded.policy)
    return MemoryRequest(identity, call, call.need, asked, now, policy, policy_text=written)


def _call_row(execution: MemoryExecution, call: MemoryCall) -> CallRow:
    asked = execution.requests.get(request_id(execution.ref.execution_id, call.call.id))
    decision = asked.resolution if asked and asked.kind is CallNeed.APPROVAL else None
    progress = None if call.record else call.progress
    answered = _answered_question(execution, call)
    return CallRow(call.call, call.state, call.attempts, call.record, call.idx, decision, progress, answered)


def _answered_question(execution: MemoryExecution, call: MemoryCall) -> AnsweredQuestion | None:
    """Return the question of a call that was answered."""
    asked = (request for request in execution.requests.values() if request.call is call)
    questions = (request for request in asked if request.kind is CallNeed.INPUT)
    return next((AnsweredQuestion(each.id, each.resolution) for each in questions if each.resolution), None)


def _step_row(execution: MemoryExecution, number: int) -> StepRow:
    step = execution.steps[number]
    calls = sorted((c for c in execution.calls.values() if c.step == number), key=lambda call: call.idx)
    said = sorted(place for place in execution.messages if place[0] == number)
    return StepRow(
        number=number,
        attempt=step.attempt,
        facts=step.facts,
        errors=step.errors,
        outcome=step.outcome,
        partial_text=step.partial_text,
        started_at=step.started_at,
        completed_at=step.completed_at,
        messages=tuple(execution.messages[place] for place in said),
        calls=tuple(_call_row(execution, call) for call in calls),
        heard=sum(idx < 0 for _, idx in said),
        processed=sum(idx >= transcripts.PROCESSED_FROM for _, idx in said),
        next_index=step.next_index,
        after_seq=step.after_seq,
        processing_seconds=_processing_seconds(step),
        wait=step.wait,
        compactions=tuple(
            compaction
            for place, compaction in sorted(execution.compactions.items(), key=itemgetter(0))
            if place[0] == number
        ),
        processing_usage=processing_usage(step),
        failed_attempts=tuple(sorted(step.failed_attempts)),
        message_keys=tuple(key for key, each in execution.steering.items() if each.heard_at == number),
        first_text_seconds=step.first_text_seconds,
    )


def _processing_seconds(step: MemoryStep) -> float:
    if step.processed is None or "raised" in step.processed:
        # The time of a processor that raised is counted in the failure step.
        return 0.0
    return float(step.processed.get("facts", EMPTY).get("seconds") or 0.0)
