"""Emits the events of an in-process run, in an order that listeners can rely on."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.explanations import DecidedStep, outcome_sentence
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentFinished,
    AgentStateUpdated,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    ConversationCompacted,
    EventBus,
    ModelCallDelayed,
    StreamEventReceived,
    TokenUsageReported,
)
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, slim_step
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, StepExecution
from everstep.agent_domain.values import frozen_map
from everstep.local.clock import Clock

LOGGER = logging.getLogger(__name__)


class EventNarrator:
    """Turns what the runner did into events."""

    def __init__(self, tools: Sequence[str], clock: Clock, events: EventBus) -> None:
        self.tools = tuple(tools)
        self.clock = clock
        self.events = events
        self.serializer = SlimAgentStateSerializer()

    def emit_step_start(self, state: AgentState) -> None:
        """Emit the start of a step."""
        self.events.emit(
            AgentStepStarted(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                step_number=state.facts.recorded_steps + 1,
                message_count=len(state.messages),
                available_tools=self.tools,
            )
        )

    def open_text(self, state: AgentState) -> "TextEmitter":
        """Return the sink for the text of the current step while the model writes it."""
        return TextEmitter(self, state)

    def emit_model_delay(self, state: AgentState, detail: str, error: Exception, seconds: float) -> None:
        """Emit that the model is asked again after a pause."""
        number = state.facts.recorded_steps + 1
        LOGGER.warning("step %s: %s: %s", number, detail, error)
        self.events.emit(
            ModelCallDelayed(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                step_number=number,
                detail=detail,
                error=str(error),
                seconds=seconds,
            )
        )

    def emit_compaction(self, state: AgentState, compaction: Compaction) -> None:
        """Emit that the conversation was compacted."""
        self.events.emit(
            ConversationCompacted(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                step_number=compaction.step,
                detail=compaction.text,
                messages=compaction.messages,
                results=compaction.results,
                tokens_before=compaction.tokens_before,
                tokens_after=compaction.tokens_after,
                usage=compaction.usage,
            )
        )

    def emit_step_end(self, state: AgentState, record: StepExecution) -> None:
        """Emit that a step was recorded, and the tokens it used."""
        step, usage = record.step, record.step.usage
        self.events.emit(
            AgentStepCompleted(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                step_number=record.number,
                has_tool_calls=step.has_tool_calls,
                error_count=len(step.errors),
                error_messages=_error_messages(step),
                usage=usage,
                finish_reason=step.finish_reason,
                duration_ms=record.duration * 1000,
                completed_at=record.completed_at,
                continuation=record.outcome,
                cost_usd=step.cost_usd if usage.total else None,
            )
        )
        if usage.total > 0:
            context = frozen_map({"step": record.number, "hasToolCalls": step.has_tool_calls})
            self.events.emit(
                TokenUsageReported(
                    at=self.clock.now(),
                    agent_id=state.agent_id,
                    parent_agent_id=state.parent_agent_id,
                    usage=usage,
                    context=context,
                )
            )

    def emit_evaluation(self, state: AgentState, outcome: ContinuationOutcome, policy: ErrorPolicy) -> None:
        """Emit the evaluation of the continuation criteria."""
        step = state.current_step
        status = AgentStatus.IN_PROGRESS
        if not outcome.should_continue:
            status = state.facts.final_status(outcome.stop_reason, policy)
        self.events.emit(
            ContinuationEvaluated(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                step_number=state.step_count,
                outcome=outcome,
                stop_signal=state.stop_signal,
                source=outcome.source,
                status=status,
                errors=_error_messages(step) if step else (),
                last_response=state.final_response,
                output=state.execution.output_data,
                cost_usd=_known_cost(state),
                because=outcome_sentence(
                    outcome,
                    DecidedStep.of((call.name for call in step.tool_calls), step.errors, in_full=True)
                    if step
                    else DecidedStep(),
                    state.step_count,
                    is_failed=status is AgentStatus.FAILED,
                ),
            )
        )

    def emit_state(self, state: AgentState, record: StepExecution) -> None:
        """Emit the state after a step."""
        self.events.emit(
            AgentStateUpdated(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                status=state.status,
                step_count=state.step_count,
                state=self.serializer.serialize(state),
                step=slim_step(record),
            )
        )

    def emit_failure_step(self, state: AgentState, outcome: ContinuationOutcome, policy: ErrorPolicy) -> None:
        """Emit the events of the step that records an exception of a criterion."""
        record = state.execution.step_executions[-1]
        self.emit_step_start(replace(state, facts=replace(state.facts, recorded_steps=record.number - 1)))
        self.emit_step_end(state, record)
        self.emit_evaluation(state, outcome, policy)
        self.emit_state(state, record)

    def emit_end(self, state: AgentState, outcome: ContinuationOutcome) -> None:
        """Emit the end of the run."""
        errors = tuple(message for step in state.steps for message in _error_messages(step))
        latest = _error_messages(state.current_step) if state.current_step else ()
        if state.status is AgentStatus.FAILED:
            self.events.emit(
                AgentFailed(
                    at=self.clock.now(),
                    agent_id=state.agent_id,
                    parent_agent_id=state.parent_agent_id,
                    exception=latest[-1] if latest else _deciding_reason(outcome),
                    status=state.status,
                    steps_completed=state.step_count,
                    total_usage=state.usage,
                    errors=errors,
                    cost_usd=_known_cost(state),
                )
            )
        self.events.emit(
            AgentFinished(
                at=self.clock.now(),
                agent_id=state.agent_id,
                parent_agent_id=state.parent_agent_id,
                status=state.status,
                total_steps=state.step_count,
                total_usage=state.usage,
                errors=errors,
                stop_reason=outcome.stop_reason,
                output=state.execution.output_data,
                cost_usd=_known_cost(state),
            )
        )


def _known_cost(state: AgentState) -> Decimal | None:
    """What the run cost so far; None without model calls."""
    return state.cost_usd if state.usage.total else None


class TextEmitter:
    """The text of one model call."""

    def __init__(self, narrator: EventNarrator, state: AgentState) -> None:
        self.narrator = narrator
        self.state = state
        self.wrote = False

    def write(self, content: str) -> None:
        """Emit more text; empty text is ignored."""
        if content:
            self.wrote = True
            self._emit(content, is_complete=False)

    def close(self) -> None:
        """Emit the end of the text, if there was any."""
        if self.wrote:
            self._emit("", is_complete=True)

    def _emit(self, content: str, *, is_complete: bool) -> None:
        self.narrator.events.emit(
            StreamEventReceived(
                at=self.narrator.clock.now(),
                agent_id=self.state.agent_id,
                parent_agent_id=self.state.parent_agent_id,
                content=content,
                step_number=self.state.facts.recorded_steps + 1,
                is_complete=is_complete,
            )
        )


def _error_messages(step: AgentStep) -> tuple[str, ...]:
    return tuple(error.message for error in step.errors)


def _deciding_reason(outcome: ContinuationOutcome) -> str:
    """The reason of the deciding vote, for a run that failed although its last step did not."""
    vote = outcome.evaluation_for(outcome.resolved_by)
    return vote.reason if vote else outcome.resolved_by
