"""The events of a running agent, as envelopes for its viewers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.drivers import OnText, Reply, StepDriver, unheard
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.ids import envelope_id
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason, WireStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.state.broadcast_adapter import AgentEventEnvelopeAdapter, BroadcastConfig
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentFinished,
    AgentStateUpdated,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    Event,
    StreamEventReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.testing import DeterministicAgentDriver, MockTool, ScenarioStep
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.local.agent import Agent, AgentBuilder
from everstep.local.broadcast import AgentEventEnvelopeAdapter as LocalAdapter

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

    def told(self) -> list[str]:
        """The types in order, with the status or the chunk where there is one."""
        return [told(envelope) for envelope in self.sent]

    def of(self, kind: str) -> list[FrozenDict]:
        return [envelope.payload for envelope in self.sent if envelope.type == kind]


def told(envelope: Envelope) -> str:
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


def an_adapter(config: BroadcastConfig | None = None) -> tuple[AgentEventEnvelopeAdapter, Recorder]:
    recorder = Recorder()
    return AgentEventEnvelopeAdapter(recorder, SESSION, EXECUTION, config, clock=lambda: NOW), recorder


def heard(events: Iterable[Event], config: BroadcastConfig | None = None) -> Recorder:
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


def began(step: int = 1, tools: tuple[str, ...] = ("look",)) -> AgentStepStarted:
    return AgentStepStarted(at=AT, step_number=step, message_count=step, available_tools=tools)


def wrote(content: str, step: int = 1, attempt: int = 1, *, last: bool = False) -> StreamEventReceived:
    return StreamEventReceived(at=AT, content=content, step_number=step, attempt=attempt, is_complete=last)


def called(call_id: str = "c1", **args: Any) -> ToolCallStarted:
    return ToolCallStarted(at=AT, tool="look", args=frozen_map(args), started_at=AT, tool_call_id=call_id)


def returned(call_id: str = "c1", result: Any = "done", error: str | None = None) -> ToolCallCompleted:
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


def completed(step: int = 1, outcome: ContinuationOutcome | None = GOES_ON) -> AgentStepCompleted:
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


def evaluated(
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


def stopped(step: int = 1, reason: StopReason = StopReason.COMPLETED) -> ContinuationEvaluated:
    return evaluated(step, an_outcome(reason))


def failed(exception: str = "broken", steps: int = 1) -> AgentFailed:
    return AgentFailed(
        at=AT,
        exception=exception,
        status=AgentStatus.FAILED,
        steps_completed=steps,
        total_usage=Usage(),
    )


# Envelopes and the adapter itself.


def test_an_envelope_names_its_source_and_its_time() -> None:
    """7.1.1: the event's moment, and no number before it is stored."""
    recorder = heard([began(3)])
    assert recorder.sent[1].to_dict() == {
        "type": "agent.step.started",
        "session_id": str(SESSION),
        "execution_id": str(EXECUTION),
        "timestamp": "2026-01-16T10:05:00.123Z",
        "payload": {
            "step_number": 3,
            "message_count": 3,
            "available_tools": ["look"],
            "available_tools_count": 1,
        },
        "id": str(envelope_id(EXECUTION, "step/3/started")),
        "seq": None,
    }


def test_every_envelope_is_sent_to_the_channel_of_the_session() -> None:
    """7.1.2."""
    recorder = heard([began(), wrote("Hi", last=True), completed(), stopped()])
    assert set(recorder.channels) == {f"agent.{SESSION}"}
    assert {envelope.session_id for envelope in recorder.sent} == {SESSION}


def test_without_a_session_every_envelope_is_sent_to_the_channel_of_the_execution() -> None:
    """7.1.1."""
    recorder = Recorder()
    adapter = AgentEventEnvelopeAdapter(recorder, None, EXECUTION, clock=lambda: NOW)
    adapter.on_agent_step_started(began())
    assert set(recorder.channels) == {adapter.channel} == {f"agent.execution.{EXECUTION}"}
    assert {envelope.session_id for envelope in recorder.sent} == {None}


def test_ids_may_be_given_as_text() -> None:
    """7.1.2."""
    adapter = AgentEventEnvelopeAdapter(Recorder(), str(SESSION), str(EXECUTION), clock=lambda: NOW)
    assert (adapter.session_id, adapter.execution_id) == (SESSION, EXECUTION)


@pytest.mark.parametrize("wrong", ["", " ", 7, "x" * 201])
def test_a_value_that_is_neither_uuid_nor_text_is_no_id(wrong: Any) -> None:
    """7.1.1, 7.1.2."""
    with pytest.raises(InvalidInput, match="session_id"):
        AgentEventEnvelopeAdapter(Recorder(), wrong, EXECUTION, clock=lambda: NOW)
    with pytest.raises(InvalidInput, match="execution_id"):
        AgentEventEnvelopeAdapter(Recorder(), SESSION, wrong, clock=lambda: NOW)


Method = Callable[[AgentEventEnvelopeAdapter, Any], None]


