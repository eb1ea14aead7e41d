"""The `everstep` command."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec
from uuid import uuid4

import click
from temporalio.service import RPCError

from agent_domain.errors import EverstepError, InvalidInput
from agent_domain.status import ExecutionStatus
from agent_domain.values import frozen_map, parse_json
from everstep.cli import output
from everstep.client.client import Execution
from everstep.runtime.doctor import examined
from everstep.runtime.installation import Installation, local, opened, upgrade
from everstep.runtime.settings import Settings
from everstep.runtime.worker import armed

P = ParamSpec("P")


def command(fn: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine; what goes wrong is said in one sentence, not in a stack trace."""

    @wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            asyncio.run(fn(*args, **kwargs))
        except EverstepError as error:
            raise click.ClickException(str(error)) from error
        except RPCError as error:
            raise click.ClickException(f"Temporal does not do this now, try again: {error}") from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data", type=click.Path(path_type=Path), help="Where the local installation keeps its data.")
@click.option("--agents", help="Where your agents are: module:attribute.")
@click.pass_context
def commands(context: click.Context, data: Path | None, agents: str | None) -> None:
    """Durable AI agents: start a local installation, run agents, see what they did."""
    try:
        context.obj = Settings.read(data_dir=data, agents=agents)
    except EverstepError as error:
        raise click.ClickException(str(error)) from error


# Processes.


