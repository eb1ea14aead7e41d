"""Asks the toolsets of an agent for their tools."""

import asyncio

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.tools.toolsets import Asker
from everstep.agent_domain.values import FrozenDict, frozen_map


async def ask_toolsets(definition: AgentDefinition, asker: Asker) -> FrozenDict:
    """Ask all toolsets concurrently; returns their tools as they are recorded."""
    listed = await asyncio.gather(*(toolset.list_tools(asker) for toolset in definition.toolsets))
    pairs = zip(definition.toolsets, listed, strict=True)
    return frozen_map({toolset.name: [tool.to_dict() for tool in tools] for toolset, tools in pairs})


def available_tool_names(definition: AgentDefinition, spec: ExecutionSpec) -> tuple[str, ...]:
    """Return the names of the tools that the model can call, as far as toolsets have been asked already."""
    return definition.with_listed(spec.listed or {}).tools.names
