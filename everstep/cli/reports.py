"""The command that shows usage and costs. It uses only the public HTTP API."""

from datetime import datetime

import click

from everstep.agent_domain.storage.usage_report import UsageGroup
from everstep.cli.command import command, print_line
from everstep.cli.json_output import json_option, print_json
from everstep.cli.output import usd_text
from everstep.cli.printing import echo
from everstep.cli.remote import api_options, open_remote
from everstep.cli.times import Since
from everstep.http_api.schemas.usage_responses import Latencies, UsageCounts, UsageResponse
from everstep.runtime.settings import Settings

GROUPS = click.Choice([group.value for group in UsageGroup])


@click.command()
@click.option("--by", "group", type=GROUPS, default=UsageGroup.AGENT.value, show_default=True)
@click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="An age (7d) or a time in UTC; default: 30 days before --until.",
)
@click.option("--until", type=Since(), metavar="TIME", help="An age or a time in UTC; default: now.")
@click.option("--latency", is_flag=True, help="Show how long steps took, and until their first text.")
@json_option
@api_options
@click.pass_obj
@command
async def usage(
    settings: Settings,
    *,
    group: str,
    since: datetime | None,
    until: datetime | None,
    latency: bool,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Show tokens, costs and latency by agent, user, model or day.

    By tenant (`--by tenant`), a caller with the scope `admin` sees all of them. Latencies are those of steps
    that did not wait for people.
    """
    wanted = {"group_by": group, "since": _text(since), "until": _text(until), "latency": latency or None}
    async with open_remote(settings, url, token) as remote:
        report = await remote.get(UsageResponse, "/agent/usage", **wanted)
    if as_json:
        print_json(report)
        return
    if not report.groups:
        echo("There are no executions in this time.", err=True)
        return
    names = [each.name or "(none)" for each in report.groups]
    width = max(map(len, [*names, "total"]))
    for name, counts in zip(names, report.groups, strict=True):
        print_line(f"{name:<{width}}  {_counts(counts)}{_latency(counts.latency)}")
    total = f"{report.total_tokens} tokens, {_cost(report)}{_latency(report.latency)}"
    print_line(f"{'total':<{width}}  {total}")


def _latency(latency: Latencies | None) -> str:
    if latency is None:
        return ""
    parts = (("first text", latency.first_text_ms), ("step", latency.step_ms))
    return "".join(
        f", {name} {times.p50 / 1000:.2f} s (p95 {times.p95 / 1000:.2f} s)" for name, times in parts if times
    )


def _text(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _counts(counts: UsageCounts) -> str:
    steps = "" if counts.steps is None else f"{_count(counts.steps, 'step')}, "
    return f"{_count(counts.executions, 'execution')}, {steps}{counts.total} tokens, {_cost(counts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cost(counts: UsageCounts | UsageResponse) -> str:
    if counts.cost_usd is None:
        known = f", {usd_text(counts.known_cost_usd)} of it known" if counts.known_cost_usd else ""
        return f"cost unknown{known}"
    return usd_text(counts.cost_usd)
