"""The `everstep` command.

Commands are imported when they are called: together they import the whole product, which takes seconds. The
names, and what the help says of each, are in a table here, so that `everstep --help` imports none of them.
"""

import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn, TextIO

import click

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.nearest import did_you_mean
from everstep.cli.options import AGENTS_HELP, SOURCE
from everstep.cli.printing import echo, visible, visible_stream
from everstep.runtime.signals import restore_for_children

SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Start here": {
        "init": ("init:init", "Write a new project: an agent with a tool, its tests and settings."),
        "up": ("processes:up", "Start a local installation; Ctrl-C stops it."),
        "run": ("run:run", "Start an execution and follow it; Ctrl-C only stops watching."),
        "chat": ("chat:chat", "Talk with an agent, or resume a session; Ctrl-D and Ctrl-C leave."),
        "console": ("console_link:console", "Print a link that signs you in to the console, once."),
        "agents": ("agents:agents", "List the agents that can be started from here; needs no server."),
        "models": ("models:models", "List the configured models; needs no server and asks no provider."),
        "doctor": ("processes:doctor", "Check this installation, and explain how to fix what is wrong."),
    },
    "Inspect": {
        "executions": ("execution_lists:executions", "List executions, newest first."),
        "feedback": ("feedback_export:feedback", "Print the feedback on answers as lines of JSON."),
        "inbox": ("execution_lists:inbox", "List what waits for people, oldest first."),
        "search": ("search:search", "Search messages, replies, calls and results."),
        "sessions": ("sessions:sessions", "List sessions, newest first."),
        "show": ("show:show", "Show what an execution did, with its requests and subagents."),
        "because": (
            "because:because",
            "Say in one sentence why an execution ended, or waits.",
        ),
        "trace": ("show:trace", "Show when each step ran, and why the loop went on or stopped."),
        "diff": ("diff:diff", "Compare two executions step by step, with what they cost."),
        "top": ("top:top", "Show what is running now, live, by tenant and agent."),
        "files": ("downloads:files", "List the files of an execution, or save them to a folder."),
        "what-if": (
            "what_if_command:what_if",
            "Show what another policy would have changed in past executions.",
        ),
        "ledger": (
            "ledger_commands:ledger",
            "Print the ledgers of executions, for audits, as lines of JSON.",
        ),
        "audit": ("ledger_commands:audit", "Check that the record of an execution was not changed."),
        "usage": ("reports:usage", "Show tokens, costs and latency by agent, user, model or day."),
        "follow": ("run:follow", "Print the steps of an execution as they happen."),
    },
    "Act on an execution": {
        "answer": ("executions:answer", "Answer the oldest open question of an execution."),
        "approve": ("executions:approve", "Approve or deny the oldest call that waits for approval."),
        "budget": ("budget_commands:budget", "Show the budgets of an execution, or raise one of them."),
        "steer": ("executions:steer", "Send a message that the agent reads before its next step."),
        "pause": ("executions:pause", "Pause an execution once its running calls are done."),
        "resume": ("executions:resume", "Resume a paused execution."),
        "retry": ("run:retry", "Continue a failed execution from its last good step."),
        "cancel": ("executions:cancel", "Stop an execution now and abandon its current step."),
    },
    "Learn from executions": {
        "export": ("run_exports:export", "Turn executions into tests, scripts or training data."),
        "eval": (
            "run_exports:eval_",
            "Replay exported runs, and show which differ; needs no server.",
        ),
    },
    "Operate": {
        "worker": ("processes:worker", "Run agents until stopped by SIGINT or SIGTERM."),
        "api": ("http:api", "Serve the HTTP API until stopped by SIGINT or SIGTERM."),
        "gateway": ("gateway:gateway", "Serve events and live text to browsers."),
        "mcp": ("mcp_bridge:mcp", "Serve agents to an MCP host on stdin and stdout."),
        "db": ("processes:db", "Manage the database."),
        "builds": ("builds:builds", "Manage the builds of workers."),
        "keys": ("http:keys", "Manage the keys that services send to the HTTP API."),
        "sign-ins": ("sign_in_commands:sign_ins", "List and end the sessions of people in browsers."),
        "budgets": ("budget_commands:budgets", "Manage the budgets of tenants and users."),
        "schedules": ("schedules:schedules", "Send messages to agents at times."),
        "tenants": ("tenant_commands:tenants", "Manage what tenants and their users may use."),
        "users": ("user_commands:users", "Export or erase the data of one person."),
        "webhooks": ("webhooks:webhooks", "Send events to URLs."),
        "prune": ("processes:prune", "Remove rows that are older than the retention settings."),
    },
}
"""The sections of the help: the place of each command below `everstep.cli`, and its line in the help."""

