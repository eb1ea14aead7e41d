"""The command that talks with an agent. It uses only the public HTTP API."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import click
from click.core import ParameterSource

from everstep.agent_domain.attachments import as_attachments
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.sessions import OnBusy
from everstep.agent_domain.values import valid_text
from everstep.cli.command import attach_option, command
from everstep.cli.conversation import Conversation
from everstep.cli.id_arguments import LOOKED_THROUGH, parse_id
from everstep.cli.remote import ApiUnavailable, Remote, api_options, open_remote
from everstep.cli.terminal import InputLines, Screen
from everstep.http_api.schemas.responses import PageResponse, Session


@click.command()
@click.argument("session_id", required=False)
@click.option("--agent", help="The agent; default: the session's agent, or the installation's default.")
@click.option(
    "--on-busy",
    type=click.Choice([OnBusy.ENQUEUE.value, OnBusy.STEER.value, OnBusy.INTERRUPT.value]),
    default=OnBusy.ENQUEUE.value,
    show_default=True,
    help="How a line is handled while the agent works.",
)
@attach_option
@api_options
@click.pass_context
@command
async def chat(
    context: click.Context,
    *,
    session_id: str | None,
    agent: str | None,
    on_busy: str,
    attach: tuple[Path, ...],
    url: str | None,
    token: str | None,
) -> None:
    """Talk with an agent, or resume a session; Ctrl-D and Ctrl-C leave.

    A line is a message, or the answer to a request of the agent; the first message takes the attached files
    along. From a pipe, each line waits until the previous one is answered.
    """
    valid_text(agent or "", "--agent")
    files = as_attachments(attach)
    async with open_remote(context.obj, url, token) as remote, AsyncExitStack() as stack:
        known = None if session_id is None else await _session_id(remote, session_id)
        lines = InputLines()
        screen = Screen(is_terminal=lines.is_terminal)
        remote.report = screen.warn
        conversation = Conversation(remote, lines, screen, OnBusy(on_busy), agent, known, stack, files)
        try:
            await conversation.open()
            await conversation.run()
        except asyncio.CancelledError:
            screen.close(_closing_line(context, conversation))
            raise
        except ApiUnavailable as error:
            if not conversation.is_open:
                raise
            raise InvalidInput(f"{error}. {_closing_line(context, conversation)}") from error
        if lines.is_terminal or not conversation.is_idle:
            screen.close(_closing_line(context, conversation))
    if not lines.is_terminal and not conversation.has_succeeded:
        raise click.exceptions.Exit(1)


async def _session_id(remote: Remote, text: str) -> UUID:
    async def newest() -> list[UUID]:
        page = await remote.get(PageResponse[Session], "/agent/sessions", limit=LOOKED_THROUGH)
        return [session.id for session in page.items]

    return await parse_id(text, "a session", "everstep sessions", newest)


def _closing_line(context: click.Context, conversation: Conversation) -> str:
    if conversation.session_id is None:
        return "Your message may have arrived: see `everstep sessions`." if conversation.has_sent else "Bye."
    data = context.find_root().params["data"]
    is_named = context.get_parameter_source("url") is ParameterSource.COMMANDLINE
    url = f" --url {context.params['url']}" if is_named else ""
    status = "The execution continues. " if conversation.running else ""
    return (
        f"{status}To return: everstep {f'--data {data} ' if data else ''}chat {conversation.session_id}{url}"
    )
