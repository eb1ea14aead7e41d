"""What viewers are told of what the activities did: drafts, stored in the same transaction."""

from collections.abc import Callable, Sequence

from activities.contracts import InferInput, PreviousStep, SettleInput
from agent_domain import envelopes
from agent_domain.capabilities.questions import Question
from agent_domain.ports import CallRecord, EventRecord, Material, RequestRow, Reservation
from agent_domain.status import ExecutionStatus, WireStatus, ended
from agent_domain.step_facts import CallNeed
from agent_domain.tools import ToolCall


def step_begins(request: InferInput, tools: Sequence[str]) -> Callable[[Material], Sequence[EventRecord]]:
    """The step before is complete, this one begins; the first also says that the execution runs."""

    def told(material: Material) -> Sequence[EventRecord]:
        first = (_status(request.number, WireStatus.PROCESSING, WireStatus.IDLE, 0),)
        return (
            *(first if request.number == 1 else ()),
            *_completed(request.number - 1, request.previous),
            envelopes.step_started(request.number, len(material.messages), tools),
        )

    return told


def _completed(number: int, step: PreviousStep | None) -> tuple[EventRecord, ...]:
    if step is None:
        return ()
    record = envelopes.step_completed(
        number,
        has_tool_calls=step.has_tool_calls,
        errors=step.errors,
        finish_reason=step.finish_reason,
        usage=step.usage,
        duration_ms=step.duration_ms,
    )
    return (record,)


def call_begins(reserved: Reservation) -> Sequence[EventRecord]:
    """A tool is about to run."""
    call = reserved.call
    return [envelopes.tool_started(call.id, call.name, call.args, step_number=reserved.step_number)]


def call_ended(number: int, call: ToolCall, record: CallRecord) -> EventRecord:
    """A call has its result."""
    return envelopes.tool_completed(
        call.id,
        call.name,
        step_number=number,
        success=record.success,
        error=record.error.message if record.error else None,
        duration_ms=record.seconds * 1000,
        result=record.result,
    )


def settled(
    request: SettleInput, waiting: Sequence[RequestRow], answer: str | None, error: str | None
) -> Sequence[EventRecord]:
    """Questions first, then where the execution stands; a final status is the last that is told."""
    asked = [_asked(request.step_count + 1, row) for row in waiting]
    return [*asked, *_completed(request.step_count, request.previous), _standing(request, answer, error)]


def _asked(number: int, row: RequestRow) -> EventRecord:
    if row.kind is CallNeed.INPUT:
        question = Question.parse(row.request)
        return envelopes.input_requested(row.id, row.call_id, number, question, None)
    return envelopes.approval_requested(row.id, row.call_id, number, row.tool, row.args)


def _standing(request: SettleInput, answer: str | None, error: str | None) -> EventRecord:
    match request.status, request.stop_reason:
        case ExecutionStatus.PAUSED, _:
            status, previous = WireStatus.PAUSED, WireStatus.PROCESSING
        case _, None:
            status, previous = WireStatus.PROCESSING, WireStatus.PAUSED
        case _, reason:
            status, previous = ended(request.agent_status, reason).wire, WireStatus.PROCESSING
    return envelopes.status_changed(
        status,
        previous,
        change=request.key,
        step_count=request.step_count,
        error_message=error,
        last_response=answer,
    )


def _status(number: int, status: WireStatus, previous: WireStatus, step_count: int) -> EventRecord:
    return envelopes.status_changed(status, previous, change=f"step/{number}", step_count=step_count)
