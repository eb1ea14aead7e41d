"""Broadcast configuration: how much viewers receive of an agent's executions."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import require_map


@dataclass(frozen=True, slots=True)
class BroadcastConfig:
    """How much viewers receive. Steps, tool calls and statuses are always sent."""

    include_stream_chunks: bool = True
    include_continuation_trace: bool = False
    include_tool_args: bool = False
    max_arg_length: int = 100
    auto_status_tracking: bool = True

    def __post_init__(self) -> None:
        require_integer_at_least("max_arg_length", self.max_arg_length, 0)
        for name in (
            "include_stream_chunks",
            "include_continuation_trace",
            "include_tool_args",
            "auto_status_tracking",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InvalidInput(f"{name} is {value!r}; pass True or False")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BroadcastConfig":
        """Read the JSON form; an empty one is the default, and unknown fields are ignored."""
        if not data:
            return STANDARD
        require_map(data, "the broadcast configuration")
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})

    @classmethod
    def minimal(cls) -> "BroadcastConfig":
        """The preset with steps, tool calls and statuses only."""
        return cls(include_stream_chunks=False)

    @classmethod
    def standard(cls) -> "BroadcastConfig":
        """The default preset, which adds the model's text."""
        return cls()

    @classmethod
    def debug(cls) -> "BroadcastConfig":
        """The preset with everything."""
        return cls(include_continuation_trace=True, include_tool_args=True, max_arg_length=500)

    @classmethod
    def preset(cls, name: str) -> "BroadcastConfig":
        """A preset by its name: `minimal`, `standard` or `debug`.

        Raises:
            InvalidInput: There is no such preset.
        """
        presets = {"minimal": cls.minimal, "standard": cls.standard, "debug": cls.debug}
        if name not in presets:
            hint = did_you_mean(name, presets)
            raise InvalidInput(f"there is no broadcast preset '{name}'; use: {', '.join(presets)}{hint}")
        return presets[name]()


STANDARD = BroadcastConfig.standard()
