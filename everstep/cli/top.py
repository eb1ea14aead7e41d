"""The command that shows what runs now, over all tenants."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

import click

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.overview import AgentLoad, CurrentStep, OpenExecution, Overview
from everstep.agent_domain.values import format_moment
from everstep.cli import output
from everstep.cli.command import command, print_line
from everstep.cli.drawing import draws_pages, is_dialogue
from everstep.cli.json_output import json_data, json_option, print_json
from everstep.cli.styles import RUNS, WAITS, status_style
from everstep.cli.table_output import Column
from everstep.cli.times import age_text
from everstep.http_api.schemas.execution_responses import ExecutionResponse
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

if TYPE_CHECKING:
    from rich.console import Group

OPEN_STATUSES = tuple(status for status in ExecutionStatus if not status.is_terminal)


@click.command()
@click.option("--tenant", help="Only this tenant; default: all.")
@click.option("--agent", help="Only this agent; default: all.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 200))
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between updates.",
)
@click.option("--once", is_flag=True, help="Print the state once and exit; the default in a pipe.")
@json_option
@click.pass_obj
@command
async def top(
    settings: Settings,
    *,
    tenant: str | None,
    agent: str | None,
    limit: int,
    interval: float,
    once: bool,
    as_json: bool,
) -> None:
    """Show what is running now, live, by tenant and agent; q and Ctrl-C quit.

    Lists the executions that have not ended, oldest first, with what each is doing or waiting for.
    """
    async with open_installation(settings, "everstep top") as installation:

        async def read() -> Overview:
            overview = await installation.overview.overview(tenant_id=tenant, agent=agent, limit=limit)
            return overview.with_limits(await installation.limits.find_waits(overview.users))

        if as_json:
            print_json(overview_document(await read(), datetime.now(UTC)))
        elif once or not is_dialogue():
            print_overview(await read(), datetime.now(UTC))
        else:
            await _watch(read, interval)


def overview_document(overview: Overview, now: datetime) -> dict[str, Any]:
    """The overview as JSON data."""
    return {
        "at": format_moment(now, 6),
        "agents": [
            {
                "tenant": load.tenant_id,
                "agent": load.agent,
                **{str(status): load.counts.get(status, 0) for status in OPEN_STATUSES},
            }
            for load in overview.loads
        ],
        "executions": [
            {
                **json_data(ExecutionResponse.of(each.row, in_full=True)),
                "tenant": each.row.ref.tenant_id,
                "step": each.step.number if each.step else None,
                "attempt": each.step.attempt if each.step else None,
                "seconds": round((now - each.row.created_at).total_seconds(), 3),
                "doing": doing_text(each, now),
            }
            for each in overview.executions
        ],
    }


def print_overview(overview: Overview, now: datetime) -> None:
    """Print the overview once."""
    if draws_pages():
        # Imported here because a pipe does not need them.
        from everstep.cli.console import open_console  # noqa: PLC0415

        console = open_console()
        console.print(build_page(overview, now, console.width))
        return
    for load in overview.loads:
        counts = ", ".join(f"{load.counts.get(status, 0)} {status}" for status in OPEN_STATUSES)
        print_line(f"{load.tenant_id}  {load.agent}  {counts}")
    for each in overview.executions:
        row = each.row
        step = each.step.number if each.step else 0
        print_line(
            f"{row.ref.execution_id}  {row.status:<9}  {row.ref.tenant_id}  {row.agent}  step {step}  "
            f"{age_text(row.created_at, now)}  {row.usage.get('total', 0)} tokens  "
            f"{output.short_usd(row.cost_usd)}  {doing_text(each, now)}"
        )


def doing_text(each: OpenExecution, now: datetime) -> str:
    """What an execution does, or waits for."""
    row, step = each.row, each.step
    if row.status is ExecutionStatus.PENDING:
        return f"waits {_start_text(each)}"
    if each.requests:
        request = each.requests[0]
        more = f" and {len(each.requests) - 1} more" if len(each.requests) > 1 else ""
        kind, asked = output.request_kind(request), output.request_text(request)
        return f"waits {age_text(request.created_at, now)} for {kind}: {asked}{more}"
    if step is not None and not step.has_reply:
        return _asking_text(step, now)
    if each.calls:
        return f"runs {', '.join(each.calls)}"
    if row.status is ExecutionStatus.PAUSED:
        return "waits until it is resumed"
    return f"waits {each.limits.call}" if each.limits.call else "between two steps"


def _start_text(each: OpenExecution) -> str:
    """What a pending execution waits for."""
    if each.needs_place:
        return each.limits.start or "in the queue of its tenant"
    return "for its session" if each.is_queued else each.limits.call or "for a worker"


def _asking_text(step: CurrentStep, now: datetime) -> str:
    if step.wait is not None:
        seconds = max(0, ceil((step.wait.until - now).total_seconds()))
        return f"waits for the provider, next attempt in {seconds} s"
    attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
    return f"asks the model for {age_text(step.started_at, now)}{attempt}"


def build_page(overview: Overview, now: datetime, width: int, error: str | None = None) -> "Group":
    """The overview as rich draws it, for a terminal of this width."""
    from rich.console import Group, RenderableType  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from everstep.cli.console import styled  # noqa: PLC0415
    from everstep.cli.styles import BAD, NAME, QUIET  # noqa: PLC0415
    from everstep.cli.table_output import build_table  # noqa: PLC0415

    counts = {status: sum(load.counts.get(status, 0) for load in overview.loads) for status in OPEN_STATUSES}
    head = styled("everstep top", NAME).append_text(styled(f"  {now:%F %T} UTC", QUIET))
    for status, count in counts.items():
        head.append_text(styled(f"  {count} {status}", status_style(status) if count else QUIET))
    parts: list[RenderableType] = [head]
    if error:
        parts.append(styled(error, BAD))
    if not overview.loads:
        return Group(*parts, Text(), styled("Nothing runs.", QUIET))
    parts += [Text(), build_table(overview.loads, _load_columns(), width), Text()]
    parts.append(build_table(overview.executions, _open_columns(now), width))
    rest = sum(counts.values()) - len(overview.executions)
    if rest > 0:
        parts.append(styled(f"and {rest} more: --limit", QUIET))
    return Group(*parts)


def _load_columns() -> list[Column[AgentLoad]]:
    def counted(status: ExecutionStatus) -> Column[AgentLoad]:
        return Column(
            str(status),
            lambda load: str(load.counts.get(status, 0)),
            lambda load: status_style(status) if load.counts.get(status) else "quiet",
            is_number=True,
        )

    return [
        Column("tenant", lambda load: load.tenant_id),
        Column("agent", lambda load: load.agent),
        *map(counted, OPEN_STATUSES),
    ]


def _open_columns(now: datetime) -> list[Column[OpenExecution]]:
    return [
        Column("execution", lambda each: str(each.row.ref.execution_id), min_width=110),
        Column("execution", lambda each: str(each.row.ref.execution_id)[:8], max_width=109),
        Column("status", lambda each: str(each.row.status), lambda each: status_style(each.row.status)),
        Column("tenant", lambda each: each.row.ref.tenant_id, min_width=140),
        Column("agent", lambda each: each.row.agent),
        Column("step", lambda each: str(each.step.number if each.step else 0), is_number=True),
        Column("age", lambda each: age_text(each.row.created_at, now), is_number=True),
        Column("tokens", lambda each: str(each.row.usage.get("total", 0)), is_number=True),
        Column("cost", lambda each: output.short_usd(each.row.cost_usd), min_width=90, is_number=True),
        Column("does", lambda each: doing_text(each, now), _doing_style, is_free=True),
    ]


def _doing_style(each: OpenExecution) -> str:
    return WAITS if each.requests else RUNS if each.row.status is ExecutionStatus.RUNNING else ""


async def _watch(read: Callable[[], Awaitable[Overview]], interval: float) -> None:
    """Show the overview on the alternate screen until q or Ctrl-C."""
    # Imported here because a pipe does not need them.
    from everstep.cli.console import open_console  # noqa: PLC0415
    from everstep.cli.full_screen import open_screen  # noqa: PLC0415

    console = open_console()
    overview, error = await read(), None
    async with open_screen(console) as screen:
        while True:
            screen.draw(build_page(overview, datetime.now(UTC), console.width, error))
            if await screen.key(interval) == "q":
                return
            try:
                overview, error = await read(), None
            except StoreUnavailable as problem:
                error = f"{problem}; this is the last state that was read"