@pytest.mark.parametrize(
    ("event", "method"),
    [
        (began(), AgentEventEnvelopeAdapter.on_agent_step_started),
        (wrote("Hi", last=True), AgentEventEnvelopeAdapter.on_stream_chunk),
        (called(path="a"), AgentEventEnvelopeAdapter.on_tool_call_started),
        (returned(), AgentEventEnvelopeAdapter.on_tool_call_completed),
        (completed(), AgentEventEnvelopeAdapter.on_agent_step_completed),
        (stopped(), AgentEventEnvelopeAdapter.on_continuation_evaluated),
        (failed(), AgentEventEnvelopeAdapter.on_agent_failed),
    ],
)
def test_a_wiretap_publishes_the_same_as_the_methods(event: Event, method: Method) -> None:
    """7.1.2."""
    adapter, recorder = an_adapter(DEBUG)
    method(adapter, event)
    assert recorder.sent
    assert recorder.sent == heard([event], DEBUG).sent


@pytest.mark.parametrize(
    "event",
    [
        TokenUsageReported(at=AT, usage=Usage(), context=EMPTY),
        AgentStateUpdated(at=AT, status=AgentStatus.COMPLETED, step_count=1, state={}, step=None),
        AgentFinished(at=AT, status=AgentStatus.COMPLETED, total_steps=1, total_usage=Usage()),
    ],
)
def test_events_without_an_envelope_are_ignored(event: Event) -> None:
    """7.1.2, 7.2."""
    assert heard([event], DEBUG).sent == []


def test_the_same_events_give_the_same_ids_for_every_adapter() -> None:
    """7.1.1: so that a second write finds the first."""
    events = [began(), wrote("Hi", last=True), called(), returned(), completed(), stopped()]
    assert heard(events, DEBUG).sent == heard(events, DEBUG).sent


def test_no_two_envelopes_of_an_execution_share_an_id() -> None:
    """7.1.1: nine in each step and two statuses, even if the model repeats the id of its call."""
    steps = [
        [began(n), wrote("a", n), wrote("b", n, 2), wrote("", n, 2, last=True), called(), returned()]
        for n in (1, 2)
    ]
    ends = [[completed(1), evaluated(1)], [completed(2), stopped(2)]]
    events = [event for step, end in zip(steps, ends, strict=True) for event in (*step, *end)]
    recorder = heard(events, DEBUG)
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent) == 2 * 9 + 2


# Payloads.


def test_the_start_of_a_step_contains_the_names_of_its_tools() -> None:
    """7.2."""
    assert heard([began(2, ("look", "listen"))]).of("agent.step.started") == [
        {
            "step_number": 2,
            "message_count": 2,
            "available_tools": ["look", "listen"],
            "available_tools_count": 2,
        }
    ]


@pytest.mark.parametrize(
    ("config", "continuation"),
    [
        (STANDARD, {}),
        (
            DEBUG,
            {
                "continuation": {
                    "should_continue": False,
                    "stop_reason": "guard",
                    "resolved_by": "Guard",
                }
            },
        ),
    ],
)
def test_a_completed_step_contains_counts_usage_and_duration(
    config: BroadcastConfig, continuation: dict[str, Any]
) -> None:
    """7.2: with the trace on also the outcome."""
    assert heard([completed(2, an_outcome(StopReason.GUARD))], config).of("agent.step.completed") == [
        {
            "step_number": 2,
            "has_tool_calls": True,
            "errors": 1,
            "finish_reason": "tool_calls",
            "usage": {"prompt": 100, "completion": 50, "total": 180, "cached": 30, "reasoning": 10},
            "duration_ms": 12.5,
            **continuation,
        }
    ]


def test_a_step_without_an_evaluation_after_it_is_marked() -> None:
    """7.2: with the trace on; an exception followed the step."""
    assert heard([completed(1, None)], DEBUG).of("agent.step.completed")[0]["continuation"] is None


@pytest.mark.parametrize(
    ("config", "args"),
    [
        (STANDARD, {}),
        (
            replace(STANDARD, include_tool_args=True),
            {"args": {"path": "x" * 100 + "...", "deep": ["x" * 501]}},
        ),
        (DEBUG, {"args": {"path": "x" * 500 + "...", "deep": ["x" * 501]}}),
    ],
)
def test_a_tool_call_contains_its_arguments_only_on_request(
    config: BroadcastConfig, args: dict[str, Any]
) -> None:
    """7.2, 7.3.2, 7.5: cut to max_arg_length."""
    assert heard([called(path="x" * 501, deep=["x" * 501])], config).of("agent.tool.started") == [
        {
            "tool_name": "look",
            "tool_call_id": "c1",
            "args_summary": f"path: '{'x' * 26}..., deep: [\"{'x' * 25}...",
            **args,
        }
    ]


@pytest.mark.parametrize(
    ("event", "success", "error", "summary"),
    [
        (returned(result={"n": 1}), True, None, '{"n":1}'),
        (returned(result="x" * 101), True, None, "x" * 97 + "..."),
        (returned(result=None, error="broken"), False, "broken", None),
    ],
)
def test_a_tool_result_is_summarised(
    event: ToolCallCompleted, success: bool, error: str | None, summary: str | None
) -> None:
    """7.2, 7.3.3."""
    assert heard([event]).of("agent.tool.completed") == [
        {
            "tool_name": "look",
            "tool_call_id": "c1",
            "success": success,
            "error": error,
            "duration_ms": 3.0,
            "result_summary": summary,
        }
    ]


