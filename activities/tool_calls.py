"""Calls tools: functions, coroutine functions and tool objects.

Every exception of a tool becomes the error of its call, as tools are user code and the model should read the
error. The durable activities and the in-process runner both call tools here.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from everstep.activities.contracts import QUICK_SECONDS
from everstep.activities.isolation import contained, in_thread
from everstep.agent_domain.agents.spawning import CanSpawn, Spawn
from everstep.agent_domain.errors import Escaped, InvalidInput, ToolTimedOut
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.tools.tools import (
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
    told: str = ""
    """The text for the model, where that is not the result."""
    raised: Exception | None = None
    """The exception that the tool raised, for the log."""


async def outcome(tool: Tool, call: ToolCall, context: ToolContext) -> Outcome:
    """Call a tool; returns its result in a storable form, or its error."""
    try:
        with contained():
            limit = _limit(options_of(tool))
            result = await _in_time(call, limit, lambda: _awaited(tool, thaw(call.args), context))
        if isinstance(result, ToolResult):
            return Outcome(result_value(result.value, call.name), None, result.metadata, result.text)
        return Outcome(result_value(result, call.name))
    except Exception as error:  # noqa: BLE001 -- the model reads the exceptions of a tool
        return _failed(call, error)


async def spawned(tools: Toolbox, call: ToolCall, context: ToolContext) -> Spawn | Outcome:
    """Call a tool's `spawn`; returns the child to start, or the outcome of the call if there is none."""

    def ask(tool: CanSpawn) -> Spawn | Outcome:
        said = cast("object", tool.spawn(thaw(call.args), context))
        if isinstance(said, str):
            return Outcome(said)
        if not isinstance(said, Spawn):
            raise InvalidInput(
                f"the method spawn returned {said!r}; return a Spawn, or a text if none starts"
            )
        return said

    return await _said(tools, call, ask)


async def reported(tools: Toolbox, call: ToolCall, end: ChildEnd) -> Outcome:
    """Call a tool's `report`; returns the text about the child for the parent's model."""
    return await _said(
        tools, call, lambda tool: Outcome(result_value(tool.report(thaw(call.args), end), call.name))
    )


async def _said(tools: Toolbox, call: ToolCall, ask: Callable[[CanSpawn], T]) -> T | Outcome:
    """Call `spawn` or `report` in a thread, as they may read files."""
    try:
        tool = tools.get(call.name)
        if not isinstance(tool, CanSpawn):
            raise InvalidInput(CANNOT_SPAWN)  # noqa: TRY301 -- the model reads it like an exception of the tool
        with contained():
            return await _in_time(call, SPAWN_SECONDS, lambda: in_thread(lambda: ask(tool)))
    except Exception as error:  # noqa: BLE001 -- the model reads the exceptions of a tool
        return _failed(call, error)


def _failed(call: ToolCall, error: Exception) -> Outcome:
    cause = error.__cause__ if isinstance(error, Escaped) else None
    return Outcome(error=StepError.of(cause or error, call.name), raised=error)


async def _in_time(call: ToolCall, limit: float | None, work: Callable[[], Awaitable[T]]) -> T:
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            return await work()
    except TimeoutError:
        if deadline.expired():
            raise ToolTimedOut(f"The tool '{call.name}' did not finish within {limit:g}s") from None
        raise


def _limit(options: ToolOptions) -> float | None:
    """A quick tool is stopped before Temporal's timeout, which would only lead to a retry."""
    own = options.timeout_seconds
    return min(own or QUICK_SECONDS, QUICK_SECONDS) if options.quick else own


async def _awaited(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    """Coroutine functions run here; others may block, so they run in a thread."""
    call = getattr(tool, "fn", None) or getattr(tool, "handler", None) or tool.call
    if inspect.iscoroutinefunction(call):
        result = tool.call(args, context)
    else:
        result = await in_thread(lambda: _called(tool, args, context))
    return await result if inspect.isawaitable(result) else result


def _called(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    try:
        return tool.call(args, context)
    except StopIteration as error:
        # `StopIteration` has no message that would help the model.
        raise RuntimeError(f"the tool '{tool.name}' raised StopIteration") from error
