"""Tool calls in this process: concurrent, each with one result."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import InvalidInput, ListenerFailed, ToolFailed
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.state.events import ToolCallCompleted, ToolCallStarted
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.inquiry import ModelChoice, refuse_model_call
from everstep.agent_domain.tools.tools import Tool, ToolCall, ToolContext, ToolExecution
from everstep.agent_domain.values import frozen_map
from everstep.local.executor import LocalExecutor
from tests.everstep.local.local_words import (
    AT,
    EventRecorder,
    WorkClock,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    within_timeout,
)

EXECUTION = UUID(int=9)
ASKED = replace(a_conversation(), parent_agent_id=UUID(int=7))
BEGUN = ASKED.identified(UUID(int=8), EXECUTION).with_step_started(AT)


def an_executor(
    *tools: Tool,
    heard: EventRecorder | None = None,
    clock: WorkClock | None = None,
    build: Callable[[DefinitionBuilder], object] | None = None,
) -> LocalExecutor:
    builder = DefinitionBuilder.base().with_tools(tools)
    if build:
        build(builder)
    definition = builder.definition()
    if heard is not None:
        definition.events.wiretap(heard.append)
    return LocalExecutor(definition, clock or WorkClock(), definition.events, no_model)


def no_model(choice: ModelChoice) -> Model:
    raise LookupError(choice)


def a_call(name: str, call_id: str = "c1", **args: Any) -> ToolCall:
    return ToolCall(call_id, name, frozen_map(args))


# Concurrency.


async def test_calls_run_concurrently() -> None:
    """5.4.1: each waits until all have begun; sequential calls would never return."""
    arrived = asyncio.Barrier(3)

    async def looks() -> str:
        await arrived.wait()
        return "seen"

    calls = [a_call("look", call_id) for call_id in ("c1", "c2", "c3")]
    _, executions = await within_timeout(
        an_executor(MockTool("look", handler=looks)).execute_tools(calls, BEGUN)
    )
    assert [execution.result for execution in executions] == ["seen"] * 3


async def test_blocking_tools_run_concurrently_as_well() -> None:
    """5.4.1: in threads, so that the event loop is not blocked."""
    arrived = threading.Barrier(3, timeout=5)
    look = MockTool("look", handler=arrived.wait)
    calls = [a_call("look", call_id) for call_id in ("c1", "c2", "c3")]
    _, executions = await within_timeout(an_executor(look).execute_tools(calls, BEGUN))
    assert sorted(execution.result for execution in executions) == [0, 1, 2]


async def test_results_are_in_the_order_of_the_calls() -> None:
    """5.4.1: in any order of completion."""
    second_is_done = asyncio.Event()

    async def slow() -> str:
        await second_is_done.wait()
        return "slow"

    async def fast() -> str:
        second_is_done.set()
        return "fast"

    heard = EventRecorder()
    executor = an_executor(MockTool("slow", handler=slow), MockTool("fast", handler=fast), heard=heard)
    calls = [a_call("slow", "c1"), a_call("fast", "c2")]
    _, executions = await within_timeout(executor.execute_tools(calls, BEGUN))
    assert [(execution.call, execution.result) for execution in executions] == [
        (calls[0], "slow"),
        (calls[1], "fast"),
    ]
    assert [event.tool_call_id for event in heard.of(ToolCallCompleted)] == ["c2", "c1"]


@pytest.mark.parametrize(
    ("parallel", "first_two"), [(True, ["a begins", "b begins"]), (False, ["a begins", "a ends"])]
)
async def test_without_parallel_tools_calls_run_one_after_the_other(
    parallel: bool, first_two: list[str]
) -> None:
    """5.4.1, 11: in response order."""
    happened: list[str] = []

    def a_tool(name: str) -> MockTool:
        async def handler() -> None:
            happened.append(f"{name} begins")
            await asyncio.to_thread(int)
            happened.append(f"{name} ends")

        return MockTool(name, handler=handler)

    runner = a_runner(
        a_model(a_call_response("a", "b"), "Done"),
        lambda b: b.with_tools([a_tool("a"), a_tool("b")]).with_parallel_tools(parallel),
    )
    state = await within_timeout(runner.run(a_conversation()))
    assert happened[:2] == first_two
    assert sorted(happened) == ["a begins", "a ends", "b begins", "b ends"]
    assert [message.answers for message in state.messages if message.is_tool] == ["c1", "c2"]


@tool
def plain(a: int) -> int:
    """Adds one."""
    return a + 1


async def test_a_tool_gets_its_idempotency_key() -> None:
    """1.1.3: `execution_id` and `tool_call_id`; and the metadata, unchanged."""
    told: list[ToolContext] = []

    @tool
    def looks(context: ToolContext) -> None:
        """Looks."""
        told.append(context)

    await an_executor(looks).execute_tool(a_call("looks", "c7"), BEGUN.with_metadata("a", 1))
    (context,) = told
    assert replace(context, ask=refuse_model_call) == ToolContext(EXECUTION, "c7", 1, frozen_map({"a": 1}))


async def test_a_call_outside_of_an_execution_is_refused() -> None:
    """1.1.3: it would have no idempotency key."""
    with pytest.raises(InvalidInput, match="the state has no execution id yet; call identified"):
        await an_executor(plain).execute_tool(a_call("plain", a=1), AgentState.empty())


# Events.


async def test_a_call_has_two_events() -> None:
    """4.6.1, 4.6.2."""
    heard, clock = EventRecorder(), WorkClock()

    def looks(at: str) -> dict[str, str]:
        clock.advance(1.5)
        return {"seen": at}

    executor = an_executor(MockTool("look", handler=looks), heard=heard, clock=clock)
    await executor.execute_tool(a_call("look", at="x"), BEGUN)
    end = clock.now()
    who: dict[str, Any] = {
        "agent_id": UUID(int=8),
        "parent_agent_id": UUID(int=7),
        "tool": "look",
        "tool_call_id": "c1",
    }
    assert heard == [
        ToolCallStarted(at=AT, **who, args=frozen_map({"at": "x"}), started_at=AT),
        ToolCallCompleted(
            at=end,
            **who,
            success=True,
            error=None,
            started_at=AT,
            ended_at=end,
            duration_ms=1500.0,
            result={"seen": "x"},
        ),
    ]


LOOK = MockTool("look", schema={"type": "object", "required": ["at", "why"]})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (a_call("find"), "No tool named 'find'. Choose from: look"),
        (ToolCall.from_text("c1", "look", "[1]"), "Pass the arguments as a JSON object"),
        (a_call("look"), "Required arguments are missing: at, why"),
        (a_call("look", at=None), "Required arguments are missing: why"),
    ],
)
async def test_a_call_that_cannot_run_has_both_events_and_no_effect(call: ToolCall, text: str) -> None:
    """5.4.3."""
    heard = EventRecorder()
    execution = await an_executor(LOOK, heard=heard).execute_tool(call, BEGUN)
    assert (execution.error, LOOK.calls) == (StepError(text, tool_name=call.name), [])
    assert [type(event) for event in heard] == [ToolCallStarted, ToolCallCompleted]
    assert [(event.success, event.error) for event in heard.of(ToolCallCompleted)] == [(False, text)]


# Errors.


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


async def test_the_text_of_an_error_can_be_stored() -> None:
    """5.4.3: with any text of an exception, the conversation continues."""
    look = MockTool("look", handler=raising(OSError("no file a\udc80\x00")))
    runner = a_runner(a_model(a_call_response("look")), lambda b: b.with_tools([look]))
    state = await runner.run(a_conversation())
    assert AgentState.from_dict(state.to_dict()).messages == state.messages
    assert state.messages[-1].text.startswith("Error: no file a")


async def test_failures_can_be_raised() -> None:
    """5.4.3: `throw_on_tool_failure`; the event is published first."""
    heard = EventRecorder()
    broken = MockTool("broken", handler=raising(ValueError("odd")))
    executor = an_executor(broken, heard=heard, build=DefinitionBuilder.with_throw_on_tool_failure)
    with pytest.raises(ToolFailed, match="broken: odd"):
        await executor.execute_tool(a_call("broken"), BEGUN)
    assert [event.success for event in heard.of(ToolCallCompleted)] == [False]


async def test_the_other_calls_end_before_an_error_is_raised() -> None:
    """4.6.1, 1.1.3: no event of a step is published after its end."""
    has_thrown = asyncio.Event()

    async def throws() -> None:
        has_thrown.set()
        raise ValueError("odd")

    async def works() -> str:
        await has_thrown.wait()
        # Long enough that the other call has raised already.
        await asyncio.to_thread(int)
        return "done"

    heard = EventRecorder()
    tools = MockTool("throws", handler=throws), MockTool("works", handler=works)
    executor = an_executor(*tools, heard=heard, build=DefinitionBuilder.with_throw_on_tool_failure)
    with pytest.raises(ToolFailed, match="throws: odd"):
        await within_timeout(executor.execute_tools([a_call("throws", "c1"), a_call("works", "c2")], BEGUN))
    assert [(e.tool_call_id, e.success) for e in heard.of(ToolCallCompleted)] == [("c1", False), ("c2", True)]


async def test_a_listener_that_raises_is_no_failure_of_the_tool() -> None:
    """4.6.3."""
    executor = an_executor(plain)
    executor.events.wiretap(lambda _event: 1 // 0)
    with pytest.raises(ListenerFailed):
        await executor.execute_tools([a_call("plain", a=1)], BEGUN)


# Hooks.


class Counting(AgentHook):
    """Counts calls in the metadata."""

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        return state.with_metadata(f"before {call.id}", len(state.metadata))

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        return state.with_metadata(f"after {execution.call.id}", execution.text)


async def merged_metadata(calls: Sequence[ToolCall]) -> dict[str, Any]:
    executor = an_executor(plain, build=lambda b: b.add_hook(Counting()).add_hook(AgentHook()))
    state, _ = await executor.execute_tools(calls, BEGUN)
    return dict(state.metadata)


async def test_changes_by_hooks_of_concurrent_calls_are_merged() -> None:
    """4.4.4: none overwrites the other."""
    metadata = await merged_metadata([a_call("plain", "c1", a=1), a_call("plain", "c2", a=2)])
    assert metadata.pop("before c1") == 0
    assert metadata.pop("before c2") in {1, 2}
    assert metadata == {"after c1": "2", "after c2": "3"}


async def test_without_calls_the_state_does_not_change() -> None:
    """4.4.4."""
    assert await an_executor(plain).execute_tools([], BEGUN) == (BEGUN, ())


async def test_all_blocking_tools_of_a_step_run_concurrently() -> None:
    """5.4.1: no thread pool limits them, and none waits for a thread while its deadline runs."""
    many = 3 * ((os.cpu_count() or 1) + 4)
    arrived = threading.Barrier(many, timeout=5)
    look = MockTool("look", handler=lambda: bool(arrived.wait() + 1))
    calls = [a_call("look", f"c{index}") for index in range(many)]
    _, executions = await within_timeout(an_executor(look).execute_tools(calls, BEGUN))
    assert [execution.result for execution in executions] == [True] * many
