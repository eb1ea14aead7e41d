"""Toolsets: tools that are discovered when an execution needs them, such as those of a remote server.

A toolset is queried once per execution. Its list is recorded with the execution, so every worker,
every attempt and every fork of it sees the same tools, even if the server's list changes. Approvals use the
names in the list.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.tools.tools import Effect, Tool, ToolOptions
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, read_key, require_map, valid_text


@dataclass(frozen=True, slots=True)
class Asker:
    """The execution that requests a toolset's list, and will call its tools."""

    execution_id: UUID
    tenant_id: str


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A recorded tool: its description for models, and the data that its toolset needs to call it."""

    name: str
    description: str
    schema: FrozenDict
    options: ToolOptions = field(default_factory=ToolOptions)
    origin: FrozenDict = EMPTY
    """Private data of the toolset, such as the tool's name on its server."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", valid_text(self.name, "the tool's name"))
        object.__setattr__(self, "description", valid_text(self.description, "the tool's description"))
        object.__setattr__(self, "schema", frozen_map(self.schema, f"the schema of {self.name}"))
        object.__setattr__(self, "origin", frozen_map(self.origin, f"the origin of {self.name}"))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "name": self.name,
            "description": self.description,
            "schema": self.schema,
            "effect": self.options.effect.value,
            "timeout_seconds": self.options.timeout_seconds,
            "need": self.options.need.value,
            "origin": self.origin,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ListedTool":
        """Read the JSON form; unknown keys are ignored."""
        require_map(data, "the tool")
        options = ToolOptions(
            effect=Effect(data.get("effect", Effect.IDEMPOTENT)),
            timeout_seconds=data.get("timeout_seconds"),
            need=CallNeed(data.get("need", CallNeed.RUN)),
        )
        return cls(
            read_key(data, "name", str),
            str(data.get("description", "")),
            frozen_map(data.get("schema") or {}),
            options,
            frozen_map(data.get("origin") or {}),
        )


@runtime_checkable
class Toolset(Protocol):
    """A source of tools that are discovered at run time."""

    @property
    def name(self) -> str:
        """A name that is unique among the toolsets of an agent."""
        ...

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        """Return the current tools. An exception fails the step that needed the tools."""
        ...

    def tool(self, listed: ListedTool) -> Tool:
        """Make a callable tool from a recorded one, without a request to the source."""
        ...


class _RenamedToolset:
    """A toolset that was written for release 0.1, where `list_tools` was called `listed`."""

    def __init__(self, toolset: Any) -> None:
        self._toolset = toolset

    @property
    def name(self) -> str:
        """The toolset's name."""
        return self._toolset.name

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        """Return the current tools."""
        return await self._toolset.listed(asker)

    def tool(self, listed: ListedTool) -> Tool:
        """Make a callable tool from a recorded one."""
        return self._toolset.tool(listed)


def current_toolset(toolset: Any) -> Any:
    """Return a toolset with the present names of its methods; an older one works, with a warning."""
    if hasattr(toolset, "list_tools") or not hasattr(toolset, "listed"):
        return toolset
    warnings.warn(
        f"rename {type(toolset).__name__}.listed to list_tools; a later release drops the old name",
        DeprecationWarning,
        stacklevel=4,
    )
    return _RenamedToolset(toolset)
