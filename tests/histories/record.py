"""Records histories: `python -m tests.histories.record [NAME ...]`; README.md says when.

Without names, only those that have no history yet.
"""

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client as TemporalClient, WorkflowHistory

from everstep.runtime.embedded import open_services
from tests.histories.ways import WAYS, cut_like
from tests.services import careless, data_directory
from tests.workflows.harness import connect_temporal, runs_of

FOLDER = Path(__file__).parent


def histories_of(name: str) -> list[Path]:
    """The histories of a way: one for each of its runs."""
    return sorted(FOLDER.glob(f"{name}.*.json"))


async def record(temporal: TemporalClient, name: str) -> None:
    """Run this way and save its histories."""
    for path in histories_of(name):
        path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        cut_like(name, patch)
        execution = await WAYS[name](temporal)
    for number, run in enumerate(await runs_of(execution), 1):
        history = without_stack_traces(json.loads(WorkflowHistory(execution.workflow.id, run).to_json()))
        text = json.dumps(history, indent=1, ensure_ascii=False).replace(temporal.identity, "recorder")
        (FOLDER / f"{name}.{number}.json").write_text(text + "\n", encoding="utf-8")


def without_stack_traces(value: Any) -> Any:
    """Remove source locations from stack traces."""
    match value:
        case dict():
            entries = cast("dict[str, Any]", value)
            return {key: without_stack_traces(entry) for key, entry in entries.items() if key != "stackTrace"}
        case list():
            return [without_stack_traces(entry) for entry in cast("list[Any]", value)]
        case _:
            return value


async def main(names: Iterable[str]) -> None:
    """Record these ways on a server of this process."""
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            temporal = await connect_temporal(services)
            for name in names:
                await record(temporal, name)
                sys.stdout.write(f"{name}: {', '.join(path.name for path in histories_of(name))}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or [name for name in WAYS if not histories_of(name)]))