def test_the_trace_contains_every_vote_by_short_name() -> None:
    """7.2."""
    assert heard([evaluated(2)], DEBUG).of("agent.continuation") == [
        {
            "step_number": 2,
            "should_continue": True,
            "stop_reason": "completed",
            "resolved_by": "Guard",
            "evaluations": [{"criterion": "Guard", "decision": "request", "reason": "because"}],
        }
    ]


def test_a_status_contains_the_previous_one_and_the_progress() -> None:
    """7.2, 1.2.1: it begins as `idle`, which is not sent by itself."""
    events = [began(1), completed(1), evaluated(1), began(2), completed(2)]
    end = evaluated(2, an_outcome(StopReason.STEPS_LIMIT), last_response="Almost")
    assert heard([*events, end]).of("agent.status") == [
        {
            "status": "processing",
            "previous_status": "idle",
            "step_count": 0,
            "error_message": None,
            "last_response": None,
        },
        {
            "status": "stopped",
            "previous_status": "processing",
            "step_count": 2,
            "error_message": None,
            "last_response": "Almost",
        },
    ]


@pytest.mark.parametrize(
    ("events", "step_count"),
    [
        ([], 0),
        ([began(1)], 0),
        ([began(4)], 3),
        ([began(4), completed(4)], 4),
        ([evaluated(2)], 2),
        ([failed(steps=3)], 3),
    ],
)
def test_a_status_counts_completed_steps(events: Sequence[Event], step_count: int) -> None:
    """7.2."""
    adapter, recorder = an_adapter()
    for event in events:
        adapter.wiretap()(event)
    adapter.on_agent_status_changed("paused")
    assert recorder.sent[-1].payload["step_count"] == step_count


# Status.


def test_the_start_of_a_step_means_processing_before_it_is_sent() -> None:
    """7.4.1."""
    assert heard([began()]).told() == ["status processing", "step.started"]


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("completed", "completed"),
        ("error", "failed"),
        ("user_requested", "cancelled"),
        ("steps_limit", "stopped"),
        ("token_limit", "stopped"),
        ("time_limit", "stopped"),
        ("retry_limit", "stopped"),
        ("finish_reason", "stopped"),
        ("guard", "stopped"),
    ],
)
def test_the_stop_reason_decides_the_status(reason: str, status: str) -> None:
    """7.4.1, 1.2.1."""
    assert heard([stopped(1, StopReason(reason))]).told() == [f"status {status}"]
    failure = evaluated(1, an_outcome(StopReason(reason)), AgentStatus.FAILED)
    assert heard([failure]).told() == ["status failed"]


def test_the_table_covers_all_reasons() -> None:
    """7.4.1, 2.3.1."""
    assert len(StopReason) == 9


def test_an_evaluation_that_continues_changes_no_status() -> None:
    """7.4.1."""
    assert heard([began(), completed(), evaluated()]).of("agent.status") == heard([began()]).of(
        "agent.status"
    )


def test_a_failure_is_sent_with_its_error() -> None:
    """7.4.1."""
    (status,) = heard([failed("out of memory")]).of("agent.status")
    assert (status["status"], status["error_message"]) == ("failed", "out of memory")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (
            evaluated(1, an_outcome(StopReason.ERROR), AgentStatus.FAILED, ("no disk", "no net")),
            "no disk\nno net",
        ),
        (evaluated(1, an_outcome(StopReason.ERROR), AgentStatus.FAILED), "because"),
        (evaluated(1, replace(an_outcome(StopReason.ERROR), evaluations=()), AgentStatus.FAILED), None),
        (evaluated(1, an_outcome(StopReason.GUARD), AgentStatus.COMPLETED, ("forgiven",)), None),
    ],
)
def test_the_end_contains_its_error_if_there_is_one(end: ContinuationEvaluated, error: str | None) -> None:
    """7.4.1, 7.2: the failure, or the decider's reason to forbid another step; null if unknown."""
    assert heard([end]).of("agent.status")[0]["error_message"] == error


def test_pause_and_resume_are_statuses_as_well() -> None:
    """7.4.1."""
    adapter, recorder = an_adapter()
    adapter.on_agent_step_started(began())
    adapter.on_agent_paused()
    adapter.on_agent_resumed()
    assert recorder.told() == ["status processing", "step.started", "status paused", "status processing"]
    assert [envelope.timestamp for envelope in recorder.sent[2:]] == [NOW, NOW]


def test_a_status_is_sent_when_it_changes_and_only_then() -> None:
    """7.4.2: a failure is sent once, by the first event that reports it."""
    adapter, recorder = an_adapter()
    for event in (began(1), began(2)):
        adapter.on_agent_step_started(event)
    adapter.on_agent_paused()
    adapter.on_agent_paused()
    adapter.on_agent_resumed()
    adapter.on_agent_resumed()
    adapter.on_continuation_evaluated(stopped(2, StopReason.ERROR))
    adapter.on_agent_failed(failed())
    statuses = [payload["status"] for payload in recorder.of("agent.status")]
    assert statuses == ["processing", "paused", "processing", "failed"]


