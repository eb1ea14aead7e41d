"""What a decision between two steps has read that is recorded with it, so that it can be repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from everstep.agent_domain.loop.budget import ExhaustedBudget
from everstep.agent_domain.values import read_key, read_optional

_EXHAUSTED = TypeAdapter(ExhaustedBudget)


@dataclass(frozen=True, slots=True)
class Boundary:
    """What the decision after a step has read of which the rows of steps and calls say nothing."""

    elapsed_seconds: float
    """Since the run began or was last resumed."""
    worked_seconds: float
    """Seconds of work of the execution."""
    steered: int = 0
    """Steering messages that waited."""
    exhausted: ExhaustedBudget | None = None
    """The budget that did not cover the next model call."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; usual values are left out."""
        data: dict[str, Any] = {
            "elapsed_seconds": self.elapsed_seconds,
            "worked_seconds": self.worked_seconds,
        }
        if self.steered:
            data["steered"] = self.steered
        if self.exhausted:
            data["exhausted"] = _EXHAUSTED.dump_python(self.exhausted, mode="json")
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Boundary":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "elapsed_seconds", float),
            read_key(data, "worked_seconds", float),
            read_optional(data, "steered", int) or 0,
            read_optional(data, "exhausted", _EXHAUSTED.validate_python),
        )
