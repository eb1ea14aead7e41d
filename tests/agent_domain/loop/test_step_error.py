"""A step's record of an exception."""

import pytest

from everstep.agent_domain.errors import (
    InvalidModelOutput,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    ToolFailed,
)
from everstep.agent_domain.loop.step_error import ErrorType, StepError


def test_there_are_six_types() -> None:
    """3.1.1"""
    assert [str(kind) for kind in ErrorType] == [
        "tool",
        "model",
        "validation",
        "rate_limit",
        "timeout",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RateLimited("slow down"), ErrorType.RATE_LIMIT),
        (ModelTimeout("late"), ErrorType.TIMEOUT),
        (TimeoutError("late"), ErrorType.TIMEOUT),
        (InvalidModelOutput("no JSON"), ErrorType.VALIDATION),
        (ModelError("credentials"), None),
        (ModelUnavailable("503"), None),
        (ToolFailed("no such city"), None),
        (ZeroDivisionError("division by zero"), None),
    ],
)
def test_an_exception_with_a_type_gives_the_type(error: Exception, kind: ErrorType | None) -> None:
    """3.4.2: others are judged by their place."""
    kept = StepError.of(error)

    is_public = isinstance(error, ToolFailed)
    assert kept == StepError(str(error), kind, None, type(error).__name__, is_public=is_public)


def test_an_exception_without_a_text_is_shown_by_its_name() -> None:
    assert StepError.of(KeyError()).message == "KeyError"
    assert StepError.of(TimeoutError()).message == "TimeoutError"


def test_an_exception_class_with_an_invalid_name_is_shown_by_its_base_class() -> None:
    """5.4.4: everyone may read the kind of an exception."""
    made = type("Refused password=hunter2", (OSError,), {})
    assert StepError.of(made("no")).exception == "OSError"


def test_the_failing_tool_is_kept() -> None:
    """3.4.1"""
    assert StepError.of(ToolFailed("no such city"), "weather").tool_name == "weather"


@pytest.mark.parametrize(
    "error",
    [
        StepError("plain"),
        StepError("late", ErrorType.TIMEOUT, "weather", "TimeoutError"),
        StepError.of(RateLimited("slow down", 3)),
    ],
)
def test_an_error_reads_back_as_it_was_written(error: StepError) -> None:
    """4.1.7"""
    assert StepError.from_dict(error.to_dict()) == error


def test_the_written_form_has_four_keys() -> None:
    """0.7: camelCase, as in every full state."""
    assert StepError("late", ErrorType.TIMEOUT, "weather", "TimeoutError").to_dict() == {
        "message": "late",
        "type": "timeout",
        "toolName": "weather",
        "exception": "TimeoutError",
    }


def test_an_error_of_another_version_is_read() -> None:
    """0.6: unknown keys are skipped, missing ones are empty."""
    assert StepError.from_dict({"colour": "red"}) == StepError("")
    assert StepError.from_dict({"message": "no", "type": ""}) == StepError("no")


def test_an_exception_whose_text_raises_is_shown_by_its_name() -> None:
    """4.3.4: exceptions are foreign code."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert StepError.of(Mute()) == StepError("Mute", exception="Mute")
