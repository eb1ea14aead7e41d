"""Calls tools: functions, coroutine functions and tool objects.

Every exception of a tool becomes the error of its call, as tools are user code and the model should read the
error.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import Escaped, InvalidInput, ToolTimedOut
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.tools.artifacts import Artifacts
from everstep.agent_domain.tools.cancellation import Cancellation
from everstep.agent_domain.tools.tools import (
    QUICK_SECONDS,
    Tool,
    ToolCall,
    ToolContext,
    ToolExecution,
    ToolOptions,
    ToolResult,
    options_of,
    result_value,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, FrozenList, json_text, thaw
from everstep.steps.isolation import error_boundary, run_in_thread

T = TypeVar("T")

TOOL_LOGGER: Final = logging.getLogger("everstep.tools")
"""The logger of `ToolContext.logger`."""

LARGEST_RESULT: Final = 5_000_000
"""The most characters of a result; each reader of the conversation reads it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call."""

    result: Any = None
    error: StepError | None = None
    metadata: FrozenDict = EMPTY
    model_text: str = ""
    """The text for the model, where that is not the result."""
    exception: Exception | None = None
    """The exception that the tool raised, for the log."""
    attachments: tuple[Attachment, ...] = ()
    """The files that the tool returned, with their content."""

    def execution(
        self, call: ToolCall, started: datetime, completed: datetime, note: str = ""
    ) -> ToolExecution:
        """The call with this result; `note` precedes it in what the model reads."""
        return ToolExecution(
            call,
            self.result,
            self.error,
            started,
            completed,
            note,
            self.model_text,
            self.metadata,
            attachments=self.attachments,
        )


async def call_tool(tool: Tool, call: ToolCall, context: ToolContext) -> Outcome:
    """Call a tool; returns its result in a storable form, or its error."""
    context = context_of_call(context, call)
    try:
        with error_boundary():
            limit = _time_limit(options_of(tool))
            result = await run_within(call, limit, lambda: _await_tool(tool, thaw(call.args), context))
        files = tuple(context.artifacts.files)
        if isinstance(result, ToolResult):
            value = _result_value(result.value, call.name)
            return Outcome(value, None, result.metadata, result.text, attachments=files)
        return Outcome(_result_value(result, call.name), attachments=files)
    except Exception as error:  # noqa: BLE001 -- the model reads the exceptions of a tool
        return outcome_of_error(call, error)


def _result_value(result: object, tool: str) -> Any:
    """Convert a result to JSON that can be stored, and refuse one that no conversation can hold."""
    value = result_value(result, tool)
    is_nested = isinstance(value, FrozenDict | FrozenList)
    size = len(json_text(value)) if is_nested else len(value) if isinstance(value, str) else 0
    if size > LARGEST_RESULT:
        raise InvalidInput(
            f"the result of {tool} has {size:,} characters; "
            f"return at most {LARGEST_RESULT:,}, or attach a file"
        )
    return value


def context_of_call(context: ToolContext, call: ToolCall) -> ToolContext:
    """Return the context with a logger and a cancellation of this call alone."""
    ids = {
        "tool": call.name,
        "execution_id": str(context.execution_id),
        "tool_call_id": context.tool_call_id,
        "attempt": context.attempt,
        "tenant_id": context.tenant_id,
        "user_id": context.user_id,
        "session_id": context.session_id and str(context.session_id),
    }
    return replace(
        context,
        logger=_CallLogger(TOOL_LOGGER, ids),
        cancellation=Cancellation(),
        artifacts=Artifacts(context.artifacts.limits),
    )


class _CallLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Name the call in the text, for formats that show no other fields."""
        ids = cast("Mapping[str, Any]", self.extra)
        kwargs["extra"] = {**ids, **(kwargs.get("extra") or {})}
        name = f"{ids['tool']} {ids['tool_call_id']} of {ids['execution_id']}".replace("%", "%%")
        return f"{name}: {msg}", kwargs


def outcome_of_error(call: ToolCall, error: Exception) -> Outcome:
    """Return the outcome of a call whose tool raised."""
    cause = error.__cause__ if isinstance(error, Escaped) else None
    return Outcome(error=StepError.of(cause or error, call.name), exception=error)


async def run_within(call: ToolCall, limit: float | None, work: Callable[[], Awaitable[T]]) -> T:
    """Run the work of a call with a time limit in seconds; raises `ToolTimedOut` when it is over."""
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            return await work()
    except TimeoutError:
        if deadline.expired():
            raise ToolTimedOut(f"The tool '{call.name}' did not finish within {limit:g}s") from None
        raise


def _time_limit(options: ToolOptions) -> float | None:
    """A quick tool is stopped before Temporal's timeout, which would only lead to a retry."""
    declared = options.timeout_seconds
    return min(declared or QUICK_SECONDS, QUICK_SECONDS) if options.quick else declared


async def _await_tool(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    """Coroutine functions run here; others may block, so they run in a thread."""
    call = getattr(tool, "fn", None) or getattr(tool, "handler", None) or tool.call
    try:
        if inspect.iscoroutinefunction(call):
            result = tool.call(args, context)
        else:
            result = await run_in_thread(lambda: _call_blocking(tool, args, context))
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError:
        # A thread runs on; it can only see that its result is no longer awaited.
        context.cancellation.request()
        raise


def _call_blocking(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    try:
        return tool.call(args, context)
    except StopIteration as error:
        # `StopIteration` has no message that would help the model.
        raise RuntimeError(f"the tool '{tool.name}' raised StopIteration") from error
