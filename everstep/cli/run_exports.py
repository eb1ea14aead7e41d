"""The commands that make tests, scripts and training data of executions, and that run exported tests."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.cli.command import command, print_line, warn, with_agents
from everstep.cli.id_arguments import find_execution
from everstep.cli.printing import show_progress
from everstep.cli.times import Since
from everstep.client.exported_runs import DATASET, ExportedRun, ExportForm, export_run
from everstep.client.run_exports import Shape
from everstep.client.run_records import NothingRecorded
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.replay.record_files import open_bench, record_files, replay_file
from everstep.runtime.secrets import secrets
from everstep.runtime.settings import Settings

PAGE: Final = 100
SHOWN_FILES: Final = 3


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which executions to export."""

    ids: tuple[str, ...]
    agent: str | None
    since: datetime | None
    status: ExecutionStatus | None
    limit: int | None
    tenant: str | None

    @property
    def has_filter(self) -> bool:
        return any(
            each is not None for each in (self.agent, self.since, self.status, self.limit, self.tenant)
        )


@click.command()
@click.argument("execution_ids", nargs=-1)
@click.option(
    "--as",
    "form",
    required=True,
    type=click.Choice([each.value for each in ExportForm]),
    help="A pytest file with its data, a script for the scripted driver, or lines for training or evals.",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to.",
)
@click.option(
    "--force", is_flag=True, help="Write to a folder that has files; those of the same runs are replaced."
)
@click.option(
    "--shape",
    type=click.Choice([shape.value for shape in Shape]),
    default=Shape.OPENAI.value,
    show_default=True,
    help="Of a dataset: messages and tools for fine-tuning, or input and expected answer for evaluation.",
)
@click.option("--agent", help="Instead of ids: executions of this agent.")
@click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="Instead of ids: executions since an age (7d) or a time in UTC.",
)
@click.option(
    "--status",
    type=click.Choice([status.value for status in ExecutionStatus]),
    help="Instead of ids: executions with this status.",
)
@click.option("--limit", type=click.IntRange(1), help="Instead of ids: at most this many, newest first.")
@click.option("--tenant", help=f"Instead of ids: executions of this tenant; default: {DEFAULT_TENANT}.")
@with_agents
@click.pass_obj
@command
async def export(  # noqa: PLR0913 -- the options of the command
    settings: Settings,
    execution_ids: tuple[str, ...],
    *,
    form: str,
    output: Path,
    force: bool,
    shape: str,
    agent: str | None,
    since: datetime | None,
    status: str | None,
    limit: int | None,
    tenant: str | None,
) -> None:
    """Turn executions into tests, scripts or training data.

    Secrets are replaced by [redacted]; standard error says where. An execution that has not ended is
    exported up to its last recorded step.
    """
    wanted = _Wanted(execution_ids, agent, since, ExecutionStatus(status) if status else None, limit, tenant)
    as_form = ExportForm(form)
    if bool(wanted.ids) == wanted.has_filter:
        raise click.UsageError(
            "name executions, or choose some with --agent, --since, --status, --limit or --tenant"
        )
    _require_empty(output, force=force)
    redaction, counts, count = Redaction(tuple(secrets(settings, os.environ))), Counter[str](), 0
    lines: list[str] = []
    try:
        async with open_installation(settings, "everstep export") as installation:
            async for run in _each_run(installation, wanted, redaction):
                for note in run.notes_about(as_form):
                    warn(note)
                counts.update(run.redacted)
                count += 1
                files = run.files(as_form, Shape(shape))
                if as_form is ExportForm.DATASET:
                    lines.extend(files.values())
                    continue
                _write(output, files)
                for name in files:
                    print_line(output / name)
    except asyncio.CancelledError:
        written = 0 if as_form is ExportForm.DATASET else count
        warn(f"Cancelled: {written} executions were exported. Repeat the command with --force to export all.")
        raise
    if lines:
        _write(output, {DATASET: "".join(lines)})
        print_line(output / DATASET)
    if not count:
        raise InvalidInput("there are no such executions to export")
    for place, number in sorted(counts.items()):
        warn(f"redacted: {number} {'secret' if number == 1 else 'secrets'} in {place}")


def _require_empty(folder: Path, *, force: bool) -> None:
    found = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
    if found and not force:
        names = ", ".join(found[:SHOWN_FILES]) + (", ..." if len(found) > SHOWN_FILES else "")
        raise InvalidInput(
            f"the folder {folder} has files in it ({names}): choose another folder, or pass --force"
        )


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


