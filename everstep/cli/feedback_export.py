"""The command that exports feedback. It uses only the public HTTP API."""

import click

from everstep.cli.command import command, print_line
from everstep.cli.printing import echo
from everstep.cli.remote import api_options, open_remote
from everstep.http_api.schemas.responses import AnswerFeedbackResponse, PageResponse
from everstep.runtime.settings import Settings

PAGE = 200


@click.command()
@click.option("--limit", type=click.IntRange(1), help="The number of answers; default: all.")
@api_options
@click.pass_obj
@command
async def feedback(settings: Settings, *, limit: int | None, url: str | None, token: str | None) -> None:
    """Print the feedback on answers as lines of JSON, of the newest answers first."""
    count, cursor = 0, None
    async with open_remote(settings, url, token) as remote:
        while limit is None or count < limit:
            size = PAGE if limit is None else min(PAGE, limit - count)
            page = await remote.get(
                PageResponse[AnswerFeedbackResponse], "/agent/feedback", limit=size, cursor=cursor
            )
            for each in page.items:
                print_line(each.model_dump_json())
            count, cursor = count + len(page.items), page.next_cursor
            if cursor is None:
                break
    if count == 0:
        echo("There is no feedback.", err=True)
