"""Restrictions on the tools of agents: hidden folders, read-only sources, and limits for commands."""

from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from os.path import exists
from pathlib import Path

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.capabilities.bash import BashTool, cgroups
from everstep.capabilities.protection import protect
from everstep.runtime.data_folder import private_folders
from everstep.runtime.settings import Settings


def close_to_agents(settings: Settings) -> None:
    """Hide the data of installations, make agent sources read-only, and set the cgroup."""
    cgroups.set_cgroup(settings.cgroup)
    modules = [*settings.agents, *([settings.context_policy] if settings.context_policy else [])]
    protect(private_folders(settings), [path for where in modules for path in _source_paths(where)])


def _source_paths(where: str) -> Iterator[Path]:
    """Yield the folder, file, package or module of a source, and files that would shadow it."""
    if exists(where) or ":" not in where:
        yield Path(where)
        return
    top = where.partition(":")[0].partition(".")[0]
    # Python prefers a package to a compiled module, that to a source file, and may load a cached compilation.
    yield from (Path(top), *(Path(f"{top}{suffix}") for suffix in (*EXTENSION_SUFFIXES, ".py", ".pyc")))
    yield Path("__pycache__")


def command_limits(agents: Iterable[AgentDefinition]) -> Iterator[str]:
    """Yield descriptions of the command limits of these agents."""
    names = [
        agent.descriptor.name for agent in agents if any(isinstance(each, BashTool) for each in agent.tools)
    ]
    if names:
        yield f"commands of {', '.join(names)}: {cgroups.detect_bound()}"