def test_an_agent_may_continue_after_its_end_without_a_reset() -> None:
    """7.4.2: and its envelopes are not taken for earlier ones."""
    run = [began(), wrote("Hi", last=True), called(), returned(), completed(), stopped()]
    recorder = heard([*run, *run], DEBUG)
    once = heard(run, DEBUG).told()
    assert recorder.told() == [*once, *once]
    assert recorder.of("agent.status")[2]["previous_status"] == "completed"
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


@pytest.mark.parametrize(
    "cut_short",
    [
        [began(1), completed(1), evaluated(1), began(2)],
        [evaluated(0, an_outcome(StopReason.STEPS_LIMIT))],
        [began(1), failed()],
    ],
)
def test_a_restarted_run_is_not_taken_for_the_previous_one(cut_short: Sequence[Event]) -> None:
    """7.1.1, 7.4.2: ids stay unique for any end of the previous run."""
    recorder = heard([*cut_short, *cut_short], DEBUG)
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


def test_an_event_received_twice_is_the_same_envelope_twice() -> None:
    """7.1.1."""
    first, second = (e for e in heard([began(), began()]).sent if e.type == "agent.step.started")
    assert first == second


def test_a_run_that_continues_after_a_manual_end_is_the_same_run() -> None:
    """7.1.1, 7.4.3: its steps count on, so an event received twice gives the same envelope."""
    adapter, recorder = an_adapter(UNTRACKED)
    adapter.on_agent_step_started(began(1))
    adapter.on_agent_status_changed("stopped")
    for _ in range(2):
        adapter.on_agent_step_started(began(2))
    assert recorder.sent[-1] == recorder.sent[-2]


def test_a_run_that_restarts_after_a_manual_end_is_another_one() -> None:
    """7.1.1, 7.4.3."""
    adapter, recorder = an_adapter(UNTRACKED)
    for _ in range(2):
        adapter.on_agent_step_started(began(1))
        adapter.on_agent_status_changed("stopped")
    assert len({envelope.id for envelope in recorder.sent}) == 4


@pytest.mark.parametrize(
    ("reason", "status"), [(StopReason.COMPLETED, "completed"), (StopReason.GUARD, "stopped")]
)
def test_the_trace_comes_before_the_end_and_the_end_is_last(reason: StopReason, status: str) -> None:
    """7.4.2."""
    recorder = heard([began(), completed(), stopped(1, reason)], DEBUG)
    assert recorder.told()[-2:] == ["continuation", f"status {status}"]


def test_a_criterion_that_raises_ends_the_execution_with_its_failure_step() -> None:
    """7.4.1, 7.4.2, 2.2.7: the status comes after that step, and once."""
    failure = StepError("no such key", exception="KeyError")
    outcome = an_outcome(StopReason.ERROR, stop_reason=StopReason.ERROR, error=failure)
    end = evaluated(2, outcome, AgentStatus.FAILED, ("no such key",), "A tree")
    recorder = heard(
        [
            *(began(1), completed(1, outcome), evaluated(1, outcome, AgentStatus.FAILED)),
            *(began(2), completed(2, outcome), end, failed("no such key", 2)),
        ]
    )
    assert recorder.told() == [
        "status processing",
        *("step.started", "step.completed"),
        *("step.started", "step.completed"),
        "status failed",
    ]
    status = recorder.of("agent.status")[-1]
    assert (status["error_message"], status["last_response"]) == ("no such key", "A tree")


@pytest.mark.parametrize("config", [STANDARD, UNTRACKED])
@pytest.mark.parametrize("status", [*WireStatus, *(str(status) for status in WireStatus)])
def test_a_manual_status_is_always_sent(config: BroadcastConfig, status: WireStatus | str) -> None:
    """7.4.3: the same one again, too, and without status tracking."""
    adapter, recorder = an_adapter(config)
    adapter.on_agent_status_changed(status, "broken", "Hm")
    adapter.on_agent_status_changed(status)
    assert recorder.of("agent.status") == [
        {
            "status": str(status),
            "previous_status": "idle",
            "step_count": 0,
            "error_message": "broken",
            "last_response": "Hm",
        },
        {
            "status": str(status),
            "previous_status": str(status),
            "step_count": 0,
            "error_message": None,
            "last_response": None,
        },
    ]
    assert [envelope.timestamp for envelope in recorder.sent] == [NOW, NOW]


def test_a_manual_status_counts_as_the_last() -> None:
    """7.4.3, 7.4.2."""
    adapter, recorder = an_adapter()
    adapter.on_agent_status_changed("processing")
    adapter.on_agent_step_started(began())
    adapter.on_agent_status_changed("completed")
    adapter.on_continuation_evaluated(stopped())
    assert recorder.told() == ["status processing", "step.started", "status completed"]


