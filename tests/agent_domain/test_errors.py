"""Errors give advice, and are caught under the names that Python programmers know."""

import pytest

from everstep.agent_domain.errors import (
    RETRYABLE,
    AgentError,
    EverstepError,
    InvalidInput,
    InvalidModelOutput,
    ListenerFailed,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    ToolFailed,
    UnknownName,
    unknown_name_text,
)


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (InvalidInput("no"), (EverstepError, ValueError)),
        (UnknownName("agent", "x", []), (InvalidInput, ValueError, LookupError)),
        (ListenerFailed("AgentFinished"), (EverstepError,)),
        (ModelError("no"), (AgentError, EverstepError)),
        (RateLimited("slow down"), (ModelError,)),
        (ModelTimeout("late"), (ModelError, TimeoutError)),
        (ModelUnavailable("503"), (ModelError,)),
        (InvalidModelOutput("no JSON"), (ModelError,)),
        (ToolFailed("no such city"), (AgentError,)),
    ],
)
def test_an_error_is_also_a_builtin_exception(error: Exception, bases: tuple[type[Exception], ...]) -> None:
    assert isinstance(error, (EverstepError, *bases))


def test_errors_of_the_loop_differ_from_errors_of_the_caller() -> None:
    assert not isinstance(InvalidInput("no"), AgentError)
    assert not isinstance(ListenerFailed("AgentFinished"), AgentError)
    assert not isinstance(ToolFailed("no"), ModelError)


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    """5.4.3, 10.2.1: the text is a contract for tools, agents and schemas alike. Follows rule 1.4.1."""
    error = UnknownName("tool", "serach", ["search", "read_file"])

    assert str(error) == "No tool named 'serach'. Choose from: search, read_file; did you mean 'search'?"
    assert unknown_name_text("tool", "serach", ["search"]) == "No tool named 'serach'. Choose from: search"
    assert error.name == "serach"
    assert str(UnknownName("key", "x", ["a"], verb="Known")) == "No key named 'x'. Known: a"
    assert str(UnknownName("tool", "x", iter(()))) == "No tool named 'x'. Choose from: "


@pytest.mark.parametrize("kind", [RateLimited, ModelUnavailable])
def test_a_provider_may_set_the_wait(kind: type[RateLimited | ModelUnavailable]) -> None:
    """3.5.1: at least a received `Retry-After`."""
    assert kind("slow down", 2.5).retry_after == 2.5
    assert kind("slow down").retry_after is None
    assert str(kind("slow down", 2.5)) == "slow down"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RateLimited("slow down"), True),
        (ModelTimeout("late"), True),
        (ModelUnavailable("503"), True),
        (ModelError("credentials"), False),
        (InvalidModelOutput("no JSON"), False),
        (ToolFailed("no such city"), False),
    ],
)
def test_temporary_errors_differ_from_permanent_ones(error: Exception, passes: bool) -> None:
    """3.5.1, 3.5.2"""
    assert isinstance(error, RETRYABLE) is passes


def test_a_failed_listener_names_the_event() -> None:
    assert str(ListenerFailed("AgentFinished")).startswith("A listener raised while handling AgentFinished")
