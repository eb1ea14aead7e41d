"""A request to stop from outside the criteria: from a hook, a driver or a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, read_key


@dataclass(frozen=True, slots=True)
class StopSignal:
    """Asks the loop to stop at the next evaluation; cleared when a step starts."""

    reason: StopReason
    message: str = ""
    context: FrozenDict = EMPTY
    source: str = ""

    def __post_init__(self) -> None:
        if self.reason not in frozenset(StopReason):
            known, hint = ", ".join(StopReason), did_you_mean(str(self.reason), StopReason)
            raise InvalidInput(f"{self.reason!r} is not a stop reason; use one of: {known}{hint}")
        object.__setattr__(self, "reason", StopReason(self.reason))
        object.__setattr__(self, "context", frozen_map(self.context, "the context of a stop signal"))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "reason": self.reason,
            "message": self.message,
            "source": self.source,
            "context": self.context,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StopSignal":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "reason", StopReason),
            str(data.get("message", "")),
            data.get("context") or EMPTY,
            str(data.get("source", "")),
        )
