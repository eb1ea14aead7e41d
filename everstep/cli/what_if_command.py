"""The command that repeats the decisions of past executions under another policy."""

import asyncio
import csv
import io
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Protocol

import click

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.recorded_executions import RecordFilter
from everstep.agent_domain.values import json_text
from everstep.agent_domain.what_if.policy_change import PolicyChange, parse_criterion, parse_price
from everstep.agent_domain.what_if.repeating import ChangedEnd, WhatIfResult
from everstep.agent_domain.what_if.report import WhatIfReport, comparison_data
from everstep.cli.command import command, print_line, warn, with_agents
from everstep.cli.output import usd_text
from everstep.cli.printing import echo, show_progress
from everstep.cli.reports import TIMES
from everstep.client.what_if import WhatIf
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

MOST_ROWS: Final = 50
"""The table shows so many executions; `--json` and `--csv` have all."""

PROGRESS_SECONDS: Final = 0.2

_COLUMNS: Final = (
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

    def end(self, report: WhatIfReport) -> None:
        """Print the sums."""
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

    def end(self, report: WhatIfReport) -> None:
        """Print the sums."""
        echo(f"],{json_text(report.to_dict())[1:]}")


class CsvOutput:
    """One line for each execution."""

    def begin(self) -> None:
        """Print the names of the columns."""
        print_line(_csv_line(_COLUMNS))

    def add(self, comparison: WhatIfResult) -> None:
        """Print an execution."""
        data = comparison_data(comparison)
        print_line(_csv_line(["" if data[name] is None else data[name] for name in _COLUMNS]))

    def end(self, report: WhatIfReport) -> None:
        """Print nothing: the lines are data."""


class TableOutput:
    """Lines for people."""

    def __init__(self) -> None:
        self.shown = 0

    def begin(self) -> None:
        """Print nothing."""

    def add(self, comparison: WhatIfResult) -> None:
        """Print an execution."""
        self.shown += 1
        if self.shown <= MOST_ROWS:
            print_line(_table_line(comparison))

    def end(self, report: WhatIfReport) -> None:
        """Print the sums."""
        if self.shown > MOST_ROWS:
            print_line(f"and {self.shown - MOST_ROWS} more: --json and --csv have all")
        for line in _summary(report):
            print_line(line)


def _csv_line(values: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def _table_line(comparison: WhatIfResult) -> str:
    place = "" if comparison.parts_at_step is None else f"after step {comparison.parts_at_step}"
    saved = f"  saves {comparison.saved.tokens} tokens" if comparison.saved.tokens else ""
    name = f"{comparison.id}  {comparison.agent}"
    return f"{name}  {comparison.verdict:<12}  {place}: {comparison.because}{saved}"


def _summary(report: WhatIfReport) -> Iterator[str]:
    counts, saved = report.endings, report.saved
    yield f"examined       {report.examined} executions, {report.decisions} decisions"
    yield f"ended earlier  {counts[ChangedEnd.EARLIER]}"
    yield f"ended later    {counts[ChangedEnd.LATER]} (what follows the record is unknown)"
    yield f"otherwise      {counts[ChangedEnd.OTHERWISE]} (another stop reason or status after the same step)"
    yield f"undetermined   {counts[ChangedEnd.UNDETERMINED]}"
    for because, count in report.reasons.most_common():
        yield f"               {count}: {because}"
    yield f"differing      {report.differing}"
    cost = usd_text(saved.cost_usd)
    yield f"saved          {saved.tokens} tokens, {saved.seconds:.1f} s of work, cost {cost}"


@dataclass
class ProgressLine:
    """A line on a terminal that says how far it is."""

    total: int
    shown_at: float = 0.0

    def show(self, examined: int) -> None:
        """Show the progress, a few times in a second."""
        now = monotonic()
        if now - self.shown_at < PROGRESS_SECONDS:
            return
        self.shown_at = now
        done = min(1.0, examined / self.total) if self.total else 1.0
        bar = "#" * round(30 * done)
        show_progress(f"[{bar:<30}] {examined} of {self.total} executions")

    def clear(self) -> None:
        """Remove the line."""
        if self.shown_at:
            show_progress("")


_POSITIVE = click.IntRange(1)
_SECONDS = click.FloatRange(0, min_open=True)


@click.command("what-if")
@click.option("--agent", help="Only executions of this agent.")
@click.option("--since", type=click.DateTime(TIMES), help="Only executions from this time on, in UTC.")
@click.option("--until", type=click.DateTime(TIMES), help="Only executions before this time, in UTC.")
@click.option("--status", type=click.Choice([status.value for status in ExecutionStatus]))
@click.option("--limit", type=_POSITIVE, help="At most this many executions, newest first; default: all.")
@click.option("--max-steps", type=_POSITIVE, metavar="N", help="At most this many steps.")
@click.option("--max-tokens", type=_POSITIVE, metavar="N", help="At most this many tokens.")
@click.option("--timeout", type=_SECONDS, metavar="S", help="At most this many seconds, without pauses.")
@click.option("--cumulative-timeout", type=_SECONDS, metavar="S", help="At most this many seconds of work.")
@click.option("--error-policy", metavar="NAME", help="An error policy, such as retry_tool_errors.")
@click.option("--max-retries", type=click.IntRange(0), metavar="N", help="The retries of the error policy.")
@click.option(
    "--criterion",
    "criteria",
    multiple=True,
    metavar="NAME[:PARAMS]",
    help="A registered criterion, such as RetryLimit:max_failures=2; may be repeated.",
)
@click.option(
    "--without-criterion",
    "without",
    multiple=True,
    metavar="NAME",
    help="Leave a criterion out; may be repeated.",
)
@click.option(
    "--repeated-call-limit",
    type=_POSITIVE,
    metavar="N",
    help="Stop after N equal calls with the same result.",
)
@click.option("--budget-usd", type=float, metavar="USD", help="A budget of each execution, in dollars.")
@click.option("--budget-tokens", type=int, metavar="N", help="A budget of each execution, in tokens.")
@click.option("--budget-steps", type=int, metavar="N", help="A budget of each execution, in steps.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="NAME:input=..,output=..",
    help="Prices of a preset or a model, in dollars for a million tokens; may be repeated.",
)
@click.option("--undetermined", "with_undetermined", is_flag=True, help="List undetermined executions, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a line for each execution that differs.")
@with_agents
@click.pass_obj
@command
async def what_if(  # noqa: PLR0913 -- one argument for each option
    settings: Settings,
    *,
    agent: str | None,
    since: datetime | None,
    until: datetime | None,
    status: str | None,
    limit: int | None,
    max_steps: int | None,
    max_tokens: int | None,
    timeout: float | None,  # noqa: ASYNC109 -- a policy of executions
    cumulative_timeout: float | None,
    error_policy: str | None,
    max_retries: int | None,
    criteria: tuple[str, ...],
    without: tuple[str, ...],
    repeated_call_limit: int | None,
    budget_usd: float | None,
    budget_tokens: int | None,
    budget_steps: int | None,
    prices: tuple[str, ...],
    with_undetermined: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show what another policy would have changed in past executions.

    The recorded decisions are repeated under the policy that the options describe; everything else stays
    as recorded. No model is asked, and nothing is changed. Ctrl-C prints the result so far.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    amounts = {"usd": budget_usd, "tokens": budget_tokens, "steps": budget_steps}
    has_budget = any(amount is not None for amount in amounts.values())
    change = PolicyChange(
        max_steps,
        max_tokens,
        timeout,
        cumulative_timeout,
        error_policy,
        max_retries,
        tuple(map(parse_criterion, criteria)),
        without,
        repeated_call_limit,
        parse_budgets(amounts, "the budget") if has_budget else (),
        dict(map(parse_price, prices)),
    )
    wanted = RecordFilter(agent, ExecutionStatus(status) if status else None, _in_utc(since), _in_utc(until))
    printer: Output = JsonOutput() if as_json else CsvOutput() if as_csv else TableOutput()
    async with open_installation(settings, "everstep what-if") as installation:
        # Loading the agents registers their criteria.
        _ = installation.book
        examination = WhatIf(installation.store, Scope(), change, wanted, limit)
        await _examine(examination, printer, with_undetermined=with_undetermined)


async def _examine(examination: WhatIf, printer: Output, *, with_undetermined: bool) -> None:
    progress = ProgressLine(await examination.count()) if sys.stderr.isatty() else None
    printer.begin()
    try:
        async with aclosing(examination.comparisons()) as comparisons:
            async for comparison in comparisons:
                is_unknown = with_undetermined and comparison.verdict is ChangedEnd.UNDETERMINED
                if comparison.differs or is_unknown:
                    if progress:
                        progress.clear()
                    printer.add(comparison)
                if progress:
                    progress.show(examination.report.examined)
    except asyncio.CancelledError:
        _end(examination, printer, progress)
        warn(f"Cancelled: {examination.report.examined} executions were examined.")
        raise
    _end(examination, printer, progress)
    if not examination.report.examined:
        warn("No executions match.")


def _end(examination: WhatIf, printer: Output, progress: ProgressLine | None) -> None:
    if progress:
        progress.clear()
    printer.end(examination.report)


def _in_utc(at: datetime | None) -> datetime | None:
    return at and at.replace(tzinfo=UTC)
