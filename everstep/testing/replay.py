"""Replays an exported run in a test: the agent of today against the answers and results of then."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.tools.resources import NO_RESOURCES, Resources
from everstep.runtime.replay.record_files import AgentBench, open_bench, replay_file
from everstep.runtime.replay.replaying import Replay
from everstep.runtime.settings import Settings


class Recording:
    """Whether replays write what happens now into their files; `pytest --everstep-record` turns it on."""

    is_on = False


def replay(
    path: str | Path,
    *,
    agents: Iterable[AgentDefinition | DefinitionBuilder] | None = None,
    resources: Resources = NO_RESOURCES,
    record: bool = False,
) -> Replay:
    """Replay a run that `everstep export --as test` wrote. No model, tool or server is called.

    Args:
        path: The data file.
        agents: The agents; by default those that `EVERSTEP_AGENTS` or `everstep.toml` names.
        resources: Objects for hooks and processors that use resources.
        record: Write what happens now into the file, instead of raising.

    Returns:
        The decisions, the calls, and what is different.

    Raises:
        RunDiffers: The agent does not do what it did; an `AssertionError` that shows both.
        InvalidInput: The file cannot be read, or its agent is not found.
    """
    is_recording = record or Recording.is_on
    found = _replay_in_thread(Path(path), agents, resources, is_recording=is_recording)
    return found if is_recording else found.require_same()


def _replay_in_thread(
    path: Path,
    agents: Iterable[AgentDefinition | DefinitionBuilder] | None,
    resources: Resources,
    *,
    is_recording: bool,
) -> Replay:
    """Replay in a thread, as the caller's may have an event loop."""

    def run() -> Replay:
        if agents is not None:
            return asyncio.run(replay_file(path, AgentBench.of(agents, resources), records=is_recording))
        with open_bench(Settings.read(), resources) as bench:
            return asyncio.run(replay_file(path, bench, records=is_recording))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
