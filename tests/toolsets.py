"""A toolset for tests, with tools that the test chooses and a count of its requests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.agent_domain.tools.tools import Tool, ToolContext, ToolOptions
from everstep.agent_domain.tools.toolsets import Asker, ListedTool
from everstep.agent_domain.values import frozen_map


@dataclass(frozen=True)
class _Called:
    listed: ListedTool
    do: Callable[[dict[str, Any], ToolContext], Any]

    @property
    def name(self) -> str:
        return self.listed.name

    @property
    def description(self) -> str:
        return self.listed.description

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.listed.schema

    @property
    def options(self) -> ToolOptions:
        return self.listed.options

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        return self.do(args, context)


@dataclass
class FakeToolset:
    """Tools from another source."""

    tools: dict[str, Callable[[dict[str, Any], ToolContext], Any]]
    name: str = "shelf"
    options: ToolOptions = field(default_factory=ToolOptions)
    askers: list[Asker] = field(default_factory=list[Asker])
    fails: Exception | None = None

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        self.askers.append(asker)
        if self.fails:
            raise self.fails
        schema = frozen_map({"type": "object", "properties": {}})
        return [ListedTool(name, f"Does {name}", schema, self.options) for name in self.tools]

    def tool(self, listed: ListedTool) -> Tool:
        return _Called(listed, self.tools[listed.name])
