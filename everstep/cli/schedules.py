"""The commands about schedules. They use only the public HTTP API."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import click

from everstep.agent_domain.storage.schedules import MAX_INTERVAL, Overlap
from everstep.agent_domain.values import format_moment, valid_text
from everstep.cli.command import command, print_line, warn
from everstep.cli.json_output import json_option, print_json, print_json_lines
from everstep.cli.remote import api_options, open_remote
from everstep.cli.table_output import Column, print_rows
from everstep.cli.times import Seconds, Time
from everstep.http_api.schemas.responses import PageResponse
from everstep.http_api.schemas.schedule_schemas import BackfillResponse, ScheduleDetails, ScheduleResponse
from everstep.runtime.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

PATH = "/agent/schedules"


@click.group()
def schedules() -> None:
    """Send messages to agents at times.

    The times follow from an interval or a cron expression.
    """


_schedule_id = click.argument("schedule_id", type=click.UUID)


def _timing(function: F) -> F:
    """Add the options of when a schedule runs."""
    choices = click.Choice([overlap.value for overlap in Overlap])
    for option in (
        click.option("--overlap", type=choices, help="If the previous run has not ended; default: skip."),
        click.option(
            "--end-at", type=Time(), help="Do not run after this time, such as 2026-12-31T00:00:00Z."
        ),
        click.option("--start-at", type=Time(), help="Do not run before this time."),
        click.option(
            "--jitter", "jitter_seconds", type=Seconds(0, MAX_INTERVAL), help="Delay runs by up to this time."
        ),
        click.option("--timezone", help="Of the cron expression, such as Europe/Berlin; default: UTC."),
        click.option("--cron", help="At these times, such as '0 9 * * mon-fri'."),
        click.option(
            "--every",
            "interval_seconds",
            type=Seconds(1, MAX_INTERVAL),
            help="At this interval, such as 5m or 2h.",
        ),
    ):
        function = option(function)
    return function


@schedules.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 200))
@click.option("--cursor", help="The cursor that the previous page printed.")
@json_option
@api_options
@click.pass_obj
@command
async def list_schedules(
    settings: Settings, *, limit: int, cursor: str | None, as_json: bool, url: str | None, token: str | None
) -> None:
    """List schedules, newest first."""
    async with open_remote(settings, url, token) as remote:
        page = await remote.get(PageResponse[ScheduleResponse], PATH, limit=limit, cursor=cursor)
    if as_json:
        print_json_lines(page.items)
    else:
        print_rows(page.items, _COLUMNS, _line)
    if page.next_cursor:
        warn(f"more: --cursor {page.next_cursor}")
    if not page.items:
        warn("There are no schedules; `everstep schedules add` creates one.")


@schedules.command("add")
@click.argument("agent")
@click.argument("content", metavar="MESSAGE")
@_timing
@click.option("--session", "session_id", type=click.UUID, help="Send the messages to this session.")
@click.option("--paused", is_flag=True, help="Do not run until it is resumed.")
@json_option
@api_options
@click.pass_obj
@command
async def add(
    settings: Settings,
    *,
    agent: str,
    content: str,
    session_id: UUID | None,
    paused: bool,
    as_json: bool,
    url: str | None,
    token: str | None,
    **timing: Any,
) -> None:
    """Create a schedule that sends MESSAGE to AGENT."""
    _require_one_timing(timing, least=1)
    body = {
        "agent": valid_text(agent, "the agent"),
        "content": valid_text(content, "the message"),
        "paused": paused,
        **({"session_id": str(session_id)} if session_id else {}),
        **_given(timing),
    }
    async with open_remote(settings, url, token) as remote:
        _print(await remote.post(ScheduleDetails, PATH, body), as_json=as_json)


@schedules.command("show")
@_schedule_id
@json_option
@api_options
@click.pass_obj
@command
async def show(
    settings: Settings, *, schedule_id: UUID, as_json: bool, url: str | None, token: str | None
) -> None:
    """Show a schedule, with its next and its last runs."""
    async with open_remote(settings, url, token) as remote:
        _print(await remote.get(ScheduleDetails, f"{PATH}/{schedule_id}"), as_json=as_json)


@schedules.command("change")
@_schedule_id
@_timing
@click.option("--agent", help="The agent that receives the message.")
@click.option("--message", "content", help="The message.")
@json_option
@api_options
@click.pass_obj
@command
async def change(
    settings: Settings,
    *,
    schedule_id: UUID,
    as_json: bool,
    url: str | None,
    token: str | None,
    **changes: Any,
) -> None:
    """Change a schedule; what is not named stays."""
    given = _given(changes)
    if not given:
        raise click.UsageError("name what to change, such as --every 1h")
    _require_one_timing(changes, least=0)
    async with open_remote(settings, url, token) as remote:
        _print(await remote.patch(ScheduleDetails, f"{PATH}/{schedule_id}", given), as_json=as_json)


def _acting(name: str, text: str) -> None:
    """Add a command that only names what to do with a schedule."""

    @schedules.command(name, help=text)
    @_schedule_id
    @json_option
    @api_options
    @click.pass_obj
    @command
    async def act(
        settings: Settings, *, schedule_id: UUID, as_json: bool, url: str | None, token: str | None
    ) -> None:
        async with open_remote(settings, url, token) as remote:
            done = await remote.post(ScheduleDetails, f"{PATH}/{schedule_id}/{name}", {})
        _print(done, as_json=as_json)

    del act


_acting("pause", "Pause a schedule; a run that has begun continues.")
_acting("resume", "Resume a paused schedule.")
_acting("trigger", "Run a schedule now, also if it is paused.")


@schedules.command("backfill")
@_schedule_id
@click.option(
    "--start-at", type=Time(), required=True, help="The begin of the period, such as 2026-01-12T00:00:00Z."
)
@click.option("--end-at", type=Time(), required=True, help="Its end.")
@json_option
@api_options
@click.pass_obj
@command
async def backfill(
    settings: Settings,
    *,
    schedule_id: UUID,
    start_at: datetime,
    end_at: datetime,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Make up for the runs of a period in the past, one after the other."""
    body = _given({"start_at": start_at, "end_at": end_at})
    async with open_remote(settings, url, token) as remote:
        done = await remote.post(BackfillResponse, f"{PATH}/{schedule_id}/backfill", body)
    if as_json:
        print_json(done)
    else:
        print_line(f"{done.runs} run{'' if done.runs == 1 else 's'} to make up for")


