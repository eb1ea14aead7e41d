"""The commands that list executions, and the open requests of all of them."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import click

from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.values import format_moment
from everstep.cli import output
from everstep.cli.command import command, warn
from everstep.cli.executions import OPERATOR
from everstep.cli.json_output import json_data, json_option, print_json_lines
from everstep.cli.styles import WAITS, status_style
from everstep.cli.table_output import Column, print_rows
from everstep.cli.times import age_text, since_option
from everstep.http_api.schemas.execution_responses import ExecutionResponse, Request
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings

tenant_option = click.option(
    "--tenant", default=DEFAULT_TENANT, show_default=True, help="The tenant whose executions are listed."
)
user_option = click.option("--user", help="Only those of this user.")
agent_filter = click.option("--agent", help="Only those of this agent.")


@click.command()
@click.option("--status", type=click.Choice([status.value for status in ExecutionStatus]))
@agent_filter
@user_option
@since_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500))
@click.option("--cursor", help="The cursor that the previous page printed.")
@tenant_option
@json_option
@click.pass_obj
@command
async def executions(
    settings: Settings,
    *,
    status: str | None,
    agent: str | None,
    user: str | None,
    since: datetime | None,
    limit: int,
    cursor: str | None,
    tenant: str,
    as_json: bool,
) -> None:
    """List executions, newest first."""
    wanted = ExecutionFilter(
        status=ExecutionStatus(status) if status else None, agent=agent, user_id=user, since=since
    )
    async with open_installation(settings, "everstep executions") as installation:
        page = await installation.store.executions_of(Scope(tenant), wanted, cursor=cursor, limit=limit)
    if as_json:
        print_json_lines(ExecutionResponse.of(row, in_full=True) for row in page.rows)
    else:
        print_rows(page.rows, _execution_columns(datetime.now(UTC)), output.execution_line)
    if page.cursor:
        warn(f"more: --cursor {page.cursor}")
    if not page.rows:
        is_filtered = wanted != ExecutionFilter()
        warn(f"There are no executions{' that match' if is_filtered else ''}.")


def _execution_columns(now: datetime) -> list[Column[ExecutionRow]]:
    return [
        Column("execution", lambda row: str(row.ref.execution_id)),
        Column("status", lambda row: str(row.status), lambda row: status_style(row.status)),
        Column("agent", lambda row: row.agent),
        Column("steps", lambda row: str(row.step_count), is_number=True),
        Column("age", lambda row: age_text(row.created_at, now), is_number=True),
        Column("tokens", lambda row: str(row.usage.get("total", 0)), min_width=100, is_number=True),
        Column("cost", lambda row: output.short_usd(row.cost_usd), min_width=100, is_number=True),
        Column("user", lambda row: row.user_id or "", min_width=110),
        Column("ended by", lambda row: str(row.stop_reason or ""), min_width=120),
    ]


@click.command()
@click.option(
    "--kind", type=click.Choice(["question", "approval", "budget"]), help="Only requests of this kind."
)
@agent_filter
@user_option
@since_option
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@tenant_option
@json_option
@click.pass_obj
@command
async def inbox(
    settings: Settings,
    *,
    kind: str | None,
    agent: str | None,
    user: str | None,
    since: datetime | None,
    limit: int,
    tenant: str,
    as_json: bool,
) -> None:
    """List what waits for people, oldest first.

    These are the questions, approvals and exhausted budgets of all sessions, each with the command that
    answers it.
    """

    def is_wanted(request: RequestRow) -> bool:
        return (
            (kind is None or output.request_kind(request) == kind)
            and (agent is None or request.agent == agent)
            and (user is None or request.user_id == user)
            and (since is None or request.created_at >= since)
        )

    found: list[RequestRow] = []
    async with open_installation(settings, "everstep inbox") as installation:
        async for request in _open_requests(installation, tenant):
            if is_wanted(request):
                found.append(request)
            if len(found) > limit:
                break
    shown = found[:limit]
    if as_json:
        print_json_lines(
            {**json_data(Request.of(each, actor=OPERATOR)), "command": output.request_command(each)}
            for each in shown
        )
    else:
        print_rows(shown, _request_columns(datetime.now(UTC)), _request_line)
    if len(found) > limit:
        warn(f"More than {limit} wait: raise --limit, or use a filter.")
    if not found:
        warn("Nothing waits for people.")


async def _open_requests(installation: Installation, tenant: str) -> AsyncGenerator[RequestRow]:
    cursor: str | None = None
    while True:
        page = await installation.store.inbox(Scope(tenant), cursor=cursor, limit=200)
        for request in page.rows:
            yield request
        cursor = page.cursor
        if cursor is None:
            return


def _request_line(request: RequestRow) -> str:
    at = format_moment(request.created_at, 0)
    asked = " ".join(output.request_text(request).split())
    kind = output.request_kind(request)
    return f"{at}  {kind:<8}  {request.agent}  {asked}  {output.request_command(request)}"


def _request_columns(now: datetime) -> list[Column[RequestRow]]:
    return [
        Column(
            "waits for",
            output.request_kind,
            lambda _each: WAITS,
            below=lambda each: age_text(each.created_at, now),
        ),
        Column("user", lambda each: each.user_id or "", min_width=120),
        Column(
            "asked, and the command that answers",
            lambda each: f"{each.agent}: {output.request_text(each)}",
            below=output.request_command,
            is_free=True,
        ),
    ]
