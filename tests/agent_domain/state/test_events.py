"""In-process events: their names, payloads, and listeners."""

import json
from dataclasses import fields
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput, ListenerFailed
from everstep.agent_domain.loop.continuation import ContinuationDecision, ContinuationOutcome
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentFinished,
    AgentStateUpdated,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    ConversationCompacted,
    Event,
    EventBus,
    ModelCallDelayed,
    StreamEventReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallStarted,
)
from everstep.agent_domain.values import frozen_map
from tests.agent_domain.state_words import AGENT, AT, GOES_ON, PARENT, STOPS, later

WHO: Any = {"at": AT, "agent_id": AGENT, "parent_agent_id": PARENT}
USAGE = Usage(100, 40, 0, 30, 10)
WIRE = {"prompt": 100, "completion": 50, "total": 180, "cached": 30, "reasoning": 10}
ON_THE_WIRE = {"agentId": str(AGENT), "parentAgentId": str(PARENT)}
MOMENT, NEXT_MOMENT = "2026-01-16T10:05:00.123456Z", "2026-01-16T10:05:01.123456Z"


def an_evaluation(outcome: ContinuationOutcome, signal: StopSignal | None = None) -> ContinuationEvaluated:
    return ContinuationEvaluated(
        **WHO,
        step_number=3,
        outcome=outcome,
        stop_signal=signal,
        source="Worker",
        status=AgentStatus.COMPLETED,
        errors=("a",),
        last_response="Hi",
    )


PAYLOADS: list[tuple[Event, dict[str, Any]]] = [
    (
        AgentStepStarted(**WHO, step_number=1, message_count=2, available_tools=("look",)),
        {"stepNumber": 1, "messageCount": 2, "availableTools": ["look"]},
    ),
    (
        AgentStepCompleted(
            **WHO,
            step_number=1,
            has_tool_calls=True,
            error_count=1,
            error_messages=("a",),
            usage=USAGE,
            finish_reason="stop",
            duration_ms=1.5,
            completed_at=AT,
            continuation=STOPS,
        ),
        {
            "stepNumber": 1,
            "hasToolCalls": True,
            "errorCount": 1,
            "errorMessages": ["a"],
            "usage": WIRE,
            "finishReason": "stop",
            "durationMs": 1.5,
            "completedAt": MOMENT,
            "continuation": STOPS.to_dict(),
        },
    ),
    (
        AgentStateUpdated(
            **WHO, status=AgentStatus.IN_PROGRESS, step_count=1, state={"a": [1]}, step={"b": 2}
        ),
        {"status": "in_progress", "stepCount": 1, "state": {"a": [1]}, "step": {"b": 2}},
    ),
    (
        AgentFinished(
            **WHO,
            status=AgentStatus.COMPLETED,
            total_steps=1,
            total_usage=USAGE,
            errors=("a",),
            stop_reason=StopReason.STEPS_LIMIT,
        ),
        {
            "status": "completed",
            "totalSteps": 1,
            "totalUsage": WIRE,
            "errors": ["a"],
            "stopReason": "steps_limit",
        },
    ),
    (
        AgentFailed(
            **WHO,
            exception="boom",
            status=AgentStatus.FAILED,
            steps_completed=1,
            total_usage=USAGE,
            errors=("boom",),
        ),
        {
            "exception": "boom",
            "status": "failed",
            "stepsCompleted": 1,
            "totalUsage": WIRE,
            "errors": ["boom"],
        },
    ),
    (
        ToolCallStarted(**WHO, tool="look", args=frozen_map({"at": ["x"]}), started_at=AT, tool_call_id="c1"),
        {"tool": "look", "args": {"at": ["x"]}, "startedAt": MOMENT, "toolCallId": "c1"},
    ),
    (
        ToolCallProgressed(**WHO, tool="look", tool_call_id="c1", step_number=2, text="Page 1", fraction=0.5),
        {"tool": "look", "toolCallId": "c1", "stepNumber": 2, "text": "Page 1", "fraction": 0.5},
    ),
    (
        ToolCallCompleted(
            **WHO,
            tool="look",
            success=False,
            error="broken",
            started_at=AT,
            ended_at=later(1),
            duration_ms=1000.0,
            tool_call_id="c1",
            result=frozen_map({"a": [1]}),
        ),
        {
            "tool": "look",
            "success": False,
            "error": "broken",
            "startedAt": MOMENT,
            "endedAt": NEXT_MOMENT,
            "duration_ms": 1000.0,
            "toolCallId": "c1",
            "result": {"a": [1]},
        },
    ),
    (
        an_evaluation(STOPS, StopSignal(StopReason.GUARD, "enough", frozen_map({"a": 1}), "hook")),
        {
            "stepNumber": 3,
            "step": 3,
            "outcome": STOPS.to_dict(),
            "shouldContinue": False,
            "stopReason": "completed",
            "resolvedBy": "Worker",
            "stopSignal": {"reason": "guard", "message": "enough", "source": "hook", "context": {"a": 1}},
            "source": "Worker",
            "status": "completed",
            "errors": ["a"],
            "lastResponse": "Hi",
        },
    ),
    (
        TokenUsageReported(**WHO, usage=USAGE, context=frozen_map({"step": 1, "hasToolCalls": False})),
        {"operation": "step", "usage": WIRE, "context": {"step": 1, "hasToolCalls": False}},
    ),
    (
        ModelCallDelayed(
            **WHO, step_number=1, detail="provider unavailable, next attempt in 2 s", error="503", seconds=1.5
        ),
        {
            "stepNumber": 1,
            "detail": "provider unavailable, next attempt in 2 s",
            "error": "503",
            "seconds": 1.5,
        },
    ),
    (
        ConversationCompacted(
            **WHO,
            step_number=1,
            detail="The conversation was compacted",
            messages=4,
            results=1,
            tokens_before=900,
            tokens_after=300,
            usage=USAGE,
        ),
        {
            "stepNumber": 1,
            "detail": "The conversation was compacted",
            "messages": 4,
            "results": 1,
            "tokensBefore": 900,
            "tokensAfter": 300,
            "usage": WIRE,
        },
    ),
    (
        StreamEventReceived(**WHO, content="Hi", step_number=1, attempt=2, is_complete=True),
        {"content": "Hi", "stepNumber": 1, "attempt": 2, "isComplete": True},
    ),
]