@schedules.command("remove")
@_schedule_id
@api_options
@click.pass_obj
@command
async def remove(settings: Settings, *, schedule_id: UUID, url: str | None, token: str | None) -> None:
    """Delete a schedule; executions that it started stay."""
    async with open_remote(settings, url, token) as remote:
        await remote.delete(f"{PATH}/{schedule_id}")
    print_line(f"removed: {schedule_id}")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()
    }


def _require_one_timing(options: dict[str, Any], least: int) -> None:
    if not least <= len({"interval_seconds", "cron"} & _given(options).keys()) <= 1:
        raise click.UsageError(
            "name either an interval, such as --every 1h, or times, such as --cron '0 9 * * mon-fri'"
        )


def _print(schedule: ScheduleDetails, *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    print_line(_line(schedule))
    if schedule.last_error:
        print_line(f"  the last run did not begin: {schedule.last_error}")
    if not schedule.is_applied:
        print_line("  Temporal does not have the last change yet")
    for at in () if schedule.paused else schedule.next_runs[:5]:
        print_line(f"  next   {format_moment(at, 0)}")
    for number, run in enumerate(schedule.recent_runs[:5]):
        # The newest one may be about to send its message, as after a trigger.
        missing = "no execution" if number or schedule.last_error else "no execution yet"
        outcome = f"execution {run.execution_id}" if run.execution_id else missing
        print_line(f"  ran    {format_moment(run.scheduled_at, 0)}  {outcome}")


def _times(schedule: ScheduleResponse) -> str:
    if schedule.interval_seconds is not None:
        return f"every {schedule.interval_seconds} s"
    zone = "" if schedule.timezone == "UTC" else f" {schedule.timezone}"
    return f"{schedule.cron}{zone}"


def _state(schedule: ScheduleResponse) -> str:
    is_over = schedule.end_at is not None and schedule.end_at <= datetime.now(UTC)
    return "ended" if is_over else "paused" if schedule.paused else "active"


def _line(schedule: ScheduleResponse) -> str:
    first_line = " ".join(schedule.content.split())[:60]
    return f"{schedule.id}  {_state(schedule):<6}  {_times(schedule)}  {schedule.agent}: {first_line}"


_COLUMNS: list[Column[ScheduleResponse]] = [
    Column("schedule", lambda each: str(each.id)),
    Column("state", _state),
    Column("when", _times),
    Column("agent", lambda each: each.agent),
    Column("user", lambda each: each.user_id, min_width=120),
    Column("message", lambda each: " ".join(each.content.split()), is_free=True),
]
