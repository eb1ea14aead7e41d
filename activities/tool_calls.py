"""Calling a tool, whatever kind of function it is.

Whatever it raises becomes the error of the call: tools are anybody's code, and the model reads what
went wrong. The durable activities and the in-process runner both call tools here.
"""

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any

from activities.containing import contained, in_thread
from activities.contracts import QUICK_SECONDS
from agent_domain.errors import Escaped
from agent_domain.step_error import StepError
from agent_domain.tools import (
    Tool,
    ToolCall,
    ToolContext,
    ToolOptions,
    ToolResult,
    options_of,
    result_value,
)
from agent_domain.values import EMPTY, FrozenDict, thaw


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call."""

    result: Any = None
    error: StepError | None = None
    metadata: FrozenDict = EMPTY
    told: str = ""
    """What the model reads, where that is not the result."""


async def outcome(tool: Tool, call: ToolCall, context: ToolContext) -> Outcome:
    """The result as it can be stored, or what went wrong."""
    try:
        with contained():
            result = await _in_time(tool, call, context)
        if isinstance(result, ToolResult):
            return Outcome(result_value(result.value, call.name), None, result.metadata, result.text)
        return Outcome(result_value(result, call.name))
    except Escaped as escaped:
        return Outcome(error=StepError.of(escaped.__cause__ or escaped, call.name))
    except Exception as error:  # noqa: BLE001 -- the model reads whatever a tool raises
        return Outcome(error=StepError.of(error, call.name))


async def _in_time(tool: Tool, call: ToolCall, context: ToolContext) -> Any:
    limit = _limit(options_of(tool))
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            return await _awaited(tool, thaw(call.args), context)
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"The tool '{call.name}' did not finish within {limit:g}s") from None
        raise


def _limit(options: ToolOptions) -> float | None:
    """A quick tool ends before Temporal gives its activity up: that would only be tried again."""
    own = options.timeout_seconds
    return min(own or QUICK_SECONDS, QUICK_SECONDS) if options.quick else own


async def _awaited(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    """Coroutine functions run here; anything else may block, so it runs in a thread."""
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
        # Futures refuse this one, and the loop would wait for the thread's answer for ever.
        raise RuntimeError(f"the tool '{tool.name}' raised StopIteration") from error
