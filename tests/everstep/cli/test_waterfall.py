"""When the parts of a step were."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.requests import RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY
from everstep.cli.waterfall import Span, SpanKind, spans_of, step_end

START = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(UUID(int=1))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def a_call(start: float | None = None, end: float | None = None, *, state: str = "done") -> CallRow:
    call = ToolCall("c1", "transfer")
    if start is None or end is None:
        return CallRow(call, state, 1, None)
    return CallRow(call, "done", 1, CallRecord("c1", "x", None, "x", at(start), at(end), end - start))


def a_step(*calls: CallRow, ended: float | None = None, **changes: Any) -> StepRow:
    completed = None if ended is None else at(ended)
    return replace(StepRow(1, 1, StepFacts(number=1), (), None, "", START, completed, calls=calls), **changes)


def a_request(created: float, resolution: Resolution | None = None) -> RequestRow:
    state = RequestState.OPEN if resolution is None else RequestState.RESOLVED
    return RequestRow(
        UUID(int=7), REF, "c1", CallNeed.APPROVAL, state, "transfer", EMPTY, "", EMPTY, resolution,
        at(created), 1,
    )  # fmt: skip


def told(spans: tuple[Span, ...]) -> list[tuple[str, str, float, float, bool]]:
    return [
        (
            str(span.kind),
            span.name,
            (span.start - START).total_seconds(),
            (span.end - START).total_seconds(),
            span.is_open,
        )
        for span in spans
    ]


def test_the_model_answers_until_its_first_call_begins() -> None:
    """15.5.8"""
    step = a_step(a_call(2, 5), ended=5.5)

    assert told(spans_of(step, (), at(9))) == [
        ("model", "model", 0, 2, False),
        ("call", "transfer", 2, 5, False),
    ]
    assert step_end(step, (), at(9)) == at(5.5)


def test_the_time_of_lost_attempts_is_not_called_the_models() -> None:
    """15.5.8"""
    step = a_step(replace(a_call(30, 50), attempts=2), ended=51)

    assert told(spans_of(step, (), at(60))) == [
        ("model", "model, lost attempts", 0, 30, False),
        ("call", "transfer, 2 attempts", 30, 50, False),
    ]


def test_a_step_without_calls_is_the_model_until_its_end() -> None:
    """15.5.8"""
    assert told(spans_of(a_step(ended=3), (), at(9))) == [("model", "model", 0, 3, False)]


def test_a_model_that_is_asked_has_an_open_end() -> None:
    """15.5.8"""
    step = a_step(facts=None)

    spans = spans_of(step, (), at(4))
    assert told(spans) == [("model", "model", 0, 4, True)]
    assert step_end(step, spans, at(4)) == at(4)


def test_the_wait_for_a_person_ends_with_the_decision() -> None:
    """15.5.8"""
    decided = Resolution("approve", by=Decider("ann", at(60)))
    step = a_step(a_call(60.5, 61))

    assert told(spans_of(step, [a_request(1, decided)], at(90))) == [
        ("model", "model", 0, 1, False),
        ("people", "approval of transfer", 1, 60, False),
        ("call", "transfer", 60.5, 61, False),
    ]
    assert step_end(step, spans_of(step, [a_request(1, decided)], at(90)), at(90)) == at(61)


def test_an_undecided_call_waits_until_now() -> None:
    """15.5.8"""
    step = a_step(a_call(state="told"))

    spans = spans_of(step, [a_request(1)], at(30))
    assert told(spans)[1:] == [("people", "approval of transfer", 1, 30, True)]
    assert spans[1].line(START) == "+1.0 s  approval of transfer  29 s so far"


def test_the_wait_for_a_retry_precedes_the_attempt_that_answered() -> None:
    """15.5.8"""
    wait = RetryWait(1, at(1), at(9), "provider unavailable", "503")
    step = a_step(ended=12, attempt=2, wait=wait)

    assert told(spans_of(step, (), at(20))) == [
        ("retry", "provider unavailable", 1, 9, False),
        ("model", "model, attempt 2", 9, 12, False),
    ]
    waiting = replace(step, facts=None, attempt=1, completed_at=None)
    assert told(spans_of(waiting, (), at(5))) == [("retry", "provider unavailable", 1, 5, True)]


def test_requests_of_other_steps_and_executions_are_not_of_this_step() -> None:
    """15.5.8"""
    other_step = replace(a_request(1), step_number=2)
    other_call = replace(a_request(1), call_id="another")

    assert len(spans_of(a_step(a_call(2, 5)), [other_step, other_call], at(9))) == 2


@pytest.mark.parametrize(("is_open", "ended"), [(True, None), (False, "2026-01-16T10:05:02.000000Z")])
def test_a_span_as_data(is_open: bool, ended: str | None) -> None:
    """15.5.9"""
    span = Span(SpanKind.CALL, "transfer", START, at(2), is_open)

    assert span.to_dict() == {
        "kind": "call",
        "name": "transfer",
        "started_at": "2026-01-16T10:05:00.000000Z",
        "ended_at": ended,
        "seconds": 2.0,
        "failed": False,
    }
