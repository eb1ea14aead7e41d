"""An exhausted budget as the failure of the activity that asks a model, and back.

A failure and not a result: a step without a model call has no facts. Only executions with a budget meet it.
"""

from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter
from temporalio.exceptions import ActivityError, ApplicationError, ApplicationErrorCategory

from everstep.agent_domain.loop.budget import ExhaustedBudget

BUDGET_EXHAUSTED: Final = "BudgetExhausted"
BUDGET_RESERVED: Final = "BudgetReserved"

_EXHAUSTED = TypeAdapter(ExhaustedBudget)


def exhausted_failure(budget: ExhaustedBudget) -> ApplicationError:
    """The failure that reports an exhausted budget; Temporal does not retry it."""
    return ApplicationError(
        budget.text,
        _EXHAUSTED.dump_python(budget, mode="json"),
        type=BUDGET_EXHAUSTED,
        non_retryable=True,
        category=ApplicationErrorCategory.BENIGN,
    )


def find_exhausted_budget(error: ActivityError) -> ExhaustedBudget | None:
    """The budget that an activity reported as exhausted; None if it failed for another reason."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type != BUDGET_EXHAUSTED:
        return None
    return _EXHAUSTED.validate_python(cause.details[0])


def reserved_failure(pause: timedelta) -> ApplicationError:
    """The failure of an attempt that found the rest of a budget reserved by other calls; Temporal retries."""
    return ApplicationError(
        "other model calls have reserved the rest of the budget",
        type=BUDGET_RESERVED,
        next_retry_delay=pause,
        category=ApplicationErrorCategory.BENIGN,
    )
