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
from everstep.cli.error_messages import error_message
from everstep.cli.printing import visible, visible_stream
from everstep.runtime.settings import Settings
from everstep.runtime.signals import restore_for_children


class Commands(click.Group):
    """The group of all commands; those that use HTTP are imported on demand, as the import takes long."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), "agents", "api", "chat", "gateway", "keys", "sessions"})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, or None."""
        if cmd_name in ("api", "keys"):
            from everstep.cli import http  # noqa: PLC0415 -- on demand

            return http.api if cmd_name == "api" else http.keys
        if cmd_name == "agents":
            from everstep.cli import agents  # noqa: PLC0415 -- on demand

            return agents.agents
        if cmd_name == "gateway":
            from everstep.cli import gateway  # noqa: PLC0415 -- on demand

            return gateway.gateway
        if cmd_name == "chat":
            from everstep.cli import chat  # noqa: PLC0415 -- on demand

            return chat.chat
        if cmd_name == "sessions":
            from everstep.cli import sessions  # noqa: PLC0415 -- on demand

            return sessions.sessions
        return super().get_command(ctx, cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The local installation's data folder; default: EVERSTEP_DATA, or a folder outside of this one.",
)
@click.option("--agents", multiple=True, metavar=SOURCE, help=f"{AGENTS_HELP} (EVERSTEP_AGENTS)")
@click.option("--traceback", is_flag=True, help="Print a stack trace when a command fails.")
@click.pass_context
def commands(context: click.Context, data: Path | None, agents: tuple[str, ...], traceback: bool) -> None:
    """Durable AI agents: start a local installation, run agents, inspect executions."""
    del traceback
    try:
        context.obj = Settings.read(data_dir=data, agents=agents or None)
    except EverstepError as error:
        raise click.ClickException(visible(error_message(error))) from error


for each in (processes.up, processes.worker, processes.db, processes.doctor, processes.prune):
    commands.add_command(each)
for each in (
    *(executions.run, executions.follow, executions.show, executions.trace, executions.executions),
    *(executions.answer, executions.approve, executions.steer),
    *(executions.cancel, executions.pause, executions.resume),
):
    commands.add_command(each)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process.

    Threads of Temporal's SDK outlive the worker that started them. If one of them returns to Python while the
    interpreter shuts down, the process aborts, so that one stop in twelve looked like a crash. All resources
    are closed and all output is flushed at this point, so the process exits without an interpreter shutdown.
    """
    restore_for_children()
    sys.stdout, sys.stderr = visible_stream(sys.stdout), visible_stream(sys.stderr)
    try:
        commands(arguments, prog_name="everstep")
    except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else int(exited.code is not None)
    else:
        code = 0
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
