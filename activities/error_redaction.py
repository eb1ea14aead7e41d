"""Keeps exception texts out of workflow history, into which Temporal writes them.

A driver's message may quote a prompt, a database's the row that it refused. So only the kind of the exception
is reported; the worker's log has the rest. An `ApplicationError` is meant to be read and passes unchanged.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everstep.agent_domain.errors import ModelError, NotFound, StoreUnavailable
from everstep.agent_domain.storage.executions import ExecutionEnded

P = ParamSpec("P")
T = TypeVar("T")


def redact_errors(run: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the same activity, reporting only the kind of an exception."""

    @wraps(run)
    async def attempt(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await run(*args, **kwargs)
        except ApplicationError:
            raise
        except (ExecutionEnded, NotFound) as error:
            # The row is gone, so every later attempt would fail as well.
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
        except Exception as error:  # noqa: BLE001 -- only its kind may reach the workflow history
            kind = type(error).__name__
            activity.logger.warning("the attempt failed: %s", kind, exc_info=error)
            raise ApplicationError(_public_reason(error), type=kind) from None

    return attempt


SEE_THE_LOG = "the worker's log says why"
STORE_UNAVAILABLE = f"the store cannot be used now, and the attempt is repeated; {SEE_THE_LOG}"


def _public_reason(error: Exception) -> str:
    """Return what an operator can do about an error, in words of Everstep only."""
    if isinstance(error, StoreUnavailable):
        return STORE_UNAVAILABLE
    return (isinstance(error, ModelError) and error.advice) or SEE_THE_LOG
