"""The commands that act on an execution: answer its requests, steer, pause, resume and cancel it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import click
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from everstep.agent_domain.attachments import as_attachments
from everstep.agent_domain.capabilities.rights import ALL_SESSIONS, OPERATOR_SCOPES, Actor, Decider
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.values import frozen_map, json_text, parse_json
from everstep.cli.command import attach_option, command, print_line
from everstep.cli.id_arguments import execution_of_id, newest_executions, parse_id
from everstep.cli.printing import echo
from everstep.client.errors import Refused
from everstep.client.execution import Execution, now
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings

T = TypeVar("T")

OPERATOR = Actor("local", OPERATOR_SCOPES)
"""The person who runs the commands: they read the database, so they have every right on this machine."""


def _operator() -> Decider:
    return Decider(OPERATOR.subject, now(), (ALL_SESSIONS,))


WORKER_SECONDS = 10.0
"""The time limit for a worker to accept an update of an execution."""


@click.command()
@click.argument("execution_id")
@click.argument("text", default="")
@click.option("--data", "data_text", help="The answer to a form, as JSON; TEXT is then optional.")
@click.pass_obj
@command
async def answer(settings: Settings, execution_id: str, text: str, data_text: str | None) -> None:
    """Answer the oldest open question of an execution."""
    data = None if data_text is None else parse_json(data_text, "--data")

    async def submit_answer(_installation: Installation, execution: Execution) -> None:
        request = await await_worker(execution.submit_input(text, data=data, by=OPERATOR))
        print_line(f"answered: {request.request.get('prompt', '')}")

    await with_execution(settings, execution_id, submit_answer)


@click.command()
@click.argument("execution_id")
@click.option("--deny", is_flag=True, help="Deny the call.")
@click.option("--reason", help="The reason for the denial; the model reads it.")
@click.option("--args", "args_text", help="Approve with these arguments instead, as JSON.")
@click.option("--digest", help="The digest of the call; refuse if the oldest call has another one.")
@click.option("--remember", is_flag=True, help="Also allow all later calls of the tool in this execution.")
@click.option(
    "--where",
    "globs",
    multiple=True,
    metavar="ARG=GLOB",
    help="With --remember: only calls whose argument matches. May be repeated.",
)
@click.pass_obj
@command
async def approve(
    settings: Settings,
    execution_id: str,
    *,
    deny: bool,
    reason: str | None,
    args_text: str | None,
    digest: str | None,
    remember: bool,
    globs: tuple[str, ...],
) -> None:
    """Approve or deny the oldest call that waits for approval."""
    if remember and (deny or args_text is not None):
        raise click.UsageError("--remember requires an approval: omit --deny and --args")
    if globs and not remember:
        raise click.UsageError("--where requires --remember")
    for each in globs:
        if not each.partition("=")[1]:
            raise click.BadParameter(f"'{each}' is not ARG=GLOB, such as command=git*", param_hint="--where")
    matching = {name: glob for name, _, glob in (each.partition("=") for each in globs)}
    if deny and args_text is not None:
        raise click.UsageError("--deny and --args exclude each other")
    if reason is not None and not deny:
        raise click.UsageError("--reason requires --deny")
    args = None if args_text is None else frozen_map(parse_json(args_text, "--args"), "--args")

    async def submit_decision(_installation: Installation, execution: Execution) -> None:
        if deny:
            request, verdict = (
                await await_worker(execution.deny(reason=reason, args_digest=digest, by=OPERATOR)),
                "denied",
            )
        elif args is not None:
            request, verdict = (
                await await_worker(execution.edit(args, args_digest=digest, by=OPERATOR)),
                "approved with other arguments",
            )
        else:
            approved = execution.approve(remember=matching or remember, args_digest=digest, by=OPERATOR)
            request, verdict = await await_worker(approved), "approved"
        print_line(f"{verdict}: {request.tool} {json_text(request.args)}")

    await with_execution(settings, execution_id, submit_decision)


@click.command()
@click.argument("execution_id")
@click.argument("message")
@attach_option
@click.pass_obj
@command
async def steer(settings: Settings, execution_id: str, message: str, attach: tuple[Path, ...]) -> None:
    """Send a message that the agent reads before its next step."""
    require_text(message, "message")
    attached = as_attachments(attach)

    async def send_message(installation: Installation, execution: Execution) -> None:
        files = await installation.attachments.for_message(Scope(execution.ref.tenant_id), attached, None)
        steering = await await_worker(
            installation.sessions.steer(execution.ref, message, sent_by=_operator(), attachments=files)
        )
        if steering.is_moved:
            follower = steering.heard_by.execution_id
            echo(f"the execution is ending; its successor {follower} receives the message")
        else:
            echo("the agent reads it before its next step")

    await with_execution(settings, execution_id, send_message)


def _control_command(
    name: str, text: str, act: Callable[[Execution], Coroutine[Any, Any, str]]
) -> click.Command:
    @click.command(name, help=text)
    @click.argument("execution_id")
    @click.pass_obj
    @command
    async def control_command(settings: Settings, execution_id: str) -> None:
        async def control(_installation: Installation, execution: Execution) -> None:
            row = await execution.get()
            if row.status.is_terminal:
                raise Refused(f"The execution {execution.id} has ended as {row.status}")
            echo(await act(execution))

        await with_execution(settings, execution_id, control)

    return control_command


async def _cancel(execution: Execution) -> str:
    try:
        await await_worker(execution.cancel(sent_by=_operator()))
    except Unheard:
        # Temporal stores this request until a worker is available.
        await execution.workflow.cancel()
        return "no worker is available; the execution stops as soon as one is"
    return "the execution stops"


async def _pause(execution: Execution) -> str:
    await await_worker(execution.pause(sent_by=_operator()))
    return "the execution pauses once the running calls are done"


async def _resume(execution: Execution) -> str:
    await await_worker(execution.resume())
    return "the execution continues"


cancel = _control_command("cancel", "Stop an execution now and abandon its current step.", _cancel)
pause = _control_command("pause", "Pause an execution once its running calls are done.", _pause)
resume = _control_command("resume", "Resume a paused execution.", _resume)


class Unheard(EverstepError):
    """No worker accepted an update of an execution in time."""

    def __init__(self) -> None:
        super().__init__(
            f"no worker answered within {WORKER_SECONDS:g} seconds: `everstep doctor` checks whether one "
            "runs. The request is stored and will be carried out later; do not repeat the command"
        )


async def await_worker(update: Awaitable[T]) -> T:
    """Await an update of an execution, with a time limit: Temporal waits forever for a worker."""
    try:
        async with asyncio.timeout(WORKER_SECONDS):
            return await update
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # Temporal's client and its server have time limits too, which raise the second one.
        raise Unheard from None


def require_text(text: str, what: str) -> None:
    """Refuse an empty text."""
    if not text.strip():
        raise InvalidInput(f"the {what} is empty; write some text")


async def with_execution(
    settings: Settings, execution_id: str, act: Callable[[Installation, Execution], Awaitable[object]]
) -> None:
    """Do something with the execution of this id, or of one that begins with it."""

    async def newest() -> list[UUID]:
        async with open_installation(settings) as installation:
            return await newest_executions(installation.client)

    # An id needs no servers to be refused.
    parsed = await parse_id(execution_id, "an execution", "everstep executions", newest)
    async with open_installation(settings) as installation:
        await act(installation, await execution_of_id(parsed, installation))
