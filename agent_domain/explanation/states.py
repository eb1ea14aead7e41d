"""The because of a run in this process, from its state: the same sentences as for a durable execution."""

from everstep.agent_domain.explanation.because import ExecutionBecause, StepBecause
from everstep.agent_domain.loop.explanations import (
    DecidedStep,
    end_sentence,
    next_step_sentence,
    telling_votes,
)
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, StepExecution


def explain_state(state: AgentState) -> ExecutionBecause:
    """Explain a run from its state, which has all texts: why it ended, and why each step was followed."""
    steps = tuple(_explain_step(state, record) for record in state.execution.step_executions)
    return ExecutionBecause(_sentence(state), steps)


def _sentence(state: AgentState) -> str:
    outcome = state.last_outcome
    if state.status.is_terminal and outcome is not None:
        is_failed = state.status is AgentStatus.FAILED
        return end_sentence(outcome, _decided_step(state.current_step), state.step_count, is_failed=is_failed)
    if state.status.is_terminal:
        return f"{state.status}: the votes are not recorded"
    if state.is_paused:
        return "paused: until it is resumed"
    return f"runs: step {state.step_count + 1} begins"


def _explain_step(state: AgentState, record: StepExecution) -> StepBecause:
    step, outcome = record.step, record.outcome
    votes, folded = telling_votes(outcome.evaluations if outcome else ())
    usage = step.usage + step.inner_usage
    return StepBecause(
        record.number, _step_sentence(state, record), votes, folded, usage=usage, cost_usd=record.cost_usd
    )


def _step_sentence(state: AgentState, record: StepExecution) -> str:
    outcome = record.outcome
    if outcome is None:
        return f"interrupted: by the exception of step {record.number + 1}"
    if outcome.should_continue:
        return next_step_sentence(outcome, _decided_step(record.step))
    is_failed = state.status is AgentStatus.FAILED
    return end_sentence(outcome, _decided_step(record.step), state.step_count, is_failed=is_failed)


def _decided_step(step: AgentStep | None) -> DecidedStep:
    if step is None:
        return DecidedStep()
    return DecidedStep.of((call.name for call in step.tool_calls), step.errors, in_full=True)
