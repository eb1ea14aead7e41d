"""The statuses that an adapter sends: when they change, and the last one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import AgentStatus, StopReason, WireStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.state.broadcast_adapter import BroadcastConfig
from everstep.agent_domain.state.events import (
    ContinuationEvaluated,
    Event,
)
from tests.agent_domain.state.broadcasts import (
    DEBUG,
    NOW,
    STANDARD,
    UNTRACKED,
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


def test_the_start_of_a_step_means_processing_before_it_is_sent() -> None:
    """7.4.1."""
    assert record_envelopes([step_start()]).summaries() == ["status processing", "step.started"]


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
    assert record_envelopes([stop_evaluation(1, StopReason(reason))]).summaries() == [f"status {status}"]
    failure = evaluation(1, an_outcome(StopReason(reason)), AgentStatus.FAILED)
    assert record_envelopes([failure]).summaries() == ["status failed"]


def test_the_table_covers_all_reasons() -> None:
    """7.4.1, 2.3.1."""
    assert len(StopReason) == 9


def test_an_evaluation_that_continues_changes_no_status() -> None:
    """7.4.1."""
    assert record_envelopes([step_start(), step_end(), evaluation()]).of("agent.status") == record_envelopes(
        [step_start()]
    ).of("agent.status")


def test_a_failure_is_sent_with_its_error() -> None:
    """7.4.1."""
    (status,) = record_envelopes([agent_failure("out of memory")]).of("agent.status")
    assert (status["status"], status["error_message"]) == ("failed", "out of memory")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (
            evaluation(1, an_outcome(StopReason.ERROR), AgentStatus.FAILED, ("no disk", "no net")),
            "no disk\nno net",
        ),
        (evaluation(1, an_outcome(StopReason.ERROR), AgentStatus.FAILED), "because"),
        (evaluation(1, replace(an_outcome(StopReason.ERROR), evaluations=()), AgentStatus.FAILED), None),
        (evaluation(1, an_outcome(StopReason.GUARD), AgentStatus.COMPLETED, ("forgiven",)), None),
    ],
)
def test_the_end_contains_its_error_if_there_is_one(end: ContinuationEvaluated, error: str | None) -> None:
    """7.4.1, 7.2: the failure, or the decider's reason to forbid another step; null if unknown."""
    assert record_envelopes([end]).of("agent.status")[0]["error_message"] == error


def test_pause_and_resume_are_statuses_as_well() -> None:
    """7.4.1."""
    adapter, recorder = an_adapter()
    adapter.on_agent_step_started(step_start())
    adapter.on_agent_paused()
    adapter.on_agent_resumed()
    assert recorder.summaries() == ["status processing", "step.started", "status paused", "status processing"]
    assert [envelope.timestamp for envelope in recorder.sent[2:]] == [NOW, NOW]


def test_a_status_is_sent_when_it_changes_and_only_then() -> None:
    """7.4.2: a failure is sent once, by the first event that reports it."""
    adapter, recorder = an_adapter()
    for event in (step_start(1), step_start(2)):
        adapter.on_agent_step_started(event)
    adapter.on_agent_paused()
    adapter.on_agent_paused()
    adapter.on_agent_resumed()
    adapter.on_agent_resumed()
    adapter.on_continuation_evaluated(stop_evaluation(2, StopReason.ERROR))
    adapter.on_agent_failed(agent_failure())
    statuses = [payload["status"] for payload in recorder.of("agent.status")]
    assert statuses == ["processing", "paused", "processing", "failed"]


def test_an_agent_may_continue_after_its_end_without_a_reset() -> None:
    """7.4.2: and its envelopes are not taken for earlier ones."""
    run = [step_start(), text_event("Hi", last=True), call_start(), call_end(), step_end(), stop_evaluation()]
    recorder = record_envelopes([*run, *run], DEBUG)
    once = record_envelopes(run, DEBUG).summaries()
    assert recorder.summaries() == [*once, *once]
    assert recorder.of("agent.status")[2]["previous_status"] == "completed"
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


@pytest.mark.parametrize(
    "cut_short",
    [
        [step_start(1), step_end(1), evaluation(1), step_start(2)],
        [evaluation(0, an_outcome(StopReason.STEPS_LIMIT))],
        [step_start(1), agent_failure()],
    ],
)
def test_a_restarted_run_is_not_taken_for_the_previous_one(cut_short: Sequence[Event]) -> None:
    """7.1.1, 7.4.2: ids stay unique for any end of the previous run."""
    recorder = record_envelopes([*cut_short, *cut_short], DEBUG)
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


def test_an_event_received_twice_is_the_same_envelope_twice() -> None:
    """7.1.1."""
    first, second = (
        e for e in record_envelopes([step_start(), step_start()]).sent if e.type == "agent.step.started"
    )
    assert first == second


