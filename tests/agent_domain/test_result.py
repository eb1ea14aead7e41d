"""Outcomes as values (10.3.2: `create(name, config)` → Result)."""

import pytest

from everstep.agent_domain.result import Failure, Success, attempt


def test_a_success_holds_its_value() -> None:
    """10.3.2."""
    result = Success(3)
    assert result.is_success
    assert result.value == result.unwrap() == 3


def test_a_failure_raises_its_error_when_unwrapped() -> None:
    """10.3.2."""
    result = Failure(ValueError("no"))
    assert not result.is_success
    with pytest.raises(ValueError, match="no"):
        result.unwrap()


def test_an_attempt_turns_an_exception_into_a_failure() -> None:
    """10.3.2."""
    assert attempt(lambda: "made") == Success("made")
    failed = attempt(lambda: 1 // 0)
    assert isinstance(failed, Failure)
    assert isinstance(failed.error, ZeroDivisionError)


def test_an_attempt_lets_an_interruption_through() -> None:
    """10.3.2."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupt)
