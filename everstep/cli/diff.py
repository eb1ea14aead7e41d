"""The command that compares two executions."""

import click

from everstep.agent_domain.values import json_text
from everstep.cli.command import command, print_line
from everstep.cli.comparison_texts import comparison_lines
from everstep.cli.drawing import draws_pages
from everstep.cli.id_arguments import find_execution
from everstep.client.compared_executions import compare_executions
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings


@click.command()
@click.argument("a_id", metavar="A")
@click.argument("b_id", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one line of JSON.")
@click.pass_obj
@command
async def diff(settings: Settings, *, a_id: str, b_id: str, as_json: bool) -> None:
    """Compare two executions step by step, with what they cost.

    A and B are ids of executions, such as a fork and its origin, or runs before and after a change. Steps
    that a fork shares with its origin are the same steps; others are aligned by their calls.
    """
    async with open_installation(settings, "everstep diff") as installation:
        a, b = [(await find_execution(each, installation)).ref for each in (a_id, b_id)]
        comparison = await compare_executions(installation.store, a, b, in_full=True)
    if as_json:
        print_line(json_text(comparison.to_dict()))
    elif draws_pages():
        # Imported here because a pipe does not need it.
        from everstep.cli.comparison_page import draw_comparison  # noqa: PLC0415

        draw_comparison(comparison)
    else:
        for line in comparison_lines(comparison):
            print_line(line)
