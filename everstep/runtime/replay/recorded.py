"""Looks up what a record has for a step or a call, and collects the findings of a replay."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final
from uuid import UUID

from everstep.activities.contracts import InferInput
from everstep.activities.subagents import FROM_OUTSIDE
from everstep.agent_domain.loop.budget import BudgetLimit, BudgetScope, BudgetUnit, ExhaustedBudget
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.run_record import RunCall, RunRecord, RunStep
from everstep.runtime.replay.host import RecordEnds

_BUDGET_LIMIT: Final = BudgetLimit.__name__


@dataclass
class Findings:
    """What stood out while a run was replayed, beside what a comparison of the records shows."""

    problems: list[str] = field(default_factory=list[str])
    ends: list[str] = field(default_factory=list[str])
    """Why the replay could not go on."""

    def note(self, text: str) -> None:
        """Note a difference, once."""
        if text not in self.problems:
            self.problems.append(text)

    def end(self, text: str) -> RecordEnds:
        """Note that the record has nothing more to answer with."""
        if text not in self.ends:
            self.ends.append(text)
        return RecordEnds(text)


class Recorded:
    """Looks up what the record has for a step, a call or a question."""

    def __init__(self, record: RunRecord, findings: Findings) -> None:
        self.runs: Mapping[UUID, RunRecord] = {run.ref.execution_id: run for run in record.each_run()}
        self.findings = findings
        self.is_redacted = any(run.redacted for run in record.each_run())

    def step(self, execution_id: UUID, number: int) -> RunStep:
        """The recorded step.

        Raises:
            RecordEnds: The record has no answer of a model for it.
        """
        run = self.runs.get(execution_id)
        step = run.step(number) if run else None
        if run is None:
            raise self.findings.end(
                f"the execution {execution_id} is not in the record: a call starts a subagent that the "
                "recorded run did not start"
            )
        if step is None or step.facts is None:
            if is_interrupted(run):
                raise RecordEnds
            raise self.findings.end(
                f"the model is asked for step {number} of {run.agent}, and the recorded run ended after step "
                f"{run.steps[-1].number if run.steps else 0}"
            )
        return step

    def find_exhausted(self, request: InferInput) -> ExhaustedBudget | None:
        """The budget that ended the recorded run before this step, if other executions share it.

        What those had spent of it is known to no record.
        """
        run = self.runs.get(request.ref.execution_id)
        outcome = run.last_outcome if run else None
        if (
            run is None
            or outcome is None
            or run.step(request.number)
            or outcome["resolvedBy"] != _BUDGET_LIMIT
        ):
            return None
        vote = next(vote for vote in outcome["evaluations"] if vote["criterion"] == _BUDGET_LIMIT)
        context = vote["context"]
        if context["scope"] == BudgetScope.EXECUTION:
            return None
        unit, scope = BudgetUnit(context["unit"]), BudgetScope(context["scope"])
        return ExhaustedBudget(
            UUID(context["budget_id"]),
            unit,
            scope,
            limit=Decimal(str(context["limit"])),
            spent=Decimal(str(context["spent"])),
            reserved=Decimal(str(context["reserved"])),
            needed=Decimal(str(context["needed"])),
        )

    def call(self, execution_id: UUID, call_id: str, name: str) -> RunCall:
        """The recorded call.

        Raises:
            RecordEnds: The record has no result for it.
        """
        run = self.runs.get(execution_id)
        call = run.call(call_id) if run else None
        if run is None or call is None:
            raise self.findings.end(f"the call {call_id} of {name} is not in the record")
        if call.is_abandoned:
            if is_interrupted(run):
                raise RecordEnds
            raise self.findings.end(
                f"the call {call_id} of {name} runs, and the recorded run ended before it had a result"
            )
        return call


def is_interrupted(run: RunRecord) -> bool:
    """Whether the record ends in the middle of a run: it was cancelled or terminated, or has not ended."""
    return not run.status.is_terminal or run.status is ExecutionStatus.CANCELLED or is_terminated(run)


def is_terminated(run: RunRecord) -> bool:
    """Whether the workflow of a run was ended from outside."""
    return run.status is ExecutionStatus.FAILED and run.error == FROM_OUTSIDE
