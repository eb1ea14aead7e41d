"""An in-memory execution store for tests, demos and installations without a database.

It behaves like the PostgreSQL store, and the same tests cover both. No method awaits between its reads and
its writes, so each is atomic. Everything that can be refused is validated before anything is changed.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message, Messages, tool_message
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.calls import CallRecord, CallRow, InnerReply, RecordCall, Reservation
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.executions import (
    ExecutionEnded,
    ExecutionRow,
    ExecutionSpec,
    NewExecution,
    Page,
    Settlement,
)
from everstep.agent_domain.storage.metadata_changes import Notes, summed
from everstep.agent_domain.storage.requests import RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.steps import (
    BeginStep,
    BegunStep,
    CallToRecord,
    Material,
    RecordProcessing,
    RecordReply,
    RetryWait,
    StepBefore,
    StepRow,
)
from everstep.agent_domain.stream.bus import NOBODY, EnvelopeBus
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope, nothing_to_tell
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict, freeze, frozen_map
from everstep.store import bodies, transcripts
from everstep.store.bodies import ASKS_PEOPLE, TERMINAL, encode
from everstep.store.cursors import Cursor, page_size
from everstep.store.transcripts import HEARD_BEFORE, Line

_MILLISECOND = timedelta(milliseconds=1)


def _system_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class _Step:
    started_at: datetime
    attempt: int = 1
    failed_attempts: set[int] = field(default_factory=set[int])
    facts: StepFacts | None = None
    response: FrozenDict | None = None
    errors: tuple[StepError, ...] = ()
    outcome: FrozenDict | None = None
    partial_text: str = ""
    next_index: int | None = None
    after_seq: int | None = None
    completed_at: datetime | None = None
    processed: FrozenDict | None = None
    wait: RetryWait | None = None


@dataclass(slots=True)
class _Call:
    call: ToolCall
    step: int
    idx: int
    need: CallNeed
    args_digest: str
    state: str = "told"
    attempts: int = 0
    started_at: datetime | None = None
    record: CallRecord | None = None


@dataclass(slots=True)
class _Request:
    id: UUID
    call: _Call
    kind: CallNeed
    request: FrozenDict
    created_at: datetime
    state: RequestState = RequestState.OPEN
    resolution: Resolution | None = None


@dataclass(slots=True)
class _Steered:
    message: Message
    heard_at: int | None = None


@dataclass(slots=True)
class _Command:
    kind: CommandKind
    call_id: str | None = None
    is_denied: bool = False
    is_delivered: bool = False


@dataclass(slots=True)
class _Execution:
    ref: ExecutionRef
    spec: ExecutionSpec
    agent_id: UUID
    parent_agent_id: UUID | None
    parent_execution_id: UUID | None
    continues: UUID | None
    continues_until: int | None
    agent_metadata: FrozenDict
    metadata: FrozenDict
    created_at: datetime
    user_id: str | None = None
    plan: FrozenDict = EMPTY
    status: ExecutionStatus = ExecutionStatus.PENDING
    step_count: int = 0
    usage: FrozenDict = field(default_factory=lambda: frozen_map(Usage().to_breakdown()))
    stop_reason: StopReason | None = None
    output: FrozenDict | None = None
    error_message: str | None = None
    error_told: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    last_snapshot_id: UUID | None = None
    worked_seconds: float = 0.0
    clocks: StateInfo = StateInfo()
    kept_snapshots: set[UUID] = field(default_factory=set[UUID])
    steps: dict[int, _Step] = field(default_factory=dict[int, _Step])
    said: dict[tuple[int, int], Message] = field(default_factory=dict[tuple[int, int], Message])
    notes: dict[tuple[int, int], Notes] = field(default_factory=dict[tuple[int, int], Notes])
    inner_replies: dict[str, InnerReply] = field(default_factory=dict[str, InnerReply])
    listed: FrozenDict | None = None
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    requests: dict[UUID, _Request] = field(default_factory=dict[UUID, _Request])
    steered: dict[str, _Steered] = field(default_factory=dict[str, _Steered])
    commands: dict[str, _Command] = field(default_factory=dict[str, _Command])
    settlements: set[str] = field(default_factory=set[str])

    def say(self, step: int, lines: Iterable[Line]) -> None:
        for line in lines:
            if line.role == transcripts.NOTE:
                self.notes[step, line.idx] = transcripts.notes_read(json.loads(line.content))
            else:
                self.said[step, line.idx] = _message(line)

    def noted(self, before: tuple[int, int] | None = None) -> list[Notes]:
        """Return the notes in order, optionally only those before a place."""
        return [self.notes[place] for place in sorted(self.notes) if before is None or place < before]

    @property
    def row(self) -> ExecutionRow:
        return ExecutionRow(
            ref=self.ref,
            agent=self.spec.agent,
            status=self.status,
            step_count=self.step_count,
            usage=self.usage,
            stop_reason=self.stop_reason,
            output=self.output,
            error_message=self.error_message,
            error_told=self.error_told,
            metadata=summed(self.agent_metadata, self.noted()).merged(self.metadata),
            created_at=self.created_at,
            started_at=self.started_at,
            completed_at=self.completed_at,
            parent_execution_id=self.parent_execution_id,
            user_id=self.user_id,
            last_snapshot_id=self.last_snapshot_id,
            clocks=self.clocks,
        )


@dataclass(slots=True)
class _Stream:
    tenant_id: str
    envelopes: list[StoredEnvelope] = field(default_factory=list[StoredEnvelope])
    known: set[UUID] = field(default_factory=set[UUID])


class MemoryStore:
    """An execution store that lives and ends with its process."""

    def __init__(self, now: Callable[[], datetime] = _system_clock, bus: EnvelopeBus = NOBODY) -> None:
        self._now = now
        self._bus = bus
        self._executions: dict[UUID, _Execution] = {}
        self._streams: dict[UUID, _Stream] = {}

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; a repeated id returns the stored one."""
        ref = new.ref
        if new.continues == ref.execution_id:
            raise InvalidInput("an execution cannot continue itself; give the new one a different id")
        continued = self._named(ref, new.continues)
        parent = self._named(ref, new.parent_execution_id)
        known = self._executions.get(ref.execution_id)
        if known:
            if known.ref.tenant_id != ref.tenant_id:
                raise InvalidInput(f"the execution id {ref.execution_id} is taken; choose another one")
            return known.row
        stream = self._streams.get(ref.stream_id)
        if stream and stream.tenant_id != ref.tenant_id:
            raise NotFound("session", ref.stream_id)
        execution = _Execution(
            ref=ref,
            spec=ExecutionSpec.model_validate(
                _kept(new.spec.model_dump(mode="json"), "the agent's definition")
            ),
            agent_id=continued.agent_id if continued else bodies.first_agent_id(ref.execution_id),
            parent_agent_id=new.parent_agent_id
            or (parent.agent_id if parent else None)
            or (continued.parent_agent_id if continued else None),
            parent_execution_id=new.parent_execution_id,
            continues=new.continues,
            continues_until=new.continues_until,
            agent_metadata=_kept(new.metadata, "the agent's metadata"),
            metadata=_origin(parent).merged(new.notes),
            created_at=self._now(),
            user_id=new.user_id or (parent.user_id if parent else None),
            plan=_kept(new.plan, "the plan"),
            clocks=_clocks(new, continued),
        )
        execution.say(0, transcripts.lines(new.messages))
        self._streams.setdefault(ref.stream_id, _Stream(ref.tenant_id))
        self._executions[ref.execution_id] = execution
        return execution.row

    async def material(self, ref: ExecutionRef) -> Material:
        """Return the inputs of the next step."""
        return self._material(self._existing(ref))

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """Return the result of `begin_step` without steering messages; nothing is written."""
        execution = self._open(ref)
        step, material = execution.steps.get(number), self._material(execution, number=number)
        if step is None:
            return BegunStep(material)
        was_silent = step.attempt in step.failed_attempts and not step.partial_text
        return BegunStep(material, step.facts, step.attempt, was_silent, wait=step.wait)

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Complete the previous step and mark this one as started; a recorded step is returned unchanged."""
        known = await self.preview_step(begin.ref, begin.number)
        if known.recorded:
            return known
        execution = self._open(begin.ref)
        outcome = _optional(begin.outcome, "the outcome")
        heard = _hearing(execution, begin)
        said = transcripts.lines([steered.message for steered, _ in heard])
        placed = [replace(line, idx=idx) for line, (_, idx) in zip(said, heard, strict=True)]
        material = self._material(execution, tuple(map(_message, placed)), begin.number)
        begun = replace(known, material=material)
        news = bodies.news(begin.ref.execution_id, begin.events(begun))

        for steered, _ in heard:
            steered.heard_at = begin.number
        execution.say(begin.number, placed)
        self._begin(execution, begin, outcome)
        self._append(execution, news)
        head = len(self._streams[execution.ref.stream_id].envelopes)
        return replace(begun, after_seq=head if news else None)

    def _begin(
        self, execution: _Execution, begin: BeginStep, outcome: FrozenDict | None, seconds_ago: float = 0.0
    ) -> None:
        now, known = self._now(), execution.steps.get(begin.number)
        started_at = now - timedelta(seconds=seconds_ago)
        step = execution.steps.setdefault(begin.number, _Step(started_at, begin.attempt))
        if begin.attempt > step.attempt:
            step.attempt, step.partial_text = begin.attempt, ""
            step.next_index = step.after_seq = None
        if previous := execution.steps.get(begin.number - 1):
            previous.outcome = previous.outcome or outcome
            previous.completed_at = previous.completed_at or now
        # A new step sets the status to running: an earlier status write may be lost. A repeated step may be
        # paused.
        if execution.status is ExecutionStatus.PENDING or known is None:
            execution.status = ExecutionStatus.RUNNING
        execution.started_at = execution.started_at or now
        execution.step_count = max(execution.step_count, begin.number - 1)

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
    ) -> bool:
        """Store the text so far for late subscribers; return False if the attempt is no longer current."""
        encode(text, "the text")
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        if step is None or step.attempt != attempt or step.facts is not None:
            return False
        step.partial_text, step.next_index, step.after_seq = text, next_index, after_seq
        return True

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a failed model call of this step; return the number of failures, this one included."""
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        if step is None:
            raise NotFound("step", number)
        step.failed_attempts.add(attempt)
        return len(step.failed_attempts)

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Record that a step waits for its next attempt, unless that attempt or a reply is recorded."""
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        news = bodies.news(ref.execution_id, events)
        written = bodies.wait_read(json.loads(bodies.wait_written(wait)))
        if execution is None or step is None or step.attempt != wait.attempt or step.facts is not None:
            return
        if execution.status is not ExecutionStatus.RUNNING:
            return
        step.wait = written
        self._append(execution, news)

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record the model's reply; a reply that an earlier attempt recorded wins."""
        execution = self._existing(reply.ref)
        step = execution.steps.get(reply.number)
        if step and step.facts:
            return step.facts
        _refuse_ended(execution)
        settled = {call.id for call in reply.facts.calls if call.is_settled}
        told = [(idx, call) for idx, call in enumerate(reply.calls) if call.call.id not in settled]
        if len({call.call.id for _, call in told} - execution.calls.keys()) < len(told):
            raise bodies.taken_call_id(reply)
        calls = [_told(reply.number, idx, call) for idx, call in told]
        now = self._now()
        asked = [_request(reply, call, given, now) for call, (_, given) in zip(calls, told, strict=True)]
        facts = bodies.facts_read(json.loads(bodies.facts_written(reply.facts)))
        errors = bodies.errors_read(json.loads(bodies.errors_written(reply.errors)))
        response = _optional(reply.response, "the response")
        lines = transcripts.reply_lines(reply.messages)
        added = transcripts.hook_lines(reply.number, reply.added)
        news = bodies.news(reply.ref.execution_id, reply.events)
        outcome = _optional(reply.begins and reply.begins.outcome, "the outcome")

        if reply.begins:
            self._begin(execution, reply.begins, outcome, reply.facts.seconds)
        step = execution.steps.setdefault(reply.number, _Step(now, reply.attempt))
        step.attempt, step.facts, step.response = reply.attempt, facts, response
        step.errors, step.partial_text, step.next_index, step.after_seq = errors, "", None, None
        execution.say(reply.number, lines)
        for number, line in added:
            execution.say(number, [line])
        execution.calls |= {call.call.id: call for call in calls}
        execution.requests |= {request.id: request for request in asked if request.call.need in ASKS_PEOPLE}
        execution.usage = frozen_map(bodies.added(execution.usage, facts.usage))
        completed = reply.number if facts.is_complete else reply.number - 1
        execution.step_count = max(execution.step_count, completed)
        self._append(execution, news)
        return reply.facts

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that was approved; a repeated call changes nothing."""
        execution, call = self._call(ref, call_id)
        identity = question_id(ref.execution_id, call_id)
        kept = _kept(request, "the request")
        if call.record is None and identity not in execution.requests:
            execution.requests[identity] = _Request(identity, call, CallNeed.INPUT, kept, self._now())

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """Return the result of `reserve_call`; nothing is written."""
        execution, call = self._call(ref, call_id)
        asked = execution.requests.get(request_id(ref.execution_id, call_id))
        question = execution.requests.get(question_id(ref.execution_id, call_id))
        if call.record is None:
            _refuse_ended(execution)
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
            allowed=_allowed(execution),
        )

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = nothing_to_tell,
    ) -> Reservation:
        """Reserve a call before it has any effect."""
        reservation = await self.preview_call(ref, call_id)
        if reservation.recorded:
            return reservation
        execution, call = self._call(ref, call_id)
        news = bodies.news(ref.execution_id, events(reservation))

        call.state, call.attempts = "reserved", max(call.attempts + 1, attempt)
        call.started_at = call.started_at or self._now()
        self._append(execution, news)
        return reservation

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; a result that an earlier attempt recorded wins."""
        execution, call = self._call(record.ref, record.record.call_id)
        if call.record:
            return call.record
        error = _kept(record.record.error and record.record.error.to_dict(), "the error")
        kept = replace(
            record.record,
            result=_kept(record.record.result, "the result"),
            error=bodies.error_read(error),
        )
        encode(record.record.text, "the text")
        lines = transcripts.result_lines(record.messages, record.index)
        notes = transcripts.call_notes(record.notes, record.index)
        news = bodies.news(record.ref.execution_id, record.events)

        call.state, call.record, call.started_at = "done", kept, kept.started_at
        call.attempts = max(call.attempts, record.attempt)
        execution.say(call.step, (*lines, *notes))
        _close_request(execution, call)
        self._append(execution, news)
        return record.record

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record the result of a step's processors; a result that an earlier attempt recorded wins."""
        execution = self._existing(record.ref)
        step = execution.steps.get(record.number)
        if step is None or step.facts is None:
            raise NotFound("step", record.number)
        if step.processed is not None:
            return step.processed
        _refuse_ended(execution)
        outcome = _kept(record.outcome, "what processors said")
        added = transcripts.processed_lines(record.number, record.added)

        step.processed = outcome
        for number, line in added:
            execution.say(number, [line])
        return record.outcome

    async def processing(self, ref: ExecutionRef, number: int) -> FrozenDict | None:
        """Return the recorded result of a step's processors, or None."""
        execution = self._find(ref)
        step = execution.steps.get(number) if execution else None
        return step.processed if step else None

    async def inner_reply(self, ref: ExecutionRef, key: str) -> InnerReply | None:
        """Return the recorded reply to an inner model call, or None."""
        execution = self._find(ref)
        return execution.inner_replies.get(key) if execution else None

    async def record_inner_reply(self, ref: ExecutionRef, reply: InnerReply, usage: Usage) -> InnerReply:
        """Record the reply to an inner model call and its usage; a reply of an earlier attempt wins."""
        execution = self._existing(ref)
        known = execution.inner_replies.get(reply.key)
        if known and known.digest == reply.digest:
            return known
        _refuse_ended(execution)
        kept = replace(reply, response=_kept(reply.response, "the response"))

        execution.inner_replies[reply.key] = kept
        execution.usage = frozen_map(bodies.added(execution.usage, usage))
        return reply

    async def record_listed(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; an earlier record wins."""
        execution = self._existing(ref)
        kept = execution.listed
        if kept is None:
            kept = execution.listed = frozen_map(_kept(tools, "the tools that were listed"))
        return kept

    async def listed(self, ref: ExecutionRef) -> FrozenDict | None:
        """Return the recorded tools of this execution's toolsets, or None."""
        execution = self._find(ref)
        return execution.listed if execution else None

    async def settle(self, settlement: Settlement) -> bool:
        """Change the execution's status; return False if the key was used or the execution has ended."""
        execution = self._existing(settlement.ref)
        if not _may_settle(execution, settlement):
            return False
        told = _prepared(settlement)
        closing = _closing(execution, settlement)
        news = bodies.news(settlement.ref.execution_id, settlement.events)

        now, ends = self._now(), settlement.status in TERMINAL
        execution.settlements.add(settlement.key)
        if settlement.step:
            step = execution.steps.setdefault(settlement.step.number, _Step(now))
            step.facts, step.errors, step.partial_text = told.facts, told.errors, ""
            step.next_index = step.after_seq = None
        for call, text, lines in closing:
            call.state, call.started_at = "done", call.started_at or now
            call.record = CallRecord(call.call.id, None, None, text, call.started_at, now, 0.0, success=False)
            execution.say(call.step, lines)
            _close_request(execution, call)
        if settlement.outcome is not None or ends:
            _complete_steps(execution, settlement.step, told.outcome, now)
        execution.status = settlement.status
        if settlement.status is ExecutionStatus.RUNNING:
            execution.started_at = execution.started_at or now
        execution.completed_at = now if ends else None
        if settlement.step_count is not None:
            execution.step_count = settlement.step_count
        if settlement.usage is not None and settlement.usage.total >= execution.usage.get("total", 0):
            # Usage never decreases, even if its step is incomplete or was abandoned.
            execution.usage = frozen_map(settlement.usage.to_breakdown())
        if settlement.stop_reason:
            execution.stop_reason = settlement.stop_reason
            execution.metadata = execution.metadata.merged({"stop_reason": settlement.stop_reason})
        execution.worked_seconds = settlement.worked_seconds or execution.worked_seconds
        execution.output = told.output or execution.output
        execution.error_message = settlement.error_message or execution.error_message
        execution.error_told = settlement.error_told or execution.error_told
        if settlement.snapshot is not None:
            execution.last_snapshot_id = bodies.snapshot_id(execution.ref.execution_id, settlement.key)
        self._append(execution, news)
        return True

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Store the full state after a step for debugging; return False if this step has a snapshot."""
        execution = self._open(ref)
        _optional(state, "the snapshot")
        identity = bodies.snapshot_id(ref.execution_id, f"step/{number}")
        if identity in execution.kept_snapshots:
            return False
        execution.kept_snapshots.add(identity)
        execution.last_snapshot_id = identity
        return True

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Store a message for the next step boundary; see `ExecutionStore.steer`."""
        execution = self._existing(ref)
        (line,) = transcripts.lines((message,))
        if key in execution.steered:
            return False
        _refuse_ended(execution)
        # The memory store has no sessions, so nothing subscribes to announcements.
        del announces
        execution.steered[key] = _Steered(_message(line))
        execution.commands[f"{CommandKind.STEER}/{key}"] = _Command(CommandKind.STEER)
        return True

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """Return the state of a steering message; this store never moves one to another execution."""
        execution = self._find(ref)
        steered = execution.steered.get(key) if execution else None
        return Steering(ref, ref, ref, is_settled=steered.heard_at is not None) if steered else None

    async def command(self, ref: ExecutionRef, key: str, kind: CommandKind) -> tuple[Command, bool]:
        """Store a command for the workflow; see `ExecutionStore.command`."""
        execution = self._existing(ref)
        is_new = key not in execution.commands
        if is_new:
            _refuse_ended(execution)
            execution.commands[key] = _Command(kind)
        return _command(execution, key), is_new

    async def undelivered(self, ref: ExecutionRef) -> tuple[Command, ...]:
        """Return the commands that the workflow may not know, in order of arrival."""
        execution = self._existing(ref)
        return tuple(_command(execution, key) for key, c in execution.commands.items() if not c.is_delivered)

    async def mark_delivered(self, command: Command) -> None:
        """Record that a command was delivered."""
        if kept := self._existing(command.ref).commands.get(command.key):
            kept.is_delivered = True

    async def withdraw(self, command: Command) -> None:
        """Delete a command that the workflow refused."""
        commands = self._existing(command.ref).commands
        if command.key in commands and not commands[command.key].is_delivered:
            del commands[command.key]

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """Return the open requests, oldest first."""
        execution = self._find(ref)
        asked = list(execution.requests.values()) if execution else []
        waiting = [request for request in asked if request.state is RequestState.OPEN]
        in_order = sorted(waiting, key=lambda request: (request.call.step, request.call.idx))
        return tuple(_request_row(ref, request) for request in in_order)

    async def requests_within(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """Return all requests of an execution and of its subagents, oldest first."""
        execution = self._find(ref)
        family = [execution] if execution else []
        for member in family:
            family += [
                e for e in self._executions.values() if e.parent_execution_id == member.ref.execution_id
            ]
        asked = [(member, request) for member in family for request in member.requests.values()]
        asked.sort(key=lambda each: (each[1].created_at, each[1].call.step, each[1].call.idx))
        return tuple(_request_row(member.ref, request) for member, request in asked)

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """Return one request."""
        execution = self._find(ref)
        request = execution.requests.get(request_id) if execution else None
        return _request_row(execution.ref, request) if execution and request else None

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Resolve a request; see `ExecutionStore.resolve`."""
        execution = self._find(ref)
        request = execution.requests.get(request_id) if execution else None
        if execution is None or request is None:
            raise NotFound("request", request_id)
        kept = bodies.resolution_read(json.loads(bodies.resolution_written(resolution)))
        news = bodies.news(ref.execution_id, events)
        is_cancelled = any(c.kind is CommandKind.CANCEL for c in execution.commands.values())
        if request.state is RequestState.RESOLVED or is_cancelled:
            return False
        request.state, request.resolution = RequestState.RESOLVED, kept
        told = _Command(CommandKind(request.kind.value), request.call.call.id, resolution.is_denied)
        execution.commands[f"{request.kind}/{request_id}"] = told
        self._append(execution, news)
        return True

    async def resolved_under(self, ref: ExecutionRef, key: str) -> RequestRow | None:
        """Return the request that was resolved under this key."""
        execution = self._find(ref)
        for request in execution.requests.values() if execution else ():
            if request.resolution and request.resolution.key == key:
                return _request_row(ref, request)
        return None

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """Return one execution."""
        execution = self._find(ref)
        if execution is None:
            return None
        return replace(execution.row, definition_hash=execution.spec.definition_hash or None)

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
            ((Cursor(e.created_at, e.ref.execution_id), e) for e in wanted), key=_place, reverse=True
        )
        left = [(place, e) for place, e in placed if before is None or place < before]
        page = left[:size]
        return Page(tuple(e.row for _, e in page), page[-1][0].text if len(left) > size else None)

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

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """Return a page of steps after a step number; the cursor is the `after` of the next page."""
        size = page_size(limit)
        execution = self._find(ref)
        if execution is None:
            return Page(())
        left = sorted(number for number in execution.steps if number > after)
        page = tuple(_step_row(execution, number) for number in left[:size])
        return Page(page, str(page[-1].number) if len(left) > size else None)

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

    # Helpers of the methods above.

    def _find(self, ref: ExecutionRef) -> _Execution | None:
        execution = self._executions.get(ref.execution_id)
        return execution if execution and execution.ref.tenant_id == ref.tenant_id else None

    def _existing(self, ref: ExecutionRef) -> _Execution:
        execution = self._find(ref)
        if execution is None:
            raise NotFound("execution", ref.execution_id)
        return execution

    def _named(self, ref: ExecutionRef, execution_id: UUID | None) -> _Execution | None:
        return None if execution_id is None else self._existing(replace(ref, execution_id=execution_id))

    def _open(self, ref: ExecutionRef) -> _Execution:
        execution = self._existing(ref)
        _refuse_ended(execution)
        return execution

    def _call(self, ref: ExecutionRef, call_id: str) -> tuple[_Execution, _Call]:
        execution = self._find(ref)
        call = execution.calls.get(call_id) if execution else None
        if execution is None or call is None:
            raise NotFound("call", call_id)
        return execution, call

    def _conversation(self, execution: _Execution) -> Messages:
        said = [execution.said[place] for place in sorted(execution.said)]
        while execution.continues:
            until, execution = execution.continues_until, self._executions[execution.continues]
            places = sorted(
                place for place in execution.said if until is None or transcripts.is_said_by(place, until)
            )
            said[:0] = [execution.said[place] for place in places]
        return tuple(said)

    def _metadata(self, execution: _Execution, before: tuple[int, int] | None = None) -> FrozenDict:
        """Return the metadata, including that of the continued execution, optionally before a place."""
        earlier, until = EMPTY, execution.continues_until
        if execution.continues:
            end = None if until is None else (until + 1, -sys.maxsize)
            earlier = self._metadata(self._executions[execution.continues], end)
        began = transcripts.begun_with(earlier, execution.agent_metadata)
        return summed(began, execution.noted(before))

    def _material(self, execution: _Execution, heard: Messages = (), number: int | None = None) -> Material:
        return Material(
            execution.spec.model_copy(update={"listed": execution.listed or execution.spec.listed}),
            (*self._conversation(execution), *heard),
            self._metadata(execution),
            execution.agent_id,
            execution.parent_agent_id,
            execution.plan,
            _before(execution, number, self._now()),
            _allowed(execution),
            self._task(execution),
            execution.clocks,
        )

    def _task(self, execution: _Execution) -> str | None:
        earlier = self._task(self._executions[execution.continues]) if execution.continues else None
        return transcripts.task_of(sorted(execution.said.items()), earlier)

    def _append(self, execution: _Execution, news: Iterable[bodies.News]) -> None:
        """Number the envelopes that are not stored yet; timestamps increase even if the clock does not."""
        stream_id = execution.ref.stream_id
        stream = self._streams[stream_id]
        head = len(stream.envelopes)
        for item in news:
            if item.id in stream.known:
                continue
            last = stream.envelopes[-1].created_at if stream.envelopes else None
            now = self._now()
            at = max(now, last + timedelta(microseconds=1)) if last else now
            payload = bodies.document(json.loads(item.payload), "the payload")
            seq, execution_id = len(stream.envelopes) + 1, execution.ref.execution_id
            stream.known.add(item.id)
            stream.envelopes.append(
                StoredEnvelope(stream_id, seq, item.id, item.type, execution_id, payload, at)
            )
        if len(stream.envelopes) > head and self._bus.wants(stream_id):
            self._bus.publish(stream_id, stream.envelopes[head:])


def _command(execution: _Execution, key: str) -> Command:
    kept = execution.commands[key]
    return Command(execution.ref, key, kept.kind, kept.call_id, kept.is_denied, kept.is_delivered)


def _allowed(execution: _Execution) -> tuple[ApprovalRule, ...]:
    said = (request.resolution for request in execution.requests.values() if request.resolution)
    return tuple(resolution.remember for resolution in said if resolution.remember)


def _kept(value: object, where: str) -> Any:
    """Return the value as a database would return it, or refuse it."""
    return freeze(json.loads(encode(value, where)), where)


def _optional(value: FrozenDict | None, where: str) -> FrozenDict | None:
    return None if value is None else bodies.document(json.loads(encode(value, where)), where)


def _message(line: Line) -> Message:
    return transcripts.message_read(line.role, json.loads(line.content), json.loads(line.metadata))


def _place(placed: tuple[Cursor, _Execution]) -> Cursor:
    return placed[0]


def _refuse_ended(execution: _Execution) -> None:
    if execution.status in TERMINAL:
        raise ExecutionEnded(execution.ref.execution_id, execution.status)


def _origin(parent: _Execution | None) -> FrozenDict:
    return bodies.origin(parent.ref.execution_id, parent.last_snapshot_id) if parent else EMPTY


def _clocks(new: NewExecution, continued: _Execution | None) -> StateInfo:
    """Return the clocks at the start. This store has no sessions, so chains of executions take their part."""
    if continued is None:
        return StateInfo(session_execution_seconds=new.session_seconds or 0.0)
    before = continued.clocks
    return StateInfo(
        started_at=before.started_at or continued.started_at,
        session_execution_seconds=before.session_execution_seconds + continued.worked_seconds,
    )


def _hearing(execution: _Execution, begin: BeginStep) -> list[tuple[_Steered, int]]:
    """Return the steering messages that this step receives, with their places before the reply."""
    heard = sum(steered.heard_at == begin.number for steered in execution.steered.values())
    waiting = [steered for steered in execution.steered.values() if steered.heard_at is None]
    return list(zip(waiting, range(heard - begin.hears + HEARD_BEFORE, HEARD_BEFORE), strict=False))


def _told(step: int, idx: int, told: CallToRecord) -> _Call:
    encode(told.call.args, f"the arguments of {told.call.name}")
    return _Call(told.call, step, idx, told.need, told.args_digest)


def _request(reply: RecordReply, call: _Call, told: CallToRecord, now: datetime) -> _Request:
    identity = request_id(reply.ref.execution_id, call.call.id)
    return _Request(identity, call, call.need, _kept(told.request or {}, "the request"), now)


def _request_row(ref: ExecutionRef, request: _Request) -> RequestRow:
    call = request.call
    return RequestRow(
        id=request.id,
        ref=ref,
        call_id=call.call.id,
        kind=request.kind,
        state=request.state,
        tool=call.call.name,
        args=call.call.args,
        args_digest=call.args_digest,
        request=request.request,
        resolution=request.resolution,
        created_at=request.created_at,
        step_number=call.step,
    )


def _close_request(execution: _Execution, call: _Call) -> None:
    for identity in (request_id, question_id):
        if request := execution.requests.get(identity(execution.ref.execution_id, call.call.id)):
            request.state = RequestState.RESOLVED


@dataclass(frozen=True, slots=True)
class _Told:
    facts: StepFacts | None
    errors: tuple[StepError, ...]
    outcome: FrozenDict | None
    output: FrozenDict | None


def _prepared(settlement: Settlement) -> _Told:
    _optional(settlement.snapshot, "the snapshot")
    encode(settlement.error_message, "the error message")
    step = settlement.step
    return _Told(
        bodies.facts_read(json.loads(bodies.facts_written(step))) if step else None,
        bodies.errors_read(json.loads(bodies.errors_written(settlement.errors))),
        _optional(settlement.outcome, "the outcome"),
        _optional(settlement.output, "the output"),
    )


def _closing(execution: _Execution, settlement: Settlement) -> list[tuple[_Call, str, tuple[Line, ...]]]:
    """Return the calls that will get no result, with the text and messages that replace it."""
    told = {call_id: messages for call_id, _, messages in settlement.cancelled_calls}
    ends, step = settlement.status in TERMINAL, settlement.step
    closing = [
        call
        for call in execution.calls.values()
        if not call.record and (ends or call.call.id in told or (step and step.number == call.step))
    ]
    return [(call, *_cancelled(call, told.get(call.call.id, ()))) for call in closing]


def _before(execution: _Execution, number: int | None, now: datetime) -> StepBefore | None:
    """Return the last answered step, or the one before a step that begins."""
    answered = [step for step, known in execution.steps.items() if known.facts]
    step = execution.steps.get(max(answered, default=0) if number is None else number - 1)
    if step is None or step.facts is None:
        return None
    calls = [call for call in execution.calls.values() if call.step == step.facts.number]
    failed = sum(call.record is not None and call.record.error is not None for call in calls)
    return StepBefore(step.facts, failed, ((step.completed_at or now) - step.started_at) / _MILLISECOND)


def _may_settle(execution: _Execution, settlement: Settlement) -> bool:
    if settlement.only_pending and execution.status is not ExecutionStatus.PENDING:
        return False
    return execution.status not in TERMINAL and settlement.key not in execution.settlements


def _cancelled(call: _Call, messages: Messages) -> tuple[str, tuple[Line, ...]]:
    said = messages or (tool_message(CANCELLED_CALL, call.call.id, call.call.name),)
    return said[-1].text, transcripts.result_lines(said, call.idx)


def _complete_steps(
    execution: _Execution, judged: StepFacts | None, outcome: FrozenDict | None, now: datetime
) -> None:
    """Complete every step with facts, and give the outcome to the evaluated one."""
    shown = {number: step for number, step in execution.steps.items() if step.facts}
    for number, step in shown.items():
        step.completed_at = step.completed_at or now
        if number == (judged.number if judged else max(shown)):
            step.outcome = step.outcome or outcome


def _call_row(execution: _Execution, call: _Call) -> CallRow:
    asked = execution.requests.get(request_id(execution.ref.execution_id, call.call.id))
    edited = asked.resolution.edited_args if asked and asked.resolution else None
    return CallRow(call.call, call.state, call.attempts, call.record, call.idx, edited)


def _step_row(execution: _Execution, number: int) -> StepRow:
    step = execution.steps[number]
    calls = sorted((c for c in execution.calls.values() if c.step == number), key=lambda call: call.idx)
    said = sorted(place for place in execution.said if place[0] == number)
    return StepRow(
        number=number,
        attempt=step.attempt,
        facts=step.facts,
        errors=step.errors,
        outcome=step.outcome,
        partial_text=step.partial_text,
        started_at=step.started_at,
        completed_at=step.completed_at,
        messages=tuple(execution.said[place] for place in said),
        calls=tuple(_call_row(execution, call) for call in calls),
        heard=sum(idx < 0 for _, idx in said),
        processed=sum(idx >= transcripts.PROCESSED_FROM for _, idx in said),
        next_index=step.next_index,
        after_seq=step.after_seq,
        processing_seconds=_processing_seconds(step),
        wait=step.wait,
    )


def _processing_seconds(step: _Step) -> float:
    if step.processed is None or "raised" in step.processed:
        # The time of a processor that raised is counted in the failure step.
        return 0.0
    return float(step.processed.get("facts", EMPTY).get("seconds") or 0.0)