@pytest.mark.parametrize(("event", "payload"), PAYLOADS, ids=[type(event).__name__ for event, _ in PAYLOADS])
def test_the_payload_of_an_event(event: Event, payload: dict[str, Any]) -> None:
    """4.6.1, 4.6.2, 0.7: these keys and no others; a tool is under `tool`."""
    assert json.loads(json.dumps(event.to_dict())) == payload | ON_THE_WIRE


@pytest.mark.parametrize(("event", "payload"), PAYLOADS, ids=[type(event).__name__ for event, _ in PAYLOADS])
def test_attributes_are_named_like_the_keys_in_snake_case(event: Event, payload: dict[str, Any]) -> None:
    """4.6.1."""
    for key in payload:
        attribute = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
        assert hasattr(event, attribute)
    assert not hasattr(event, "name")


def test_every_event_has_its_payload_here() -> None:
    """4.6.1."""
    assert {type(event) for event, _ in PAYLOADS} == set(Event.__subclasses__())


def test_an_unknown_value_is_null() -> None:
    """4.6.1."""
    event = AgentStepStarted(at=AT, step_number=1, message_count=0)
    assert event.to_dict() == {
        "agentId": None,
        "parentAgentId": None,
        "stepNumber": 1,
        "messageCount": 0,
        "availableTools": [],
    }
    assert an_evaluation(STOPS).to_dict()["stopSignal"] is None
    piece = StreamEventReceived(at=AT, content="Hi", step_number=1)
    assert (piece.attempt, piece.is_complete) == (1, False)


def test_events_do_not_change() -> None:
    """0.8."""
    event = AgentStepStarted(**WHO, step_number=1, message_count=0)
    for attribute in fields(event):
        with pytest.raises(AttributeError):
            setattr(event, attribute.name, None)


