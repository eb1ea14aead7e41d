"""The command that talks with an agent. It is a client of the HTTP API, as any other program may be."""

import asyncio
from contextlib import AsyncExitStack
from uuid import UUID

import click
from click.core import ParameterSource

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.sessions import OnBusy
from everstep.agent_domain.values import cut, valid_text
from everstep.cli.command import command
from everstep.cli.conversation import Conversation
from everstep.cli.remote import Silent, api_options, reached
from everstep.cli.terminal import Lines, Screen


@click.command()
@click.argument("session_id", required=False)
@click.option("--agent", help="Whom to talk to; else the session's agent, or the installation's default.")
@click.option(
    "--on-busy",
    type=click.Choice([OnBusy.ENQUEUE.value, OnBusy.STEER.value, OnBusy.INTERRUPT.value]),
    default=OnBusy.ENQUEUE.value,
    show_default=True,
    help="What becomes of a line while an agent works.",
)
@api_options
@click.pass_context
@command
async def chat(
    context: click.Context,
    *,
    session_id: str | None,
    agent: str | None,
    on_busy: str,
    url: str | None,
    token: str | None,
) -> None:
    """Talk with an agent, or go on with a session; Ctrl-D leaves, and Ctrl-C, too.

    A line is a message, or the answer to what the agent asks. From a pipe, each line waits until the one
    before is answered.
    """
    known = None if session_id is None else _session_id(session_id)
    valid_text(agent or "", "--agent")
    async with reached(context.obj, url, token) as remote, AsyncExitStack() as meanwhile:
        lines = Lines()
        screen = Screen(is_terminal=lines.is_terminal)
        remote.tell = screen.warn
        talk = Conversation(remote, lines, screen, OnBusy(on_busy), agent, known, meanwhile)
        try:
            await talk.open()
            await talk.go_on()
        except asyncio.CancelledError:
            screen.part(_parting(context, talk))
            raise
        except Silent as error:
            if not talk.is_open:
                raise
            raise InvalidInput(f"{error}. {_parting(context, talk)}") from error
        if lines.is_terminal or not talk.is_settled:
            screen.part(_parting(context, talk))
    if not lines.is_terminal and not talk.went_well:
        raise click.exceptions.Exit(1)


def _session_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        shown = repr(cut(text, 50))
        raise InvalidInput(f"{shown} is no session id; `everstep sessions` lists them") from None


def _parting(context: click.Context, talk: Conversation) -> str:
    """How to come back."""
    if talk.session_id is None:
        return "Perhaps it was heard: `everstep sessions` lists sessions." if talk.has_spoken else "Bye."
    data = context.find_root().params["data"]
    is_named = context.get_parameter_source("url") is ParameterSource.COMMANDLINE
    url = f" --url {context.params['url']}" if is_named else ""
    goes_on = "It goes on without you. " if talk.under_way else ""
    return f"{goes_on}Come back: everstep {f'--data {data} ' if data else ''}chat {talk.session_id}{url}"