def test_an_unknown_status_is_refused() -> None:
    """7.4.3, 1.2.1: the words of another layer are not the wire's."""
    adapter, _ = an_adapter()
    with pytest.raises(InvalidInput, match="idle, processing, paused, completed, stopped, failed, cancelled"):
        adapter.on_agent_status_changed("running")


def test_without_tracking_no_status_is_sent_automatically() -> None:
    """7.4.1, 7.5."""
    adapter, recorder = an_adapter(UNTRACKED)
    for event in (began(), completed(), stopped(), failed()):
        adapter.wiretap()(event)
    adapter.on_agent_paused()
    adapter.on_agent_resumed()
    assert recorder.told() == ["step.started", "step.completed"]


def test_a_reset_sends_nothing_and_starts_over() -> None:
    """7.4.3: `idle`, and the next chunk is the first."""
    adapter, recorder = an_adapter()
    events = [began(), wrote("a"), wrote("b")]
    for event in events:
        adapter.wiretap()(event)
    first = recorder.told()
    adapter.reset()
    assert recorder.told() == first
    for event in events:
        adapter.wiretap()(event)
    assert (
        recorder.told()
        == [*first, *first]
        == [
            *["status processing", "step.started", "1.1#0 a", "1.1#1 b"] * 2,
        ]
    )
    assert recorder.of("agent.status")[1]["previous_status"] == "idle"
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


# Configuration.


@pytest.mark.parametrize(
    ("config", "chunks", "trace", "args", "length"),
    [
        (BroadcastConfig.minimal(), False, False, False, 100),
        (BroadcastConfig.standard(), True, False, False, 100),
        (BroadcastConfig(), True, False, False, 100),
        (BroadcastConfig.debug(), True, True, True, 500),
    ],
)
def test_the_presets(config: BroadcastConfig, chunks: bool, trace: bool, args: bool, length: int) -> None:
    """7.5: the table."""
    assert config.include_stream_chunks is chunks
    assert config.include_continuation_trace is trace
    assert config.include_tool_args is args
    assert config.max_arg_length == length
    assert config.auto_status_tracking is True


def test_the_default_is_standard() -> None:
    """7.5."""
    adapter, _ = an_adapter()
    assert adapter.config == BroadcastConfig.standard()


RUN = [began(), wrote("Hi", last=True), called(), returned(), completed(), stopped()]


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (MINIMAL, set[str]()),
        (STANDARD, {"agent.stream.chunk"}),
        (TRACED, {"agent.stream.chunk", "agent.continuation"}),
        (DEBUG, {"agent.stream.chunk", "agent.continuation"}),
    ],
)
def test_steps_tools_and_statuses_have_no_switch(config: BroadcastConfig, extra: set[str]) -> None:
    """7.5."""
    always = {
        "agent.status",
        "agent.step.started",
        "agent.step.completed",
        "agent.tool.started",
        "agent.tool.completed",
    }
    assert {envelope.type for envelope in heard(RUN, config).sent} == always | extra


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_arg_length", -1),
        ("max_arg_length", 1.5),
        ("max_arg_length", None),
        ("include_stream_chunks", "yes"),
        ("include_continuation_trace", 1),
        ("include_tool_args", None),
        ("auto_status_tracking", 0),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused(name: str, value: Any) -> None:
    """7.5: with the setting's name."""
    with pytest.raises(InvalidInput, match=name):
        BroadcastConfig(**{name: value})


# Chunks.


def test_empty_content_is_dropped_and_not_counted() -> None:
    """7.6.1."""
    events = [wrote(""), wrote("a"), wrote(""), wrote("b")]
    assert heard(events).told() == ["1.1#0 a", "1.1#1 b"]


def test_chunks_are_numbered_from_zero_in_every_attempt_of_every_step() -> None:
    """7.6.1."""
    events = [wrote("a"), wrote("b"), wrote("c", 1, 2), wrote("d", 1, 2), began(2), wrote("e", 2)]
    assert [told for told in heard(events, UNTRACKED).told() if "#" in told] == [
        *("1.1#0 a", "1.1#1 b"),
        *("1.2#0 c", "1.2#1 d"),
        "2.1#0 e",
    ]


def test_a_stream_that_ends_well_is_closed_by_one_empty_chunk() -> None:
    """7.6.2: counted, and the only one that is complete."""
    chunks = heard([wrote("a"), wrote("b"), wrote("", last=True), wrote("", last=True)]).of(
        "agent.stream.chunk"
    )
    assert [(c["content"], c["is_complete"], c["chunk_index"]) for c in chunks] == [
        ("a", False, 0),
        ("b", False, 1),
        ("", True, 2),
    ]


def test_the_last_text_comes_before_the_closing_chunk() -> None:
    """7.6.2: the chunk that closes a stream is empty."""
    assert heard([wrote("a", last=True)]).told() == ["1.1#0 a", "1.1#1 (end)"]


def test_a_stream_without_text_is_not_closed() -> None:
    """7.6.2."""
    assert heard([wrote("", last=True)]).sent == []


def test_nothing_follows_the_closing_chunk() -> None:
    """7.6.2."""
    assert heard([wrote("a", last=True), wrote("b")]).told() == ["1.1#0 a", "1.1#1 (end)"]