FORBIDS = ContinuationOutcome(ContinuationDecision.FORBID, False, "StepsLimit", StopReason.STEPS_LIMIT)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (STOPS, "Agent [00000000] step 3: STOP (completed)"),
        (FORBIDS, "Agent [00000000] step 3: STOP (steps_limit)"),
        (GOES_ON, "Agent [00000000] step 3: CONTINUE (requested by Worker)"),
    ],
)
def test_an_evaluation_reads_as_a_sentence(outcome: ContinuationOutcome, text: str) -> None:
    """4.6.2."""
    assert str(an_evaluation(outcome)) == text


# Listeners.

STARTED = AgentStepStarted(**WHO, step_number=1, message_count=0)
FINISHED = AgentFinished(**WHO, status=AgentStatus.COMPLETED, total_steps=1, total_usage=USAGE)


def test_listeners_are_called_in_the_order_of_registration() -> None:
    """4.6.3: all events, or one class."""
    bus, received = EventBus(), list[tuple[str, Event]]()
    bus.wiretap(lambda event: received.append(("all", event)))
    bus.on_event(AgentFinished, lambda event: received.append(("finished", event)))
    bus.on_event(Event, lambda event: received.append(("base", event)))
    bus.emit(STARTED)
    bus.emit(FINISHED)
    assert received == [
        ("all", STARTED),
        ("base", STARTED),
        ("all", FINISHED),
        ("finished", FINISHED),
        ("base", FINISHED),
    ]


def test_none_is_no_listener() -> None:
    """4.6.3."""
    bus = EventBus()
    bus.wiretap(None)
    bus.on_event(AgentFinished, None)
    assert bus.listeners == []


@pytest.mark.parametrize("odd", ["text", 5, object()])
def test_a_listener_can_be_called(odd: Any) -> None:
    """4.6.3: an object that is not callable is refused when it is registered."""
    bus = EventBus()
    with pytest.raises(InvalidInput, match="a listener must be callable"):
        bus.wiretap(odd)
    with pytest.raises(InvalidInput, match="a listener must be callable"):
        bus.on_event(AgentFinished, odd)


def fails(event: Event) -> None:
    raise ValueError(f"odd {type(event).__name__}")


def test_a_listener_that_raises_is_reported_with_its_event_and_its_cause() -> None:
    """4.6.3: those after it are not called."""
    bus, received = EventBus(), list[Event]()
    bus.wiretap(fails)
    bus.wiretap(received.append)
    with pytest.raises(ListenerFailed, match="AgentFinished") as failed:
        bus.emit(FINISHED)
    assert isinstance(failed.value.__cause__, ValueError)
    assert received == []


def test_a_bus_can_forward_to_another_bus() -> None:
    """4.6.3, 11: an exception of its listener stays the cause."""
    inner, outer = EventBus(), EventBus()
    outer.wiretap(inner.emit)
    inner.wiretap(fails)
    with pytest.raises(ListenerFailed) as failed:
        outer.emit(FINISHED)
    assert isinstance(failed.value.__cause__, ValueError)


def test_a_listener_may_register_another_while_it_is_called() -> None:
    """4.6.3: the new one gets the next event."""
    bus, received = EventBus(), list[Event]()

    def registering(_event: Event) -> None:
        bus.wiretap(received.append)

    bus.wiretap(registering)
    bus.emit(STARTED)
    assert received == []
    bus.emit(FINISHED)
    assert received == [FINISHED]


async def later_on(_event: Event) -> None: ...


class LaterOn:
    """An object whose call must be awaited."""

    async def __call__(self, _event: Event) -> None: ...


@pytest.mark.parametrize("listener", [later_on, LaterOn()], ids=["function", "object"])
def test_a_listener_that_would_have_to_be_awaited_is_refused(listener: Any) -> None:
    """4.6.3: it would never run."""
    bus = EventBus()
    with pytest.raises(InvalidInput, match="a listener is called synchronously and cannot be awaited"):
        bus.wiretap(listener)
    with pytest.raises(InvalidInput, match=r"make .* a plain function"):
        bus.on_event(AgentFinished, listener)
    assert bus.listeners == []


@pytest.mark.parametrize("kind", [str, "AgentFinished", (AgentFinished, AgentFailed), None])
def test_a_class_that_is_no_event_is_refused(kind: Any) -> None:
    """4.6.3."""
    with pytest.raises(InvalidInput, match="on_event takes a class of events, not "):
        EventBus().on_event(kind, print)
