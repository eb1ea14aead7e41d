"""The command that says why an execution ended, went on or waits."""

from collections.abc import Iterator

import click

from everstep.agent_domain.explanation.because import ExecutionBecause, HeardMessage, StepBecause
from everstep.cli.command import command, print_line
from everstep.cli.executions import with_execution
from everstep.cli.json_output import json_option, print_json
from everstep.cli.output import usd_text
from everstep.client.execution import Execution
from everstep.http_api.schemas.step_responses import BecauseResponse
from everstep.runtime.installation import Installation
from everstep.runtime.settings import Settings


@click.command()
@click.argument("execution_id")
@json_option
@click.pass_obj
@command
async def because(settings: Settings, execution_id: str, *, as_json: bool) -> None:
    """Say in one sentence why an execution ended, or waits.

    The first line is about the execution, the following ones about each of its steps. No model is asked.
    """

    async def print_because(_installation: Installation, execution: Execution) -> None:
        explained = await execution.because()
        if as_json:
            print_json(BecauseResponse.of(explained, None))
            return
        for line in because_lines(explained):
            print_line(line)

    await with_execution(settings, execution_id, print_because)


def because_lines(because: ExecutionBecause) -> Iterator[str]:
    """The sentence of an execution, then those of its steps with what is beside them."""
    yield because.sentence
    for step in because.steps:
        yield f"step {step.number}"
        yield from (f"  {line}" for line in _step_lines(step))


def _step_lines(step: StepBecause) -> Iterator[str]:
    yield from step.compactions
    yield from map(_heard_line, step.messages)
    yield from step.superseded
    yield step.sentence
    if step.usage.total:
        cost = f", {usd_text(step.cost_usd)}" if step.cost_usd else ""
        yield f"charged: {step.usage.total} tokens{cost}"


_SENT = {
    "approve": "approved",
    "deny": "denied",
    "edit": "approved with other arguments",
    "answer": "answered",
}


def _heard_line(message: HeardMessage) -> str:
    sender = f" by {message.by}" if message.by else ""
    return f"{_SENT.get(message.kind, message.kind)}: {message.id}{sender}"
