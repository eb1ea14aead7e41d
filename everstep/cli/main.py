"""The `everstep` command."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar
from uuid import UUID, uuid4

import click
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from everstep.agent_domain.errors import EverstepError, InvalidInput, StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.values import cut, frozen_map, json_text, parse_json
from everstep.cli import output
from everstep.cli.error_messages import complaint
from everstep.cli.printing import echo, visible, visible_stream
from everstep.client.client import Execution, Refused
from everstep.runtime.data_folder import look_around
from everstep.runtime.doctor import examined
from everstep.runtime.installation import (
    Installation,
    database_without_password,
    local,
    located,
    opened,
    register,
    restored,
    upgrade,
)
from everstep.runtime.protection import commands_of
from everstep.runtime.retention import retentions
from everstep.runtime.settings import Settings
from everstep.runtime.signals import restore_for_children
from everstep.runtime.viewing import gateway_url
from everstep.runtime.worker import armed

P = ParamSpec("P")
T = TypeVar("T")

SOURCE = "DIR|FILE|MODULE:ATTRIBUTE"
AGENTS_HELP = "Where your agents are; may be repeated."

HEARING_SECONDS = 10.0
"""As long as a worker may take to hear what is said to an execution."""


def command(
    fn: Callable[P, Coroutine[Any, Any, None]], loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Callable[P, None]:
    """Run a coroutine; what goes wrong is said in one sentence, not in a stack trace."""

    @wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(fn(*args, **kwargs))
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            # Whoever read what is printed has read enough, as `head` does; click ends without a word.
            raise
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            if click.get_current_context().find_root().params["traceback"]:
                raise
            raise click.ClickException(visible(complaint(error))) from error

    return run


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
        if cmd_name in ("chat", "sessions"):
            from everstep.cli import chat  # noqa: PLC0415 -- see above

            return chat.chat if cmd_name == "chat" else chat.sessions
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


def _also(context: click.Context, _option: click.Parameter, sources: tuple[str, ...]) -> None:
    """Add these sources to those that stand before the command's name."""
    if sources:
        before = context.find_root().params["agents"]
        context.obj = context.obj.model_copy(update={"agents": (*before, *sources)})


with_agents = click.option(
    "--agents", multiple=True, metavar=SOURCE, help=AGENTS_HELP, expose_value=False, callback=_also
)
"""For commands that need to know agents: the option may also stand behind their name."""


def say(text: object) -> None:
    """Print a line."""
    echo(text)


def told(sentence: str) -> None:
    """Tell the operator, beside what is printed."""
    echo(sentence, err=True)


# Processes.