def test_a_chunk_does_not_contain_the_envelope_that_it_follows() -> None:
    """7.2, 7.1.1: numbers are assigned by the store."""
    (chunk,) = heard([wrote("a")]).sent
    assert chunk.payload["after_seq"] is None
    assert chunk.seq is None


def test_an_attempt_superseded_after_chunks_is_announced_before_the_next_one_writes() -> None:
    """7.6.3."""
    recorder = heard([wrote("a"), wrote("b", 1, 2), wrote("", 1, 2, last=True)])
    assert recorder.told() == ["1.1#0 a", "superseded 1.1 by 2", "1.2#0 b", "1.2#1 (end)"]


def test_an_attempt_superseded_after_it_was_closed_is_announced_as_well() -> None:
    """7.6.3: its chunks were sent, and readers must drop them."""
    recorder = heard([wrote("a", last=True), wrote("b", 1, 3)])
    assert recorder.told() == ["1.1#0 a", "1.1#1 (end)", "superseded 1.1 by 3", "1.3#0 b"]


def test_an_attempt_superseded_without_chunks_is_not_announced() -> None:
    """7.6.3."""
    assert heard([wrote(""), wrote("b", 1, 2)]).told() == ["1.2#0 b"]


def test_nothing_of_an_attempt_is_sent_after_the_next_one_wrote() -> None:
    """7.6.3, and nothing of a step after the next has begun."""
    late = [wrote("a"), wrote("b", 1, 2), wrote("late"), wrote("", last=True)]
    assert heard(late).told() == ["1.1#0 a", "superseded 1.1 by 2", "1.2#0 b"]
    assert heard([began(2), wrote("late", 1)], UNTRACKED).told() == ["step.started"]


def test_an_attempt_can_be_superseded_manually() -> None:
    """7.6.3: announced if it wrote; the next begins at index 0."""
    adapter, recorder = an_adapter(UNTRACKED)
    adapter.on_agent_step_started(began())
    adapter.on_attempt_superseded()
    adapter.on_stream_chunk("a")
    adapter.on_attempt_superseded()
    adapter.on_stream_chunk("b")
    adapter.on_attempt_superseded(7)
    adapter.on_stream_chunk("c", is_complete=True)
    assert recorder.told() == [
        "step.started",
        "1.2#0 a",
        "superseded 1.2 by 3",
        "1.3#0 b",
        "superseded 1.3 by 7",
        "1.7#0 c",
        "1.7#1 (end)",
    ]


@pytest.mark.parametrize("next_attempt", [0, 1])
def test_an_attempt_is_superseded_by_a_later_one(next_attempt: int) -> None:
    """7.6.3."""
    adapter, _ = an_adapter()
    with pytest.raises(InvalidInput, match="next_attempt"):
        adapter.on_attempt_superseded(next_attempt)


def test_text_belongs_to_the_step_and_attempt_under_way_by_default() -> None:
    """7.1.2, 7.6.1."""
    adapter, recorder = an_adapter(UNTRACKED)
    adapter.on_stream_chunk("before any step")
    adapter.on_agent_step_started(began(1))
    adapter.on_stream_chunk("a")
    adapter.on_stream_chunk("b", attempt=2)
    adapter.on_stream_chunk("c")
    adapter.on_stream_chunk("d", step_number=2)
    adapter.on_stream_chunk("e", step_number=3, attempt=4, is_complete=True)
    assert recorder.told() == [
        "1.1#0 before any step",
        "step.started",
        "1.1#1 a",
        "superseded 1.1 by 2",
        "1.2#0 b",
        "1.2#1 c",
        "2.1#0 d",
        "3.4#0 e",
        "3.4#1 (end)",
    ]
    assert {e.timestamp for e in recorder.sent if e.type == "agent.stream.chunk"} == {NOW}


def test_without_chunks_no_attempt_is_announced_either() -> None:
    """7.5, 7.6.3: readers received nothing that they would have to drop."""
    adapter, recorder = an_adapter(MINIMAL)
    for event in (wrote("a"), wrote("b", 1, 2, last=True)):
        adapter.on_stream_chunk(event)
    adapter.on_attempt_superseded()
    assert recorder.sent == []


STREAMS = st.lists(
    st.builds(
        wrote,
        st.sampled_from(["", "a", "漢", "🙂b"]),
        st.integers(1, 3),
        st.integers(1, 4),
        last=st.booleans(),
    ),
    max_size=40,
)


@given(STREAMS)
def test_a_reader_can_follow_any_stream(events: list[StreamEventReceived]) -> None:
    """7.6.1, 7.6.2, 7.6.3: for any events, in any order."""
    recorder = heard(events)
    next_index: dict[tuple[int, int], int] = {}
    over: set[tuple[int, int]] = set()
    for envelope in recorder.sent:
        payload = envelope.payload
        attempt = (payload["step_number"], payload["attempt"])
        if envelope.type == "agent.attempt.superseded":
            assert attempt in next_index
            assert payload["next_attempt"] > payload["attempt"]
            over.add(attempt)
            continue
        assert payload["chunk_index"] == next_index.get(attempt, 0)
        assert attempt not in over
        assert attempt >= max(next_index, default=attempt)
        assert payload["is_complete"] == (payload["content"] == "")
        next_index[attempt] = payload["chunk_index"] + 1
        if payload["is_complete"]:
            assert payload["chunk_index"] > 0
            over.add(attempt)
    latest_attempts = {step: max(a for s, a in next_index if s == step) for step, _ in next_index}
    superseded = {(p["step_number"], p["attempt"]) for p in recorder.of("agent.attempt.superseded")}
    assert {attempt for attempt in next_index if attempt[1] < latest_attempts[attempt[0]]} <= superseded
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


