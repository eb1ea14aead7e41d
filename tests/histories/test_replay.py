"""Current code replays every recorded history without choosing another command."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import Decision, Infer, Rules, RunTools, decide
from everstep.runtime.temporal import data_converter
from everstep.workflows import agent_execution
from everstep.workflows.agent_execution import AgentExecution
from tests.histories.record import FOLDER, histories_of
from tests.histories.ways import WAYS, cut_like


class Sandbox(SandboxedWorkflowRunner):
    """The sandbox without its trial: each replay imports the workflow's modules in it anyway."""

    def prepare_workflow(self, defn: Any) -> None:
        del defn


HISTORIES = sorted(FOLDER.glob("*.json"))


def read(path: Path) -> WorkflowHistory:
    """A history as it was recorded."""
    return WorkflowHistory.from_json(path.stem, json.loads(path.read_text(encoding="utf-8")))


async def replay(path: Path, runner: WorkflowRunner, patch: pytest.MonkeyPatch) -> None:
    """Replay a history; raises where the code would do something else."""
    cut_like(path.name.split(".", maxsplit=1)[0], patch)
    replayer = Replayer(workflows=[AgentExecution], workflow_runner=runner, data_converter=data_converter())
    await replayer.replay_workflow(read(path))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_execution_can_continue(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.1.1, 1.1.2: recorded results are reused, and the same decisions follow from them."""
    await replay(path, UnsandboxedWorkflowRunner(), monkeypatch)


@pytest.mark.parametrize("path", HISTORIES[::2], ids=lambda path: path.stem)
async def test_a_recorded_execution_can_continue_in_the_sandbox(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.1.1, 1.1.2: in every second history, as the sandbox imports the workflow's modules for each."""
    await replay(path, Sandbox(), monkeypatch)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_has_a_history(name: str) -> None:
    """1.1.2: `python -m tests.histories.record` records those that have none."""
    assert histories_of(name), f"run: python -m tests.histories.record {name}"


async def test_a_changed_decision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.1.2: otherwise the tests above would prove nothing."""

    def otherwise(facts: ExecutionFacts, rules: Rules, now: datetime) -> Decision:
        decision = decide(facts, rules, now)
        return Infer(facts.next_step_number) if isinstance(decision, RunTools) else decision

    monkeypatch.setattr(agent_execution, "decide", otherwise)
    with pytest.raises(NondeterminismError):
        await replay(FOLDER / "parallel_tools.1.json", UnsandboxedWorkflowRunner(), monkeypatch)


def test_the_executions_that_rolled_over_are_complete() -> None:
    """1.1.4: each run of one is a separate history, and each but the last continues in the next."""
    ends: list[Any] = [read(path).events[-1] for path in histories_of("rolled_over")]
    kinds = [event.WhichOneof("attributes") for event in ends]

    assert len(kinds) > 1
    assert set(kinds[:-1]) == {"workflow_execution_continued_as_new_event_attributes"}
    assert kinds[-1] == "workflow_execution_completed_event_attributes"
