"""The commands about executions: start, follow, show, list and steer them, and answer their requests."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID, uuid4

import click
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from everstep.agent_domain.errors import EverstepError, InvalidInput, StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.values import cut, frozen_map, json_text, parse_json
from everstep.cli import output
from everstep.cli.command import command, say, with_agents
from everstep.cli.printing import echo
from everstep.client.errors import Refused
from everstep.client.execution import Execution
from everstep.runtime.installation import Installation, opened
from everstep.runtime.settings import Settings
from everstep.runtime.viewing import gateway_url

T = TypeVar("T")

HEARING_SECONDS = 10.0
"""As long as a worker may take to hear what is said to an execution."""


@click.command()
@click.argument("message")
@click.option("--agent", help="Which agent; the settings' default_agent, or the first, if none is named.")
@click.option("--detach", is_flag=True, help="Start it, print its id and return.")
@click.option("--debug", is_flag=True, help="Keep the full state after each step, as a snapshot.")
@with_agents
@click.pass_obj
@command
async def run(settings: Settings, message: str, agent: str | None, detach: bool, debug: bool) -> None:
    """Start an execution and follow it; Ctrl-C only stops following."""
    _require_text(message, "message")
    async with opened(settings, "everstep run") as installation:
        wanted = agent or installation.default_agent
        execution = await installation.client.start(wanted, message, execution_id=uuid4(), debug=debug)
        if detach:
            echo(execution.id)
            return
        await _followed(installation, execution)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def follow(settings: Settings, execution_id: str) -> None:
    """Follow an execution that was started before."""
    await _with_execution(settings, execution_id, _followed)


async def _followed(installation: Installation, execution: Execution) -> None:
    # The other commands do not need them.
    from everstep.cli.follow import streamed  # noqa: PLC0415
    from everstep.cli.watch import watching  # noqa: PLC0415
    from everstep.runtime.authorization import local_token  # noqa: PLC0415

    settings = installation.settings
    token = os.environ.get("EVERSTEP_API_TOKEN") or local_token(settings)
    try:
        async with watching(gateway_url(settings), f"agent.execution.{execution.id}", token) as watch:
            async for text in streamed(execution, watch):
                echo(text, nl=False)
    except asyncio.CancelledError:
        echo(f"\nIt goes on without you. Come back: {_come_back(execution)}")
        raise
    except StoreUnavailable as error:
        # What the model was saying may stand in an unfinished line.
        echo()
        raise InvalidInput(f"{error}. It goes on without you; come back: {_come_back(execution)}") from error
    row = await execution.get()
    _print_execution(installation, row)
    if row.status is not ExecutionStatus.COMPLETED:
        raise click.exceptions.Exit(1)


def _come_back(execution: Execution) -> str:
    data = click.get_current_context().find_root().params["data"]
    return f"everstep {f'--data {data} ' if data else ''}follow {execution.id}"


def _print_execution(installation: Installation, row: ExecutionRow) -> None:
    settings = installation.settings
    for line in output.execution_lines(row, settings.ui_url, settings.temporal_namespace):
        say(line)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def show(settings: Settings, execution_id: str) -> None:
    """Show where an execution stands and what it did."""

    async def shown(installation: Installation, execution: Execution) -> None:
        _print_execution(installation, await execution.get())
        for line in output.request_lines(await execution.asked()):
            say(line)
        async for step in execution.each_step():
            for line in output.step_lines(step):
                say(line)

    await _with_execution(settings, execution_id, shown)


@click.command()
@click.argument("execution_id")
@click.pass_obj
@command
async def trace(settings: Settings, execution_id: str) -> None:
    """Show why each step was followed by another, or by none."""

    async def shown(_installation: Installation, execution: Execution) -> None:
        async for step in execution.each_step():
            for line in (*output.step_lines(step), *output.vote_lines(step)):
                say(line)

    await _with_execution(settings, execution_id, shown)


@click.command()
@click.option("--status", type=click.Choice([status.value for status in ExecutionStatus]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500))
@click.option("--cursor", help="Where the last page ended.")
@click.pass_obj
@command
async def executions(settings: Settings, status: str | None, limit: int, cursor: str | None) -> None:
    """List executions, newest first."""
    async with opened(settings, "everstep executions") as installation:
        wanted = ExecutionStatus(status) if status else None
        page = await installation.client.list(status=wanted, cursor=cursor, limit=limit)
        for row in page.rows:
            say(output.execution_line(row))
        if page.cursor:
            echo(f"more: --cursor {page.cursor}")


@click.command()
@click.argument("execution_id")
@click.argument("text", default="")
@click.option("--data", "data_text", help="The answer to a form, as JSON; TEXT may then be left out.")
@click.pass_obj
@command
async def answer(settings: Settings, execution_id: str, text: str, data_text: str | None) -> None:
    """Answer the oldest question of an execution."""
    data = None if data_text is None else parse_json(data_text, "--data")

    async def answered(_installation: Installation, execution: Execution) -> None:
        request = await _heard(execution.submit_input(text, data=data))
        say(f"answered: {request.request.get('prompt', '')}")

    await _with_execution(settings, execution_id, answered)


@click.command()
@click.argument("execution_id")
@click.option("--deny", is_flag=True, help="Do not let the call run.")
@click.option("--reason", help="What the model is told when it is denied.")
@click.option("--args", "args_text", help="Run with these arguments instead, as JSON.")
@click.option("--digest", help="The digest of the call that is meant; another call is not decided about.")
@click.option("--remember", is_flag=True, help="Allow all later calls of the tool in this execution, too.")
@click.option(
    "--where",
    "globs",
    multiple=True,
    metavar="ARG=GLOB",
    help="With --remember: only those whose argument matches. May be repeated.",
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
    """Decide about the oldest call that waits for approval."""
    if remember and (deny or args_text is not None):
        raise click.UsageError("--remember goes with an approval: give neither --deny nor --args")
    if globs and not remember:
        raise click.UsageError("--where says what --remember allows: give --remember, too")
    for each in globs:
        if not each.partition("=")[1]:
            raise click.BadParameter(f"'{each}' is no ARG=GLOB, such as command=git*", param_hint="--where")
    matching = {name: glob for name, _, glob in (each.partition("=") for each in globs)}
    if deny and args_text is not None:
        raise click.UsageError("--deny and --args exclude each other: a denied call does not run")
    if reason is not None and not deny:
        raise click.UsageError("--reason says why a call is denied: give --deny, too")
    args = None if args_text is None else frozen_map(parse_json(args_text, "--args"), "--args")

    async def decided(_installation: Installation, execution: Execution) -> None:
        if deny:
            request, verdict = await _heard(execution.deny(reason=reason, args_digest=digest)), "denied"
        elif args is not None:
            request, verdict = (
                await _heard(execution.edit(args, args_digest=digest)),
                "approved with other arguments",
            )
        else:
            approved = execution.approve(remember=matching or remember, args_digest=digest)
            request, verdict = await _heard(approved), "approved"
        say(f"{verdict}: {request.tool} {json_text(request.args)}")

    await _with_execution(settings, execution_id, decided)


@click.command()
@click.argument("execution_id")
@click.argument("message")
@click.pass_obj
@command
async def steer(settings: Settings, execution_id: str, message: str) -> None:
    """Say something that is heard before the next step."""
    _require_text(message, "message")

    async def steered(installation: Installation, execution: Execution) -> None:
        steering = await _heard(installation.sessions.steer(execution.ref, message))
        if steering.is_moved:
            follower = steering.heard_by.execution_id
            echo(f"the execution is ending; {follower} comes after it and hears it")
        else:
            echo("it is heard before the next step")

    await _with_execution(settings, execution_id, steered)


def _simple(name: str, text: str, act: Callable[[Execution], Coroutine[Any, Any, str]]) -> click.Command:
    @click.command(name, help=text)
    @click.argument("execution_id")
    @click.pass_obj
    @command
    async def acted(settings: Settings, execution_id: str) -> None:
        async def known(_installation: Installation, execution: Execution) -> None:
            row = await execution.get()
            if row.status in output.ENDED:
                raise Refused(f"The execution {execution.id} has ended as {row.status}")
            echo(await act(execution))

        await _with_execution(settings, execution_id, known)

    return acted


async def _cancel(execution: Execution) -> str:
    try:
        await _heard(execution.cancel())
    except Unheard:
        # Temporal keeps this for the next worker.
        await execution.workflow.cancel()
        return "no worker is there; it stops as soon as one is"
    return "it stops"


async def _pause(execution: Execution) -> str:
    await _heard(execution.pause())
    return "it holds still once the work under way is done"


async def _resume(execution: Execution) -> str:
    await _heard(execution.resume())
    return "it goes on"


cancel = _simple("cancel", "Stop an execution now; the step under way is given up.", _cancel)
pause = _simple("pause", "Hold an execution still once the work under way is done.", _pause)
resume = _simple("resume", "Let a paused execution go on.", _resume)


class Unheard(EverstepError):
    """No worker took in what was said to an execution."""

    def __init__(self) -> None:
        super().__init__(
            f"no worker heard this within {HEARING_SECONDS:g} seconds: `everstep doctor` says whether one is "
            "there. It is stored and will be carried out then; do not give the command again"
        )


async def _heard(told: Awaitable[T]) -> T:
    """Tell an execution something; Temporal would wait for a worker for ever."""
    try:
        async with asyncio.timeout(HEARING_SECONDS):
            return await told
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The second comes of a limit of Temporal's client, or of its server.
        raise Unheard from None


def _require_text(text: str, what: str) -> None:
    if not text.strip():
        raise InvalidInput(f"the {what} is empty; say something")


async def _with_execution(
    settings: Settings, execution_id: str, act: Callable[[Installation, Execution], Awaitable[object]]
) -> None:
    try:
        known = UUID(execution_id)
    except ValueError:
        shown = repr(cut(execution_id, 50))
        raise InvalidInput(f"{shown} is no execution id; `everstep executions` lists them") from None
    async with opened(settings) as installation:
        await act(installation, installation.client.execution(known))
