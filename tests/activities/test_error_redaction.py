"""An activity that fails reports the kind of the failure, and nothing else."""

import logging
from uuid import UUID

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from everstep.activities.error_redaction import redact_errors
from everstep.agent_domain.errors import ModelError, NotFound, StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionEnded

ID = UUID(int=7)


@redact_errors
async def attempt(error: Exception | None) -> str:
    """Succeeds, or fails."""
    if error:
        raise error from KeyError("a secret too")
    return "done"


async def redacted_failure(error: Exception) -> ApplicationError:
    with pytest.raises(ApplicationError) as raised:
        await ActivityEnvironment().run(attempt, error)
    return raised.value


async def test_a_success_is_unchanged() -> None:
    """1.1.3: only failures are redacted."""
    assert await ActivityEnvironment().run(attempt, None) == "done"


async def test_a_failure_is_reported_by_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    """1.1.3: its message and its cause are in the worker's log only."""
    with caplog.at_level(logging.WARNING):
        failure = await redacted_failure(RuntimeError("a secret"))

    assert (failure.type, failure.message, failure.non_retryable) == (
        "RuntimeError",
        "the worker's log says why",
        False,
    )
    assert failure.__cause__ is None
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound("execution", ID), f"There is no execution {ID}"),
        (ExecutionEnded(ID, ExecutionStatus.CANCELLED), f"The execution {ID} has ended as cancelled"),
    ],
)
async def test_a_missing_row_is_not_retried(error: Exception, message: str) -> None:
    """8.2.1: these messages hold ids only."""
    failure = await redacted_failure(error)

    assert (failure.type, failure.message, failure.non_retryable) == (type(error).__name__, message, True)


async def test_an_error_meant_for_readers_passes() -> None:
    """3.5.1: with the wait that a provider asked for."""
    asked = ApplicationError("busy", type="RateLimited", non_retryable=True)

    assert await redacted_failure(asked) is asked


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelError("a secret", advice="Set OPENAI_API_KEY"), "Set OPENAI_API_KEY"),
        (ModelError("a secret"), "the worker's log says why"),
        (
            StoreUnavailable("a secret"),
            "the store cannot be used now, and the attempt is repeated; the worker's log says why",
        ),
    ],
)
async def test_a_failure_says_what_to_do_about_it(error: Exception, message: str) -> None:
    """15.6.7: in words of Everstep only."""
    failure = await redacted_failure(error)

    assert (failure.type, failure.message) == (type(error).__name__, message)
