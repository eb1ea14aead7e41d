"""Replays the files of exported runs with the agents that the settings name, as a worker loads them."""

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.agents.spawning import find_definition
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.run_record import FORMAT, RunRecord
from everstep.agent_domain.tools.resources import NO_RESOURCES, Resources
from everstep.agent_domain.values import frozen_map
from everstep.client.run_exports import record_text
from everstep.runtime.agents import AgentBook, by_name, load_all_agents
from everstep.runtime.models import models_of
from everstep.runtime.replay.replaying import Replay, replay_record
from everstep.runtime.settings import Settings

_LOGGERS: Final = ("temporalio.activity", "temporalio.workflow", "temporalio.worker")
"""They log the errors of tools and models, which are part of the record here."""


class AgentBench:
    """The agents of a process with what a replay needs to know of their models."""

    def __init__(
        self,
        agents: Mapping[str, AgentDefinition],
        model_of: Callable[[str, str | None], object],
        resources: Resources = NO_RESOURCES,
    ) -> None:
        self.agents = agents
        self.model_of = model_of
        self.resources = resources

    @classmethod
    def of(cls, agents: Iterable[AgentDefinition | DefinitionBuilder], resources: Resources) -> "AgentBench":
        """Given agents; of their models only those are known that they bring."""
        made = [each.definition() if isinstance(each, DefinitionBuilder) else each for each in agents]
        named = by_name(made)

        def model_of(name: str, _preset: str | None) -> object:
            definition = find_definition(named, name)
            driver = definition.driver if definition else None
            return driver.model if isinstance(driver, StepDriver) else None

        return cls(named, model_of, resources)


@contextmanager
def open_bench(settings: Settings, resources: Resources = NO_RESOURCES) -> Generator[AgentBench]:
    """Load the agents that the settings name, with their presets; no server is needed."""
    models = models_of(settings)
    agents = load_all_agents(settings.agents, models.presets, settings.mcp)
    book = AgentBook(agents.values(), models)
    try:
        yield AgentBench(agents, lambda name, preset: book.driver(name, preset).model, resources)
    finally:
        asyncio.run(models.aclose())


def read_record(path: Path) -> RunRecord:
    """Read the data file of an exported test.

    Raises:
        InvalidInput: There is none, or it is not an exported run that this release can read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"the run {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"the run {path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} is not an exported run; `everstep export ID --as test` writes one")
    return RunRecord.from_dict(cast("dict[str, Any]", data), str(path))


def record_files(paths: Iterable[Path]) -> list[Path]:
    """The data files that these paths name: the files themselves, those of tests, and those in folders.

    Raises:
        InvalidInput: A path does not exist, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"there is no file or folder {path}")
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*.json")) if _is_record(file)]
            if not inside:
                raise InvalidInput(f"the folder {path} has no exported run in it")
            found.extend(inside)
        elif path.suffix == ".py":
            data = path.with_name(f"{path.stem.removeprefix('test_')}.json")
            if not data.exists():
                raise InvalidInput(f"{path} is not an exported test: there is no {data.name} beside it")
            found.append(data)
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _is_record(path: Path) -> bool:
    try:
        return f'"{FORMAT}"' in path.read_text(encoding="utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return False


async def replay_file(path: Path, bench: AgentBench, *, records: bool = False) -> Replay:
    """Replay the data file of an exported test.

    Args:
        path: The file.
        bench: The agents.
        records: Whether to write what happens now into the file.

    Raises:
        InvalidInput: The file cannot be read, or its agent is not found; or the replay cannot be recorded,
            because it needs an answer that the record does not have.
    """
    record = read_record(path)
    with _quiet_logs():
        replay = await replay_record(record, bench.agents, model_of=bench.model_of, resources=bench.resources)
    if records and replay.differences:
        _write(path, record_text(recorded_again(replay)))
    return replay


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def recorded_again(replay: Replay) -> RunRecord:
    """The record of what a replay did, for the next replays.

    Raises:
        InvalidInput: The replay needed an answer that the record does not have.
    """
    if replay.ends:
        raise InvalidInput(
            f"the run cannot be recorded again, because {replay.ends[0]}: let the agent run and export that"
        )
    return _as_recorded(replay.recorded, replay.replayed)


def _as_recorded(before: RunRecord, now: RunRecord) -> RunRecord:
    """A replayed run with what a replay takes from the record without going through it."""
    children = {child.ref.execution_id: child for child in before.children}
    known = [
        _as_recorded(children[child.ref.execution_id], child)
        for child in now.children
        if child.ref.execution_id in children
    ]
    spec = frozen_map({**now.spec, "listed": before.spec.get("listed")})
    return replace(
        now,
        spec=spec,
        started_at=before.started_at,
        clocks=before.clocks,
        commands=before.commands,
        budgets=before.budgets,
        output_format=before.output_format,
        earlier_compaction=before.earlier_compaction,
        continued_input=before.continued_input,
        redacted=before.redacted,
        missing=before.missing,
        children=tuple(known),
    )


@contextmanager
def _quiet_logs() -> Generator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
