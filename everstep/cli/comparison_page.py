"""The comparison of two executions, for a terminal: both sides beside each other."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from everstep.agent_domain.storage.alignment import ABSENT, Difference
from everstep.agent_domain.storage.comparison import ComparedCall, ComparedStep, ComparedValue, Comparison
from everstep.agent_domain.values import json_text
from everstep.cli.comparison_texts import (
    change_text,
    decision_text,
    seconds_text,
    shared_text,
    sign_of,
    summary_text,
    total_rows,
)
from everstep.cli.console import open_console, styled
from everstep.cli.execution_page import cut_text
from everstep.cli.styles import CHANGED, NAME, QUIET

LABEL_WIDTH = 11
MAX_LABEL_WIDTH = 28


def draw_comparison(comparison: Comparison) -> None:
    """Draw a comparison on standard output."""
    console = open_console()
    console.print(comparison_page(comparison))


def comparison_page(comparison: Comparison) -> Group:
    """A comparison: the executions, their settings, then their steps."""
    parts: list[RenderableType] = [_head(comparison), Text(), _settings(comparison.settings)]
    if comparison.shared_steps:
        parts.extend((Text(), styled(f"= {shared_text(comparison.shared_steps)}", QUIET)))
    for step in comparison.steps:
        if not step.is_shared:
            parts.extend(_step_parts(step))
    parts.append(Text())
    parts.append(styled(summary_text(comparison), CHANGED if comparison.differing_steps else NAME))
    parts.extend(styled(note, QUIET) for note in comparison.notes)
    return Group(*parts)


def _sides(label_width: int = LABEL_WIDTH) -> Table:
    """A label, and the values of both sides, which are wrapped."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=label_width, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    return table


def _label_width(lengths: Iterable[int]) -> int:
    return max(LABEL_WIDTH, min(MAX_LABEL_WIDTH, max(lengths)))


def _head(comparison: Comparison) -> Table:
    table = _sides()
    table.add_row(Text(), styled("A", NAME), styled("B", NAME))
    for label, a, b, is_compared in total_rows(comparison.a, comparison.b):
        has_changed = is_compared and a != b
        style = CHANGED if has_changed else ""
        sign = styled("~ " if has_changed else "  ", CHANGED)
        table.add_row(sign.append_text(styled(label, QUIET)), styled(a, style), styled(b, style))
    return table


def _settings(settings: Sequence[Difference]) -> RenderableType:
    if not settings:
        return styled("settings: the same agent, model, definition and plan", QUIET)
    table = _sides(_label_width(len(each.path) + 2 for each in settings))
    for each in settings:
        label = styled("~ ", CHANGED).append_text(styled(each.path, QUIET))
        table.add_row(label, *_values(each))
    return table


def _values(difference: Difference) -> tuple[Text, Text]:
    return _value(difference.a), _value(difference.b)


def _value(value: Any) -> Text:
    return styled("none", QUIET) if value is ABSENT else styled(cut_text(json_text(value), False), CHANGED)


def _step_parts(step: ComparedStep) -> Iterator[RenderableType]:
    sign = sign_of(step.number, is_same=step.is_same)
    title = styled(f"{sign} ", QUIET if sign == "=" else CHANGED)
    title.append_text(styled(_step_name(step.number), NAME))
    title.append_text(styled(f"  {_spent(step)}", QUIET))
    yield Text()
    yield title
    if rows := [*_step_rows(step)]:
        table = _sides(_label_width(label.cell_len for label, _, _ in rows))
        for row in rows:
            table.add_row(*row)
        yield Padding(table, (0, 0, 0, 2))


def _step_name(numbers: ComparedValue[int]) -> str:
    if numbers.a is None:
        return f"step {numbers.b} of B"
    if numbers.b is None:
        return f"step {numbers.a} of A"
    return f"step {numbers.a}" if numbers.is_same else f"step {numbers.a} of A, {numbers.b} of B"


def _spent(step: ComparedStep) -> str:
    tokens = change_text(step.tokens)
    seconds = change_text(ComparedValue(seconds_text(step.seconds.a), seconds_text(step.seconds.b)))
    return f"{tokens} tokens · {seconds}"


def _step_rows(step: ComparedStep) -> Iterator[tuple[Text, Text, Text]]:
    for call in step.calls:
        yield from _call_rows(call)
    if not step.text.is_same:
        yield _row("model", step.text)
    if not step.error.is_same:
        yield _row("error", step.error)
    if not step.decision.is_same:
        yield _row("decided", ComparedValue(decision_text(step.decision.a), decision_text(step.decision.b)))
    for name, votes in step.votes:
        yield _row("vote", ComparedValue(votes.a and f"{name}: {votes.a}", votes.b and f"{name}: {votes.b}"))


def _call_rows(call: ComparedCall) -> Iterator[tuple[Text, Text, Text]]:
    sign = sign_of(call.tool, is_same=call.is_same)
    style = QUIET if call.is_same else NAME
    label = styled(f"{sign} ", QUIET if call.is_same else CHANGED).append_text(styled("call", QUIET))
    yield label, styled(call.tool.a or "", style), styled(call.tool.b or "", style)
    for each in call.args:
        yield (styled(f"  {each.path}", QUIET), *_values(each))
    if call.tool.is_same and not call.result.is_same:
        yield _row("  result", call.result)


def _row(label: str, sides: ComparedValue[str]) -> tuple[Text, Text, Text]:
    return styled(label, QUIET), _side(sides.a), _side(sides.b)


def _side(text: str | None) -> Text:
    return styled(cut_text(text, False), CHANGED) if text else styled("none", QUIET)