ANYTHING = st.lists(
    st.one_of(
        st.builds(began, st.integers(1, 3)),
        st.builds(completed, st.integers(1, 3)),
        st.builds(stopped, st.integers(0, 3), st.sampled_from(StopReason)),
        st.builds(evaluated, st.integers(1, 3)),
        st.builds(failed),
    ),
    max_size=30,
)


@given(ANYTHING)
def test_every_status_follows_from_the_previous_one(events: list[Event]) -> None:
    """7.4.2, 7.2: a change each time, and never back to `idle`."""
    statuses = heard(events).of("agent.status")
    chain = ["idle", *(status["status"] for status in statuses)]
    assert [status["previous_status"] for status in statuses] == chain[:-1]
    assert all(before != after for before, after in pairwise(chain))
    assert "idle" not in chain[1:]


# Real runs.


class Ticking:
    """A clock that advances by a millisecond at each reading."""

    def __init__(self) -> None:
        self._ticks = count()

    def now(self) -> datetime:
        return AT + timedelta(milliseconds=next(self._ticks))

    def seconds(self) -> float:
        return next(self._ticks) / 1000


def an_agent(builder: AgentBuilder, config: BroadcastConfig) -> tuple[Agent, Recorder]:
    """An agent with an adapter."""
    adapter, recorder = an_adapter(config)
    return Agent(builder.definition(), clock=Ticking()).wiretap(adapter.wiretap()), recorder


def scripted(*steps: ScenarioStep) -> AgentBuilder:
    tools = [MockTool.returning("look", "Look around", "a tree"), MockTool("fall", "Fall", failing)]
    return AgentBuilder.base().with_driver(DeterministicAgentDriver.from_steps(*steps)).with_tools(tools)


def failing(**_args: Any) -> None:
    raise RuntimeError("no ground")


LOOK = ScenarioStep.tool_call("look", {"far": True}, "Looking", Usage(input=5))
ANSWER = ScenarioStep.final("A tree", Usage(output=2))


def test_a_run_with_a_tool_call_sends_everything_in_order() -> None:
    """7.1.2, 7.2, 7.4.1, 7.4.2, 7.6.1, 7.6.2: an agent that looks and answers."""
    agent, recorder = an_agent(scripted(LOOK, ANSWER), DEBUG)
    agent.run("What is there?")

    assert [envelope.type for envelope in recorder.sent] == [
        "agent.status",
        "agent.step.started",
        "agent.stream.chunk",
        "agent.stream.chunk",
        "agent.tool.started",
        "agent.tool.completed",
        "agent.step.completed",
        "agent.continuation",
        "agent.step.started",
        "agent.stream.chunk",
        "agent.stream.chunk",
        "agent.step.completed",
        "agent.continuation",
        "agent.status",
    ]
    assert recorder.told() == [
        "status processing",
        "step.started",
        "1.1#0 Looking",
        "1.1#1 (end)",
        "tool.started",
        "tool.completed",
        "step.completed",
        "continuation",
        "step.started",
        "2.1#0 A tree",
        "2.1#1 (end)",
        "step.completed",
        "continuation",
        "status completed",
    ]
    times = [envelope.timestamp for envelope in recorder.sent]
    assert times == sorted(times)
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)
    assert recorder.of("agent.tool.started")[0]["args"] == {"far": True}
    assert recorder.of("agent.tool.completed")[0]["result_summary"] == "a tree"
    assert [step["continuation"]["should_continue"] for step in recorder.of("agent.step.completed")] == [
        True,
        False,
    ]
    assert recorder.of("agent.status")[-1] == {
        "status": "completed",
        "previous_status": "processing",
        "step_count": 2,
        "error_message": None,
        "last_response": "A tree",
    }


@pytest.mark.parametrize(
    ("config", "left_out"), [(STANDARD, {"continuation"}), (MINIMAL, {"continuation", "stream.chunk"})]
)
def test_a_run_with_fewer_envelopes_sends_them_in_the_same_order(
    config: BroadcastConfig, left_out: set[str]
) -> None:
    """7.5."""
    (all_agent, everything), (agent, recorder) = (
        an_agent(scripted(LOOK, ANSWER), each) for each in (DEBUG, config)
    )
    all_agent.run("What is there?")
    agent.run("What is there?")
    types = [envelope.type for envelope in everything.sent]
    kept = [kind for kind in types if kind.removeprefix("agent.") not in left_out]
    assert [envelope.type for envelope in recorder.sent] == kept