@commands.command()
@click.option("--temporal-port", default=7233, show_default=True, help="0 or a busy one: a free one.")
@click.option("--ui-port", default=8233, show_default=True, help="0 or a busy one: a free one.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="8080, unless it is set; as the others.")
@click.option("--gateway-port", type=click.IntRange(0, 65535), help="6001, unless it is set; as the others.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.option(
    "--debug", is_flag=True, help="Show all words of errors to whoever watches (EVERSTEP_ERROR_DETAILS)."
)
@with_agents
@click.pass_obj
@command
async def up(
    settings: Settings, temporal_port: int, ui_port: int, as_json: bool, debug: bool, **ports: int | None
) -> None:
    """Start a local installation; Ctrl-C stops it.

    It is Temporal with its web UI, PostgreSQL, a worker, the HTTP API and a gateway.
    """
    # Most commands need neither.
    from everstep.runtime.api import answering_locally  # noqa: PLC0415
    from everstep.runtime.gateway import relaying_locally  # noqa: PLC0415

    settings = settings.listening_on(**ports)
    settings = settings.model_copy(update={"error_details": settings.error_details or debug})
    place = look_around(settings)
    for remark in place.remarks:
        told(remark)
    async with (
        local(settings, temporal_port=temporal_port, ui_port=ui_port) as (installation, services),
        relaying_locally(installation) as gateway_url,
        answering_locally(installation) as api,
    ):
        # Before anybody is told that it runs, and may want to stop it.
        stop = stopped_by_signals()
        for remark in commands_of(installation.book.agents.values()):
            told(remark)
        ours = {"api_url": api.url, "gateway_url": gateway_url, "token": api.token}
        _print_addresses(installation, ours, as_json)
        death = asyncio.ensure_future(services.died)
        death.add_done_callback(lambda _done: stop.set())
        await installation.work(stop)
        if death.done():
            raise InvalidInput(str(death.result()))
        death.cancel()


def _print_addresses(installation: Installation, ours: Mapping[str, str | None], as_json: bool) -> None:
    settings = installation.settings
    if as_json:
        names = ("database_url", "temporal_address", "ui_url")
        addresses = {name: getattr(settings, name) for name in names}
        echo(json.dumps({**addresses, **ours}))
        return
    echo(f"HTTP API     {ours['api_url']}, explained at {ours['api_url']}/docs")
    echo(f"gateway      {ours['gateway_url']}")
    echo(f"token        {ours['token'] or 'none needed: EVERSTEP_AUTH=off'}")
    echo(f"Temporal     {settings.temporal_address}")
    echo(f"Temporal UI  {settings.ui_url}")
    echo(f"PostgreSQL   {database_without_password(settings)}")
    say(f"data         {settings.data_dir}")
    echo(f"agents       {', '.join(installation.book.names)}")
    echo(f"model        {installation.models.presets.default}")
    echo('\nIn another terminal: everstep run "What can you do?"      Ctrl-C stops everything here.')


@commands.command()
@with_agents
@click.pass_obj
@command
async def worker(settings: Settings) -> None:
    """Run agents until told to stop; running model calls may finish.

    It waits for PostgreSQL and Temporal, and says so.
    """
    # The other commands do not need it.
    from everstep.runtime.waiting import servers_answer  # noqa: PLC0415

    settings, stop = located(settings), cache(stopped_by_signals)
    if not await servers_answer(settings, stop, told):
        return
    async with opened(settings, "everstep worker", is_linked=True) as installation:
        names, strike = ", ".join(installation.book.names), armed(settings.failpoint)
        # Before anyone knows that it works, and may want to stop it.
        stopped = stop()
        echo(f"working on '{installation.settings.task_queue}' for the agents {names}; Ctrl-C stops")
        await installation.work(stopped, strike)


def stopped_by_signals(meanwhile: str = "running model calls may finish") -> asyncio.Event:
    """Set when this process is told to stop; it says what happens until it does."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        echo(f"stopping; {meanwhile}", err=True)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop


@commands.group()
def db() -> None:
    """The database."""


@db.command("upgrade")
@click.pass_obj
@command
async def db_upgrade(settings: Settings) -> None:
    """Bring the tables up to date, and what Temporal searches by; safe to repeat, and while others do."""
    await upgrade(settings)
    echo("the tables are up to date")
    echo(await register(settings))


@db.command("restored")
@click.pass_obj
@command
async def db_restored(settings: Settings) -> None:
    """Say that the database was set back, so that viewers read anew.

    Needed where PostgreSQL itself cannot know: after the files were restored from a snapshot. A failover, a
    restore to a point in time and a dump restored elsewhere are noticed by themselves.
    """
    await restored(settings)
    echo("the journal has a new epoch: viewers who come back read everything anew")


@commands.command()
@click.option(
    "--repair", is_flag=True, help="If all is well: mend what lost processes and operators left behind."
)
@click.pass_obj
@command
async def doctor(settings: Settings, repair: bool) -> None:
    """Say what is wrong with this installation, and how to mend it."""
    is_well = True
    async for finding in examined(settings):
        say(("ok     " if finding.is_good else "WRONG  ") + finding.text)
        is_well = is_well and finding.is_good
    if repair and is_well:
        async with opened(settings) as installation:
            repairs = await installation.reconciler.once(thorough=True)
        say(f"mended  {repairs}" if repairs else "nothing was left behind")
    if not is_well:
        raise click.exceptions.Exit(1)


@commands.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing, and say how much it would be.")
@click.pass_obj
@command
async def prune(settings: Settings, dry_run: bool) -> None:
    """Remove what is older than the settings say; Ctrl-C loses nothing.

    Safe to repeat, and while others do. What is under way stays.
    """
    async with retentions(settings) as tables:
        for retention in tables:
            count = 0
            try:
                async for more in retention.pruned(dry_run=dry_run):
                    count += more
            finally:
                echo(output.retention_line(retention, count, dry_run=dry_run))


# Executions.


@commands.command()
@click.argument("message")
@click.option("--agent", help="Which agent; the settings' default_agent, or the first, if none is named.")
@click.option("--detach", is_flag=True, help="Start it, print its id and return.")
@click.option("--debug", is_flag=True, help="Keep the full state after each step, as a snapshot.")
@with_agents
@click.pass_obj
@command
async def run(settings: Settings, message: str, agent: str | None, detach: bool, debug: bool) -> None:
    """Start an execution and follow it; Ctrl-C only stops following."""
    _require_text(message, "message")
    async with opened(settings, "everstep run") as installation:
        wanted = agent or installation.default_agent
        execution = await installation.client.start(wanted, message, execution_id=uuid4(), debug=debug)
        if detach:
            echo(execution.id)
            return
        await _followed(installation, execution)


@commands.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def follow(settings: Settings, execution_id: str) -> None:
    """Follow an execution that was started before."""
    await _with_execution(settings, execution_id, _followed)


async def _followed(installation: Installation, execution: Execution) -> None:
    # The other commands do not need them.
    from everstep.cli.follow import streamed  # noqa: PLC0415
    from everstep.cli.watch import watching  # noqa: PLC0415
    from everstep.runtime.authorization import local_token  # noqa: PLC0415

    settings = installation.settings
    token = os.environ.get("EVERSTEP_API_TOKEN") or local_token(settings)
    try:
        async with watching(gateway_url(settings), f"agent.execution.{execution.id}", token) as watch:
            async for text in streamed(execution, watch):
                echo(text, nl=False)
    except asyncio.CancelledError:
        echo(f"\nIt goes on without you. Come back: {_come_back(execution)}")
        raise
    except StoreUnavailable as error:
        # What the model was saying may stand in an unfinished line.
        echo()
        raise InvalidInput(f"{error}. It goes on without you; come back: {_come_back(execution)}") from error
    row = await execution.get()
    _print_execution(installation, row)
    if row.status is not ExecutionStatus.COMPLETED:
        raise click.exceptions.Exit(1)


def _come_back(execution: Execution) -> str:
    data = click.get_current_context().find_root().params["data"]
    return f"everstep {f'--data {data} ' if data else ''}follow {execution.id}"


def _print_execution(installation: Installation, row: ExecutionRow) -> None:
    settings = installation.settings
    for line in output.execution_lines(row, settings.ui_url, settings.temporal_namespace):
        say(line)


@commands.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def show(settings: Settings, execution_id: str) -> None:
    """Show where an execution stands and what it did."""

    async def shown(installation: Installation, execution: Execution) -> None:
        _print_execution(installation, await execution.get())
        for line in output.request_lines(await execution.asked()):
            say(line)
        async for step in execution.each_step():
            for line in output.step_lines(step):
                say(line)

    await _with_execution(settings, execution_id, shown)


@commands.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def trace(settings: Settings, execution_id: str) -> None:
    """Show why each step was followed by another, or by none."""

    async def shown(_installation: Installation, execution: Execution) -> None:
        async for step in execution.each_step():
            for line in (*output.step_lines(step), *output.vote_lines(step)):
                say(line)

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
            say(output.execution_line(row))
        if page.cursor:
            echo(f"more: --cursor {page.cursor}")


@commands.command()
@click.argument("execution_id")
@click.argument("text", default="")
@click.option("--data", "data_text", help="The answer to a form, as JSON; TEXT may then be left out.")
@click.pass_obj
@command
async def answer(settings: Settings, execution_id: str, text: str, data_text: str | None) -> None:
    """Answer the oldest question of an execution."""
    data = None if data_text is None else parse_json(data_text, "--data")

    async def answered(_installation: Installation, execution: Execution) -> None:
        request = await _heard(execution.submit_input(text, data=data))
        say(f"answered: {request.request.get('prompt', '')}")

    await _with_execution(settings, execution_id, answered)


@commands.command()
@click.argument("execution_id")
@click.option("--deny", is_flag=True, help="Do not let the call run.")
@click.option("--reason", help="What the model is told when it is denied.")
@click.option("--args", "args_text", help="Run with these arguments instead, as JSON.")
@click.option("--digest", help="The digest of the call that is meant; another call is not decided about.")
@click.option("--remember", is_flag=True, help="Allow all later calls of the tool in this execution, too.")
@click.option(
    "--where",
    "globs",
    multiple=True,
    metavar="ARG=GLOB",
    help="With --remember: only those whose argument matches. May be repeated.",
)
@click.pass_obj
@command
async def approve(
    settings: Settings,
    execution_id: str,
    *,
    deny: bool,
    reason: str | None,
    args_text: str | None,
    digest: str | None,
    remember: bool,
    globs: tuple[str, ...],
) -> None:
    """Decide about the oldest call that waits for approval."""
    if remember and (deny or args_text is not None):
        raise click.UsageError("--remember goes with an approval: give neither --deny nor --args")
    if globs and not remember:
        raise click.UsageError("--where says what --remember allows: give --remember, too")
    for each in globs:
        if not each.partition("=")[1]:
            raise click.BadParameter(f"'{each}' is no ARG=GLOB, such as command=git*", param_hint="--where")
    matching = {name: glob for name, _, glob in (each.partition("=") for each in globs)}
    if deny and args_text is not None:
        raise click.UsageError("--deny and --args exclude each other: a denied call does not run")
    if reason is not None and not deny:
        raise click.UsageError("--reason says why a call is denied: give --deny, too")
    args = None if args_text is None else frozen_map(parse_json(args_text, "--args"), "--args")

    async def decided(_installation: Installation, execution: Execution) -> None:
        if deny:
            request, verdict = await _heard(execution.deny(reason=reason, args_digest=digest)), "denied"
        elif args is not None:
            request, verdict = (
                await _heard(execution.edit(args, args_digest=digest)),
                "approved with other arguments",
            )
        else:
            approved = execution.approve(remember=matching or remember, args_digest=digest)
            request, verdict = await _heard(approved), "approved"
        say(f"{verdict}: {request.tool} {json_text(request.args)}")

    await _with_execution(settings, execution_id, decided)


@commands.command()
@click.argument("execution_id")
@click.argument("message")
@click.pass_obj
@command
async def steer(settings: Settings, execution_id: str, message: str) -> None:
    """Say something that is heard before the next step."""
    _require_text(message, "message")

    async def steered(installation: Installation, execution: Execution) -> None:
        steering = await _heard(installation.sessions.steer(execution.ref, message))
        if steering.is_moved:
            follower = steering.heard_by.execution_id
            echo(f"the execution is ending; {follower} comes after it and hears it")
        else:
            echo("it is heard before the next step")

    await _with_execution(settings, execution_id, steered)


def _simple(name: str, text: str, act: Callable[[Execution], Coroutine[Any, Any, str]]) -> None:
    @commands.command(name, help=text)
    @click.argument("execution_id")
    @click.pass_obj
    @command
    async def acted(settings: Settings, execution_id: str) -> None:
        async def known(_installation: Installation, execution: Execution) -> None:
            row = await execution.get()
            if row.status in output.ENDED:
                raise Refused(f"The execution {execution.id} has ended as {row.status}")
            echo(await act(execution))

        await _with_execution(settings, execution_id, known)

    del acted


async def _cancel(execution: Execution) -> str:
    try:
        await _heard(execution.cancel())
    except Unheard:
        # Temporal keeps this for the next worker.
        await execution.workflow.cancel()
        return "no worker is there; it stops as soon as one is"
    return "it stops"


async def _pause(execution: Execution) -> str:
    await _heard(execution.pause())
    return "it holds still once the work under way is done"


async def _resume(execution: Execution) -> str:
    await _heard(execution.resume())
    return "it goes on"


_simple("cancel", "Stop an execution now; the step under way is given up.", _cancel)
_simple("pause", "Hold an execution still once the work under way is done.", _pause)
_simple("resume", "Let a paused execution go on.", _resume)


class Unheard(EverstepError):
    """No worker took in what was said to an execution."""

    def __init__(self) -> None:
        super().__init__(
            f"no worker heard this within {HEARING_SECONDS:g} seconds: `everstep doctor` says whether one is "
            "there. It is stored and will be carried out then; do not give the command again"
        )


async def _heard(told: Awaitable[T]) -> T:
    """Tell an execution something; Temporal would wait for a worker for ever."""
    try:
        async with asyncio.timeout(HEARING_SECONDS):
            return await told
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The second comes of a limit of Temporal's client, or of its server.
        raise Unheard from None


def _require_text(text: str, what: str) -> None:
    if not text.strip():
        raise InvalidInput(f"the {what} is empty; say something")


async def _with_execution(
    settings: Settings, execution_id: str, act: Callable[[Installation, Execution], Awaitable[object]]
) -> None:
    try:
        known = UUID(execution_id)
    except ValueError:
        shown = repr(cut(execution_id, 50))
        raise InvalidInput(f"{shown} is no execution id; `everstep executions` lists them") from None
    async with opened(settings) as installation:
        await act(installation, installation.client.execution(known))


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
