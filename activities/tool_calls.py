"""Calling a tool, whatever kind of function it is.

Whatever it raises becomes the error of the call: tools are anybody's code, and the model reads what
went wrong. The durable activities and the in-process runner both call tools here.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from activities.contracts import QUICK_SECONDS
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
        result = await _in_time(tool, call, context)
        if isinstance(result, ToolResult):
            return Outcome(result_value(result.value, call.name), None, result.metadata, result.text)
        return Outcome(result_value(result, call.name))
    except asyncio.CancelledError as error:
        # Of the step, or of something that the tool itself waited for?
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Outcome(error=StepError.of(error, call.name))
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- the model reads whatever a tool raises
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
        result = await _in_thread(lambda: _called(tool, args, context))
    return await result if inspect.isawaitable(result) else result


async def _in_thread(work: Callable[[], Any]) -> Any:
    """In a thread of its own: no pool limits how many run, and nobody waits for one that was given up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            _ = future.set_exception(error) if error else future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:  # noqa: BLE001 -- handed over to whoever waits
            error = raised
        # Given up, and the loop with it: there is nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    context = copy_context()
    threading.Thread(target=run, name="everstep tool", daemon=True).start()
    return await future


def _called(tool: Tool, args: dict[str, Any], context: ToolContext) -> Any:
    try:
        return tool.call(args, context)
    except StopIteration as error:
        # Futures refuse this one, and the loop would wait for the thread's answer for ever.
        raise RuntimeError(f"the tool '{tool.name}' raised StopIteration") from error
