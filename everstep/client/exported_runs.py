"""Reads runs to export, without their secrets, and makes their files: for the command and the HTTP API."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import find_definition
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.run_record import RunRecord
from everstep.client.run_exports import Shape, dataset_line, file_stem, redacted, scenario_text, test_files
from everstep.client.run_records import read_run

DATASET: Final = "dataset.jsonl"


class ExportForm(StrEnum):
    """What a run is exported as."""

    TEST = "test"
    """A pytest file and its data."""
    SCENARIO = "scenario"
    """A script for the scripted driver."""
    DATASET = "dataset"
    """A line of training data."""


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run without its secrets."""

    record: RunRecord
    redacted: Mapping[str, int]
    """How many secrets were replaced, by the place in words."""
    notes: tuple[str, ...]
    """What is missing, one sentence each."""

    def files(self, form: ExportForm, shape: Shape = Shape.OPENAI) -> Mapping[str, str]:
        """The files of the export, by name."""
        match form:
            case ExportForm.TEST:
                return test_files(self.record)
            case ExportForm.SCENARIO:
                return {f"{file_stem(self.record)}.yaml": scenario_text(self.record)}
            case ExportForm.DATASET:
                return {DATASET: dataset_line(self.record, shape) + "\n"}

    def notes_about(self, form: ExportForm) -> tuple[str, ...]:
        """What is missing in an export of this form."""
        asks_models = any(run.inner_answers for run in self.record.each_run())
        if form is not ExportForm.SCENARIO or not asks_models:
            return self.notes
        note = (
            f"the questions that processors of {self.record.ref.execution_id} asked a model are not in the "
            "script; give them a preset of their own"
        )
        return (*self.notes, note)


async def export_run(
    store: ExecutionStore,
    ref: ExecutionRef,
    agents: Mapping[str, AgentDefinition],
    redaction: Redaction,
) -> ExportedRun:
    """Read a run with those of its subagents, and replace its secrets.

    Args:
        store: The store.
        ref: The execution.
        agents: The agents of this process. They show what the request asked for beyond the agent.
        redaction: Replaces the secrets.

    Raises:
        NotFound: There is no such execution.
        NothingRecorded: It has not begun, or its messages were removed.
    """
    record, counts = redacted(await read_run(store, ref, agents), redaction)
    return ExportedRun(record, counts, tuple(_notes(record, agents)))


def _notes(record: RunRecord, agents: Mapping[str, AgentDefinition]) -> list[str]:
    notes: list[str] = []
    identity = record.ref.execution_id
    if not record.status.is_terminal:
        last = record.steps[-1].number if record.steps else 0
        notes.append(f"the execution {identity} is {record.status}: it is exported up to step {last}")
    notes.extend(f"the store has no longer {missing} of {identity}" for missing in record.missing)
    if find_definition(agents, record.agent) is None:
        notes.append(
            f"this process does not know the agent '{record.agent}': name it with EVERSTEP_AGENTS or "
            "--agents, so that what the request asked for beyond the agent is exported as well"
        )
    return notes
