"""What policies demand of their numbers."""

import math

from pydantic import ValidationError

from everstep.agent_domain.errors import InvalidInput


def whole(name: str, value: object, minimum: int) -> None:
    """Refuse what is no whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        problem = f"{name} is {value!r}; pass a whole number of at least {minimum}"
        raise InvalidInput(problem)


def any_whole(name: str, value: object) -> None:
    """Refuse what is no whole number; policies use this where zero or less switches something off."""
    if isinstance(value, bool) or not isinstance(value, int):
        problem = f"{name} is {value!r}; pass a whole number"
        raise InvalidInput(problem)


def finite(name: str, value: object) -> None:
    """Refuse what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        problem = f"{name} is {value!r}; pass a finite number"
        raise InvalidInput(problem)


MAX_TOLD = 10
"""How many faults are told of: enough to mend an answer, and not a page."""


def faults(error: ValidationError) -> str:
    """Name each fault with its place; neither the input nor an address of a manual is repeated."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{_place(detail['loc'])}{detail['msg']}" for detail in details[:MAX_TOLD]]
    more = [f"and {len(details) - MAX_TOLD} more"] if len(details) > MAX_TOLD else []
    return "; ".join([*told, *more])


def _place(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""
