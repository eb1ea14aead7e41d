"""The events for viewers that the activities store, in the same transaction as their results."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from everstep.activities.contracts import InferInput, SettleInput
from everstep.agent_domain.capabilities.questions import Question
from everstep.agent_domain.capabilities.rights import OLD_POLICY
from everstep.agent_domain.ids import budget_request_id
from everstep.agent_domain.loop.compact_outcomes import expand
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.explanations import DecidedStep, one_line, outcome_sentence
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, WireStatus, final_situation
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.calls import CallRecord, Reservation
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import BegunStep, RetryWait, StepInput
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.stream.envelopes import Attempt, InputSource
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import Announcement, budget_requested_announcement
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict


def step_start_events(
    request: InferInput, attempt: int, tools: Sequence[str], started: BegunStep
) -> Sequence[EventRecord]:
    """Return the events of a starting step: the previous step is complete, this one starts.

    The first step also reports that the execution runs. A later attempt only adds that the text of the
    previous attempt is void.
    """
    material = started.material
    processing = _status_event(request.number, WireStatus.PROCESSING, WireStatus.IDLE, 0)
    event = envelopes.step_started_record(request.number, len(material.messages), tools)
    return (
        *(
            [_with_announcement(processing, session_messages.started_announcement())]
            if request.number == 1
            else []
        ),
        *(_step_end_events(material, request.outcome) if request.outcome is not None else ()),
        *_evaluation_events(
            request.number - 1, request.outcome, material, _decided_step(material, request.hears)
        ),
        _with_announcement(event, session_messages.step_started_announcement(request.number)),
        *_superseded_events(request.number, attempt, started),
    )


def failed_step_events(number: int, material: StepInput, tools: Sequence[str]) -> Sequence[EventRecord]:
    """Return the events of a failed step that follows a completed one without a decision in between."""
    event = envelopes.step_started_record(number, len(material.messages), tools)
    return (
        *_step_end_events(material, None),
        _with_announcement(event, session_messages.step_started_announcement(number)),
    )


def _superseded_events(number: int, attempt: int, started: BegunStep) -> tuple[EventRecord, ...]:
    before = started.previous_attempt
    if before is None or before >= attempt or started.was_silent or not is_text_public(started.material):
        return ()
    return (envelopes.attempt_superseded_record(Attempt(number, before), attempt),)


def retry_wait_event(number: int, wait: RetryWait) -> EventRecord:
    """Return the event of a model call that will be retried later."""
    return envelopes.model_delayed_record(number, wait.attempt, wait.told, wait.until)


def is_text_public(material: StepInput) -> bool:
    """Whether viewers receive the model's text while it is streamed."""
    return BroadcastConfig.from_dict(material.broadcast).include_stream_chunks


def _with_announcement(event: EventRecord, announcement: Announcement) -> EventRecord:
    return replace(event, announces=announcement)


def _public_evaluation(outcome: FrozenDict | None, material: StepInput) -> ContinuationOutcome | None:
    is_public = BroadcastConfig.from_dict(material.broadcast).include_continuation_trace
    return expand(outcome) if is_public and outcome is not None else None


def _evaluation_events(
    number: int,
    outcome: FrozenDict | None,
    material: StepInput,
    step: DecidedStep,
    *,
    is_failed: bool = False,
) -> tuple[EventRecord, ...]:
    evaluation = _public_evaluation(outcome, material)
    if evaluation is None:
        return ()
    because = outcome_sentence(evaluation, step, number, is_failed=is_failed)
    return (envelopes.continuation_record(number, evaluation, because),)


def _decided_step(material: StepInput, hears: int = 0) -> DecidedStep:
    before = material.before
    if before is None:
        return DecidedStep(has_messages_next=hears > 0)
    names = (call.name for call in before.facts.calls)
    return DecidedStep.of(names, before.step_errors, has_messages_next=hears > 0)


def _step_end_events(material: StepInput, outcome: FrozenDict | None) -> tuple[EventRecord, ...]:
    before = material.before
    if before is None:
        return ()
    facts = before.facts
    record = envelopes.step_completed_record(
        facts.number,
        has_tool_calls=facts.has_tool_calls,
        errors=before.errors,
        finish_reason=facts.finish_reason,
        usage=facts.usage,
        duration_ms=before.duration_ms,
        outcome=_public_evaluation(outcome, material),
        trace=BroadcastConfig.from_dict(material.broadcast).include_continuation_trace,
        cost_usd=before.cost_usd if facts.usage.total else None,
    )
    tools = [call.name for call in facts.calls]
    return (
        _with_announcement(
            record, session_messages.step_completed_announcement(facts.number, material.max_steps, tools)
        ),
    )


