"""Prints what-ifs: as a table, as lines, as JSON or as CSV, and how far they are."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from shutil import get_terminal_size
from time import monotonic
from typing import Any, Final, Protocol

from everstep.agent_domain.values import json_text
from everstep.agent_domain.what_if.repeating import ChangedEnd, WhatIfResult
from everstep.agent_domain.what_if.report import WhatIfReport, comparison_data
from everstep.cli.command import print_line
from everstep.cli.drawing import draws_pages
from everstep.cli.output import short_usd, usd_text
from everstep.cli.printing import echo, show_progress
from everstep.cli.styles import BAD, CHANGED, NAME, QUIET
from everstep.cli.table_output import Column, print_rows
from everstep.cli.times import seconds_text

MOST_ROWS: Final = 50
"""The table shows so many executions; `--json` and `--csv` have all."""

PROGRESS_SECONDS: Final = 0.2
BAR: Final = 24
"""The columns of the bar."""

CSV_COLUMNS: Final = (
    *("id", "agent", "verdict", "parts_at_step", "status", "stop_reason", "would_stop_by"),
    *("tokens_saved", "cost_saved", "seconds_saved", "because", "note"),
)


class Output(Protocol):
    """Prints a what-if while it runs."""

    def begin(self) -> None:
        """Print what comes first."""
        ...

    def add(self, comparison: WhatIfResult) -> None:
        """Print an execution that differs, or is undetermined."""
        ...

    def end(self, report: WhatIfReport, next_cursor: str | None) -> None:
        """Print the sums, and where the next part begins."""
        ...


class JsonOutput:
    """One JSON object; the executions come first, as their sums are known at the end."""

    def __init__(self) -> None:
        self.separator = ""

    def begin(self) -> None:
        """Print what comes first."""
        echo('{"executions":[', nl=False)

    def add(self, comparison: WhatIfResult) -> None:
        """Print an execution."""
        echo(f"{self.separator}{json_text(comparison_data(comparison))}", nl=False)
        self.separator = ","

    def end(self, report: WhatIfReport, next_cursor: str | None) -> None:
        """Print the sums."""
        echo(f"],{json_text({**report.to_dict(), 'next_cursor': next_cursor})[1:]}")


class CsvOutput:
    """One line for each execution."""

    def begin(self) -> None:
        """Print the names of the columns."""
        print_line(_csv_line(CSV_COLUMNS))

    def add(self, comparison: WhatIfResult) -> None:
        """Print an execution."""
        data = comparison_data(comparison)
        print_line(_csv_line(["" if data[name] is None else data[name] for name in CSV_COLUMNS]))

    def end(self, report: WhatIfReport, next_cursor: str | None) -> None:
        """Print nothing: the lines are data."""


@dataclass
class TableOutput:
    """A table with the sums below it; in a pipe, a line for each execution and for each sum."""

    rows: list[WhatIfResult] = field(default_factory=list[WhatIfResult])
    found: int = 0

    def begin(self) -> None:
        """Print nothing."""

    def add(self, comparison: WhatIfResult) -> None:
        """Keep an execution for the table; those after the first ones are only counted."""
        self.found += 1
        if self.found <= MOST_ROWS:
            self.rows.append(comparison)

    def end(self, report: WhatIfReport, next_cursor: str | None) -> None:
        """Print the table and the sums."""
        print_rows(self.rows, _COLUMNS, _table_line)
        if self.found > MOST_ROWS:
            print_line(f"and {self.found - MOST_ROWS} more: --json and --csv have all")
        if draws_pages():
            _draw_summary(report, is_first=not self.rows)
            return
        for label, value in _summary(report):
            print_line(f"{label:<{_LABEL_WIDTH}}{value}")


def _csv_line(values: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


_STYLES: Final = {ChangedEnd.EARLIER: CHANGED, ChangedEnd.LATER: CHANGED, ChangedEnd.OTHERWISE: CHANGED}

_COLUMNS: Final[Sequence[Column[WhatIfResult]]] = (
    Column("execution", lambda each: str(each.id)),
    Column("agent", lambda each: each.agent, min_width=100),
    Column("ends", lambda each: str(each.verdict), lambda each: _STYLES.get(each.verdict, QUIET)),
    Column(
        "step", lambda each: "" if each.parts_at_step is None else str(each.parts_at_step), is_number=True
    ),
    Column("saves", lambda each: f"{each.saved.tokens} tokens", min_width=90, is_number=True),
    Column("cost", lambda each: short_usd(each.saved.cost_usd), min_width=120, is_number=True),
    Column("because", lambda each: each.because, is_free=True),
)


def _table_line(comparison: WhatIfResult) -> str:
    place = "" if comparison.parts_at_step is None else f"after step {comparison.parts_at_step}"
    saved = f"  saves {comparison.saved.tokens} tokens" if comparison.saved.tokens else ""
    name = f"{comparison.id}  {comparison.agent}"
    return f"{name}  {comparison.verdict:<12}  {place}: {comparison.because}{saved}"


_LABEL_WIDTH: Final = 15


def _summary(report: WhatIfReport) -> Iterator[tuple[str, str]]:
    counts, saved = report.endings, report.saved
    yield "examined", f"{report.examined} executions, {report.decisions} decisions"
    yield "ended earlier", f"{counts[ChangedEnd.EARLIER]}"
    yield "ended later", f"{counts[ChangedEnd.LATER]} (what follows the record is unknown)"
    yield "otherwise", f"{counts[ChangedEnd.OTHERWISE]} (another stop reason or status after the same step)"
    yield "undetermined", f"{counts[ChangedEnd.UNDETERMINED]}"
    for because, count in report.reasons.most_common():
        yield "", f"{count}: {because}"
    yield "differing", f"{report.differing}"
    if report.not_ended:
        yield "not ended", f"{report.not_ended} (examined up to the last recorded step)"
    cost = usd_text(saved.cost_usd)
    yield "saved", f"{saved.tokens} tokens, {saved.seconds:.1f} s of work, cost {cost}"


def _draw_summary(report: WhatIfReport, *, is_first: bool) -> None:
    # Imported here because a pipe does not need them.
    from everstep.cli.console import open_console, styled  # noqa: PLC0415
    from everstep.cli.execution_page import fields_table  # noqa: PLC0415

    console = open_console()
    if not is_first:
        console.print()
    styles = {"differing": CHANGED if report.differing else "", "saved": NAME}
    if report.endings[ChangedEnd.UNDETERMINED]:
        styles["undetermined"] = BAD
    rows = [(label, styled(value, styles.get(label, ""))) for label, value in _summary(report)]
    console.print(fields_table(rows, _LABEL_WIDTH))


@dataclass
class ProgressLine:
    """A line on a terminal that says how far a what-if is."""

    total: int
    began: float = field(default_factory=monotonic)
    shown_at: float | None = None

    def show(self, examined: int) -> None:
        """Show the progress, a few times in a second."""
        now = monotonic()
        if self.shown_at is not None and now - self.shown_at < PROGRESS_SECONDS:
            return
        self.shown_at = now
        # One column less, as some terminals wrap a line that fills them.
        columns = max(1, get_terminal_size().columns - 1)
        show_progress(progress_text(examined, self.total, now - self.began)[:columns])

    def clear(self) -> None:
        """Remove the line."""
        if self.shown_at is not None:
            show_progress("")
            self.shown_at = None


def progress_text(examined: int, total: int, seconds: float) -> str:
    """How far a what-if is: a bar, the share, the numbers, and the time that is left."""
    share = min(1.0, examined / total) if total else 1.0
    bar = "#" * round(BAR * share)
    left = f", {seconds_text(seconds * (total - examined) / examined)} left" if 0 < examined < total else ""
    return f"[{bar:<{BAR}}] {share:4.0%}  {examined} of {total} executions{left}"
