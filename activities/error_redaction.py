"""What an activity says of an exception: Temporal writes it into workflow history.

A driver's message may quote a prompt, a database's the row that it refused. So only the kind of the
exception goes there; the worker's log has the rest. What an activity raises as an `ApplicationError` is meant
to be read and passes.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.storage.executions import ExecutionEnded

P = ParamSpec("P")
T = TypeVar("T")


def discreet(run: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The same activity, except for what it says when it fails."""

    @wraps(run)
    async def attempt(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await run(*args, **kwargs)
        except ApplicationError:
            raise
        except (ExecutionEnded, NotFound) as error:
            # No later attempt would find what is gone.
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is not said here
            kind = type(error).__name__
            activity.logger.warning("the attempt failed: %s", kind, exc_info=error)
            raise ApplicationError("the worker's log says why", type=kind) from None

    return attempt
