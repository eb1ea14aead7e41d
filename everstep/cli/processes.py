"""The commands that run and maintain an installation: processes, database, diagnosis and retention."""

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.command import (
    announce,
    command,
    note,
    print_line,
    server_command,
    stop_on_signals,
    warn,
    with_agents,
)
from everstep.cli.json_output import json_option, print_json
from everstep.cli.printing import echo, show_progress
from everstep.cli.times import Since
from everstep.client.stray_workflows import StrayWorkflows
from everstep.runtime.agent_process import AgentReport
from everstep.runtime.data_folder import find_data_folder
from everstep.runtime.doctor import run_checks
from everstep.runtime.installation import (
    database_without_password,
    mark_restore,
    open_installation,
    open_local_installation,
    register,
    upgrade_unless_newer,
)
from everstep.runtime.local_model.provision import open_local_model
from everstep.runtime.models import presets_of
from everstep.runtime.retention import TableRetention, open_retention
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import configure_process_logs, open_telemetry
from everstep.runtime.temporal_threads import export_sdk_metrics
from everstep.runtime.worker_processes import MAX_PROCESSES, process_settings, run_processes
from everstep.telemetry.log_lines import writes_json


@click.command()
@click.option("--temporal-port", default=7233, show_default=True, help="If 0 or busy: a free one.")
@click.option("--ui-port", default=8233, show_default=True, help="If 0 or busy: a free one.")
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Default: EVERSTEP_HTTP_PORT or 8080; if 0 or busy: a free one.",
)
@click.option(
    "--gateway-port",
    type=click.IntRange(0, 65535),
    help="Default: EVERSTEP_GATEWAY_PORT or 6001; if 0 or busy: a free one.",
)
@click.option("--model", help="The default preset, or a model such as openai:gpt-5.5 (EVERSTEP_PRESET).")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.option("--no-worker", is_flag=True, help="Run no worker here; start one with `everstep worker`.")
@click.option("--reload", is_flag=True, help="Load agents again when their files or everstep.toml change.")
@click.option("--debug", is_flag=True, help="Show viewers the full texts of errors (EVERSTEP_ERROR_DETAILS).")
@with_agents
@click.pass_obj
@command
async def up(
    settings: Settings,
    *,
    temporal_port: int,
    ui_port: int,
    model: str | None,
    as_json: bool,
    no_worker: bool,
    reload: bool,
    debug: bool,
    **ports: int | None,
) -> None:
    """Start a local installation; Ctrl-C stops it.

    It consists of Temporal with its web UI, PostgreSQL, a worker, the HTTP API and a gateway.
    """
    # Imported here because most commands need neither.
    from everstep.cli.local_agents import open_agents, open_reloaded_agents  # noqa: PLC0415
    from everstep.runtime.gateway import open_local_gateway  # noqa: PLC0415
    from everstep.runtime.sign_in_links import console_link  # noqa: PLC0415

    if reload and no_worker:
        raise click.UsageError("--reload and --no-worker exclude each other")
    settings = settings.with_ports(**ports)
    settings = settings.model_copy(
        update={"error_details": settings.error_details or debug, "preset": model or settings.preset}
    )
    export_sdk_metrics()
    click.get_current_context().with_resource(open_telemetry(settings, "local", logs_requests=False))
    # A model that does not exist is refused before any server starts.
    presets_of(settings)
    surroundings = find_data_folder(settings)
    for remark in surroundings.remarks:
        warn(remark)
    named = click.get_current_context().find_root().params["agents"]
    async with (
        open_local_model(settings, note) as settings,
        open_local_installation(settings, temporal_port=temporal_port, ui_port=ui_port) as (
            installation,
            services,
        ),
        open_local_gateway(installation) as gateway_url,
        open_reloaded_agents(installation, named, model)
        if reload
        else open_agents(installation, has_worker=not no_worker) as agents,
    ):
        # Install the signal handlers before the addresses are printed: a reader may then send a signal.
        stop = stop_on_signals()
        for remark in agents.report.remarks:
            warn(remark)
        urls = {
            "api_url": agents.api.url,
            "gateway_url": gateway_url,
            "token": agents.api.token,
            "console_url": await console_link(
                installation, installation.settings.public_url or agents.api.url
            ),
        }
        _print_addresses(installation.settings, agents.report, urls, as_json or writes_json())
        service_exit = asyncio.ensure_future(services.death)
        service_exit.add_done_callback(lambda _done: stop.set())
        await agents.run(stop)
        if service_exit.done():
            raise InvalidInput(str(service_exit.result()))
        service_exit.cancel()


def _print_addresses(
    settings: Settings, report: AgentReport, urls: Mapping[str, str | None], as_json: bool
) -> None:
    if as_json:
        names = ("database_url", "temporal_address", "ui_url")
        addresses = {name: getattr(settings, name) for name in names}
        echo(json.dumps({**addresses, **urls}))
        return
    echo(f"console      {urls['console_url']}")
    echo(f"HTTP API     {urls['api_url']}, documented at {urls['api_url']}/docs")
    echo(f"gateway      {urls['gateway_url']}")
    echo(f"token        {urls['token'] or 'none needed: EVERSTEP_AUTH=off'}")
    echo(f"Temporal     {settings.temporal_address}")
    echo(f"Temporal UI  {settings.ui_url}")
    echo(f"PostgreSQL   {database_without_password(settings)}")
    print_line(f"data         {settings.data_dir}")
    echo(f"agents       {', '.join(report.agents)}")
    echo(f"model        {report.model}")
    echo('\nIn another terminal: everstep run "What can you do?"\nCtrl-C stops everything here.')


