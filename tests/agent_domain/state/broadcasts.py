"""Events of a run, and adapters that record the envelopes for them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.broadcast_adapter import BroadcastConfig, EventEnvelopeAdapter
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    Event,
    StreamEventReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.values import FrozenDict, frozen_map

SESSION, EXECUTION = UUID(int=1), UUID(int=2)
AT = datetime(2026, 1, 16, 10, 5, 0, 123456, tzinfo=UTC)
NOW = datetime(2026, 1, 16, 11, 0, tzinfo=UTC)
MINIMAL, STANDARD, DEBUG = BroadcastConfig.minimal(), BroadcastConfig.standard(), BroadcastConfig.debug()
UNTRACKED = replace(STANDARD, auto_status_tracking=False)
TRACED = replace(STANDARD, include_continuation_trace=True)


@dataclass
class Recorder:
    """Keeps the envelopes."""

    channels: list[str] = field(default_factory=list[str])
    sent: list[Envelope] = field(default_factory=list[Envelope])

    def broadcast(self, channel: str, envelope: Envelope) -> None:
        self.channels.append(channel)
        self.sent.append(envelope)

    def summaries(self) -> list[str]:
        """The types in order, with the status or the chunk where there is one."""
        return [summary_of(envelope) for envelope in self.sent]

    def of(self, kind: str) -> list[FrozenDict]:
        return [envelope.payload for envelope in self.sent if envelope.type == kind]


def summary_of(envelope: Envelope) -> str:
    payload, kind = envelope.payload, envelope.type.removeprefix("agent.")
    match kind:
        case "status":
            return f"status {payload['status']}"
        case "stream.chunk":
            text = "(end)" if payload["is_complete"] else payload["content"]
            return f"{payload['step_number']}.{payload['attempt']}#{payload['chunk_index']} {text}"
        case "attempt.superseded":
            return f"superseded {payload['step_number']}.{payload['attempt']} by {payload['next_attempt']}"
        case _:
            return kind


def an_adapter(config: BroadcastConfig | None = None) -> tuple[EventEnvelopeAdapter, Recorder]:
    recorder = Recorder()
    return EventEnvelopeAdapter(recorder, SESSION, EXECUTION, config, clock=lambda: NOW), recorder


def record_envelopes(events: Iterable[Event], config: BroadcastConfig | None = None) -> Recorder:
    """The envelopes for these events."""
    adapter, recorder = an_adapter(config)
    listener = adapter.wiretap()
    for event in events:
        listener(event)
    return recorder


# Builders of events.


def an_outcome(
    reason: StopReason | None = None, resolved_by: str = "Guard", **vote: Any
) -> ContinuationOutcome:
    """Another step follows, or none does for a reason."""
    decision = ContinuationDecision.REQUEST if reason is None else ContinuationDecision.FORBID
    votes = (ContinuationEvaluation(f"tests.{resolved_by}", decision, "because", **vote),)
    return ContinuationOutcome(decision, reason is None, resolved_by, reason or StopReason.COMPLETED, votes)


GOES_ON = an_outcome()


def step_start(step: int = 1, tools: tuple[str, ...] = ("look",)) -> AgentStepStarted:
    return AgentStepStarted(at=AT, step_number=step, message_count=step, available_tools=tools)


def text_event(content: str, step: int = 1, attempt: int = 1, *, last: bool = False) -> StreamEventReceived:
    return StreamEventReceived(at=AT, content=content, step_number=step, attempt=attempt, is_complete=last)


def call_start(call_id: str = "c1", **args: Any) -> ToolCallStarted:
    return ToolCallStarted(at=AT, tool="look", args=frozen_map(args), started_at=AT, tool_call_id=call_id)


def call_end(call_id: str = "c1", result: Any = "done", error: str | None = None) -> ToolCallCompleted:
    return ToolCallCompleted(
        at=AT,
        tool="look",
        success=error is None,
        error=error,
        started_at=AT,
        ended_at=AT + timedelta(milliseconds=3),
        duration_ms=3.0,
        tool_call_id=call_id,
        result=result,
    )


def step_end(step: int = 1, outcome: ContinuationOutcome | None = GOES_ON) -> AgentStepCompleted:
    return AgentStepCompleted(
        at=AT,
        step_number=step,
        has_tool_calls=True,
        error_count=1,
        error_messages=("broken",),
        usage=Usage(input=100, output=40, cache_read=30, reasoning=10),
        finish_reason="tool_calls",
        duration_ms=12.5,
        completed_at=AT,
        continuation=outcome,
    )


def evaluation(
    step: int = 1,
    outcome: ContinuationOutcome = GOES_ON,
    status: AgentStatus = AgentStatus.COMPLETED,
    errors: tuple[str, ...] = (),
    last_response: str | None = None,
) -> ContinuationEvaluated:
    return ContinuationEvaluated(
        at=AT,
        step_number=step,
        outcome=outcome,
        stop_signal=None,
        source=outcome.resolved_by,
        status=AgentStatus.IN_PROGRESS if outcome.should_continue else status,
        errors=errors,
        last_response=last_response,
    )


def stop_evaluation(step: int = 1, reason: StopReason = StopReason.COMPLETED) -> ContinuationEvaluated:
    return evaluation(step, an_outcome(reason))


def agent_failure(exception: str = "broken", steps: int = 1) -> AgentFailed:
    return AgentFailed(
        at=AT,
        exception=exception,
        status=AgentStatus.FAILED,
        steps_completed=steps,
        total_usage=Usage(),
    )
