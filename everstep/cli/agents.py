"""The agents that the commands know."""

import click

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.values import json_text
from everstep.cli import output
from everstep.cli.command import command, say, with_agents
from everstep.runtime.agents import known_agents
from everstep.runtime.installation import presets_of
from everstep.runtime.settings import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@with_agents
@click.pass_obj
@command
async def agents(settings: Settings, as_json: bool) -> None:
    """List the agents that can be started from here; no server is needed.

    They are those of --agents or EVERSTEP_AGENTS, and the demo agent.
    """
    for agent in known_agents(settings.agents, presets_of(settings), settings.mcp).values():
        for line in [_as_json(agent)] if as_json else output.agent_lines(agent):
            say(line)


def _as_json(agent: AgentDefinition) -> str:
    told = agent.descriptor
    return json_text(
        {
            "name": told.name,
            "description": told.description,
            "tools": told.tools,
            "capabilities": told.capabilities,
            "source": agent.source,
            "definition_hash": agent.digest,
        }
    )
