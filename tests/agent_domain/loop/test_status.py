"""The status of an execution in the words of each layer."""

from enum import StrEnum

import pytest

from everstep.agent_domain.loop.status import (
    CREATED,
    RUNNING,
    WAITING,
    AgentStatus,
    ExecutionStatus,
    Situation,
    StopReason,
    WireStatus,
    final_situation,
)

DONE, FAILED = AgentStatus.COMPLETED, AgentStatus.FAILED


@pytest.mark.parametrize(
    ("situation", "agent", "execution", "wire"),
    [
        pytest.param(CREATED, "in_progress", "pending", "idle", id="created"),
        pytest.param(RUNNING, "in_progress", "running", "processing", id="running"),
        pytest.param(WAITING, "in_progress", "paused", "paused", id="waiting"),
        pytest.param(final_situation(FAILED, StopReason.ERROR), "failed", "failed", "failed", id="error"),
        pytest.param(
            final_situation(FAILED, StopReason.STEPS_LIMIT),
            "failed",
            "failed",
            "failed",
            id="failed at a limit",
        ),
        pytest.param(
            final_situation(DONE, StopReason.USER_REQUESTED),
            "completed",
            "cancelled",
            "cancelled",
            id="cancelled",
        ),
        pytest.param(
            final_situation(DONE, StopReason.COMPLETED), "completed", "completed", "completed", id="completed"
        ),
        *(
            pytest.param(
                final_situation(DONE, StopReason(reason)), "completed", "completed", "stopped", id=reason
            )
            for reason in (
                "steps_limit",
                "token_limit",
                "time_limit",
                "retry_limit",
                "finish_reason",
                "guard",
            )
        ),
    ],
)
def test_each_situation_has_a_word_in_every_layer(
    situation: Situation, agent: str, execution: str, wire: str
) -> None:
    """1.2.1: the table."""
    assert situation == (AgentStatus(agent), ExecutionStatus(execution), WireStatus(wire))
    assert (type(situation.agent), type(situation.execution), type(situation.wire)) == (
        AgentStatus,
        ExecutionStatus,
        WireStatus,
    )


@pytest.mark.parametrize("reason", StopReason)
def test_an_execution_that_failed_has_failed_for_any_reason(reason: StopReason) -> None:
    """1.2.1: the first row that matches."""
    assert final_situation(FAILED, reason) == (FAILED, ExecutionStatus.FAILED, WireStatus.FAILED)


@pytest.mark.parametrize("status", AgentStatus)
def test_the_reason_error_means_failed(status: AgentStatus) -> None:
    """1.2.1, by 3.7.1: the stop reason `error` ends an agent as failed."""
    assert final_situation(status, StopReason.ERROR) == (FAILED, ExecutionStatus.FAILED, WireStatus.FAILED)


@pytest.mark.parametrize("reason", StopReason)
def test_an_execution_that_ended_is_over_in_every_layer(reason: StopReason) -> None:
    """1.2.1."""
    situation = final_situation(DONE, reason)
    assert situation.agent.is_terminal
    assert situation.wire.is_terminal


@pytest.mark.parametrize("situation", [CREATED, RUNNING, WAITING])
def test_an_execution_that_may_continue_is_over_in_no_layer(situation: Situation) -> None:
    """1.2.1."""
    assert not situation.agent.is_terminal
    assert not situation.wire.is_terminal


@pytest.mark.parametrize(
    ("vocabulary", "words"),
    [
        (AgentStatus, "in_progress completed failed"),
        (ExecutionStatus, "pending running paused completed failed cancelled"),
        (WireStatus, "idle processing paused completed stopped failed cancelled"),
        (
            StopReason,
            "completed steps_limit token_limit time_limit retry_limit "
            "error finish_reason guard user_requested",
        ),
    ],
)
def test_the_words_of_each_vocabulary_are_fixed(vocabulary: type[StrEnum], words: str) -> None:
    """1.2.1, 2.3.1: and a member has the name of its word."""
    assert [member.value for member in vocabulary] == words.split()
    assert [member.name for member in vocabulary] == words.upper().split()


def test_three_reasons_are_limits_of_resources() -> None:
    """2.2.4: those that veto only further work."""
    assert [reason for reason in StopReason if reason.is_resource_limit] == [
        "steps_limit",
        "token_limit",
        "time_limit",
    ]
