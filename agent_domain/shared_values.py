"""Values that many executions have alike, such as the definition and the plan of their agent.

A process that runs a thousand executions of an agent with many tools holds one copy of it instead of a
thousand. A copy is shared only if it is equal in every part.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_VALUES: Final = 200
"""The number of values that are kept, each for a definition of an agent."""


class SharedValues(Generic[T]):
    """The last value for each key; all are evicted when there are too many. Threads may use it."""

    def __init__(self, limit: int = MAX_VALUES) -> None:
        self._limit = limit
        self._values: dict[Hashable, T] = {}

    def share(self, key: Hashable, value: T) -> T:
        """Return an equal value that was passed before with this key, or else this one.

        Args:
            key: Under which equal values are likely.
            value: Nothing may change it.
        """
        known = self._values.get(key)
        if known is not None and known == value:
            return known
        if len(self._values) >= self._limit:
            self._values.clear()
        self._values[key] = value
        return value
