"""Closes what belongs to the installation to the tools of its agents, wherever it lies."""

from collections.abc import Iterator
from os.path import exists
from pathlib import Path

from everstep.capabilities.protection import protect
from everstep.runtime.data_folder import private_folders
from everstep.runtime.settings import Settings


def close_to_agents(settings: Settings) -> None:
    """Hide the data of installations, and make what agents are loaded from read-only, in this process."""
    protect(private_folders(settings), [path for where in settings.agents for path in _loaded_from(where)])


def _loaded_from(where: str) -> Iterator[Path]:
    """The folder, file, package or module that a source names, and what would be taken instead."""
    if exists(where) or ":" not in where:
        yield Path(where)
        return
    top = where.partition(":")[0].partition(".")[0]
    yield from (Path(top), Path(f"{top}.py"))
