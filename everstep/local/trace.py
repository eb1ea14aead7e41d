"""Prints a run in readable lines: each step, and why another one followed or not."""

from collections.abc import Callable, Mapping
from typing import Any

from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentFinished,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    ConversationCompacted,
    Event,
    ModelCallDelayed,
    StreamEventReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from everstep.agent_domain.tools.summaries import args_summary, result_summary


class Trace:
    """A listener that writes lines: `agent.wiretap(Trace(print))`."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write
        self._text = ""
        self._answers = False
        self._args: dict[str, Mapping[str, Any]] = {}

    def __call__(self, event: Event) -> None:
        """Write the lines of an event, if it has any."""
        match event:
            case AgentStepStarted():
                self._text, self._answers = "", False
                self.write(f"step {event.step_number}")
            case StreamEventReceived(is_complete=False):
                self._text += event.content
            case StreamEventReceived():
                self.write(f"  model   {self._text}")
            case ModelCallDelayed() | ConversationCompacted():
                self._write_notice(event)
            case ToolCallStarted():
                self._args[event.tool_call_id] = event.args
            case ToolCallCompleted():
                self._write_tool(event)
            case AgentStepCompleted():
                self._write_errors(event)
            case ContinuationEvaluated():
                self._write_reply(event)
                self._write_evaluation(event.outcome)
            case AgentFailed() | AgentFinished():
                self._write_end(event)
            case _:
                """Other events have no line."""

    def _write_notice(self, event: ModelCallDelayed | ConversationCompacted) -> None:
        if isinstance(event, ConversationCompacted):
            self.write(f"  compact {event.detail}")
        else:
            self.write(f"  waits   {event.detail} ({event.error})")

    def _write_end(self, event: AgentFailed | AgentFinished) -> None:
        if isinstance(event, AgentFailed):
            self.write(f"failed    {event.exception}")
            return
        steps = f"{event.total_steps} step{'s' if event.total_steps != 1 else ''}"
        self.write(f"ended     {event.status} after {steps}, {event.total_usage.total} tokens")

    def _write_tool(self, event: ToolCallCompleted) -> None:
        args = args_summary(self._args.pop(event.tool_call_id, {}))
        outcome = result_summary(event.result) if event.success else f"Error: {event.error}"
        self.write(f"  tool    {event.tool}({args}) -> {outcome}  [{event.duration_ms:.0f} ms]")

    def _write_errors(self, event: AgentStepCompleted) -> None:
        for message in event.error_messages:
            self.write(f"  error   {message}")
        self._answers = not (event.error_messages or event.has_tool_calls or self._text)

    def _write_reply(self, event: ContinuationEvaluated) -> None:
        """Write the reply of a driver that does not stream, once it is known."""
        if self._answers and event.last_response:
            self.write(f"  model   {event.last_response}")
        self._answers = False

    def _write_evaluation(self, outcome: ContinuationOutcome) -> None:
        if outcome.should_continue:
            deciding_vote = outcome.evaluation_for(outcome.resolved_by)
            self.write(
                f"  next    another step: {deciding_vote.reason if deciding_vote else outcome.resolved_by}"
            )
            return
        self.write(f"stop      {outcome.stop_reason}, decided by {outcome.resolved_by}; every vote:")
        for vote in outcome.evaluations:
            source = f" of {vote.source}" if vote.source else ""
            self.write(f"  {vote.decision:<7} {vote.name}{source}: {vote.reason}")
