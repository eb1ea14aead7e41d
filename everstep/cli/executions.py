"""The commands about executions: start, follow, show, list and steer them, and answer their requests."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import click
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from everstep.agent_domain.attachments import as_attachments
from everstep.agent_domain.capabilities.rights import ALL_SESSIONS, OPERATOR_SCOPES, Actor, Decider
from everstep.agent_domain.errors import EverstepError, InvalidInput, StoreUnavailable
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.values import frozen_map, json_text, parse_json
from everstep.cli import output
from everstep.cli.command import attach_option, command, print_line, with_agents
from everstep.cli.id_arguments import LOOKED_THROUGH, parse_id
from everstep.cli.printing import echo
from everstep.cli.result_schema import read_schema
from everstep.client.errors import Refused
from everstep.client.execution import Execution, now
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings
from everstep.runtime.viewing import gateway_url

T = TypeVar("T")

OPERATOR = Actor("local", OPERATOR_SCOPES)
"""The person who runs the commands: they read the database, so they have every right on this machine."""


def _operator() -> Decider:
    return Decider(OPERATOR.subject, now(), (ALL_SESSIONS,))


WORKER_SECONDS = 10.0
"""The time limit for a worker to accept an update of an execution."""


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
    """Start an execution and follow it; Ctrl-C stops only the following."""
    if not attach:
        _require_text(message, "message")
    sent = Message.user(message, attachments=attach)
    schema = None if schema_text is None else read_schema(schema_text)
    async with open_installation(settings, "everstep run") as installation:
        agent_name = agent or installation.default_agent
        execution = await installation.client.start(
            agent_name, sent, execution_id=uuid4(), debug=debug, model=model, output=schema
        )
        if detach:
            echo(execution.id)
            return
        await _follow_execution(installation, execution)


@click.command()
@click.argument("execution_id")
@click.option("--detach", is_flag=True, help="Start the new execution, print its id and return.")
@click.pass_obj
@command
async def retry(settings: Settings, execution_id: str, *, detach: bool) -> None:
    """Let a failed execution go on from its last good step.

    A new execution has its whole conversation: what its tools did is not done again. The command follows it;
    Ctrl-C stops only the following.
    """

    async def start_retry(installation: Installation, execution: Execution) -> None:
        retried = await installation.sessions.retry(execution.ref)
        if detach:
            echo(retried.id)
        else:
            await _follow_execution(installation, retried)

    await with_execution(settings, execution_id, start_retry)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def follow(settings: Settings, execution_id: str) -> None:
    """Print the steps of an execution as they happen."""
    await with_execution(settings, execution_id, _follow_execution)


async def _follow_execution(installation: Installation, execution: Execution) -> None:
    # Imported here because the other commands do not need them.
    from everstep.cli.follow import follow_text  # noqa: PLC0415
    from everstep.cli.watch import open_watch  # noqa: PLC0415
    from everstep.runtime.authorization import local_token  # noqa: PLC0415

    settings = installation.settings
    token = os.environ.get("EVERSTEP_API_TOKEN") or local_token(settings)
    try:
        async with open_watch(gateway_url(settings), f"agent.execution.{execution.id}", token) as watch:
            async for text in follow_text(execution, watch):
                echo(text, nl=False)
    except asyncio.CancelledError:
        echo(f"\nThe execution continues. To follow it again: {_follow_hint(execution)}")
        raise
    except StoreUnavailable as error:
        # The model's text may have left the cursor in an unfinished line.
        echo()
        raise InvalidInput(
            f"{error}. The execution continues; to follow it again: {_follow_hint(execution)}"
        ) from error
    row = await execution.get()
    _print_execution(installation, row)
    if row.status is not ExecutionStatus.COMPLETED:
        raise click.exceptions.Exit(1)


def _follow_hint(execution: Execution) -> str:
    data = click.get_current_context().find_root().params["data"]
    return f"everstep {f'--data {data} ' if data else ''}follow {execution.id}"


def _print_execution(installation: Installation, row: ExecutionRow) -> None:
    settings = installation.settings
    links = settings.ui_url, settings.temporal_namespace, settings.public_url
    for line in output.execution_lines(row, *links):
        print_line(line)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def show(settings: Settings, execution_id: str) -> None:
    """Show the status of an execution and its steps."""

    async def print_details(installation: Installation, execution: Execution) -> None:
        _print_execution(installation, await execution.get())
        for line in output.request_lines(await execution.requests_of_all()):
            print_line(line)
        for line in output.decision_lines(await execution.all_requests()):
            print_line(line)
        async for step in execution.each_step():
            for line in output.step_lines(step):
                print_line(line)

    await with_execution(settings, execution_id, print_details)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def trace(settings: Settings, execution_id: str) -> None:
    """Show why the loop continued or stopped after each step."""

    async def print_votes(_installation: Installation, execution: Execution) -> None:
        async for step in execution.each_step():
            for line in (*output.step_lines(step), *output.vote_lines(step)):
                print_line(line)

    await with_execution(settings, execution_id, print_votes)


@click.command()
@click.option("--status", type=click.Choice([status.value for status in ExecutionStatus]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500))
@click.option("--cursor", help="The cursor that the previous page printed.")
@click.pass_obj
@command
async def executions(settings: Settings, status: str | None, limit: int, cursor: str | None) -> None:
    """List executions, newest first."""
    async with open_installation(settings, "everstep executions") as installation:
        wanted = ExecutionStatus(status) if status else None
        page = await installation.client.list(status=wanted, cursor=cursor, limit=limit)
        for row in page.rows:
            print_line(output.execution_line(row))
        if page.cursor:
            echo(f"more: --cursor {page.cursor}")
        if not page.rows:
            echo(f"There are no executions{' of this status' if wanted else ''}.", err=True)


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
    _require_text(message, "message")
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


def _require_text(text: str, what: str) -> None:
    if not text.strip():
        raise InvalidInput(f"the {what} is empty; write some text")


async def with_execution(
    settings: Settings, execution_id: str, act: Callable[[Installation, Execution], Awaitable[object]]
) -> None:
    """Do something with the execution of this id, or of one that begins with it."""

    async def newest() -> list[UUID]:
        async with open_installation(settings) as installation:
            page = await installation.client.list(limit=LOOKED_THROUGH)
            return [row.ref.execution_id for row in page.rows]

    parsed = await parse_id(execution_id, "an execution", "everstep executions", newest)
    async with open_installation(settings) as installation:
        await act(installation, installation.client.execution(parsed))