SERVING: Final = frozenset({"up", "worker", "api", "gateway"})
"""Commands that run until they are stopped, and log."""

PLACES: Final = {name: place for section in SECTIONS.values() for name, (place, _) in section.items()}


class Commands(click.Group):
    """The group of all commands, which imports each when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted(PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, or None."""
        if cmd_name not in PLACES:
            return None
        module, _, attribute = PLACES[cmd_name].partition(":")
        found = getattr(import_module(f"everstep.cli.{module}"), attribute)
        if not gc.isenabled():
            # See `main`. What is imported by now stays until the process ends.
            gc.freeze()
            gc.enable()
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with; an unknown one is refused with the nearest."""
        name = args[0]
        # Click suggests only commands that are loaded.
        if name not in PLACES and not name.startswith("-"):
            ctx.fail(f"No such command '{name}'{did_you_mean(name, PLACES)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of commands into the help."""
        width = max(map(len, chain.from_iterable(SECTIONS.values())))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in section.items()])


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted:
        return
    # Imported here because nothing else needs them.
    import platform  # noqa: PLC0415
    from importlib.metadata import version  # noqa: PLC0415

    echo(f"everstep {version('everstep')} (Python {platform.python_version()}, {platform.platform()})")
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The local installation's data folder; default: EVERSTEP_DATA, or a folder outside the project.",
)
@click.option("--agents", multiple=True, metavar=SOURCE, help=f"{AGENTS_HELP} (EVERSTEP_AGENTS)")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colours: auto for a terminal without NO_COLOR; always draws for a terminal, in a pipe as well.",
)
@click.option("--traceback", is_flag=True, help="Print a stack trace when a command fails.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the versions of Everstep, Python and the platform, and exit.",
)
@click.pass_context
def commands(
    context: click.Context, data: Path | None, agents: tuple[str, ...], color: str, traceback: bool
) -> None:
    """Durable AI agents: start a local installation, run agents, inspect executions."""
    # Imported here because help and version need no settings.
    from everstep.runtime.secret_files import read_secret_files  # noqa: PLC0415
    from everstep.runtime.settings import Settings, misspelled_variables  # noqa: PLC0415

    del traceback, color
    try:
        read_secret_files(os.environ)
        context.obj = Settings.read(data_dir=data, agents=agents or None)
    except EverstepError as error:
        raise click.ClickException(visible(str(error))) from error
    misspelled = misspelled_variables(os.environ)
    if context.invoked_subcommand not in SERVING:
        for warning in misspelled:
            echo(warning, err=True)
        return
    from everstep.cli.command import warn  # noqa: PLC0415 -- likewise
    from everstep.runtime.telemetry_setup import configure_process_logs  # noqa: PLC0415 -- likewise

    # All that a serving process says has the form of its log, from here on.
    configure_process_logs(context.obj)
    for warning in misspelled:
        warn(warning)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process.

    Threads of Temporal's SDK outlive the worker that started them. If one of them returns to Python while the
    interpreter shuts down, the process aborts, so that one stop in twelve looked like a crash. All resources
    are closed and all output is flushed at this point, so the process exits without an interpreter shutdown.
    """
    # Until the command is imported: the search for garbage among new modules, which stay, is long.
    gc.disable()
    restore_for_children()
    sys.stdout, sys.stderr = visible_stream(sys.stdout), visible_stream(sys.stderr)
    try:
        commands(arguments, prog_name="everstep")
    except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else int(exited.code is not None)
    else:
        code = 0
    logging.shutdown()
    # Python has none where the shell has closed it.
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    for stream in filter(None, streams):
        stream.flush()
    os._exit(code)