@click.command()
@click.option(
    "--processes",
    type=click.IntRange(1, MAX_PROCESSES),
    default=1,
    show_default=True,
    help="The number of processes, about one for each core; one that dies is started again.",
)
@with_agents
@click.pass_obj
@server_command
async def worker(settings: Settings, processes: int) -> None:
    """Run agents until stopped by SIGINT or SIGTERM; running model calls may finish.

    The worker waits until PostgreSQL and Temporal are available, and reports it.
    """
    # Imported here because the other commands do not need it.
    from everstep.runtime.worker_run import run_worker  # noqa: PLC0415

    if processes == 1:
        await run_worker(settings, cache(stop_on_signals), warn, announce)
    else:
        await _run_processes(settings, processes)


async def _run_processes(settings: Settings, processes: int) -> None:
    """Run the processes of a worker; each reads the environment and everstep.toml itself."""
    from everstep.cli.worker_program import PROGRAM  # noqa: PLC0415

    configure_process_logs(settings)
    data, agents = settings.data_dir, settings.agents or None
    same = {"data_dir": str(data) if data else None, "agents": agents}
    given = [same | own for own in process_settings(settings, processes)]
    patience = settings.graceful_shutdown_seconds
    await run_processes(PROGRAM, given, stop_on_signals(), announce, patience=patience)


@click.group()
def db() -> None:
    """Manage the database."""


@db.command("upgrade")
@click.pass_obj
@command
async def db_upgrade(settings: Settings) -> None:
    """Migrate the tables and register Temporal's search attributes.

    Safe to repeat and to run concurrently. The tables of a newer release are left as they are.
    """
    if await upgrade_unless_newer(settings):
        echo("the tables are up to date")
    else:
        echo("the tables are those of a newer release, which this one can use; nothing is changed")
    echo(await register(settings))


@db.command("restored")
@click.option(
    "--as-of",
    metavar="TIME",
    type=Since(),
    help="The time of the database's backup, if Temporal is newer: executions that went on after it are "
    "ended as failed. A time in UTC, or an age.",
)
@click.pass_obj
@command
async def db_start_epoch(settings: Settings, as_of: datetime | None) -> None:
    """Start a new epoch of the journal after a restore, so that viewers reload.

    Needed where PostgreSQL does not show the restore: after its files were restored from a snapshot, or a
    dump over the tables of the same server. Failovers, point-in-time restores and dumps restored on another
    server are detected. Running it without need is harmless.
    """
    if as_of is not None and as_of > datetime.now(UTC):
        raise InvalidInput(
            f"--as-of is {as_of:%Y-%m-%d %H:%M:%S} UTC, which is in the future; name the time of the backup"
        )
    await mark_restore(settings)
    echo("the journal has a new epoch: viewers that reconnect reload everything")
    if as_of is not None:
        async with open_installation(settings, "everstep db restored") as installation:
            ended = await StrayWorkflows(installation.sessions).end_later_than(as_of)
        echo(f"executions that went on after the backup, and are ended as failed: {ended}")


@click.command()
@click.option(
    "--repair",
    is_flag=True,
    help="If all checks pass, repair what crashed processes and operators left inconsistent.",
)
@json_option
@click.pass_obj
@command
async def doctor(settings: Settings, repair: bool, as_json: bool) -> None:
    """Check this installation, and explain how to fix what is wrong."""
    is_well = True
    async for finding in run_checks(settings):
        if as_json:
            status = "ok" if finding.is_good else "wrong"
            print_json({"ok": finding.is_good, "status": status, "text": finding.text})
        else:
            print_line(("ok     " if finding.is_good else "WRONG  ") + finding.text)
        is_well = is_well and finding.is_good
    if repair and is_well:
        async with open_installation(settings) as installation:
            repairs = await installation.reconciler.once(thorough=True)
        said = f"repaired  {repairs}" if repairs else "nothing to repair"
        (warn if as_json else print_line)(said)
    if not is_well:
        raise click.exceptions.Exit(1)


@click.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing; print how many rows would be removed.")
@click.pass_obj
@command
async def prune(settings: Settings, dry_run: bool) -> None:
    """Remove rows that are older than the retention settings; Ctrl-C is safe.

    Safe to repeat and to run concurrently. Unfinished executions are kept.
    """
    async with open_retention(settings) as tables:
        for retention in tables:
            count = 0
            try:
                async for more in retention.remove_old(dry_run=dry_run):
                    count += more
                    if sys.stderr.isatty():
                        show_progress(f"{retention.table}: {count:,}")
            finally:
                if sys.stderr.isatty():
                    show_progress("")
                echo(_retention_line(retention, count, dry_run=dry_run))


def _retention_line(retention: TableRetention, count: int, *, dry_run: bool) -> str:
    """How many old rows of a table were removed."""
    if retention.days is None:
        return f"{retention.table:<17}  kept: {retention.setting} is not set"
    done = "would be removed" if dry_run else "removed"
    age = "a day" if retention.days == 1 else f"{retention.days:g} days"
    return f"{retention.table:<17}  {count} {done}, older than {age}"
