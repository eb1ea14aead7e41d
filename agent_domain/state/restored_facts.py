"""The facts and the execution of a state that is read from JSON: counters are computed from its steps."""

from everstep.agent_domain.capabilities.critique import former_marks_of
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.facts import ExecutionFacts, StateInfo
from everstep.agent_domain.loop.repeated_calls import RepeatedCalls
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.execution_data import ExecutionData
from everstep.agent_domain.state.steps import AgentStep, StepExecution
from everstep.agent_domain.values import (
    FrozenDict,
    frozen_map,
    parse_optional_moment,
    parse_optional_uuid,
    read_optional,
    thaw,
)


def restore_facts(
    data: FrozenDict, records: tuple[StepExecution, ...], current: AgentStep | None
) -> ExecutionFacts:
    """The facts of a state in its JSON form; the start of the run is not restored."""
    trailing, unevaluated = _failures_in_a_row(records)
    step = current or (records[-1].step if records else None)
    return ExecutionFacts(
        status=read_optional(data, "status", AgentStatus) or AgentStatus.IN_PROGRESS,
        state_info=read_optional(data, "stateInfo", StateInfo.from_dict) or StateInfo(),
        usage=Usage.from_dict(data.get("usage")),
        recorded_steps=len(records),
        recorded_failures=sum(record.step.has_errors for record in records),
        trailing_recorded_failures=trailing,
        unevaluated_failures=unevaluated,
        current_step=step and step.facts(len(records) + (current is not None)),
        is_recorded=current is None,
        is_paused=bool(data.get("isPaused")),
        marks=_restore_marks(data),
        repeated=_repeated_calls(records),
        last_outcome=read_optional(data, "lastContinuationOutcome", ContinuationOutcome.from_dict),
    )


def restore_execution(
    data: FrozenDict, records: tuple[StepExecution, ...], current: AgentStep | None
) -> ExecutionData:
    """The data of the execution of a state in its JSON form; its result is JSON."""
    return ExecutionData(
        parse_optional_uuid(data.get("executionId"), "executionId"),
        parse_optional_moment(data.get("startedAt"), "startedAt"),
        parse_optional_moment(data.get("completedAt"), "completedAt"),
        records,
        current or (records[-1].step if records else None),
        task=data.get("task"),
        output=thaw(data.get("output")),
        output_data=data.get("output"),
    )


def _repeated_calls(records: tuple[StepExecution, ...]) -> RepeatedCalls:
    repeated = RepeatedCalls()
    for record in records:
        digests = record.step.call_digests
        repeated = repeated.step_started().with_step(digests.get(call.id) for call in record.step.tool_calls)
    return repeated


def _restore_marks(data: FrozenDict) -> FrozenDict:
    metadata = frozen_map(data.get("metadata") or {}, "metadata")
    return frozen_map(data["marks"], "marks") if "marks" in data else former_marks_of(metadata)


def _failures_in_a_row(records: tuple[StepExecution, ...]) -> tuple[int, int]:
    """Compute `trailing_recorded_failures` and `unevaluated_failures`, as if recording step by step."""
    trailing = unevaluated = 0
    for record in records:
        before = max(trailing, unevaluated if record.step.is_failure else 0)
        trailing = before + 1 if record.step.has_errors else 0
        unevaluated = 0 if record.outcome else before
    return trailing, unevaluated
