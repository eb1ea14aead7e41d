"""The outcome of an operation as a value, where a failure is an expected result.

`Success(value)` or `Failure(error)`; both have `is_success` and `unwrap()`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Success(Generic[T_co]):
    """A successful outcome."""

    value: T_co
    is_success: ClassVar[Literal[True]] = True

    def unwrap(self) -> T_co:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed outcome."""

    error: Exception
    is_success: ClassVar[Literal[False]] = False

    def unwrap(self) -> NoReturn:
        """Raise the error, for callers that cannot handle it."""
        raise self.error


Result: TypeAlias = Success[T] | Failure


def attempt(make: Callable[[], T]) -> Result[T]:
    """Call `make`; its return value is the success, its exception the failure."""
    try:
        return Success(make())
    except BaseException as error:
        # KeyboardInterrupt, SystemExit and cancellation are not outcomes.
        if not isinstance(error, Exception):
            raise
        return Failure(error)
