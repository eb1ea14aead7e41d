"""Checks of the numbers in policies, and readable texts of validation errors."""

import math

from pydantic import ValidationError

from everstep.agent_domain.errors import InvalidInput


def require_integer_at_least(name: str, value: object, minimum: int) -> None:
    """Raise `InvalidInput` unless the value is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        problem = f"{name} is {value!r}; pass a whole number of at least {minimum}"
        raise InvalidInput(problem)


def require_integer(name: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is a whole number.

    Policies use this where zero or a negative number switches something off.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        problem = f"{name} is {value!r}; pass a whole number"
        raise InvalidInput(problem)


def require_finite(name: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        problem = f"{name} is {value!r}; pass a finite number"
        raise InvalidInput(problem)


MAX_FAULTS = 10
"""At most this many faults are listed: enough to correct an answer, without filling a page."""


def faults(error: ValidationError) -> str:
    """List the faults with their locations, without the input and links to pydantic's documentation."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{_place(detail['loc'])}{detail['msg']}" for detail in details[:MAX_FAULTS]]
    more = [f"and {len(details) - MAX_FAULTS} more"] if len(details) > MAX_FAULTS else []
    return "; ".join([*shown, *more])


def _place(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""
