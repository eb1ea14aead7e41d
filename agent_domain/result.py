"""An outcome as a value, where a failure is an answer and not an accident.

`Success(value)` or `Failure(error)`; both know `is_success` and `unwrap()`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Success(Generic[T_co]):
    """It worked, and this is what came out."""

    value: T_co
    is_success: ClassVar[Literal[True]] = True

    def unwrap(self) -> T_co:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Failure:
    """It did not work, and this is why."""

    error: Exception
    is_success: ClassVar[Literal[False]] = False

    def unwrap(self) -> NoReturn:
        """Raise the error, for callers that cannot go on."""
        raise self.error


Result: TypeAlias = Success[T] | Failure


def attempt(make: Callable[[], T]) -> Result[T]:
    """What `make` returns, or the exception that it raises."""
    try:
        return Success(make())
    except BaseException as error:
        # Being interrupted or told to exit is no outcome.
        if not isinstance(error, Exception):
            raise
        return Failure(error)
