"""The commands about the data of one person: to hand them out, and to erase them."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.cli.command import command, print_line, warn, with_agents
from everstep.cli.json_output import json_option, print_json
from everstep.client.erasure import CANCEL_SECONDS, ErasureReport
from everstep.runtime.person_data import open_person_data
from everstep.runtime.settings import Settings

_tenant = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="The tenant of the user.")


@click.group()
def users() -> None:
    """Export or erase the data of one person.

    NAME is the user id, as in tokens and API keys.
    """


@users.command("export")
@click.argument("name")
@_tenant
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="The ZIP file to write; it must not exist.",
)
@json_option
@click.pass_obj
@command
async def export_user(settings: Settings, name: str, *, tenant: str, output: Path, as_json: bool) -> None:
    """Write all data of a person to a ZIP file.

    It has a file of JSON lines for each table, and the attached files. Needs only the database, and the
    bucket or folder of the attached files.
    """
    _require_new(output)
    async with open_person_data(settings, tenant, _require_name(name)) as person:
        counts = await person.export(output)
    if as_json:
        print_json({"file": str(output), "rows": counts})
        return
    if not counts:
        warn(f"There are no data of the user {name} in the tenant {tenant}.")
    _print_counts(counts)
    print_line(f"written: {output}")


@users.command("erase")
@click.argument("name")
@_tenant
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 3600),
    default=CANCEL_SECONDS,
    show_default=True,
    help="How many seconds running executions may take to end.",
)
@json_option
@with_agents
@click.pass_obj
@command
async def erase_user(
    settings: Settings, name: str, *, tenant: str, yes: bool, wait_seconds: float, as_json: bool
) -> None:
    """Erase all data of a person.

    Sign-ins and keys end first; running executions are cancelled, which needs a worker. Safe to repeat: an
    interrupted run, and executions that have not ended in time, are finished by the next one. Exits with 1
    while data are left.
    """
    async with open_person_data(settings, tenant, _require_name(name)) as person:
        if not yes:
            _confirm(await person.counts(), name, tenant)
        report = await person.erase(wait_seconds)
    if as_json:
        print_json({**asdict(report), "running": [str(each) for each in report.running]})
    else:
        _print_report(report, name, tenant)
    if report.left:
        raise click.exceptions.Exit(1)


def _confirm(counts: Mapping[str, int], name: str, tenant: str) -> None:
    """Ask whether to erase the rows."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"this erases all data of the user {name}; add --yes to do so without a question")
    _print_counts(counts)
    click.confirm(f"Erase all data of the user {name} in the tenant {tenant}?", abort=True)


def _print_report(report: ErasureReport, name: str, tenant: str) -> None:
    if not report.removed and not report.left:
        print_line(f"There are no data of the user {name} in the tenant {tenant}.")
    for table, count in report.removed.items():
        print_line(f"{table:<25} {count} erased")
    for table, count in report.left.items():
        print_line(f"{table:<25} {count} left")
    if report.decisions:
        print_line(f"kept: {report.decisions} decisions in executions of others, which are part of those")
    if report.running:
        ids = ", ".join(map(str, report.running))
        warn(f"These executions have not ended; start a worker and run the command again: {ids}")
    elif report.left:
        warn("The rest belongs to executions that others continue, or that began just now; run it again.")


def _print_counts(counts: Mapping[str, int]) -> None:
    for table, count in counts.items():
        print_line(f"{table:<25} {count}")


def _require_new(file: Path) -> None:
    if file.exists():
        raise InvalidInput(f"{file} exists; name another file with --output")


def _require_name(name: str) -> str:
    if not name.strip():
        raise InvalidInput("name a user, such as: everstep users export ann --output ann.zip")
    return name