async def _chosen(installation: Installation, wanted: _Wanted) -> AsyncGenerator[ExecutionRef]:
    for text in wanted.ids:
        yield (await find_execution(text, installation)).ref
    if wanted.ids:
        return
    cursor, left = None, wanted.limit
    while True:
        page = await installation.store.executions_of(
            Scope(wanted.tenant or DEFAULT_TENANT),
            ExecutionFilter(status=wanted.status),
            cursor=cursor,
            limit=PAGE,
        )
        for row in page.rows:
            if left == 0 or (wanted.since and row.created_at < wanted.since):
                return
            if _is_wanted(row, wanted):
                left = None if left is None else left - 1
                yield row.ref
        cursor = page.cursor
        if cursor is None:
            return


def _is_wanted(row: ExecutionRow, wanted: _Wanted) -> bool:
    # A subagent's run is part of its parent's.
    return (
        row.parent_execution_id is None and wanted.agent in (None, row.agent) and row.started_at is not None
    )


async def _each_run(
    installation: Installation, wanted: _Wanted, redaction: Redaction
) -> AsyncGenerator[ExportedRun]:
    """The chosen runs; those of which too little is stored are left out, unless they are named."""
    async for ref in _chosen(installation, wanted):
        try:
            yield await export_run(installation.store, ref, installation.book.agents, redaction)
        except NothingRecorded as error:
            if wanted.ids:
                raise
            warn(str(error))


# Running exported tests.


@dataclass(frozen=True, slots=True)
class _Result:
    path: Path
    agent: str | None
    execution_id: str | None
    steps: int
    seconds: float
    differences: tuple[str, ...]
    text: str
    error: str | None = None

    @property
    def is_same(self) -> bool:
        return not self.differences and self.error is None

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "agent": self.agent,
            "execution_id": self.execution_id,
            "same": self.is_same,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "differences": list(self.differences),
            "error": self.error,
        }


@click.command("eval")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.option("--record", is_flag=True, help="Write what the agents do now into the files that differ.")
@with_agents
@click.pass_obj
def eval_(settings: Settings, paths: tuple[Path, ...], *, as_json: bool, record: bool) -> None:
    """Replay exported runs, and show which differ; needs no server.

    PATHS are files that `everstep export --as test` wrote, or folders with them. The exit code is 1 if a run
    differs or cannot be replayed.
    """
    try:
        results = _replay_all(settings, record_files(paths), records=record)
    except EverstepError as error:
        raise click.ClickException(str(error)) from error
    different = [result for result in results if result.differences]
    failed = [result for result in results if result.error]
    if as_json:
        print_line(
            json.dumps(
                {
                    "runs": [result.to_dict() for result in results],
                    "same": len(results) - len(different) - len(failed),
                    "different": len(different),
                    "failed": len(failed),
                },
                ensure_ascii=False,
            )
        )
    else:
        _print_table(results, is_recorded=record)
    if failed or (different and not record):
        raise click.exceptions.Exit(1)


def _replay_all(settings: Settings, files: Sequence[Path], *, records: bool) -> list[_Result]:
    results: list[_Result] = []
    with open_bench(settings) as bench:
        for number, path in enumerate(files, 1):
            if sys.stderr.isatty():
                show_progress(f"{number} of {len(files)}" + ("\n" if number == len(files) else ""))
            began = time.monotonic()
            try:
                replay = asyncio.run(replay_file(path, bench, records=records))
            except EverstepError as error:
                seconds = time.monotonic() - began
                results.append(_Result(path, None, None, 0, seconds, (), "", str(error)))
                continue
            done = replay.recorded
            results.append(
                _Result(
                    path,
                    done.agent,
                    str(done.ref.execution_id),
                    len(replay.replayed.steps),
                    time.monotonic() - began,
                    replay.differences,
                    replay.comparison.text,
                )
            )
    return results


def _print_table(results: Sequence[_Result], *, is_recorded: bool) -> None:
    for result in results:
        if result.error or (result.differences and not is_recorded):
            print_line(f"{result.path}\n\n{result.error or result.text}\n")
    width = max(len(str(result.path)) for result in results)
    for result in results:
        word = "same" if result.is_same else "failed" if result.error else "different"
        if word == "different" and is_recorded:
            word = "recorded again"
        print_line(f"{result.path!s:<{width}}  {result.agent or '-':<20}  {result.steps:>5} steps  {word}")
    same = sum(result.is_same for result in results)
    print_line(f"{same} of {len(results)} runs do what they did.")
