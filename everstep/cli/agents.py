"""The command that lists agents."""

import click

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.values import json_text
from everstep.cli import output
from everstep.cli.command import command, print_line, with_agents
from everstep.runtime.agents import load_all_agents
from everstep.runtime.models import presets_of
from everstep.runtime.settings import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per agent.")
@with_agents
@click.pass_obj
@command
async def agents(settings: Settings, as_json: bool) -> None:
    """List the agents that can be started from here; needs no server.

    The list has the agents of --agents or EVERSTEP_AGENTS, and the demo agent.
    """
    for agent in load_all_agents(settings.agents, presets_of(settings), settings.mcp).values():
        for line in [_json_line(agent)] if as_json else output.agent_lines(agent):
            print_line(line)


def _json_line(agent: AgentDefinition) -> str:
    descriptor = agent.descriptor
    return json_text(
        {
            "name": descriptor.name,
            "description": descriptor.description,
            "tools": descriptor.tools,
            "capabilities": descriptor.capabilities,
            "source": agent.source,
            "definition_hash": agent.digest,
        }
    )
