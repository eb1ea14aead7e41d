"""Calls tools: functions, coroutine functions and tool objects.

Every exception of a tool becomes the error of its call, as tools are user code and the model should read the
error.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from everstep.agent_domain.agents.spawning import CanSpawn, Spawn
from everstep.agent_domain.errors import Escaped, InvalidInput, ToolTimedOut
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.tools.tools import (
    QUICK_SECONDS,
    Tool,
    Toolbox,
    ToolCall,
    ToolContext,
    ToolOptions,
    ToolResult,
    options_of,
    result_value,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, thaw
from everstep.steps.isolation import error_boundary, run_in_thread

T = TypeVar("T")

CANNOT_SPAWN = "The tool declares need=SUBAGENT, so it needs the methods spawn and report"

SPAWN_SECONDS = 20.0
"""Time limit of `spawn` and `report`, which should return at once. Their activities have a minute; without
this limit Temporal would retry them forever.
"""


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


async def call_tool(tool: Tool, call: ToolCall, context: ToolContext) -> Outcome:
    """Call a tool; returns its result in a storable form, or its error."""
    try:
        with error_boundary():
            limit = _time_limit(options_of(tool))
            result = await _with_timeout(call, limit, lambda: _await_tool(tool, thaw(call.args), context))
        if isinstance(result, ToolResult):
            return Outcome(result_value(result.value, call.name), None, result.metadata, result.text)
        return Outcome(result_value(result, call.name))
    except Exception as error:  # noqa: BLE001 -- the model reads the exceptions of a tool
        return _outcome_from_error(call, error)


async def spawn_child(tools: Toolbox, call: ToolCall, context: ToolContext) -> Spawn | Outcome:
    """Call a tool's `spawn`; returns the child to start, or the outcome of the call if there is none."""

    def call_spawn(tool: CanSpawn) -> Spawn | Outcome:
        value = cast("object", tool.spawn(thaw(call.args), context))
        if isinstance(value, str):
            return Outcome(value)
        if not isinstance(value, Spawn):
            raise InvalidInput(
                f"the method spawn returned {value!r}; return a Spawn, or a text if none starts"
            )
        return value

    return await _call_in_thread(tools, call, call_spawn)


async def report_child(tools: Toolbox, call: ToolCall, end: ChildEnd) -> Outcome:
    """Call a tool's `report`; returns the text about the child for the parent's model."""
    return await _call_in_thread(
        tools, call, lambda tool: Outcome(result_value(tool.report(thaw(call.args), end), call.name))
    )


async def _call_in_thread(tools: Toolbox, call: ToolCall, work: Callable[[CanSpawn], T]) -> T | Outcome:
    """Call `spawn` or `report` in a thread, as they may read files."""
    try:
        tool = tools.get(call.name)
        if not isinstance(tool, CanSpawn):
            raise InvalidInput(CANNOT_SPAWN)  # noqa: TRY301 -- the model reads it like an exception of the tool
        with error_boundary():
            return await _with_timeout(call, SPAWN_SECONDS, lambda: run_in_thread(lambda: work(tool)))
    except Exception as error:  # noqa: BLE001 -- the model reads the exceptions of a tool
        return _outcome_from_error(call, error)


def _outcome_from_error(call: ToolCall, error: Exception) -> Outcome:
    cause = error.__cause__ if isinstance(error, Escaped) else None
    return Outcome(error=StepError.of(cause or error, call.name), exception=error)


async def _with_timeout(call: ToolCall, limit: float | None, work: Callable[[], Awaitable[T]]) -> T:
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
    if inspect.iscoroutinefunction(call):
        result = tool.call(args, context)
    else:
        result = await run_in_thread(lambda: _call_blocking(tool, args, context))
    return await result if inspect.isawaitable(result) else result


def _call_blocking(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    try:
        return tool.call(args, context)
    except StopIteration as error:
        # `StopIteration` has no message that would help the model.
        raise RuntimeError(f"the tool '{tool.name}' raised StopIteration") from error
