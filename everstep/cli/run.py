"""The commands that follow an execution: a new one, a retried one, or one that runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import click

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message
from everstep.cli import output
from everstep.cli.command import attach_option, command, print_line, warn, with_agents
from everstep.cli.drawing import draws_pages, is_dialogue
from everstep.cli.executions import require_text, with_execution
from everstep.cli.printing import echo
from everstep.cli.result_schema import read_schema
from everstep.client.execution import Execution
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings
from everstep.runtime.viewing import gateway_url

if TYPE_CHECKING:
    from everstep.cli.follow import OutputPiece


@click.command()
@click.argument("message")
@click.option("--agent", help="The agent; default: the setting default_agent, or the first agent.")
@click.option("--model", help="A preset, or a model such as openai:gpt-5.5; default: the agent's.")
@click.option(
    "--output",
    "schema_text",
    metavar="SCHEMA",
    help="The JSON schema of the result: a file, or the schema itself; default: the agent's.",
)
@click.option("--detach", is_flag=True, help="Start the execution, print its id and return.")
@click.option("--debug", is_flag=True, help="Store a snapshot of the full state after each step.")
@attach_option
@with_agents
@click.pass_obj
@command
async def run(
    settings: Settings,
    message: str,
    *,
    agent: str | None,
    model: str | None,
    schema_text: str | None,
    detach: bool,
    debug: bool,
    attach: tuple[Path, ...],
) -> None:
    """Start an execution and follow it; Ctrl-C only stops watching."""
    if not attach:
        require_text(message, "message")
    sent = Message.user(message, attachments=attach)
    schema = None if schema_text is None else read_schema(schema_text)
    async with open_installation(settings, "everstep run") as installation:
        agent_name, execution_id = agent or installation.default_agent, uuid4()
        try:
            execution = await installation.client.start(
                agent_name, sent, execution_id=execution_id, debug=debug, model=model, output=schema
            )
        except asyncio.CancelledError:
            warn(f"The execution may have started. To follow it: {follow_command(execution_id)}")
            raise
        if detach:
            echo(execution.id)
            return
        await follow_execution(installation, execution)


@click.command()
@click.argument("execution_id")
@click.option("--detach", is_flag=True, help="Start the new execution, print its id and return.")
@click.pass_obj
@command
async def retry(settings: Settings, execution_id: str, *, detach: bool) -> None:
    """Continue a failed execution from its last good step.

    A new execution has its whole conversation: what its tools did is not done again. The command follows it;
    Ctrl-C only stops watching.
    """

    async def start_retry(installation: Installation, execution: Execution) -> None:
        retried = await installation.sessions.retry(execution.ref)
        if detach:
            echo(retried.id)
        else:
            await follow_execution(installation, retried)

    await with_execution(settings, execution_id, start_retry)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def follow(settings: Settings, execution_id: str) -> None:
    """Print the steps of an execution as they happen."""
    await with_execution(settings, execution_id, follow_execution)


async def follow_execution(installation: Installation, execution: Execution) -> None:
    """Show an execution until it ends; exit with 1 unless it completed."""
    # Imported here because `run --detach` does not need them.
    from everstep.cli.follow import follow_pieces  # noqa: PLC0415
    from everstep.cli.watch import open_watch  # noqa: PLC0415
    from everstep.runtime.authorization import local_token  # noqa: PLC0415

    settings = installation.settings
    token = os.environ.get("EVERSTEP_API_TOKEN") or local_token(settings, execution.ref.tenant_id)
    channel = f"agent.execution.{execution.id}"
    try:
        async with (
            open_watch(gateway_url(settings), channel, token) as watch,
            aclosing(follow_pieces(execution, watch)) as pieces,
        ):
            if draws_pages():
                await _draw(execution, pieces)
            else:
                async for piece in pieces:
                    echo(piece.text, nl=False)
    except asyncio.CancelledError:
        warn(f"\nThe execution continues. To follow it again: {follow_command(execution.id)}")
        raise
    except StoreUnavailable as error:
        # The model's text may have left the cursor in an unfinished line.
        echo()
        raise InvalidInput(
            f"{error}. The execution continues; to follow it again: {follow_command(execution.id)}"
        ) from error
    row = await execution.get()
    because = await execution.sentence(row)
    links = settings.ui_url, settings.temporal_namespace, settings.public_url, because
    if draws_pages():
        # Imported here because a pipe does not need them.
        from everstep.cli.console import open_console  # noqa: PLC0415
        from everstep.cli.execution_page import execution_head  # noqa: PLC0415

        console = open_console()
        console.print()
        console.print(execution_head(row, output.execution_fields(row, *links)))
    else:
        for line in output.execution_lines(row, *links):
            print_line(line)
    if row.status is not ExecutionStatus.COMPLETED:
        raise click.exceptions.Exit(1)


async def _draw(execution: Execution, pieces: AsyncIterator["OutputPiece"]) -> None:
    # Imported here because a pipe does not need them.
    from everstep.cli.console import open_console  # noqa: PLC0415
    from everstep.cli.dialogue import Dialogue  # noqa: PLC0415
    from everstep.cli.live import LiveView  # noqa: PLC0415

    ask = Dialogue(execution).ask if is_dialogue() else None
    with LiveView(open_console(), ask) as view:
        async for piece in pieces:
            await view.show(piece)


def follow_command(execution_id: UUID) -> str:
    """The command that follows an execution again."""
    data = click.get_current_context().find_root().params["data"]
    return f"everstep {f'--data {data} ' if data else ''}follow {execution_id}"
