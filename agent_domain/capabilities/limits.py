"""What policies demand of their numbers."""

import math

from agent_domain.errors import InvalidInput


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
