"""The `everstep` command."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from everstep.agent_domain.errors import EverstepError
from everstep.cli import executions, processes
from everstep.cli.command import AGENTS_HELP, SOURCE
from everstep.cli.error_messages import complaint
from everstep.cli.printing import visible, visible_stream
from everstep.runtime.settings import Settings
from everstep.runtime.signals import restore_for_children


class Commands(click.Group):
    """The commands; those about HTTP are loaded when they are asked for, as the others need none of it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*super().list_commands(ctx), "agents", "api", "chat", "gateway", "keys", "sessions"})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name in ("api", "keys"):
            from everstep.cli import http  # noqa: PLC0415 -- see above

            return http.api if cmd_name == "api" else http.keys
        if cmd_name == "agents":
            from everstep.cli import agents  # noqa: PLC0415 -- see above

            return agents.agents
        if cmd_name == "gateway":
            from everstep.cli import gateway  # noqa: PLC0415 -- see above

            return gateway.gateway
        if cmd_name == "chat":
            from everstep.cli import chat  # noqa: PLC0415 -- see above

            return chat.chat
        if cmd_name == "sessions":
            from everstep.cli import sessions  # noqa: PLC0415 -- see above

            return sessions.sessions
        return super().get_command(ctx, cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Where the local installation keeps its data; else EVERSTEP_DATA, or a folder outside of this one.",
)
@click.option("--agents", multiple=True, metavar=SOURCE, help=f"{AGENTS_HELP} (EVERSTEP_AGENTS)")
@click.option(
    "--traceback", is_flag=True, help="Say where in the code it happened when something goes wrong."
)
@click.pass_context
def commands(context: click.Context, data: Path | None, agents: tuple[str, ...], traceback: bool) -> None:
    """Durable AI agents: start a local installation, run agents, see what they did."""
    del traceback
    try:
        context.obj = Settings.read(data_dir=data, agents=agents or None)
    except EverstepError as error:
        raise click.ClickException(visible(complaint(error))) from error


for each in (processes.up, processes.worker, processes.db, processes.doctor, processes.prune):
    commands.add_command(each)
for each in (
    *(executions.run, executions.follow, executions.show, executions.trace, executions.executions),
    *(executions.answer, executions.approve, executions.steer),
    *(executions.cancel, executions.pause, executions.resume),
):
    commands.add_command(each)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Do what the command line says, and leave.

    Threads of Temporal's SDK outlive the worker that they served. When one of them returns to Python while
    the interpreter ends, the process aborts, so that one stop in twelve looked like a crash. Everything is
    closed and written by now: the process ends without the interpreter.
    """
    restore_for_children()
    sys.stdout, sys.stderr = visible_stream(sys.stdout), visible_stream(sys.stderr)
    try:
        commands(arguments, prog_name="everstep")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    else:
        code = 0
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
