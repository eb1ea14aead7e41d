"""The command that lists sessions. It uses only the public HTTP API."""

import click

from everstep.agent_domain.storage.sessions import SessionStatus
from everstep.agent_domain.values import format_moment, valid_text
from everstep.cli.command import command, print_line
from everstep.cli.printing import echo
from everstep.cli.remote import api_options, open_remote
from everstep.http_api.schemas.responses import PageResponse, Session
from everstep.runtime.settings import Settings


@click.command()
@click.option("--status", type=click.Choice([status.value for status in SessionStatus]))
@click.option("--search", help="Words of the title; the last one may be a prefix.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200))
@click.option("--cursor", help="The cursor that the previous page printed.")
@api_options
@click.pass_obj
@command
async def sessions(
    settings: Settings,
    *,
    status: str | None,
    search: str | None,
    limit: int,
    cursor: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """List sessions, newest first."""
    for name, text in (("--search", search), ("--cursor", cursor)):
        valid_text(text or "", name)
    async with open_remote(settings, url, token) as remote:
        wanted = {"status": status, "search": search, "limit": limit, "cursor": cursor}
        page = await remote.get(PageResponse[Session], "/agent/sessions", **wanted)
    for session in page.items:
        print_line(
            f"{session.id}  {session.status:<8}  {format_moment(session.created_at, 0)}  {title_of(session)}"
        )
    if page.next_cursor:
        echo(f"more: --cursor {page.next_cursor}")
    if not page.items:
        echo(f"There are no sessions{' that match' if status or search else ''}.", err=True)


def title_of(session: Session) -> str:
    """The session's title on one line."""
    return " ".join((session.title or "(no title)").split())
