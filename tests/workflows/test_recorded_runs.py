"""Runs of all kinds are exported, and their tests pass without a server, a model or a tool."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.run_record import RunRecord
from everstep.agent_domain.tools.resources import NO_RESOURCES
from everstep.agent_domain.tools.tools import Tool, Toolbox
from everstep.client.run_exports import redacted, scenario_text, test_files as files_of_test
from everstep.client.run_records import read_run
from everstep.inference.scripted import Script
from everstep.runtime.replay.record_files import AgentBench, recorded_again, replay_file
from everstep.runtime.replay.replaying import Replay
from tests.workflows.harness import Office
from tests.workflows.recorded_runs import CASES, Case


class Forbidden(Exception):
    """A replay called something that it has to do without."""


def forbid(*_args: Any, **_given: Any) -> Any:
    raise Forbidden


async def export_run(case: Case, temporal: TemporalClient, folder: Path) -> tuple[Path, RunRecord, Office]:
    """Run an agent on a server, and export the run; returns the data file."""
    office, execution = await case.run(temporal)
    agents = {agent.descriptor.name: agent for agent in office.agents}
    record = await read_run(office.port, execution.ref, agents)
    assert record.status is case.status
    record, _ = redacted(record, Redaction())
    for name, text in files_of_test(record).items():
        (folder / name).write_text(text)
    (path,) = folder.glob("*.json")
    return path, record, office


def idle(agent: AgentDefinition, monkeypatch: pytest.MonkeyPatch) -> AgentDefinition:
    """The agent with a model and tools that fail when they are called."""
    assert isinstance(agent.driver, StepDriver)
    monkeypatch.setattr(type(agent.driver.model), "respond", forbid)
    tools = [_idle(tool, monkeypatch) for tool in agent.tools]
    return replace(agent, tools=Toolbox.of(tools))


def _idle(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    if not hasattr(tool, "spawn"):
        monkeypatch.setattr(type(tool), "call", forbid)
    return tool


async def replay_with(path: Path, *agents: AgentDefinition) -> Replay:
    return await replay_file(path, AgentBench.of(agents, NO_RESOURCES))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_exported_run_passes_at_once(
    case: Case, temporal: TemporalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15.3.1, 15.3.2: with the real loop, and without the model and the tools of the agent."""
    path, record, office = await export_run(case, temporal, tmp_path)

    replay = await replay_with(path, *(idle(agent, monkeypatch) for agent in office.agents))

    assert replay.differences == (), replay.comparison.text
    assert len(replay.replayed.steps) == len(record.steps)
    # Exported again, it is the same file.
    assert RunRecord.from_dict(json.loads(path.read_text())) == record
    assert list(files_of_test(record).values())[1] == path.read_text()
    # The record of the replay is as good as that of the run.
    again = tmp_path / "again.json"
    again.write_text(list(files_of_test(recorded_again(replay)).values())[1])
    assert (await replay_with(again, *office.agents)).differences == ()
    assert Script.from_yaml(scenario_text(record)).scenarios
