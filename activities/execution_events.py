"""The events for viewers that the activities store, in the same transaction as their results."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from everstep.activities.contracts import InferInput, SettleInput
from everstep.agent_domain.capabilities.questions import Question
from everstep.agent_domain.loop.continuation import ContinuationOutcome, expanded
from everstep.agent_domain.loop.status import ExecutionStatus, WireStatus, ended
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.calls import CallRecord, Reservation
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import BegunStep, Material, RetryWait
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.stream.envelopes import Attempt, InputSource
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict


def step_begins(
    request: InferInput, attempt: int, tools: Sequence[str], begun: BegunStep
) -> Sequence[EventRecord]:
    """Return the events of a starting step: the previous step is complete, this one starts.

    The first step also reports that the execution runs. A later attempt only adds that the text of the
    previous attempt is void.
    """
    material = begun.material
    processing = _status(request.number, WireStatus.PROCESSING, WireStatus.IDLE, 0)
    begins = envelopes.step_started(request.number, len(material.messages), tools)
    return (
        *([_announcing(processing, session_messages.started())] if request.number == 1 else []),
        *(_completed(material, request.outcome) if request.outcome is not None else ()),
        *_trace(request.number - 1, request.outcome, material),
        _announcing(begins, session_messages.step_started(request.number)),
        *_superseded(request.number, attempt, begun),
    )


def failure_begins(number: int, material: Material, tools: Sequence[str]) -> Sequence[EventRecord]:
    """Return the events of a failed step that follows a completed one without a decision in between."""
    begins = envelopes.step_started(number, len(material.messages), tools)
    return (*_completed(material, None), _announcing(begins, session_messages.step_started(number)))


def _superseded(number: int, attempt: int, begun: BegunStep) -> tuple[EventRecord, ...]:
    before = begun.previous_attempt
    if before is None or before >= attempt or begun.was_silent or not tells_text(begun.material):
        return ()
    return (envelopes.attempt_superseded(Attempt(number, before), attempt),)


def waits(number: int, wait: RetryWait) -> EventRecord:
    """Return the event of a model call that will be retried later."""
    return envelopes.model_delayed(number, wait.attempt, wait.told, wait.until)


def tells_text(material: Material) -> bool:
    """Whether viewers receive the model's text while it is streamed."""
    return BroadcastConfig.from_dict(material.broadcast).include_stream_chunks


def _announcing(event: EventRecord, announcement: Announcement) -> EventRecord:
    return replace(event, announces=announcement)


def _told_evaluation(outcome: FrozenDict | None, material: Material) -> ContinuationOutcome | None:
    is_told = BroadcastConfig.from_dict(material.broadcast).include_continuation_trace
    return expanded(outcome) if is_told and outcome is not None else None


def _trace(number: int, outcome: FrozenDict | None, material: Material) -> tuple[EventRecord, ...]:
    told = _told_evaluation(outcome, material)
    return (envelopes.continuation_evaluated(number, told),) if told else ()


def _completed(material: Material, outcome: FrozenDict | None) -> tuple[EventRecord, ...]:
    before = material.before
    if before is None:
        return ()
    facts = before.facts
    record = envelopes.step_completed(
        facts.number,
        has_tool_calls=facts.has_tool_calls,
        errors=before.errors,
        finish_reason=facts.finish_reason,
        usage=facts.usage,
        duration_ms=before.duration_ms,
        outcome=_told_evaluation(outcome, material),
        trace=BroadcastConfig.from_dict(material.broadcast).include_continuation_trace,
    )
    tools = [call.name for call in facts.calls]
    return (_announcing(record, session_messages.step_completed(facts.number, material.max_steps, tools)),)


def call_begins(reserved: Reservation) -> Sequence[EventRecord]:
    """Return the events of a tool run that starts, with the arguments after edits."""
    call, resolution = reserved.call, reserved.resolution
    edited = resolution.edited_args if resolution else None
    config = BroadcastConfig.from_dict(reserved.broadcast)
    begins = envelopes.tool_started(
        call.id,
        call.name,
        call.args if edited is None else edited,
        step_number=reserved.step_number,
        max_arg_length=config.max_arg_length if config.include_tool_args else None,
    )
    told = session_messages.tool_called(call.name, begins.payload["args_summary"])
    return [_announcing(begins, told)]


def call_ended(number: int, call: ToolCall, record: CallRecord) -> EventRecord:
    """Return the event of a completed call."""
    error = record.error.told if record.error else None
    ended = envelopes.tool_completed(
        call.id,
        call.name,
        step_number=number,
        success=record.success,
        error=error,
        duration_ms=record.seconds * 1000,
        result=record.result,
    )
    told = session_messages.tool_completed(call.name, error, ended.payload["result_summary"])
    return _announcing(ended, told)


def settled(
    request: SettleInput,
    waiting: Sequence[tuple[RequestRow, datetime | None]],
    answer: str | None,
    error: str | None,
    material: Material,
) -> Sequence[EventRecord]:
    """Return the events of a settlement: open questions with their expiry first, the status change last."""
    asked = [_asked(request.step_count + 1, row, expires_at) for row, expires_at in waiting]
    completed = _completed(material, request.outcome) if request.completes_step else ()
    # Another step may have been decided on before the cancel, and its evaluation was stored under the same
    # step: the settlement's key distinguishes the two.
    traced = [
        replace(event, key=f"{event.key}/{request.key}")
        for event in _trace(request.step_count, request.outcome, material)
    ]
    return [*asked, *completed, *traced, _standing(request, answer, error)]


def answered_by_default(row: RequestRow) -> EventRecord:
    """Return the event of a question that was answered by its default."""
    return envelopes.input_received(row.id, row.call_id, row.step_number, InputSource.DEFAULT, None)


def _asked(number: int, row: RequestRow, expires_at: datetime | None) -> EventRecord:
    if row.kind is CallNeed.INPUT:
        question = Question.parse(row.request)
        asked = envelopes.input_requested(row.id, row.call_id, number, question, expires_at)
        told = session_messages.input_requested(row.id, question.prompt, question.choices, question.schema)
    else:
        asked = envelopes.approval_requested(row.id, row.call_id, number, row.tool, row.args)
        told = session_messages.approval_requested(row.id, row.tool, row.args_digest)
    return _announcing(asked, told)


def _standing(request: SettleInput, answer: str | None, error: str | None) -> EventRecord:
    told = None
    match request.status, request.stop_reason:
        case ExecutionStatus.PAUSED, _:
            status, previous = WireStatus.PAUSED, WireStatus.PROCESSING
        case _, None:
            status, previous, told = WireStatus.PROCESSING, WireStatus.PAUSED, session_messages.resumed()
        case _, reason:
            status, previous = ended(request.agent_status, reason).wire, WireStatus.PROCESSING
            told = session_messages.ended(status, reason, answer, error)
    changed = envelopes.status_changed(
        status,
        previous,
        change=request.key,
        step_count=request.step_count,
        error_message=error,
        last_response=answer,
    )
    return replace(changed, announces=told)


def _status(number: int, status: WireStatus, previous: WireStatus, step_count: int) -> EventRecord:
    return envelopes.status_changed(status, previous, change=f"step/{number}", step_count=step_count)
