"""The commands that explain an execution: what it did, why, and when."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from everstep.agent_domain.explanation.because import StepBecause
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.values import format_moment, truncate
from everstep.cli import output, waterfall
from everstep.cli.command import command, print_line
from everstep.cli.drawing import draws_pages
from everstep.cli.execution_trees import load_children
from everstep.cli.executions import OPERATOR, with_execution
from everstep.cli.json_output import json_data, json_option, print_json
from everstep.client.because import ExplainedStep
from everstep.client.execution import Execution
from everstep.http_api.schemas.execution_responses import ExecutionResponse, Request
from everstep.http_api.schemas.step_responses import Decision, Step
from everstep.runtime.installation import Installation
from everstep.runtime.settings import Settings


@click.command()
@click.argument("execution_id")
@click.option("--full", is_flag=True, help="Show long texts whole.")
@json_option
@click.pass_obj
@command
async def show(settings: Settings, execution_id: str, *, full: bool, as_json: bool) -> None:
    """Show what an execution did, with its requests and subagents."""

    async def show_execution(installation: Installation, execution: Execution) -> None:
        if as_json:
            print_json(await _document(installation, execution))
        elif draws_pages():
            await _draw(installation, execution, is_full=full)
        else:
            await _print(installation, execution, is_full=full)

    await with_execution(settings, execution_id, show_execution)


def _links(installation: Installation) -> tuple[str | None, str, str | None]:
    settings = installation.settings
    return settings.ui_url, settings.temporal_namespace, settings.public_url


async def _message_of(execution: Execution) -> str | None:
    return (await execution.client.store.material(execution.ref)).task


async def _document(installation: Installation, execution: Execution) -> dict[str, Any]:
    row = await execution.get()
    response = ExecutionResponse.of(row, in_full=True).with_budgets(await execution.budgets())
    return {
        **json_data(response),
        "because": await execution.sentence(row),
        "message": await _message_of(execution),
        "steps": [
            json_data(Step.of(step, because.sentence, in_full=True))
            async for step, because in execution.each_explained_step(row)
        ],
        "requests": [json_data(Request.of(each, actor=OPERATOR)) for each in await execution.all_requests()],
        "children": [child.to_dict() for child in await load_children(installation, row)],
    }


async def _print(installation: Installation, execution: Execution, *, is_full: bool) -> None:
    """Print an execution as lines."""
    row = await execution.get()
    for line in output.execution_lines(row, *_links(installation), await execution.sentence(row)):
        print_line(line)
    if message := await _message_of(execution):
        print_line(f"message    {message if is_full else truncate(message, output.WIDTH)}")
    for line in output.request_lines(await execution.requests_of_all()):
        print_line(line)
    for line in output.decision_lines(await execution.all_requests()):
        print_line(line)
    width = None if is_full else output.WIDTH
    async for step, because in execution.each_explained_step(row):
        for line in output.step_lines(step, width):
            print_line(line)
        print_line(f"  because {because.sentence}")
    for child in await load_children(installation, row):
        for line in child.lines():
            print_line(line)


async def _draw(installation: Installation, execution: Execution, *, is_full: bool) -> None:
    """Draw an execution as a page."""
    # Imported here because a pipe does not need them.
    from everstep.cli.console import open_console  # noqa: PLC0415
    from everstep.cli.execution_page import PageContext, children_tree, execution_head, step_block  # noqa: PLC0415

    console = open_console()
    row = await execution.get()
    requests = await execution.all_requests()
    message = await _message_of(execution)
    fields = output.execution_fields(row, *_links(installation), await execution.sentence(row))
    console.print(execution_head(row, fields, message))
    context = PageContext(datetime.now(UTC), is_full, requests)
    async for step, because in execution.each_explained_step(row):
        console.print(step_block(step, context, because.sentence))
    if children := await load_children(installation, row):
        console.print()
        console.print(children_tree(children))
    _draw_requests(console, requests, row)


def _draw_requests(console: Any, requests: Sequence[RequestRow], row: ExecutionRow) -> None:
    """Draw the open requests that belong to no call of this page: of subagents, and budgets."""
    from everstep.cli.execution_page import request_card  # noqa: PLC0415

    for request in requests:
        if output.is_open(request) and not (request.ref == row.ref and request.call_id):
            console.print(request_card(request))


@click.command()
@click.argument("execution_id")
@click.option("--votes", is_flag=True, help="Show also the vote of every criterion.")
@json_option
@click.pass_obj
@command
async def trace(settings: Settings, execution_id: str, *, votes: bool, as_json: bool) -> None:
    """Show when each step ran, and why the loop went on or stopped.

    On a terminal, each model call, tool call and wait is a bar over time.
    """

    async def show_trace(_installation: Installation, execution: Execution) -> None:
        row = await execution.get()
        requests = await execution.all_requests()
        explained = [each async for each in execution.each_explained_step(row)]
        sentence = await execution.sentence(row)
        if as_json:
            print_json(_trace_document(row, sentence, explained, requests))
            return
        print_trace(row, sentence, explained, requests, has_votes=votes)

    await with_execution(settings, execution_id, show_trace)


def _trace_document(
    row: ExecutionRow, sentence: str, explained: Sequence[ExplainedStep], requests: Sequence[RequestRow]
) -> dict[str, Any]:
    now = datetime.now(UTC)

    def step_entry(step: StepRow, because: StepBecause) -> Mapping[str, Any]:
        return {
            **json_data(Decision.of(step, because.sentence, in_full=True)),
            "attempt": step.attempt,
            "started_at": format_moment(step.started_at, 6),
            "completed_at": step.completed_at and format_moment(step.completed_at, 6),
            "spans": [span.to_dict() for span in waterfall.spans_of(step, requests, now)],
        }

    return {
        "id": str(row.ref.execution_id),
        "status": str(row.status),
        "because": sentence,
        "steps": [step_entry(step, because) for step, because in explained],
    }


def print_trace(
    row: ExecutionRow,
    sentence: str,
    explained: Sequence[ExplainedStep],
    requests: Sequence[RequestRow],
    *,
    has_votes: bool,
) -> None:
    """Print when each step was and why it was followed by another one or by none."""
    now = datetime.now(UTC)
    if draws_pages():
        # Imported here because a pipe does not need it.
        from everstep.cli.waterfall_page import draw_trace  # noqa: PLC0415

        draw_trace(row, sentence, explained, requests, now, has_votes=has_votes)
        return
    print_line(f"because    {sentence}")
    start = explained[0][0].started_at if explained else row.created_at
    for step, because in explained:
        for line in output.step_lines(step):
            print_line(line)
        for span in waterfall.spans_of(step, requests, now):
            print_line(f"  time    {span.line(start)}")
        print_line(f"  because {because.sentence}")
        if has_votes:
            for line in output.vote_lines(step):
                print_line(line)
