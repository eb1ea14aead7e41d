"""The command that repeats the decisions of past executions under another policy."""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

import click

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.recorded_executions import RecordFilter
from everstep.agent_domain.what_if.policy_change import PolicyChange, parse_criterion, parse_price
from everstep.agent_domain.what_if.repeating import ChangedEnd
from everstep.cli.command import command, warn, with_agents
from everstep.cli.id_arguments import find_execution
from everstep.cli.times import since_option, until_option
from everstep.cli.what_if_output import CsvOutput, JsonOutput, Output, ProgressLine, TableOutput
from everstep.client.what_if import WhatIf
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

_POSITIVE = click.IntRange(1)
_SECONDS = click.FloatRange(0, min_open=True)


@click.command("what-if")
@click.option("--execution", "execution_id", metavar="ID", help="Only this execution.")
@click.option("--agent", help="Only executions of this agent.")
@click.option("--tenant", help=f"Only executions of this tenant; default: {DEFAULT_TENANT}.")
@since_option
@until_option
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
@click.option("--cursor", help="Begin where an earlier part ended: the cursor that it printed.")
@click.option("--undetermined", "with_undetermined", is_flag=True, help="List undetermined executions, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a line for each execution that differs.")
@with_agents
@click.pass_obj
@command
async def what_if(  # noqa: PLR0913 -- one argument for each option
    settings: Settings,
    *,
    execution_id: str | None,
    agent: str | None,
    tenant: str | None,
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
    cursor: str | None,
    with_undetermined: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show what another policy would have changed in past executions.

    The recorded decisions are repeated under the policy that the options describe; everything else stays
    as recorded. No model is asked, and nothing is changed. Ctrl-C prints the result so far, and how to
    examine the others.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if execution_id is not None and tenant is not None:
        raise click.UsageError("--execution and --tenant exclude each other: the id finds its tenant")
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
    wanted = RecordFilter(agent, ExecutionStatus(status) if status else None, since, until)
    printer: Output = JsonOutput() if as_json else CsvOutput() if as_csv else TableOutput()
    async with open_installation(settings, "everstep what-if") as installation:
        # Loading the agents registers their criteria.
        _ = installation.book
        if execution_id is not None:
            ref = (await find_execution(execution_id, installation)).ref
            wanted, tenant = replace(wanted, execution_id=ref.execution_id), ref.tenant_id
        examination = WhatIf(
            installation.store, Scope(tenant or DEFAULT_TENANT), change, wanted, limit, cursor
        )
        await _examine(examination, printer, with_undetermined=with_undetermined)


async def _examine(examination: WhatIf, printer: Output, *, with_undetermined: bool) -> None:
    total = await examination.count()
    progress = ProgressLine(total) if sys.stderr.isatty() else None
    try:
        async with aclosing(examination.comparisons()) as comparisons:
            async for comparison in comparisons:
                if examination.report.examined == 1:
                    # An error before the first one leaves standard output empty.
                    printer.begin()
                is_unknown = with_undetermined and comparison.verdict is ChangedEnd.UNDETERMINED
                if comparison.differs or is_unknown:
                    if progress and not isinstance(printer, TableOutput):
                        progress.clear()
                    printer.add(comparison)
                if progress:
                    progress.show(examination.report.examined)
    except asyncio.CancelledError:
        cursor = await _end(examination, printer, progress)
        done = f"Cancelled: {examination.report.examined} of {total} executions were examined."
        warn(done if cursor is None else f"{done} To examine the others, repeat it with --cursor {cursor}")
        raise
    cursor = await _end(examination, printer, progress)
    if not examination.report.examined:
        warn("No executions match.")
    if cursor is not None and not isinstance(printer, JsonOutput):
        warn(f"more: --cursor {cursor}")


async def _end(examination: WhatIf, printer: Output, progress: ProgressLine | None) -> str | None:
    """Print the sums; return the cursor of the executions that were not examined."""
    if progress:
        progress.clear()
    cursor = await examination.next_cursor()
    if not examination.report.examined:
        printer.begin()
    printer.end(examination.report, cursor)
    return cursor