@commands.command()
@click.option("--temporal-port", default=7233, show_default=True, help="0 or a busy one: a free one.")
@click.option("--ui-port", default=8233, show_default=True, help="0 or a busy one: a free one.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.pass_obj
@command
async def up(settings: Settings, temporal_port: int, ui_port: int, as_json: bool) -> None:
    """Start Temporal, PostgreSQL and a worker; Ctrl-C stops them all."""
    async with local(settings, temporal_port=temporal_port, ui_port=ui_port) as (installation, services):
        _print_addresses(installation, as_json)
        stop = _stopped_by_signals()
        death = asyncio.ensure_future(services.died)
        death.add_done_callback(lambda _done: stop.set())
        await installation.work(stop)
        if death.done():
            raise InvalidInput(str(death.result()))
        death.cancel()


def _print_addresses(installation: Installation, as_json: bool) -> None:
    settings = installation.settings
    if as_json:
        names = ("database_url", "temporal_address", "ui_url")
        click.echo(json.dumps({name: getattr(settings, name) for name in names}))
        return
    click.echo(f"Temporal     {settings.temporal_address}")
    click.echo(f"Temporal UI  {settings.ui_url}")
    click.echo(f"PostgreSQL   {settings.database_url}")
    click.echo(f"agents       {', '.join(installation.book.names)}")
    click.echo(f"model        {installation.models.presets.default}")
    click.echo('\nIn another terminal: everstep run "What can you do?"      Ctrl-C stops everything here.')


@commands.command()
@click.pass_obj
@command
async def worker(settings: Settings) -> None:
    """Run agents until told to stop; running model calls may finish."""
    async with opened(settings, "everstep worker") as installation:
        names = ", ".join(installation.book.names)
        click.echo(f"working on '{installation.settings.task_queue}' for the agents {names}; Ctrl-C stops")
        await installation.work(_stopped_by_signals(), armed(settings.failpoint))


def _stopped_by_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        click.echo("stopping; running model calls may finish", err=True)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    return stop


@commands.group()
def db() -> None:
    """The database."""


@db.command("upgrade")
@click.pass_obj
@command
async def db_upgrade(settings: Settings) -> None:
    """Bring the tables up to date; safe to repeat, and while others do."""
    await upgrade(settings)
    click.echo("the tables are up to date")


@commands.command()
@click.pass_obj
@command
async def doctor(settings: Settings) -> None:
    """Say what is wrong with this installation, and how to mend it."""
    findings = [finding async for finding in examined(settings)]
    for finding in findings:
        click.echo(("ok     " if finding.is_good else "WRONG  ") + finding.text)
    if not all(finding.is_good for finding in findings):
        raise SystemExit(1)


# Executions.


@commands.command()
@click.argument("message")
@click.option("--agent", default="assistant", show_default=True, help="Which agent.")
@click.option("--detach", is_flag=True, help="Start it, print its id and return.")
@click.pass_obj
@command
async def run(settings: Settings, message: str, agent: str, detach: bool) -> None:
    """Start an execution and follow it; Ctrl-C only stops following."""
    async with opened(settings, "everstep run") as installation:
        execution = await installation.client.start(agent, message, execution_id=uuid4())
        if detach:
            click.echo(execution.id)
            return
        await _followed(installation, execution)


@commands.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def follow(settings: Settings, execution_id: str) -> None:
    """Follow an execution that was started before."""
    async with opened(settings, "everstep follow") as installation:
        await _followed(installation, installation.client.execution(execution_id))


async def _followed(installation: Installation, execution: Execution) -> None:
    from everstep.cli.follow import followed  # noqa: PLC0415 -- the other commands do not need it

    try:
        async for line in followed(execution):
            click.echo(line)
    except asyncio.CancelledError:
        click.echo(f"\nIt goes on without you. Come back: everstep follow {execution.id}")
        raise
    for line in output.execution_lines(await execution.get(), installation.settings.ui_url):
        click.echo(line)


@commands.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def show(settings: Settings, execution_id: str) -> None:
    """Show where an execution stands and what it did."""

    async def shown(installation: Installation, execution: Execution) -> None:
        for line in output.execution_lines(await execution.get(), installation.settings.ui_url):
            click.echo(line)
        for line in output.request_lines(await execution.requests(), execution_id):
            click.echo(line)
        for step in await execution.steps():
            for line in output.step_lines(step):
                click.echo(line)

    await _with_execution(settings, execution_id, shown)


@commands.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def trace(settings: Settings, execution_id: str) -> None:
    """Show why each step was followed by another, or by none."""

    async def shown(_installation: Installation, execution: Execution) -> None:
        for step in await execution.steps():
            for line in (*output.step_lines(step), *output.vote_lines(step)):
                click.echo(line)

    await _with_execution(settings, execution_id, shown)


@commands.command()
@click.option("--status", type=click.Choice([status.value for status in ExecutionStatus]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500))
@click.option("--cursor", help="Where the last page ended.")
@click.pass_obj
@command
async def executions(settings: Settings, status: str | None, limit: int, cursor: str | None) -> None:
    """List executions, newest first."""
    async with opened(settings, "everstep executions") as installation:
        wanted = ExecutionStatus(status) if status else None
        page = await installation.client.list(status=wanted, cursor=cursor, limit=limit)
        for row in page.rows:
            click.echo(output.execution_line(row))
        if page.cursor:
            click.echo(f"more: --cursor {page.cursor}")


@commands.command()
@click.argument("execution_id")
@click.argument("text")
@click.option("--data", "data_text", help="The answer to a form, as JSON.")
@click.pass_obj
@command
async def answer(settings: Settings, execution_id: str, text: str, data_text: str | None) -> None:
    """Answer the oldest question of an execution."""
    data = parse_json(data_text, "--data") if data_text else None
    await _with_execution(settings, execution_id, lambda _, e: e.submit_input(text, data=data))


@commands.command()
@click.argument("execution_id")
@click.option("--deny", is_flag=True, help="Do not let the call run.")
@click.option("--reason", help="What the model is told when it is denied.")
@click.option("--args", "args_text", help="Run with these arguments instead, as JSON.")
@click.pass_obj
@command
async def approve(
    settings: Settings, execution_id: str, deny: bool, reason: str | None, args_text: str | None
) -> None:
    """Decide about the oldest call that waits for approval."""

    async def decided(_installation: Installation, execution: Execution) -> None:
        if deny:
            await execution.deny(reason=reason)
        elif args_text:
            await execution.edit(frozen_map(parse_json(args_text, "--args"), "--args"))
        else:
            await execution.approve()

    await _with_execution(settings, execution_id, decided)


@commands.command()
@click.argument("execution_id")
@click.argument("message")
@click.pass_obj
@command
async def steer(settings: Settings, execution_id: str, message: str) -> None:
    """Say something that is heard before the next step."""
    await _with_execution(settings, execution_id, lambda _, e: e.steer(message))


def _simple(name: str, text: str, act: Callable[[Execution], Awaitable[None]]) -> None:
    @commands.command(name, help=text)
    @click.argument("execution_id")
    @click.pass_obj
    @command
    async def acted(settings: Settings, execution_id: str) -> None:
        await _with_execution(settings, execution_id, lambda _, execution: act(execution))

    del acted


_simple("cancel", "Stop an execution now; the step under way is given up.", Execution.cancel)
_simple("pause", "Hold an execution still once the work under way is done.", Execution.pause)
_simple("resume", "Let a paused execution go on.", Execution.resume)


async def _with_execution(
    settings: Settings, execution_id: str, act: Callable[[Installation, Execution], Awaitable[object]]
) -> None:
    async with opened(settings) as installation:
        await act(installation, installation.client.execution(execution_id))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Do what the command line says, and leave.

    Threads of Temporal's SDK outlive the worker that they served. When one of them returns to Python while
    the interpreter ends, the process aborts, so that one stop in twelve looked like a crash. Everything is
    closed and written by now: the process ends without the interpreter.
    """
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
