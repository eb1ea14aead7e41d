"""The command that lists sessions. It uses only the public HTTP API."""

from datetime import UTC, datetime

import click

from everstep.agent_domain.storage.sessions import SessionStatus
from everstep.agent_domain.values import format_moment, valid_text
from everstep.cli.command import command, warn
from everstep.cli.json_output import json_option, print_json_lines
from everstep.cli.remote import api_options, open_remote
from everstep.cli.styles import status_style
from everstep.cli.table_output import Column, print_rows
from everstep.cli.times import age_text, since_option
from everstep.http_api.schemas.responses import PageResponse, Session
from everstep.runtime.settings import Settings


@click.command()
@click.option("--status", type=click.Choice([status.value for status in SessionStatus]))
@click.option("--search", help="Words of the title; the last one may be a prefix.")
@click.option("--agent", help="Only those that name this agent.")
@click.option("--user", help="Only those of this user.")
@since_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200))
@click.option("--cursor", help="The cursor that the previous page printed.")
@json_option
@api_options
@click.pass_obj
@command
async def sessions(  # noqa: PLR0913 -- options, passed by keyword
    settings: Settings,
    *,
    status: str | None,
    search: str | None,
    agent: str | None,
    user: str | None,
    since: datetime | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """List sessions, newest first."""
    for name, text in (("--search", search), ("--agent", agent), ("--user", user), ("--cursor", cursor)):
        valid_text(text or "", name)
    filters = {
        "status": status,
        "search": search,
        "agent": agent,
        "user_id": user,
        "since": since and since.isoformat(),
    }
    async with open_remote(settings, url, token) as remote:
        page = await remote.get(
            PageResponse[Session], "/agent/sessions", **filters, limit=limit, cursor=cursor
        )
    if as_json:
        print_json_lines(page.items)
    else:
        print_rows(page.items, _columns(datetime.now(UTC)), _line)
    if page.next_cursor:
        warn(f"more: --cursor {page.next_cursor}")
    if not page.items:
        warn(f"There are no sessions{' that match' if any(filters.values()) else ''}.")


def _line(session: Session) -> str:
    at = format_moment(session.created_at, 0)
    return f"{session.id}  {session.status:<8}  {at}  {title_of(session)}"


def _columns(now: datetime) -> list[Column[Session]]:
    return [
        Column("session", lambda each: str(each.id)),
        Column("status", lambda each: str(each.status), lambda each: status_style(each.status)),
        Column("age", lambda each: age_text(each.created_at, now), is_number=True),
        Column("user", lambda each: each.user_id, min_width=100),
        Column("agent", lambda each: each.agent or "", min_width=120),
        Column("title", title_of, is_free=True),
    ]


def title_of(session: Session) -> str:
    """The session's title on one line."""
    return " ".join((session.title or "(no title)").split())
