"""Requests of hooks and processors to the loop, and the marks that they set for criteria."""

from dataclasses import dataclass, replace
from typing import Protocol

from everstep.agent_domain.loop.marks import mark_changes
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.values import EMPTY, FrozenDict


class _HasRequests(Protocol):
    @property
    def stop_signal(self) -> StopSignal | None: ...
    @property
    def continuation_requested(self) -> bool: ...
    @property
    def is_paused(self) -> bool: ...
    @property
    def marks(self) -> FrozenDict: ...


@dataclass(frozen=True, slots=True)
class Wishes:
    """Requests to stop, to continue with another step, or to pause. A guard may forbid another step."""

    stop: StopSignal | None = None
    another_step: bool = False
    pause: bool = False
    marks: FrozenDict = EMPTY
    """The marks that were set; None for one that was removed."""

    def __bool__(self) -> bool:
        return bool(self.stop or self.another_step or self.pause or self.marks)

    @classmethod
    def between(cls, before: _HasRequests, after: _HasRequests) -> "Wishes":
        """The requests made between two states; the message and context of a stop signal are dropped."""
        stop = after.stop_signal if after.stop_signal != before.stop_signal else None
        return cls(
            stop and replace(stop, message="", context=EMPTY),
            after.continuation_requested and not before.continuation_requested,
            after.is_paused and not before.is_paused,
            mark_changes(before.marks, after.marks),
        )

    def __or__(self, other: "Wishes") -> "Wishes":
        """Combine the requests; the first stop signal wins, and the last value of a mark."""
        return Wishes(
            self.stop or other.stop,
            self.another_step or other.another_step,
            self.pause or other.pause,
            self.marks.merged(other.marks),
        )


NO_WISHES = Wishes()