def test_a_run_that_continues_after_a_manual_end_is_the_same_run() -> None:
    """7.1.1, 7.4.3: its steps count on, so an event received twice gives the same envelope."""
    adapter, recorder = an_adapter(UNTRACKED)
    adapter.on_agent_step_started(step_start(1))
    adapter.on_agent_status_changed("stopped")
    for _ in range(2):
        adapter.on_agent_step_started(step_start(2))
    assert recorder.sent[-1] == recorder.sent[-2]


def test_a_run_that_restarts_after_a_manual_end_is_another_one() -> None:
    """7.1.1, 7.4.3."""
    adapter, recorder = an_adapter(UNTRACKED)
    for _ in range(2):
        adapter.on_agent_step_started(step_start(1))
        adapter.on_agent_status_changed("stopped")
    assert len({envelope.id for envelope in recorder.sent}) == 4


@pytest.mark.parametrize(
    ("reason", "status"), [(StopReason.COMPLETED, "completed"), (StopReason.GUARD, "stopped")]
)
def test_the_trace_comes_before_the_end_and_the_end_is_last(reason: StopReason, status: str) -> None:
    """7.4.2."""
    recorder = record_envelopes([step_start(), step_end(), stop_evaluation(1, reason)], DEBUG)
    assert recorder.summaries()[-2:] == ["continuation", f"status {status}"]


def test_a_criterion_that_raises_ends_the_execution_with_its_failure_step() -> None:
    """7.4.1, 7.4.2, 2.2.7: the status comes after that step, and once."""
    failure = StepError("no such key", exception="KeyError")
    outcome = an_outcome(StopReason.ERROR, stop_reason=StopReason.ERROR, error=failure)
    end = evaluation(2, outcome, AgentStatus.FAILED, ("no such key",), "A tree")
    recorder = record_envelopes(
        [
            *(step_start(1), step_end(1, outcome), evaluation(1, outcome, AgentStatus.FAILED)),
            *(step_start(2), step_end(2, outcome), end, agent_failure("no such key", 2)),
        ]
    )
    assert recorder.summaries() == [
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
    adapter.on_agent_step_started(step_start())
    adapter.on_agent_status_changed("completed")
    adapter.on_continuation_evaluated(stop_evaluation())
    assert recorder.summaries() == ["status processing", "step.started", "status completed"]


def test_an_unknown_status_is_refused() -> None:
    """7.4.3, 1.2.1: the words of another layer are not the wire's."""
    adapter, _ = an_adapter()
    with pytest.raises(InvalidInput, match="idle, processing, paused, completed, stopped, failed, cancelled"):
        adapter.on_agent_status_changed("running")


def test_without_tracking_no_status_is_sent_automatically() -> None:
    """7.4.1, 7.5."""
    adapter, recorder = an_adapter(UNTRACKED)
    for event in (step_start(), step_end(), stop_evaluation(), agent_failure()):
        adapter.wiretap()(event)
    adapter.on_agent_paused()
    adapter.on_agent_resumed()
    assert recorder.summaries() == ["step.started", "step.completed"]


def test_a_reset_sends_nothing_and_starts_over() -> None:
    """7.4.3: `idle`, and the next chunk is the first."""
    adapter, recorder = an_adapter()
    events = [step_start(), text_event("a"), text_event("b")]
    for event in events:
        adapter.wiretap()(event)
    first = recorder.summaries()
    adapter.reset()
    assert recorder.summaries() == first
    for event in events:
        adapter.wiretap()(event)
    assert (
        recorder.summaries()
        == [*first, *first]
        == [
            *["status processing", "step.started", "1.1#0 a", "1.1#1 b"] * 2,
        ]
    )
    assert recorder.of("agent.status")[1]["previous_status"] == "idle"
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)


ANYTHING = st.lists(
    st.one_of(
        st.builds(step_start, st.integers(1, 3)),
        st.builds(step_end, st.integers(1, 3)),
        st.builds(stop_evaluation, st.integers(0, 3), st.sampled_from(StopReason)),
        st.builds(evaluation, st.integers(1, 3)),
        st.builds(agent_failure),
    ),
    max_size=30,
)


@given(ANYTHING)
def test_every_status_follows_from_the_previous_one(events: list[Event]) -> None:
    """7.4.2, 7.2: a change each time, and never back to `idle`."""
    statuses = record_envelopes(events).of("agent.status")
    chain = ["idle", *(status["status"] for status in statuses)]
    assert [status["previous_status"] for status in statuses] == chain[:-1]
    assert all(before != after for before, after in pairwise(chain))
    assert "idle" not in chain[1:]
