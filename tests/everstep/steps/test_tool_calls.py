"""One call of a tool: every way to write a tool, its errors, and its time limit."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.function_tool import BaseTool, tool
from everstep.agent_domain.tools.tools import Tool, ToolCall, ToolContext, ToolExecution, ToolOptions
from everstep.agent_domain.values import frozen_map
from everstep.steps.tool_calls import call_tool
from tests.everstep.local.local_words import AT, within_timeout

CONTEXT = ToolContext(UUID(int=9), "c1", 1)


async def result_of(tool_: Tool, **args: Any) -> ToolExecution:
    call = ToolCall("c1", tool_.name, frozen_map(args))
    return (await within_timeout(call_tool(tool_, call, CONTEXT))).execution(call, AT, AT)


@tool
def plain(a: int) -> int:
    """Adds one."""
    return a + 1


@tool
async def coroutine(a: int) -> int:
    """Adds one."""
    return a + 1


class Adds(BaseTool):
    """Adds one."""

    name = "adds"

    def __call__(self, a: int) -> int:
        return a + 1


class AsyncAdds(BaseTool):
    """Adds one."""

    name = "adds"

    async def __call__(self, a: int) -> int:
        return a + 1


class HandmadeTool:
    """The minimal interface of a tool."""

    name = "adds"
    description = "Adds one"
    schema = frozen_map({"type": "object"})

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        del context
        return args["a"] + 1


class AsyncHandmadeTool(HandmadeTool):
    async def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        del context
        return args["a"] + 1


class OddTool(HandmadeTool):
    """Its attribute `handler` is not the handler of its call."""

    async def handler(self) -> None: ...


def adds_one(a: int) -> int:
    return a + 1


async def add_async(a: int) -> int:
    return a + 1


def add_with_future(a: int) -> Any:
    return add_async(a)


@pytest.mark.parametrize(
    "adds",
    [
        plain,
        coroutine,
        Adds(),
        AsyncAdds(),
        HandmadeTool(),
        AsyncHandmadeTool(),
        MockTool("adds", handler=adds_one),
        MockTool("adds", handler=add_async),
        MockTool("adds", handler=add_with_future),
    ],
    ids=lambda adds: type(adds).__name__,
)
async def test_a_tool_may_be_a_function_a_coroutine_or_an_object(adds: Tool) -> None:
    """9.9.2, 12.4."""
    execution = await result_of(adds, a=1)
    assert (execution.result, execution.error) == (2, None)


async def test_a_tool_may_have_other_attributes() -> None:
    assert (await result_of(OddTool(), a=1)).result == 2


async def test_a_tool_may_mutate_its_arguments() -> None:
    """0.8: the call does not change."""

    def grows(things: list[int]) -> list[int]:
        things.append(3)
        return things

    execution = await result_of(MockTool("grows", handler=grows), things=[1])
    assert (execution.result, execution.call.args) == ([1, 3], {"things": [1]})


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def raising_async(error: BaseException) -> Callable[[], Any]:
    async def handler() -> None:
        raise error

    return handler


@pytest.mark.parametrize("handler", [raising, raising_async])
@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ValueError("broken"), "broken", None),
        (ToolFailed("Try another one"), "Try another one", None),
        (ValueError(), "ValueError", None),
        (TimeoutError("the service is slow"), "the service is slow", ErrorType.TIMEOUT),
        (asyncio.CancelledError(), "CancelledError", None),
    ],
)
async def test_an_exception_in_a_tool_is_the_result_of_its_call(
    handler: Callable[[BaseException], Callable[[], Any]],
    error: BaseException,
    text: str,
    kind: ErrorType | None,
) -> None:
    """5.4.3, 3.4.2: a failure with its message."""
    execution = await result_of(MockTool("look", handler=handler(error)))
    is_public = isinstance(error, ToolFailed)
    assert execution.error == StepError(text, kind, "look", type(error).__name__, is_public=is_public)
    assert execution.text == f"Error: {text}"


@pytest.mark.parametrize("handler", [raising, raising_async])
async def test_a_tool_that_runs_out_of_an_iterator_does_not_hang(
    handler: Callable[[BaseException], Callable[[], Any]],
) -> None:
    """5.4.3, 1.1.3: an `asyncio` future rejects `StopIteration`, and its caller would wait for ever."""
    execution = await result_of(MockTool("look", handler=handler(StopIteration())))
    assert execution.text.startswith("Error: ")
    assert "StopIteration" in execution.text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("half \ud800", "Error: the result of look contains half of a surrogate pair; send valid Unicode"),
        ({"a": "\x00"}, "Error: the result of look.a contains a NUL character; remove it"),
        (object(), "Error: the result of look is of type object, which cannot be stored as JSON"),
        (float("inf"), "Error: the result of look is inf, which JSON cannot hold"),
        (PurePosixPath("a/b"), "a/b"),
        ({"b": [1, None]}, '{"b":[1,null]}'),
    ],
)
async def test_a_result_that_cannot_be_stored_is_a_failure(result: object, text: str) -> None:
    """5.4.2, 5.4.3."""
    execution = await result_of(MockTool.returning("look", "Looks", result))
    assert execution.text.startswith(text)


async def test_a_tool_that_takes_too_long_fails() -> None:
    """3.4.2: with error type timeout, and it is cancelled."""
    was_cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    slow = MockTool("slow", handler=waits, options=ToolOptions(timeout_seconds=0.02))
    execution = await result_of(slow)
    text = "The tool 'slow' did not finish within 0.02s"
    assert execution.error == StepError(text, ErrorType.TIMEOUT, "slow", "ToolTimedOut", is_public=True)
    assert was_cancelled.is_set()


async def test_a_blocking_tool_that_takes_too_long_fails_too() -> None:
    """3.4.2: its thread cannot be stopped, but the run does not wait for it."""
    may_end = threading.Event()
    slow = MockTool("slow", handler=lambda: may_end.wait(5), options=ToolOptions(timeout_seconds=0.02))
    execution = await result_of(slow)
    may_end.set()
    assert execution.text == "Error: The tool 'slow' did not finish within 0.02s"


async def test_a_tool_that_ends_in_time_is_not_cancelled() -> None:
    """3.4.2."""
    quick = MockTool.returning("quick", "Quick", "done")
    quick.options = ToolOptions(timeout_seconds=5)
    assert (await result_of(quick)).text == "done"


def test_an_abandoned_blocking_tool_delays_nothing() -> None:
    """3.4.2: neither the run nor the exit of the process."""
    may_end, threads = threading.Event(), list[threading.Thread]()

    def blocks() -> None:
        threads.append(threading.current_thread())
        may_end.wait(30)

    slow = MockTool("slow", handler=blocks, options=ToolOptions(timeout_seconds=0.02))
    execution = asyncio.run(result_of(slow))
    assert execution.text == "Error: The tool 'slow' did not finish within 0.02s"
    assert [(thread.is_alive(), thread.daemon) for thread in threads] == [(True, True)]
    # The event loop of its caller is closed.
    may_end.set()
    threads[0].join(5)
    assert not threads[0].is_alive()


async def test_a_blocking_tool_ends_after_it_was_abandoned() -> None:
    """3.4.2: its result is dropped."""
    may_end, has_ended = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocks() -> None:
        may_end.wait(5)
        loop.call_soon_threadsafe(loop.call_soon, has_ended.set)

    slow = MockTool("slow", handler=blocks, options=ToolOptions(timeout_seconds=0.02))
    assert (await result_of(slow)).error is not None
    may_end.set()
    await within_timeout(has_ended.wait())


async def test_a_blocking_tool_sees_the_context_of_its_call() -> None:
    """5.4.1: as in a thread pool."""
    who = ContextVar[str]("who")
    who.set("Ada")
    assert (await result_of(MockTool("who", handler=who.get))).result == "Ada"


async def test_a_thread_sees_that_its_time_is_over() -> None:
    """9.9.5: its result is dropped, and nothing stops it."""
    was_cancelled = threading.Event()

    @tool(options=ToolOptions(timeout_seconds=0.05))
    def work(context: ToolContext) -> None:
        """Work until the end."""
        while not context.is_cancelled:
            was_cancelled.wait(0.005)
        was_cancelled.set()

    execution = await result_of(work)

    assert execution.text == "Error: The tool 'work' did not finish within 0.05s"
    assert await asyncio.to_thread(was_cancelled.wait, 10)
    assert not CONTEXT.is_cancelled


async def test_what_a_tool_logs_names_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """9.9.5: in the text, and in attributes for structured logs."""

    @tool
    def report(context: ToolContext) -> None:
        """Report."""
        context.logger.warning("%s shelves are empty", 3)

    context = replace(CONTEXT.for_run(RunContext("ann", "acme", UUID(int=4))), attempt=2)
    context.logger.error("never logged: a context that a program makes is silent")
    await call_tool(report, ToolCall("c1", "report"), context)

    (record,) = caplog.records
    assert record.name == "everstep.tools"
    assert record.getMessage() == f"report c1 of {UUID(int=9)}: 3 shelves are empty"
    told = ("tool", "execution_id", "tool_call_id", "attempt", "tenant_id", "user_id", "session_id")
    values = ["report", str(UUID(int=9)), "c1", 2, "acme", "ann", str(UUID(int=4))]
    assert [vars(record)[name] for name in told] == values