def call_start_events(reserved: Reservation) -> Sequence[EventRecord]:
    """Return the events of a tool run that starts, with the arguments after edits."""
    call, resolution = reserved.call, reserved.resolution
    edited = resolution.edited_args if resolution else None
    config = BroadcastConfig.from_dict(reserved.broadcast)
    event = envelopes.tool_started_record(
        call.id,
        call.name,
        call.args if edited is None else edited,
        step_number=reserved.step_number,
        max_arg_length=config.max_arg_length if config.include_tool_args else None,
    )
    announcement = session_messages.tool_called_announcement(call.name, event.payload["args_summary"])
    return [_with_announcement(event, announcement)]


def call_end_event(number: int, call: ToolCall, record: CallRecord) -> EventRecord:
    """Return the event of a completed call."""
    error = record.error.told if record.error else None
    event = envelopes.tool_completed_record(
        call.id,
        call.name,
        step_number=number,
        success=record.success,
        error=error,
        duration_ms=record.seconds * 1000,
        result=record.result,
        attachments=record.attachments,
    )
    announcement = session_messages.tool_completed_announcement(
        call.name, error, event.payload["result_summary"], record.attachments
    )
    return _with_announcement(event, announcement)


def settlement_events(
    request: SettleInput,
    waiting: Sequence[tuple[RequestRow, datetime | None]],
    answer: str | None,
    error: str | None,
    material: StepInput,
    *,
    output: FrozenDict | None = None,
) -> Sequence[EventRecord]:
    """Return the events of a settlement: open questions with their expiry first, the status change last.

    Args:
        request: The settlement.
        waiting: The open questions, and when each expires.
        answer: The last answer.
        error: The error message for viewers.
        material: The execution.
        output: The output of the execution, if it has a structured result.
    """
    requests = [_request_event(request.step_count + 1, row, expires_at) for row, expires_at in waiting]
    step_end = _step_end_events(material, request.outcome) if request.completes_step else ()
    # Another step may have been decided on before the cancel, and its evaluation was stored under the same
    # step: the settlement's key distinguishes the two.
    step, is_failed = _decided_step(material), request.agent_status is AgentStatus.FAILED
    step = replace(step, error_text=one_line(error)) if error else step
    evaluations = [
        replace(event, key=f"{event.key}/{request.key}")
        for event in _evaluation_events(
            request.step_count, request.outcome, material, step, is_failed=is_failed
        )
    ]
    return [*requests, *step_end, *evaluations, _status_change_event(request, answer, error, output)]


def default_answer_event(row: RequestRow) -> EventRecord:
    """Return the event of a question that was answered by its default."""
    return envelopes.input_received_record(row.id, row.call_id, row.step_number, InputSource.DEFAULT, None)


def _request_event(number: int, row: RequestRow, expires_at: datetime | None) -> EventRecord:
    if row.kind is CallNeed.INPUT:
        question = Question.parse(row.request)
        event = envelopes.input_requested_record(row.id, row.call_id, number, question, expires_at)
        announcement = session_messages.input_requested_announcement(
            row.id, question.prompt, question.choices, question.schema
        )
    else:
        policy, at = row.policy or OLD_POLICY, row.expires_at
        event = envelopes.approval_requested_record(
            row.id, row.call_id, number, row.tool, row.args, policy=policy, expires_at=at
        )
        announcement = session_messages.approval_requested_announcement(
            row.id, row.tool, row.args_digest, policy=policy, expires_at=at
        )
    return _with_announcement(event, announcement)


def _status_change_event(
    request: SettleInput, answer: str | None, error: str | None, output: FrozenDict | None
) -> EventRecord:
    announcement = None
    match request.status, request.stop_reason:
        case ExecutionStatus.PAUSED, _:
            status, previous = WireStatus.PAUSED, WireStatus.PROCESSING
            if request.budget:
                identity = budget_request_id(request.ref.execution_id, request.key)
                announcement = budget_requested_announcement(identity, request.budget)
        case _, None:
            status, previous, announcement = (
                WireStatus.PROCESSING,
                WireStatus.PAUSED,
                session_messages.resumed_announcement(),
            )
        case _, reason:
            status, previous = final_situation(request.agent_status, reason).wire, WireStatus.PROCESSING
            announcement = session_messages.ended_announcement(status, reason, answer, error)
    event = envelopes.status_changed_record(
        status,
        previous,
        change=request.key,
        step_count=request.step_count,
        error_message=error,
        last_response=answer,
        output=output,
        cost_usd=request.usage.cost_usd if request.usage.total and status.is_terminal else None,
    )
    return replace(event, announces=announcement)


def _status_event(number: int, status: WireStatus, previous: WireStatus, step_count: int) -> EventRecord:
    return envelopes.status_changed_record(status, previous, change=f"step/{number}", step_count=step_count)
