"""Runs a call of a step, with the hooks around it, to its one result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from everstep.agent_domain.errors import HookFailed
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import Tool, Toolbox, ToolCall, ToolContext, ToolExecution, options_of
from everstep.steps.hooks import ToolHooks, failure_of
from everstep.steps.tool_calls import call_tool


class Inquiry(AskModel, Protocol):
    """Calls models for a tool or processor, and adds up what the calls used."""

    @property
    def usage(self) -> Usage:
        """The tokens used so far."""
        ...


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The result of running a call."""

    execution: ToolExecution
    notes: MetadataChanges = NO_METADATA_CHANGES
    besides: Besides = NOTHING_BESIDES
    is_denied: bool = False
    """Whether a person denied it: such a call has neither failed nor succeeded."""
    seconds: float | None = None
    """Seconds of work, where that is not the time from start to end."""
    is_default: bool = False
    """Whether the result is the default for a question that was not answered in time."""
    exception: Exception | None = None
    """The exception that the tool or a hook raised."""

    @property
    def hook_failure(self) -> HookFailed | None:
        """The exception of a hook, which ends the step."""
        return self.exception if isinstance(self.exception, HookFailed) else None


def result_without_run(
    tools: Toolbox, call: ToolCall, now: Callable[[], datetime], refusal: str | None = None
) -> ToolExecution | None:
    """Return the result of a call that cannot run; None for a call that can.

    Args:
        tools: The agent's tools.
        call: The call.
        now: The clock.
        refusal: Why this shell does not run the call, if the tools have no reason to refuse it.
    """
    started = now()
    explained = tools.explained(call)
    if explained is not None:
        return ToolExecution(call, explained, None, started, now())
    reason = tools.refusal(call) or refusal
    if reason is None:
        return None
    return ToolExecution(call, None, StepError(reason, tool_name=call.name), started, now())


async def run_tool(
    tool: Tool,
    call: ToolCall,
    context: ToolContext,
    *,
    ask: Inquiry,
    hooks: ToolHooks | None,
    redaction: Redaction,
    now: Callable[[], datetime],
    note: str = "",
) -> ToolRun:
    """Run a call with the hooks around it. No exception of the tool or of a hook is raised.

    Args:
        tool: The tool.
        call: The call, with the arguments after edits.
        context: What the tool receives.
        ask: Calls models for the tool.
        hooks: Runs the hooks around the call; None if there are none.
        redaction: Removes secrets from the error text that the model and the hooks read.
        now: The clock.
        note: A text that the model reads before the result.
    """
    started, is_quick = now(), options_of(tool).quick
    try:
        if hooks:
            await hooks.run_before(call, is_quick=is_quick)
        outcome = await call_tool(tool, call, context)
        execution = redacted_execution(outcome.execution(call, started, now(), note), redaction)
        if hooks:
            await hooks.charge(Besides(ask.usage))
            await hooks.run_after(execution, is_quick=is_quick)
    except HookFailed as error:
        failed = ToolExecution(call, None, failure_of(error, call.name), started, now(), note)
        return ToolRun(redacted_execution(failed, redaction), besides=Besides(ask.usage), exception=error)
    notes = MetadataChanges(outcome.metadata)
    if hooks is None:
        return ToolRun(execution, notes, Besides(ask.usage), exception=outcome.exception)
    return ToolRun(
        execution,
        hooks.notes(call.id).followed_by(notes),
        Besides(ask.usage, wishes=hooks.wishes(call.id)),
        exception=outcome.exception,
    )


def redacted_execution(execution: ToolExecution, redaction: Redaction) -> ToolExecution:
    """Replace the text of an error that shows a secret; the error itself keeps its message."""
    error = execution.error
    if error is None or (text := redaction(error.message)) == error.message:
        return execution
    return replace(execution, told=text)
