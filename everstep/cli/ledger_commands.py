"""The commands that print ledgers and audit them."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef, Scope
from everstep.agent_domain.storage.audit import AuditReport, Break
from everstep.agent_domain.storage.ledger import canonical_json
from everstep.agent_domain.values import frozen_map, json_text, parse_json
from everstep.cli.command import command, print_line
from everstep.cli.id_arguments import find_execution
from everstep.cli.printing import echo
from everstep.cli.times import Since
from everstep.client.ledgers import audit_execution, audit_lines, each_entry, each_entry_of_period
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings

PAGE = 200

_tenant = click.option(
    "--tenant", help=f"Without ID: the tenant of the executions; default: {DEFAULT_TENANT}."
)


@click.command()
@click.argument("execution_id", metavar="[ID]", default="")
@click.option(
    "--since", type=Since(), metavar="TIME", help="Without ID: entries since an age (7d) or a time in UTC."
)
@click.option(
    "--until", type=Since(), metavar="TIME", help="Without ID: entries before an age or a time in UTC."
)
@_tenant
@click.pass_obj
@command
async def ledger(
    settings: Settings,
    *,
    execution_id: str,
    since: datetime | None,
    until: datetime | None,
    tenant: str | None,
) -> None:
    """Print the ledgers of executions, for audits, as lines of JSON.

    Each line is an entry with its hash: a fact or a decision. Pass the ID of an execution, or a period for
    all executions of a tenant.
    """
    if execution_id and (since or until or tenant):
        raise click.UsageError("--since, --until and --tenant are for all executions: omit them or ID")
    async with open_installation(settings, "everstep ledger") as installation:
        if execution_id:
            execution = await find_execution(execution_id, installation)
            entries = each_entry(installation.store, execution.ref)
        else:
            scope = Scope(tenant or DEFAULT_TENANT)
            entries = each_entry_of_period(installation.store, scope, since, until)
        async for entry in entries:
            echo(canonical_json(entry.to_dict()))


@click.command()
@click.argument("execution_id", metavar="[ID]", default="")
@click.option("--all", "every", is_flag=True, help="Audit all executions of the tenant.")
@click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="Audit the executions accepted since an age (7d) or a time in UTC.",
)
@click.option(
    "--ledger",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Check the entries of the execution in an exported file instead, also if it was pruned.",
)
@_tenant
@click.option("--json", "as_json", is_flag=True, help="Print each report as a line of JSON.")
@click.pass_obj
@command
async def audit(
    settings: Settings,
    *,
    execution_id: str,
    every: bool,
    since: datetime | None,
    file: Path | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Check that the record of an execution was not changed.

    Verifies the chain of hashes of its ledger, and compares the stored messages, arguments, results and
    decisions with the digests in it. Exits with 1 if anything differs.
    """
    if bool(execution_id) == bool(every or since or tenant):
        raise click.UsageError("name one execution, or pass --all, --since or --tenant")
    if file and not execution_id:
        raise click.UsageError("--ledger needs the ID of an execution")
    lines = None if file is None else _read_lines(file)
    whole, total = 0, 0
    async with open_installation(settings, "everstep audit") as installation:
        async for ref in _each_ref(installation, execution_id, since, tenant):
            store = installation.client.store
            if lines is not None:
                mine = [line for line in lines if line.get("execution_id") == str(ref.execution_id)]
                report = await audit_lines(store, ref, mine)
            else:
                report = await audit_execution(store, ref)
            total += 1
            whole += report.is_whole
            if as_json:
                print_line(json_text(report.to_dict()))
            elif execution_id or not report.is_whole:
                for line in report_lines(report):
                    print_line(line)
    if not execution_id and not as_json:
        print_line(f"{whole} of {total} executions are whole")
    if whole < total:
        raise click.exceptions.Exit(1)


def _read_lines(file: Path) -> list[Mapping[str, Any]]:
    """The entries in an exported file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the ledger {file} cannot be read: {error}") from None
    return [
        frozen_map(parse_json(line, f"line {number} of {file}"), f"line {number} of {file}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


async def _each_ref(
    installation: Installation, execution_id: str, since: datetime | None, tenant: str | None
) -> AsyncGenerator[ExecutionRef]:
    """Yield the execution of an id, or those of a tenant that were accepted since then, newest first."""
    if execution_id:
        yield (await find_execution(execution_id, installation)).ref
        return
    cursor: str | None = None
    while True:
        page = await installation.store.executions(tenant or DEFAULT_TENANT, cursor=cursor, limit=PAGE)
        for row in page.rows:
            if since is not None and row.created_at < since:
                return
            yield row.ref
        cursor = page.cursor
        if cursor is None:
            return


def report_lines(report: AuditReport) -> Iterator[str]:
    """Yield the result of an audit as lines of text."""
    yield f"execution  {report.execution_id}"
    if not report.is_sealed:
        yield "ledger     none: an older release accepted the execution, so nothing can be checked"
        return
    end = "" if report.is_closed else ", the execution has not ended"
    yield f"ledger     {report.entries} entries{end}"
    yield f"head       {report.hash}"
    gone = f", {len(report.gone)} gone: {', '.join(report.gone)}" if report.gone else ""
    if report.bodies or report.gone:
        yield f"bodies     {report.bodies} as recorded{gone}"
    count = len(report.breaks)
    yield (
        f"result     BROKEN: {count} {'place differs' if count == 1 else 'places differ'}"
        if count
        else ("result     whole")
    )
    for each in report.breaks:
        yield from _break_lines(each)


def _break_lines(broken: Break) -> Iterator[str]:
    place = "" if broken.position is None else f"entry {broken.position} ({broken.kind or 'unreadable'}): "
    yield f"  {place}{broken.problem}"
    if broken.recorded is not None:
        yield f"    recorded  {broken.recorded}"
    if broken.found is not None:
        yield f"    found     {broken.found}"
