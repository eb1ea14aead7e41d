"""When the parts of a step were: the model's answer, its calls, and the waits for people and for retries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.values import format_moment
from everstep.cli.times import seconds_text


class SpanKind(StrEnum):
    """What a span of time was used for."""

    MODEL = "model"
    RETRY = "retry"
    """The wait for another attempt of a model call."""
    CALL = "call"
    PEOPLE = "people"
    """The wait for an answer, an approval or a budget."""
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a step."""

    kind: SpanKind
    name: str
    start: datetime
    end: datetime
    is_open: bool = False
    """Whether it has not ended; then `end` is now."""
    has_failed: bool = False

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return (self.end - self.start).total_seconds()

    def line(self, first: datetime) -> str:
        """The span as a line, with its distance from the first step."""
        state = " so far" if self.is_open else " failed" if self.has_failed else ""
        after = seconds_text((self.start - first).total_seconds())
        return f"+{after}  {self.name}  {seconds_text(self.seconds)}{state}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "kind": str(self.kind),
            "name": self.name,
            "started_at": format_moment(self.start, 6),
            "ended_at": None if self.is_open else format_moment(self.end, 6),
            "seconds": round(self.seconds, 6),
            "failed": self.has_failed,
        }


def spans_of(step: StepRow, requests: Sequence[RequestRow], now: datetime) -> tuple[Span, ...]:
    """The parts of a step, in the order in which they began."""
    mine = [request for request in requests if request.step_number == step.number and _belongs(request, step)]
    answered = _answered_at(step, mine)
    spans = [*_model_spans(step, answered, now)]
    spans += [_wait_span(request, step, now) for request in mine]
    spans += filter(None, (_call_span(call, mine, answered, now) for call in step.calls))
    return tuple(sorted(spans, key=lambda span: span.start))


def step_end(step: StepRow, spans: Sequence[Span], now: datetime) -> datetime:
    """When a step ended; now if it has not."""
    if step.completed_at is not None:
        return step.completed_at
    is_running = step.facts is None or any(span.is_open for span in spans)
    return now if is_running or not spans else max(span.end for span in spans)


def _belongs(request: RequestRow, step: StepRow) -> bool:
    return not request.call_id or any(call.call.id == request.call_id for call in step.calls)


def _answered_at(step: StepRow, requests: Sequence[RequestRow]) -> datetime | None:
    """When the model's answer was stored: requests and calls begin then. None while it is asked."""
    if step.facts is None:
        return None
    after = [request.created_at for request in requests if request.call_id]
    after += [call.record.started_at for call in step.calls if call.record]
    return min(after, default=step.completed_at)


def _model_spans(step: StepRow, answered: datetime | None, now: datetime) -> Iterator[Span]:
    is_open = step.facts is None
    start = step.started_at
    for compaction in step.compactions:
        yield Span(SpanKind.COMPACTION, "compaction", start, start + timedelta(seconds=compaction.seconds))
    wait = step.wait
    if wait is not None:
        until = min(wait.until, now)
        yield Span(
            SpanKind.RETRY, "provider unavailable", wait.since, max(wait.since, until), bool(step.waits)
        )
        start = max(start, until)
    if step.waits:
        return
    end = answered or (now if is_open else start)
    name = f"model, attempt {step.attempt}" if step.attempt > 1 else "model"
    if _has_lost_attempts(step, answered):
        name = f"{name}, lost attempts"
    has_failed = step.facts is not None and step.facts.is_failure
    yield Span(SpanKind.MODEL, name, start, max(start, end), is_open, has_failed)


def _has_lost_attempts(step: StepRow, answered: datetime | None) -> bool:
    """Whether the model's span contains earlier attempts of the first call.

    The store has the start of the attempt that recorded the result, and not of those before it.
    """
    return any(
        call.attempts > 1 and call.record is not None and call.record.started_at == answered
        for call in step.calls
    )


def _wait_span(request: RequestRow, step: StepRow, now: datetime) -> Span:
    resolution = request.resolution
    started = [
        call.record.started_at for call in step.calls if call.record and call.call.id == request.call_id
    ]
    if resolution is not None and resolution.by is not None:
        end: datetime | None = resolution.by.at
    else:
        # Nothing says when a default answer was taken, or a decision expired: the call began after it.
        end = min(started, default=step.completed_at)
    name = "budget"
    if request.kind is CallNeed.INPUT:
        name = "answer"
    elif request.kind is CallNeed.APPROVAL:
        name = f"approval of {request.tool}"
    return Span(
        SpanKind.PEOPLE, name, request.created_at, max(request.created_at, end or now), is_open=end is None
    )


def _call_span(
    call: CallRow, requests: Sequence[RequestRow], answered: datetime | None, now: datetime
) -> Span | None:
    name = f"{call.call.name}, {call.attempts} attempts" if call.attempts > 1 else call.call.name
    if call.record is not None:
        start, end = call.record.started_at, call.record.completed_at
        return Span(SpanKind.CALL, name, start, max(start, end), has_failed=not call.record.success)
    waits = any(request.call_id == call.call.id and request.resolution is None for request in requests)
    if waits or call.state != "reserved" or answered is None:
        return None
    return Span(SpanKind.CALL, name, answered, now, is_open=True)