def test_a_failing_tool_ends_the_run_with_its_error() -> None:
    """7.4.1, 7.4.2: sent once, and last."""
    agent, recorder = an_agent(scripted(ScenarioStep.tool_call("fall", {}, "")), TRACED)
    agent.run("Fall!")
    assert recorder.told() == [
        "status processing",
        "step.started",
        "tool.started",
        "tool.completed",
        "step.completed",
        "continuation",
        "status failed",
    ]
    assert recorder.of("agent.status")[-1]["error_message"] == "no ground"
    assert recorder.of("agent.tool.completed")[0]["error"] == "no ground"


class CutOff(StepDriver):
    """A model whose first call fails in the middle of its reply."""

    def __init__(self) -> None:
        self.answers = iter([False, True])

    async def infer(self, state: AgentState, on_text: OnText = unheard) -> Reply:
        on_text("A tr")
        if next(self.answers):
            on_text("ee")
            return ScenarioStep.final("A tree").reply()
        raise ModelError("connection lost")

    def said(self, step: AgentStep) -> Messages:
        return DeterministicAgentDriver().said(step)


def test_an_interrupted_stream_is_not_closed() -> None:
    """7.6.2: the step that follows is another one, and its chunks count from 0."""
    builder = AgentBuilder.base().with_driver(CutOff()).with_error_policy(ErrorPolicy.retry_all(2))
    agent, recorder = an_agent(builder, STANDARD)
    agent.run("What is there?")
    assert recorder.told() == [
        "status processing",
        *("step.started", "1.1#0 A tr", "step.completed"),
        *("step.started", "2.1#0 A tr", "2.1#1 ee", "2.1#2 (end)", "step.completed"),
        "status completed",
    ]


@pytest.mark.parametrize(("steps", "kinds"), [(0, []), (1, ["step.started", "step.completed"])])
def test_a_run_at_its_limit_is_stopped(steps: int, kinds: list[str]) -> None:
    """7.4.1, 1.2.1: also before its first step, when nothing else is sent."""
    script = scripted(ScenarioStep.tool_call("look", execute_tools=False)).with_max_steps(steps)
    agent, recorder = an_agent(script, STANDARD)
    agent.run("What is there?")
    began = ["status processing"] if steps else []
    assert recorder.told() == [*began, *kinds, "status stopped"]


class Cancelling(AgentHook):
    """A person who cancels."""

    def after_step(self, state: AgentState) -> AgentState:
        return state.with_stop_signal(StopSignal(StopReason.USER_REQUESTED, "enough"))


def test_a_run_that_a_person_ends_is_cancelled() -> None:
    """7.4.1, 1.2.1."""
    agent, recorder = an_agent(scripted(LOOK).add_hook(Cancelling()), MINIMAL)
    agent.run("What is there?")
    assert recorder.told()[-1] == "status cancelled"
    assert recorder.of("agent.status")[-1]["error_message"] is None


def broken(state: AgentState) -> ContinuationDecision:
    if state.step_count > 0:
        raise ValueError("no idea")
    return ContinuationDecision.ALLOW


def broken_at_once(_state: AgentState) -> ContinuationDecision:
    raise ValueError("no idea")


@pytest.mark.parametrize(("criterion", "steps"), [(broken, 2), (broken_at_once, 1)])
def test_a_run_whose_criterion_raises_fails_once_at_its_end(
    criterion: Callable[[AgentState], ContinuationDecision], steps: int
) -> None:
    """7.4.2, 2.2.7: the failure step is sent before the status."""
    builder = scripted(ANSWER).add_continuation_criteria(ContinuationCriteria.when(criterion))
    agent, recorder = an_agent(builder, MINIMAL)
    agent.run("What is there?")
    assert recorder.told() == [
        "status processing",
        *["step.started", "step.completed"] * steps,
        "status failed",
    ]
    assert recorder.of("agent.status")[-1]["error_message"] == "no idea"


def test_a_conversation_continues_through_the_same_adapter() -> None:
    """7.4.2: one execution after the other, each sent in full."""
    agent, recorder = an_agent(scripted(ANSWER), DEBUG)
    state = agent.run("What is there?")
    once = recorder.told()
    agent.run(state.with_user_message("And now?"))
    assert recorder.told() == [*once, *once]
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


def test_an_adapter_in_a_process_uses_the_clock_of_the_machine() -> None:
    """7.1.2: the four arguments of the adapter suffice there."""
    recorder = Recorder()
    adapter = LocalAdapter(recorder, SESSION, EXECUTION, BroadcastConfig.minimal())
    adapter.on_agent_status_changed("processing")
    agent = AgentBuilder.base().with_driver(DeterministicAgentDriver.from_responses("Hi")).build()
    agent.wiretap(adapter.wiretap()).run("Hello")
    assert recorder.told() == ["status processing", "step.started", "step.completed", "status completed"]
    assert recorder.sent[0].timestamp > AT


def test_an_adapter_in_a_process_accepts_another_clock() -> None:
    """7.1.2."""
    recorder = Recorder()
    LocalAdapter(recorder, SESSION, EXECUTION, clock=lambda: NOW).on_agent_status_changed("paused")
    assert recorder.sent[0].timestamp == NOW
