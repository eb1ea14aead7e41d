"""The command that lists agents."""

from typing import Any

import click

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.cli import output
from everstep.cli.command import command, print_line, with_agents
from everstep.cli.json_output import json_option, print_json
from everstep.runtime.agents import load_all_agents
from everstep.runtime.models import presets_of
from everstep.runtime.settings import Settings


@click.command()
@json_option
@with_agents
@click.pass_obj
@command
async def agents(settings: Settings, as_json: bool) -> None:
    """List the agents that can be started from here; needs no server.

    The list has the agents of --agents or EVERSTEP_AGENTS, and the demo agent.
    """
    for agent in load_all_agents(settings.agents, presets_of(settings), settings.mcp).values():
        if as_json:
            print_json(_entry(agent))
            continue
        for line in output.agent_lines(agent):
            print_line(line)


def _entry(agent: AgentDefinition) -> dict[str, Any]:
    descriptor = agent.descriptor
    return {
        "name": descriptor.name,
        "description": descriptor.description,
        "tools": descriptor.tools,
        "capabilities": descriptor.capabilities,
        "source": agent.source,
        "definition_hash": agent.digest,
    }
