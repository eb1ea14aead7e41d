"""The command that compares two executions."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import click

from everstep.agent_domain.storage.alignment import ABSENT, Difference
from everstep.agent_domain.storage.comparison import (
    ComparedCall,
    ComparedExecution,
    ComparedStep,
    ComparedValue,
    Comparison,
)
from everstep.agent_domain.values import json_text, truncate
from everstep.cli.command import command, print_line
from everstep.cli.id_arguments import LOOKED_THROUGH, parse_id
from everstep.cli.output import usd_text
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings

WIDTH = 60
"""The characters of a value that are shown."""

COLUMN = 36
"""The width of the first of two values, such as an id."""


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one line of JSON.")
@click.pass_obj
@command
async def diff(settings: Settings, *, a: str, b: str, as_json: bool) -> None:
    """Compare two executions step by step, with what they cost.

    A and B are ids of executions, such as a fork and its origin, or runs before and after a change. Steps
    that a fork shares with its origin are the same steps; others are aligned by their calls.
    """
    async with open_installation(settings, "everstep diff") as installation:
        ids = [await _parse_id(installation, each) for each in (a, b)]
        comparison = await installation.client.diff(*ids)
    if as_json:
        print_line(json_text(comparison.to_dict()))
        return
    for line in comparison_lines(comparison):
        print_line(line)


async def _parse_id(installation: Installation, text: str) -> UUID:
    async def newest() -> list[UUID]:
        page = await installation.client.list(limit=LOOKED_THROUGH)
        return [row.ref.execution_id for row in page.rows]

    return await parse_id(text, "an execution", "everstep executions", newest)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a comparison as lines of text: the executions, their settings, then their steps."""
    yield from _total_lines(comparison.a, comparison.b)
    for each in comparison.settings:
        yield f"  ~ {_difference_text(each)}"
    if not comparison.settings:
        yield "settings   the same agent, model, definition and plan"
    yield ""
    yield from _step_lines(comparison.steps)
    yield ""
    count, all_steps = comparison.differing_steps, len(comparison.steps)
    yield f"{count} of {all_steps} steps differ" if count else f"all {all_steps} steps are the same"
    yield from comparison.notes


def _total_lines(a: ComparedExecution, b: ComparedExecution) -> Iterator[str]:
    one, other = a.to_dict(), b.to_dict()
    rows: Sequence[tuple[str, Any, Any]] = (
        ("execution", one["id"], other["id"]),
        ("agent", one["agent"], other["agent"]),
        ("model", ", ".join(one["models"]) or "none", ", ".join(other["models"]) or "none"),
        ("status", _status(one), _status(other)),
        ("steps", one["steps"], other["steps"]),
        ("tokens", one["tokens"], other["tokens"]),
        ("cost", _cost(one["cost_usd"]), _cost(other["cost_usd"])),
        ("time", f"{one['seconds']:.2f} s", f"{other['seconds']:.2f} s"),
    )
    yield f"{'':<10} {'A':<{COLUMN}}  B"
    for name, left, right in rows:
        # The sign shows what differs without colours.
        sign = " " if left == right or name == "execution" else "~"
        yield f"{name:<9}{sign} {left!s:<{COLUMN}}  {right}"


def _status(side: Mapping[str, Any]) -> str:
    status, reason = side["status"], side["stop_reason"]
    return status if reason in (None, status) else f"{status} ({reason})"


def _cost(cost: float | None) -> str:
    return "unknown" if cost is None else usd_text(Decimal(str(cost)))


def _step_lines(steps: Sequence[ComparedStep]) -> Iterator[str]:
    shared = sum(step.is_shared for step in steps)
    if shared:
        yield f"  = {shared} {'step' if shared == 1 else 'steps'} shared: both begin with the same"
    for step in steps:
        if not step.is_shared:
            yield from _one_step_lines(step)


def _one_step_lines(step: ComparedStep) -> Iterator[str]:
    yield f"  {_sign(step.number, is_same=step.is_same)} step {_numbers(step.number)}  {_spent(step)}"
    for call in step.calls:
        yield from _call_lines(call)
    if not step.text.is_same:
        yield from _side_lines("model", step.text)
    if not step.error.is_same:
        yield from _side_lines("error", step.error)
    if not step.decision.is_same:
        yield from _side_lines(
            "decided", ComparedValue(_decision(step.decision.a), _decision(step.decision.b))
        )
    for name, votes in step.votes:
        yield f"      vote   {name}: {votes.a or 'none'} -> {votes.b or 'none'}"


def _sign(sides: ComparedValue[Any], *, is_same: bool) -> str:
    if sides.a is None:
        return "+"
    if sides.b is None:
        return "-"
    return "=" if is_same else "~"


def _numbers(sides: ComparedValue[int]) -> str:
    if sides.a is None:
        return f"- | {sides.b}"
    return f"{sides.a} | {'-' if sides.b is None else sides.b}"


def _spent(step: ComparedStep) -> str:
    tokens = f"{_either(step.tokens)} tokens"
    return f"{tokens}, {_either(ComparedValue(_seconds(step.seconds.a), _seconds(step.seconds.b)))}"


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.2f} s"


def _either(sides: ComparedValue[Any]) -> str:
    known = [value for value in (sides.a, sides.b) if value is not None]
    return f"{known[0]}" if len(set(known)) == 1 else " -> ".join(map(str, known))


def _call_lines(call: ComparedCall) -> Iterator[str]:
    names = dict.fromkeys(name for name in (call.tool.a, call.tool.b) if name is not None)
    yield f"    {_sign(call.tool, is_same=call.is_same)} {' -> '.join(names)}"
    for each in call.args:
        yield f"        {_difference_text(each)}"
    if not call.result.is_same and call.tool.is_same:
        yield from _side_lines("result", call.result)


def _side_lines(name: str, sides: ComparedValue[str]) -> Iterator[str]:
    """Yield a text that differs, one line for each side that has it."""
    for side, text in (("A", sides.a), ("B", sides.b)):
        if text is not None:
            yield f"      {name:<7}{side}  {_shown(text)}"


def _decision(decision: Mapping[str, Any] | None) -> str | None:
    if decision is None:
        return None
    reason = f" ({decision['stop_reason']})" if decision["stop_reason"] else ""
    return f"{decision['decision']} by {decision['resolved_by']}{reason}"


def _difference_text(difference: Difference) -> str:
    return f"{difference.path}: {_value(difference.a)} -> {_value(difference.b)}"


def _value(value: Any) -> str:
    return "nothing" if value is ABSENT else _shown(json_text(value))


def _shown(text: str) -> str:
    return truncate(" ".join(text.split()), WIDTH)
