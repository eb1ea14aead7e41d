"""Metadata changes: each step stores its own, and the metadata is their sum in the order of the steps.

The metadata of an execution is never overwritten. Each call, hook and processor stores its changes at its own
position. Concurrent calls therefore cannot lose each other's changes, in any order, and the metadata of any
step can be read later.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, valid_text

EXECUTION_KEYS = ("self_critic_result", "self_critic_iteration")
"""Keys that the next execution of a conversation does not inherit; marks end with their execution anyway."""


@dataclass(frozen=True, slots=True)
class MetadataChanges:
    """A change of metadata: keys that were set, and keys that were removed."""

    values: FrozenDict = EMPTY
    removed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozen_map(self.values, "metadata"))

    def __bool__(self) -> bool:
        return bool(self.values or self.removed)

    @classmethod
    def between(cls, before: FrozenDict, after: FrozenDict) -> "MetadataChanges":
        """The change from one state of the metadata to another."""
        changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
        return cls(FrozenDict(changed), tuple(key for key in before if key not in after))

    def apply_to(self, metadata: FrozenDict) -> FrozenDict:
        """The metadata after this change."""
        remaining = {key: value for key, value in metadata.items() if key not in self.removed}
        return FrozenDict({**remaining, **self.values}) if self else metadata

    def followed_by(self, later: "MetadataChanges") -> "MetadataChanges":
        """Both changes as one; the later one wins."""
        removed = [*self.removed, *later.removed]
        values = later.apply_to(self.values)
        return MetadataChanges(values, tuple(dict.fromkeys(key for key in removed if key not in values)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"values": self.values, "removed": list(self.removed)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MetadataChanges":
        """Read the JSON form."""
        removed = tuple(valid_text(key, "a removed key") for key in data.get("removed") or ())
        return cls(frozen_map(data.get("values") or {}, "metadata"), removed)


NO_METADATA_CHANGES = MetadataChanges()


@dataclass(frozen=True, slots=True)
class MetadataHistory:
    """The metadata with which an execution began, and what each of its calls changed."""

    initial: FrozenDict
    calls: Mapping[tuple[int, int], MetadataChanges]
    """By the number of the step and the position of the call in it."""


def inherited_metadata(metadata: FrozenDict) -> FrozenDict:
    """The metadata that the next execution of a conversation inherits."""
    return MetadataChanges(removed=EXECUTION_KEYS).apply_to(metadata)


def apply_changes(metadata: FrozenDict, notes: Iterable[MetadataChanges]) -> FrozenDict:
    """The metadata after all of these changes."""
    for each in notes:
        metadata = each.apply_to(metadata)
    return metadata
