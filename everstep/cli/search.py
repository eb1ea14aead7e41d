"""The command that searches what was said. It uses only the public HTTP API."""

from datetime import UTC, datetime

import click

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.values import valid_text
from everstep.cli.command import command, warn
from everstep.cli.json_output import json_option, print_json_lines
from everstep.cli.remote import api_options, open_remote
from everstep.cli.table_output import Column, print_rows
from everstep.cli.times import age_text, since_option
from everstep.http_api.schemas.responses import PageResponse
from everstep.http_api.schemas.search_responses import SearchHit
from everstep.runtime.settings import Settings


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="TEXT")
@click.option("--session", type=click.UUID, help="Only in this session.")
@click.option("--status", type=click.Choice([status.value for status in ExecutionStatus]))
@click.option("--agent", help="Only in executions of this agent.")
@click.option("--user", help="Only in executions of this user.")
@since_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200))
@click.option("--cursor", help="The cursor that the previous page printed.")
@json_option
@api_options
@click.pass_obj
@command
async def search(  # noqa: PLR0913 -- options, passed by keyword
    settings: Settings,
    *,
    words: tuple[str, ...],
    session: str | None,
    status: str | None,
    agent: str | None,
    user: str | None,
    since: datetime | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Search messages, replies, calls and results, the newest first.

    \b
    invoice acme          with both words
    '"unpaid invoice"'    with these words in this order
    'invoice -paid'       without the second word
    refund OR chargeback  with one of them
    'ship*'               with a word that begins like this

    Write -- before a text that begins with a minus.
    """  # noqa: D301 -- click reads the backspace
    sought = " ".join(words)
    for name, text in (("TEXT", sought), ("--agent", agent), ("--user", user), ("--cursor", cursor)):
        valid_text(text or "", name)
    TextQuery.parse(sought)
    filters = {
        "session_id": session,
        "status": status,
        "agent": agent,
        "user_id": user,
        "since": since and since.isoformat(),
    }
    async with open_remote(settings, url, token) as remote:
        page = await remote.get(
            PageResponse[SearchHit], "/agent/search", q=sought, **filters, limit=limit, cursor=cursor
        )
    if as_json:
        print_json_lines(page.items)
    else:
        print_rows(page.items, _columns(datetime.now(UTC)), _line)
    if page.next_cursor:
        warn(f"more: --cursor {page.next_cursor}")
    if not page.items:
        warn("Nothing matches.")


def _line(hit: SearchHit) -> str:
    return f"{hit.execution_id}  {hit.step_number:>3}  {hit.kind:<9}  {_snippet(hit)}"


def _snippet(hit: SearchHit) -> str:
    """The snippet on one line, after the name of the tool."""
    tool = f"{hit.tool}: " if hit.tool else ""
    return tool + " ".join(hit.snippet.text.split())


def _columns(now: datetime) -> list[Column[SearchHit]]:
    return [
        Column("execution", lambda hit: str(hit.execution_id)),
        Column("step", lambda hit: str(hit.step_number), is_number=True),
        Column("in", lambda hit: str(hit.kind)),
        Column("age", lambda hit: age_text(hit.created_at, now), is_number=True),
        Column("agent", lambda hit: hit.agent, min_width=120),
        Column("text", _snippet, is_free=True),
    ]
