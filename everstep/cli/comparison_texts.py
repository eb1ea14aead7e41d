"""The comparison of two executions in words, for pages and for lines."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from everstep.agent_domain.storage.alignment import ABSENT, Difference
from everstep.agent_domain.storage.comparison import (
    ComparedCall,
    ComparedExecution,
    ComparedStep,
    ComparedValue,
    Comparison,
)
from everstep.agent_domain.values import json_text, truncate
from everstep.cli.output import short_usd

WIDTH: Final = 60
"""The characters of a value that a line shows."""

COLUMN: Final = 36
"""The width of the first of two values, such as an id."""


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a comparison as lines of text: the executions, their settings, then their steps."""
    yield f"{'':<10} {'A':<{COLUMN}}  B"
    for name, a, b, is_compared in total_rows(comparison.a, comparison.b):
        # The sign shows what differs without colours.
        sign = "~" if is_compared and a != b else " "
        yield f"{name:<9}{sign} {a:<{COLUMN}}  {b}"
    for each in comparison.settings:
        yield f"  ~ {_difference_text(each)}"
    if not comparison.settings:
        yield "settings   the same agent, model, definition and plan"
    yield ""
    yield from _step_lines(comparison.steps)
    yield ""
    yield summary_text(comparison)
    yield from comparison.notes


def summary_text(comparison: Comparison) -> str:
    """How many steps differ."""
    count, total = comparison.differing_steps, len(comparison.steps)
    return f"{count} of {total} steps differ" if count else f"all {total} steps are the same"


def total_rows(a: ComparedExecution, b: ComparedExecution) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the totals of both executions: a label, both values, and whether they are compared."""
    one, other = a.to_dict(), b.to_dict()
    yield "execution", one["id"], other["id"], False
    yield "agent", one["agent"], other["agent"], True
    yield "model", ", ".join(one["models"]) or "none", ", ".join(other["models"]) or "none", True
    yield "status", _status(one), _status(other), True
    yield "steps", str(one["steps"]), str(other["steps"]), True
    yield "tokens", str(one["tokens"]), str(other["tokens"]), True
    yield "cost", _cost(one["cost_usd"]), _cost(other["cost_usd"]), True
    yield "time", f"{one['seconds']:.2f} s", f"{other['seconds']:.2f} s", True


def _status(side: Mapping[str, Any]) -> str:
    status, reason = side["status"], side["stop_reason"]
    return status if reason in (None, status) else f"{status} ({reason})"


def _cost(cost: float | None) -> str:
    return short_usd(None if cost is None else Decimal(str(cost)))


def shared_text(count: int) -> str:
    """How many steps belong to both executions."""
    return f"{count} {'step' if count == 1 else 'steps'} shared: both begin with the same"


def sign_of(sides: ComparedValue[Any], *, is_same: bool) -> str:
    """The sign of a step or a call: `+` only in B, `-` only in A, `=` the same, `~` different."""
    if sides.a is None:
        return "+"
    if sides.b is None:
        return "-"
    return "=" if is_same else "~"


def change_text(sides: ComparedValue[Any]) -> str:
    """Both values with an arrow between them, or the one that there is."""
    known = [value for value in (sides.a, sides.b) if value is not None]
    return f"{known[0]}" if len(set(known)) == 1 else " -> ".join(map(str, known))


def seconds_text(seconds: float | None) -> str | None:
    """A duration with two digits."""
    return None if seconds is None else f"{seconds:.2f} s"


def decision_text(decision: Mapping[str, Any] | None) -> str | None:
    """What was decided after a step, and by what."""
    if decision is None:
        return None
    reason = f" ({decision['stop_reason']})" if decision["stop_reason"] else ""
    return f"{decision['decision']} by {decision['resolved_by']}{reason}"


def _step_lines(steps: Sequence[ComparedStep]) -> Iterator[str]:
    shared = sum(step.is_shared for step in steps)
    if shared:
        yield f"  = {shared_text(shared)}"
    for step in steps:
        if not step.is_shared:
            yield from _one_step_lines(step)


def _one_step_lines(step: ComparedStep) -> Iterator[str]:
    yield f"  {sign_of(step.number, is_same=step.is_same)} step {_numbers(step.number)}  {_spent(step)}"
    for call in step.calls:
        yield from _call_lines(call)
    if not step.text.is_same:
        yield from _side_lines("model", step.text)
    if not step.error.is_same:
        yield from _side_lines("error", step.error)
    if not step.decision.is_same:
        yield from _side_lines(
            "decided", ComparedValue(decision_text(step.decision.a), decision_text(step.decision.b))
        )
    for name, votes in step.votes:
        yield f"      vote    {name}: {votes.a or 'none'} -> {votes.b or 'none'}"


def _numbers(sides: ComparedValue[int]) -> str:
    if sides.a is None:
        return f"- | {sides.b}"
    return f"{sides.a} | {'-' if sides.b is None else sides.b}"


def _spent(step: ComparedStep) -> str:
    seconds = ComparedValue(seconds_text(step.seconds.a), seconds_text(step.seconds.b))
    return f"{change_text(step.tokens)} tokens, {change_text(seconds)}"


def _call_lines(call: ComparedCall) -> Iterator[str]:
    names = dict.fromkeys(name for name in (call.tool.a, call.tool.b) if name is not None)
    yield f"    {sign_of(call.tool, is_same=call.is_same)} {' -> '.join(names)}"
    for each in call.args:
        yield f"        {_difference_text(each)}"
    if not call.result.is_same and call.tool.is_same:
        yield from _side_lines("result", call.result)


def _side_lines(name: str, sides: ComparedValue[str]) -> Iterator[str]:
    """Yield a text that differs, one line for each side that has it."""
    for side, text in (("A", sides.a), ("B", sides.b)):
        if text:
            yield f"      {name:<8}{side}  {_shown(text)}"


def _difference_text(difference: Difference) -> str:
    return f"{difference.path}: {_value(difference.a)} -> {_value(difference.b)}"


def _value(value: Any) -> str:
    return "nothing" if value is ABSENT else _shown(json_text(value))


def _shown(text: str) -> str:
    return truncate(" ".join(text.split()), WIDTH)
