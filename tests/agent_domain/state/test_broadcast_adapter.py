"""The events of a running agent as envelopes for its viewers: envelopes, payloads and configuration."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import envelope_id
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.broadcast_adapter import BroadcastConfig, EventEnvelopeAdapter
from everstep.agent_domain.state.events import (
    AgentFinished,
    AgentStateUpdated,
    Event,
    TokenUsageReported,
    ToolCallCompleted,
)
from everstep.agent_domain.values import EMPTY
from tests.agent_domain.state.broadcasts import (
    AT,
    DEBUG,
    EXECUTION,
    MINIMAL,
    NOW,
    SESSION,
    STANDARD,
    TRACED,
    Recorder,
    agent_failure,
    an_adapter,
    an_outcome,
    call_end,
    call_start,
    evaluation,
    record_envelopes,
    step_end,
    step_start,
    stop_evaluation,
    text_event,
)

# Envelopes and the adapter itself.


def test_an_envelope_names_its_source_and_its_time() -> None:
    """7.1.1: the event's moment, and no number before it is stored."""
    recorder = record_envelopes([step_start(3)])
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
    recorder = record_envelopes([step_start(), text_event("Hi", last=True), step_end(), stop_evaluation()])
    assert set(recorder.channels) == {f"agent.{SESSION}"}
    assert {envelope.session_id for envelope in recorder.sent} == {SESSION}


def test_without_a_session_every_envelope_is_sent_to_the_channel_of_the_execution() -> None:
    """7.1.1."""
    recorder = Recorder()
    adapter = EventEnvelopeAdapter(recorder, None, EXECUTION, clock=lambda: NOW)
    adapter.on_agent_step_started(step_start())
    assert set(recorder.channels) == {adapter.channel} == {f"agent.execution.{EXECUTION}"}
    assert {envelope.session_id for envelope in recorder.sent} == {None}


def test_ids_may_be_given_as_text() -> None:
    """7.1.2."""
    adapter = EventEnvelopeAdapter(Recorder(), str(SESSION), str(EXECUTION), clock=lambda: NOW)
    assert (adapter.session_id, adapter.execution_id) == (SESSION, EXECUTION)


@pytest.mark.parametrize("wrong", ["", " ", 7, "x" * 201])
def test_a_value_that_is_neither_uuid_nor_text_is_no_id(wrong: Any) -> None:
    """7.1.1, 7.1.2."""
    with pytest.raises(InvalidInput, match="session_id"):
        EventEnvelopeAdapter(Recorder(), wrong, EXECUTION, clock=lambda: NOW)
    with pytest.raises(InvalidInput, match="execution_id"):
        EventEnvelopeAdapter(Recorder(), SESSION, wrong, clock=lambda: NOW)


Method = Callable[[EventEnvelopeAdapter, Any], None]


@pytest.mark.parametrize(
    ("event", "method"),
    [
        (step_start(), EventEnvelopeAdapter.on_agent_step_started),
        (text_event("Hi", last=True), EventEnvelopeAdapter.on_stream_chunk),
        (call_start(path="a"), EventEnvelopeAdapter.on_tool_call_started),
        (call_end(), EventEnvelopeAdapter.on_tool_call_completed),
        (step_end(), EventEnvelopeAdapter.on_agent_step_completed),
        (stop_evaluation(), EventEnvelopeAdapter.on_continuation_evaluated),
        (agent_failure(), EventEnvelopeAdapter.on_agent_failed),
    ],
)
def test_a_wiretap_publishes_the_same_as_the_methods(event: Event, method: Method) -> None:
    """7.1.2."""
    adapter, recorder = an_adapter(DEBUG)
    method(adapter, event)
    assert recorder.sent
    assert recorder.sent == record_envelopes([event], DEBUG).sent


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
    assert record_envelopes([event], DEBUG).sent == []


def test_the_same_events_give_the_same_ids_for_every_adapter() -> None:
    """7.1.1: so that a second write finds the first."""
    events = [
        step_start(),
        text_event("Hi", last=True),
        call_start(),
        call_end(),
        step_end(),
        stop_evaluation(),
    ]
    assert record_envelopes(events, DEBUG).sent == record_envelopes(events, DEBUG).sent


def test_no_two_envelopes_of_an_execution_share_an_id() -> None:
    """7.1.1: nine in each step and two statuses, even if the model repeats the id of its call."""
    steps = [
        [
            step_start(n),
            text_event("a", n),
            text_event("b", n, 2),
            text_event("", n, 2, last=True),
            call_start(),
            call_end(),
        ]
        for n in (1, 2)
    ]
    ends = [[step_end(1), evaluation(1)], [step_end(2), stop_evaluation(2)]]
    events = [event for step, end in zip(steps, ends, strict=True) for event in (*step, *end)]
    recorder = record_envelopes(events, DEBUG)
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent) == 2 * 9 + 2


# Payloads.


def test_the_start_of_a_step_contains_the_names_of_its_tools() -> None:
    """7.2."""
    assert record_envelopes([step_start(2, ("look", "listen"))]).of("agent.step.started") == [
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
    assert record_envelopes([step_end(2, an_outcome(StopReason.GUARD))], config).of(
        "agent.step.completed"
    ) == [
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
    assert record_envelopes([step_end(1, None)], DEBUG).of("agent.step.completed")[0]["continuation"] is None


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
    assert record_envelopes([call_start(path="x" * 501, deep=["x" * 501])], config).of(
        "agent.tool.started"
    ) == [
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
        (call_end(result={"n": 1}), True, None, '{"n":1}'),
        (call_end(result="x" * 101), True, None, "x" * 97 + "..."),
        (call_end(result=None, error="broken"), False, "broken", None),
    ],
)
def test_a_tool_result_is_summarised(
    event: ToolCallCompleted, success: bool, error: str | None, summary: str | None
) -> None:
    """7.2, 7.3.3."""
    assert record_envelopes([event]).of("agent.tool.completed") == [
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
    assert record_envelopes([evaluation(2)], DEBUG).of("agent.continuation") == [
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
    events = [step_start(1), step_end(1), evaluation(1), step_start(2), step_end(2)]
    end = evaluation(2, an_outcome(StopReason.STEPS_LIMIT), last_response="Almost")
    assert record_envelopes([*events, end]).of("agent.status") == [
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
        ([step_start(1)], 0),
        ([step_start(4)], 3),
        ([step_start(4), step_end(4)], 4),
        ([evaluation(2)], 2),
        ([agent_failure(steps=3)], 3),
    ],
)
def test_a_status_counts_completed_steps(events: Sequence[Event], step_count: int) -> None:
    """7.2."""
    adapter, recorder = an_adapter()
    for event in events:
        adapter.wiretap()(event)
    adapter.on_agent_status_changed("paused")
    assert recorder.sent[-1].payload["step_count"] == step_count


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


RUN = [step_start(), text_event("Hi", last=True), call_start(), call_end(), step_end(), stop_evaluation()]


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
    assert {envelope.type for envelope in record_envelopes(RUN, config).sent} == always | extra


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
