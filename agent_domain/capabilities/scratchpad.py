"""The metadata scratchpad: values that an agent stores for its later steps.

Writes take effect at the end of their step, so a read in the same step sees the old value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast

from everstep.agent_domain.capabilities.extraction import TOOL as EXTRACT_DATA
from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import freeze, json_text, truncate, valid_text

WRITE, READ, LIST = "metadata_write", "metadata_read", "metadata_list"

RESERVED_KEYS = frozenset({"tasks", "skills", "self_critic", "self_critic_result", "self_critic_iteration"})

NO_KEYS = "There are no keys yet, metadata_write(key, value) adds one"
STRING_PREVIEW = 50
PREVIEW = 100


@dataclass(frozen=True, slots=True)
class MetadataPolicy:
    """The limits of the scratchpad."""

    max_keys: int = 50
    max_value_size_bytes: int = 65_536

    def __post_init__(self) -> None:
        require_integer_at_least("max_keys", self.max_keys, 0)
        require_integer_at_least("max_value_size_bytes", self.max_value_size_bytes, 0)


@dataclass(frozen=True, slots=True)
class MetadataWrite:
    """A value to store at the end of the step."""

    key: str
    value: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", valid_text(self.key, "key"))
        object.__setattr__(self, "value", freeze(self.value))

    @property
    def text(self) -> str:
        """The result text of an accepted write."""
        return f"Stored '{self.key}': {_preview(self.value)}"


def refusal(write: MetadataWrite, taken: Iterable[str], policy: MetadataPolicy) -> str | None:
    """The reason to refuse a write; None if it is accepted.

    Args:
        write: The write.
        taken: The stored keys, and those of earlier writes in the same step.
        policy: The limits.
    """
    if not write.key.strip():
        return "The key is empty"
    if write.key in RESERVED_KEYS:
        return f"The key '{write.key}' is reserved, choose another"
    if len(json_text(write.value).encode()) > policy.max_value_size_bytes:
        return f"The value is larger than {policy.max_value_size_bytes} bytes"
    counted = set(taken) - RESERVED_KEYS
    full = write.key not in counted and len(counted) >= policy.max_keys
    return f"Maximum of {policy.max_keys} keys reached" if full else None


def refusal_text(reason: str) -> str:
    """The error text of a refused write."""
    return f"Error: Metadata not stored: {reason}"


def occupied_keys(
    metadata: Mapping[str, Any], earlier: Iterable[ToolCall], policy: MetadataPolicy
) -> list[str]:
    """The stored keys, and those of earlier writes in the same step.

    It is not known yet whether an extraction succeeds, so its key always counts.
    """
    keys = list(metadata)
    for write in filter(None, map(_write_from, earlier)):
        if refusal(write, keys, policy) is None:
            keys.append(write.key)
    return keys


def _write_from(call: ToolCall) -> MetadataWrite | None:
    args = call.args
    try:
        if call.name == WRITE and "value" in args:
            return MetadataWrite(args["key"], args["value"])
        return MetadataWrite(args["store_as"].strip(), None) if call.name == EXTRACT_DATA else None
    except (AttributeError, InvalidInput, KeyError):
        # A malformed call is refused when it runs.
        return None


def read_text(key: str, metadata: Mapping[str, Any]) -> str:
    """The result text of a read."""
    if key in metadata:
        return _value_text(metadata[key])
    hint = f"Stored keys: {', '.join(metadata)}" if metadata else "There are no keys yet"
    return f"Error: Nothing is stored under '{key}'. {hint}"


def list_text(metadata: Mapping[str, Any]) -> str:
    """The result text of a list: the keys with the types of their values."""
    keys = [{"key": key, "type": type_name(value)} for key, value in metadata.items()]
    return json_text({"count": len(keys), "keys": keys}) if keys else NO_KEYS


_SCALARS = (
    (NoneType, "null"),
    (bool, "boolean"),  # before int, whose subclass it is
    (int, "integer"),
    (float, "float"),
    (str, "string"),
)


def type_name(value: object) -> str:
    """The name of a JSON value's type, for the model."""
    for type_, name in _SCALARS:
        if isinstance(value, type_):
            return name
    return f"array[{len(cast('list[object]', value))}]" if isinstance(value, list) else "object"


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)


def _preview(value: object) -> str:
    return truncate(truncate(value, STRING_PREVIEW) if isinstance(value, str) else json_text(value), PREVIEW)
