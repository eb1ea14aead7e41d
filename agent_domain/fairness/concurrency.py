"""How many requests to a server are made at once, by how long they take.

A server that is busy answers more slowly, and more requests at once make it slower still, for everything else
that it does. So there may be more at once while requests take about as long as they take alone, and fewer
while they take much longer. (Precedent: the congestion control of TCP Vegas, Brakmo and Peterson 1995.)
"""

from dataclasses import dataclass
from typing import Final

SLOW: Final = 3.0
"""How many times as long as alone a request takes to a busy server, if nothing else is said."""
DRIFT: Final = 1.002
"""How fast the time of a request alone is forgotten, which may be another one later."""
BACK_OFF: Final = 0.9


@dataclass(slots=True)
class Concurrency:
    """The number of requests at once, between two bounds."""

    least: int
    most: int
    slow: float = SLOW
    limit: float = 0.0
    alone: float = 0.0
    """The seconds that a request takes if the server is not busy."""

    def __post_init__(self) -> None:
        self.limit = self.limit or float(self.least)

    @property
    def places(self) -> int:
        """How many requests may be made at once."""
        return int(self.limit)

    def finished(self, seconds: float, at_once: int) -> None:
        """Note how long a request took, while so many were made."""
        self.alone = min(self.alone * DRIFT, seconds) if self.alone else seconds
        if seconds > self.slow * self.alone:
            self.limit = max(self.least, self.limit * BACK_OFF)
        elif at_once >= self.places // 2:
            self.limit = min(self.most, self.limit + 1 / self.limit)
