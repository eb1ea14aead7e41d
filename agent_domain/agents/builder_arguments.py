"""Checks of the arguments of a builder's methods, with the method's name in the error."""

from math import isfinite
from typing import TypeVar

from everstep.agent_domain.errors import InvalidInput

T = TypeVar("T")


def require_type(method: str, value: object, kind: type[T], how: str = "") -> T:
    """The value, if it is an instance of the class.

    Args:
        method: The builder's method, for the error.
        value: What it was given.
        kind: The class.
        how: What to pass instead, if the name of the class does not say it.

    Raises:
        InvalidInput: It is not.
    """
    expected = how or f"pass {kind.__name__}"
    # A class has the methods of its instances, so an isinstance check against a protocol passes for it.
    if isinstance(value, type):
        raise InvalidInput(f"{method} was given {value!r}; {expected}: an instance, not the class")
    if not isinstance(value, kind):
        raise InvalidInput(f"{method} was given {value!r}; {expected}")
    return value


def require_whole(method: str, value: object) -> int:
    """The value, if it is a whole number.

    Raises:
        InvalidInput: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{method} was given {value!r}; pass a whole number")
    return value


def require_count(method: str, value: object) -> int:
    """The value, if it is a whole number and not negative.

    Raises:
        InvalidInput: It is not.
    """
    count = require_whole(method, value)
    if count < 0:
        raise InvalidInput(f"{method} was given {count}; pass 0 or more")
    return count


def require_seconds(method: str, value: object) -> float:
    """The value, if it is a finite number.

    Raises:
        InvalidInput: It is not.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not _is_finite(value):
        raise InvalidInput(f"{method} was given {value!r}; pass a finite number of seconds")
    return value


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:
        return False
