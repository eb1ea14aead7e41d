import asyncio
from datetime import timedelta

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import Effect, ToolOptions
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.user_input import UseUserInput
from tests.acceptance.storm.programs import Player, count, linger, transfer

PATIENCE = timedelta(seconds=1)
"""How long the hasty agent waits for an answer."""

NAP = 0.4
"""Seconds of work in one call."""


@tool
async def nap() -> str:
    """Work for a while."""
    await asyncio.sleep(NAP)
    return "rested"


@tool
async def spill() -> str:
    """Fail with a message that no one else may read."""
    raise RuntimeError("password=hunter2 at 10.0.0.3")


@tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
async def pay(mark: str) -> str:
    """Pay; the rules may ask a person first."""
    return f"paid {mark}"


def _agent(name: str) -> DefinitionBuilder:
    return (
        DefinitionBuilder.new()
        .with_name(name, "Plays programs")
        .with_tools([count, linger, transfer, nap, spill, pay])
        .with_approval("transfer", "always")
        .with_approval("pay", [{"tool": "pay", "args": {"mark": "dear*"}, "approval": "always"}])
        .with_error_policy(ErrorPolicy.ignore_tool_errors())
        .with_driver(ToolCallingDriver(Player()))
    )


FINDER = AgentSpec("finder", "Finds things", "You find things.", tools=[])

agents = [
    _agent("citizen")
    .with_capability(UseUserInput())
    .with_capability(UseSubagents(AgentSpecRegistry([FINDER]))),
    _agent("hasty").with_capability(UseUserInput(PATIENCE.total_seconds(), "yes")),
    _agent("mute").with_capability(UseUserInput(PATIENCE.total_seconds())),
    _agent("brief").with_cumulative_timeout(NAP * 1.5, scope="session"),
]
