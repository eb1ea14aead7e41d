"""What a step changes in an agent's metadata: kept in the order of the steps, and read as their sum.

Nobody overwrites the metadata of an execution. Each call, hook and processor leaves its own notes at its own
place, so calls that run at the same time cannot lose each other's, whoever is first, and the metadata as they
were at any step can be read later.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.capabilities import critique
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, valid_text

OF_ONE_EXECUTION = (critique.RESULT_KEY, critique.ITERATION_KEY)
"""What goes when the next execution of a conversation begins."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Keys that were set, and keys that were removed."""

    values: FrozenDict = EMPTY
    removed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen_map(self.values, "metadata"))

    def __bool__(self) -> bool:
        return bool(self.values or self.removed)

    @classmethod
    def between(cls, before: FrozenDict, after: FrozenDict) -> "Notes":
        """What was changed."""
        changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
        return cls(FrozenDict(changed), tuple(key for key in before if key not in after))

    def added_to(self, metadata: FrozenDict) -> FrozenDict:
        """The metadata with these notes."""
        kept = {key: value for key, value in metadata.items() if key not in self.removed}
        return FrozenDict({**kept, **self.values}) if self else metadata

    def and_then(self, later: "Notes") -> "Notes":
        """Both, the later ones last."""
        gone = [*self.removed, *later.removed]
        values = later.added_to(self.values)
        return Notes(values, tuple(dict.fromkeys(key for key in gone if key not in values)))

    def to_dict(self) -> dict[str, Any]:
        """The written form."""
        return {"values": self.values, "removed": list(self.removed)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Notes":
        """Read the written form."""
        removed = tuple(valid_text(key, "a removed key") for key in data.get("removed") or ())
        return cls(frozen_map(data.get("values") or {}, "metadata"), removed)


NO_NOTES = Notes()


def of_next_execution(metadata: FrozenDict) -> FrozenDict:
    """What the next execution of a conversation begins with."""
    return Notes(removed=OF_ONE_EXECUTION).added_to(metadata)


def summed(metadata: FrozenDict, notes: Iterable[Notes]) -> FrozenDict:
    """The metadata after all of these."""
    for each in notes:
        metadata = each.added_to(metadata)
    return metadata
