"""Draws when each step was: bars over time, for a terminal."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.cli.console import open_console, styled
from everstep.cli.execution_page import fields_table
from everstep.cli.styles import BAD, GOOD, NAME, QUIET, RUNS, WAITS, status_style
from everstep.cli.times import seconds_text
from everstep.cli.waterfall import Span, SpanKind, spans_of, step_end
from everstep.client.because import ExplainedStep

MIN_BARS: Final = 20
"""Columns that bars need; with less space only numbers are shown."""

TIME_WIDTH: Final = 9

_STYLES: Final = {
    SpanKind.MODEL: RUNS,
    SpanKind.RETRY: BAD,
    SpanKind.CALL: GOOD,
    SpanKind.PEOPLE: WAITS,
    SpanKind.COMPACTION: QUIET,
}
_BARS: Final[Mapping[SpanKind, str]] = {
    SpanKind.MODEL: "█",
    SpanKind.RETRY: "▚",
    SpanKind.CALL: "▆",
    SpanKind.PEOPLE: "░",
    SpanKind.COMPACTION: "▒",
}
_ASCII_BARS: Final[Mapping[SpanKind, str]] = {
    SpanKind.MODEL: "#",
    SpanKind.RETRY: "x",
    SpanKind.CALL: "=",
    SpanKind.PEOPLE: ".",
    SpanKind.COMPACTION: "-",
}
_MEANINGS: Final = {
    SpanKind.MODEL: "model",
    SpanKind.CALL: "tool",
    SpanKind.PEOPLE: "waits for people",
    SpanKind.RETRY: "waits for a retry",
    SpanKind.COMPACTION: "compaction",
}


def draw_trace(
    row: ExecutionRow,
    sentence: str,
    explained: Sequence[ExplainedStep],
    requests: Sequence[RequestRow],
    now: datetime,
    *,
    has_votes: bool,
) -> None:
    """Draw when each step of an execution was, and why it was followed by another one or by none."""
    console = open_console()
    steps = [step for step, _ in explained]
    spans = {step.number: spans_of(step, requests, now) for step in steps}
    head: list[tuple[str, RenderableType]] = [
        ("execution", styled(row.ref.execution_id, NAME)),
        ("status", styled(row.status, status_style(row.status))),
    ]
    head.append(("because", styled(sentence, status_style(row.status))))
    scale = _Scale.of(console, steps, spans, now)
    if steps:
        head.append(("time", styled(_span_text(scale))))
        head.append(("bars", _legend(console, [span for each in spans.values() for span in each])))
    console.print(fields_table(head))
    for step, because in explained:
        console.print()
        console.print(_step_table(step, spans[step.number], scale, now))
        notes: list[tuple[str, RenderableType]] = [("because", styled(because.sentence))]
        notes.extend(("before", styled(each, QUIET)) for each in because.superseded)
        console.print(Padding(fields_table(notes, 8), (0, 0, 0, 2)))
        if has_votes and step.outcome is not None:
            console.print(Padding(votes_table(step), (0, 0, 0, 2)))


class _Scale:
    """The scale of time: which columns a span of time takes."""

    def __init__(self, start: datetime, end: datetime, label: int, bars: int, chars: Mapping[SpanKind, str]):
        self.start, self.end, self.label, self.bars, self.chars = start, end, label, bars, chars

    @classmethod
    def of(
        cls,
        console: Console,
        steps: Sequence[StepRow],
        spans: Mapping[int, Sequence[Span]],
        now: datetime,
    ) -> "_Scale":
        """The scale for these steps on this terminal."""
        start = min((step.started_at for step in steps), default=now)
        end = max((step_end(step, spans[step.number], now) for step in steps), default=now)
        longest = max((len(span.name) + 2 for each in spans.values() for span in each), default=0)
        label = min(max(longest, 10), max(12, console.width // 3))
        bars = console.width - label - TIME_WIDTH - 2
        chars = _ASCII_BARS if console.options.ascii_only else _BARS
        return cls(start, end, label, bars if bars >= MIN_BARS else 0, chars)

    def bar(self, span: Span) -> Text:
        """The bar of a span, with the space before it."""
        total = (self.end - self.start).total_seconds() or 1.0
        at = int((span.start - self.start).total_seconds() / total * self.bars)
        at = min(max(at, 0), self.bars - 1)
        length = min(max(1, round(span.seconds / total * self.bars)), self.bars - at)
        return Text(" " * at).append_text(Text(self.chars[span.kind] * length, style=style_of(span)))


def style_of(span: Span) -> str:
    """The style of a span: a failed one looks like an error."""
    return BAD if span.has_failed else _STYLES[span.kind]


def _span_text(scale: _Scale) -> str:
    return f"{scale.start:%F %T} UTC, {seconds_text((scale.end - scale.start).total_seconds())}"


def _legend(console: Console, spans: Sequence[Span]) -> Text:
    chars = _ASCII_BARS if console.options.ascii_only else _BARS
    used = {span.kind for span in spans}
    text = Text()
    for kind, meaning in _MEANINGS.items():
        if kind in used:
            text.append(f"{chars[kind] * 2} ", style=_STYLES[kind]).append(f"{meaning}  ")
    return text


def _step_table(step: StepRow, spans: Sequence[Span], scale: _Scale, now: datetime) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=scale.label, no_wrap=True, overflow="ellipsis")
    if scale.bars:
        table.add_column(width=scale.bars, no_wrap=True)
    table.add_column(width=TIME_WIDTH, justify="right", no_wrap=True)
    seconds = (step_end(step, spans, now) - step.started_at).total_seconds()
    title = styled(f"step {step.number}", NAME)
    total = styled(seconds_text(seconds), NAME)
    table.add_row(*((title, Text(), total) if scale.bars else (title, total)))
    for span in spans:
        name = styled(f"  {span.name}")
        took = styled(f"{seconds_text(span.seconds)}{'+' if span.is_open else ''}", style_of(span))
        table.add_row(*((name, scale.bar(span), took) if scale.bars else (name, took)))
    return table


def votes_table(step: StepRow) -> Table:
    """The votes of all criteria after a step."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    styles = {"forbid": BAD, "stop": WAITS, "request": GOOD}
    for vote in ContinuationOutcome.from_dict(step.outcome or {}).evaluations:
        source = f" of {vote.source}" if vote.source else ""
        table.add_row(
            styled(vote.decision, styles.get(str(vote.decision), QUIET)),
            styled(f"{vote.name}{source}"),
            styled(vote.reason, QUIET),
        )
    return table
