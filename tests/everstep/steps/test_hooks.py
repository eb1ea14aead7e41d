"""Hooks and processors of one step, as both shells run them."""

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import HookFailed, RateLimited
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.step_facts import Besides
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.tools.inquiry import refuse_model_call
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.agent_domain.values import frozen_map
from everstep.steps import hooks as hooks_module
from everstep.steps.hooks import ToolHooks, failure_of, process_step, run_before_step
from tests.everstep.local.local_words import AT, within_timeout

STATE = AgentState.empty().with_messages("Go").identified(UUID(int=8), UUID(int=9)).with_step_started(AT)


def a_call(call_id: str) -> ToolCall:
    return ToolCall(call_id, "look")


class Tally(AgentHook):
    """Counts calls, and writes down each one; adds a message if it is given one."""

    def __init__(self, says: str = "") -> None:
        self.says = says
        self.threads = set[str]()
        self.is_running = False

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        assert not self.is_running
        self.is_running = True
        self.threads.add(threading.current_thread().name)
        state = state.with_metadata({"count": state.metadata.get("count", 0) + 1, call.id: True})
        self.is_running = False
        return state.heard(user(self.says)) if self.says else state

    def before_step(self, state: AgentState) -> AgentState:
        self.threads.add(threading.current_thread().name)
        return state

    def after_step(self, state: AgentState) -> AgentState:
        return self.before_step(state)


async def test_the_hooks_of_concurrent_calls_run_one_after_the_other() -> None:
    """4.4.4: each with the changes of the one before; those of each call are known apart."""
    hooks = ToolHooks([Tally()], STATE)

    await asyncio.gather(*(hooks.run_before(a_call(f"c{index}")) for index in range(20)))
    await hooks.charge(Besides(Usage(input=3), child_tokens=4))

    assert hooks.state.metadata["count"] == 20
    assert hooks.notes("c3") == MetadataChanges(frozen_map({"count": 4, "c3": True}))
    assert not hooks.notes("unknown")
    assert hooks.state.tokens == 7


@pytest.mark.parametrize("is_free", [True, False])
async def test_only_a_run_in_this_process_lets_hooks_of_calls_add_messages(is_free: bool) -> None:
    """4.5.5"""
    hooks = ToolHooks([Tally("Look here")], STATE, is_free=is_free)

    if is_free:
        await hooks.run_before(a_call("c1"))
        assert [message.text for message in hooks.state.messages] == ["Go", "Look here"]
    else:
        with pytest.raises(HookFailed, match="add them in before_step or after_step"):
            await hooks.run_before(a_call("c1"))
        assert hooks.state == STATE


async def test_hooks_and_processors_run_in_threads() -> None:
    """4.5.5: in every shell."""
    tally, threads = Tally(), set[str]()

    def process(state: AgentState) -> AgentState:
        threads.add(threading.current_thread().name)
        return state

    definition = DefinitionBuilder.base().add_hook(tally).add_processor(process).definition()
    await run_before_step(definition, STATE)
    await ToolHooks([tally], STATE).run_before(a_call("c1"))
    await process_step(definition, STATE, refuse_model_call)

    assert tally.threads == threads == {"everstep"}


class Stuck(AgentHook):
    """Never returns, at any place."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def before_step(self, state: AgentState) -> AgentState:
        self.go_on.wait(5)
        return state

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        del execution
        return self.before_step(state)

    def after_step(self, state: AgentState) -> AgentState:
        return self.before_step(state)


@pytest.mark.parametrize("place", ["before_step", "after_tool", "after_step"])
async def test_a_hook_that_does_not_return_is_a_timeout(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.5.5: in every shell."""
    monkeypatch.setattr(hooks_module, "HOOK_SECONDS", 0.02)
    stuck = Stuck()
    definition = DefinitionBuilder.base().add_hook(stuck).definition()
    runs: dict[str, Any] = {
        "before_step": lambda: run_before_step(definition, STATE),
        "after_tool": lambda: ToolHooks([stuck], STATE).run_after(ToolExecution(a_call("c1"))),
        "after_step": lambda: process_step(definition, STATE, refuse_model_call),
    }
    with pytest.raises((TimeoutError, HookFailed), match=r"did not finish within 0\.02s") as raised:
        await within_timeout(runs[place]())
    stuck.go_on.set()

    assert failure_of(raised.value).type is ErrorType.TIMEOUT


async def test_the_failure_of_a_hook_has_the_type_of_its_cause() -> None:
    """4.5.4, 3.4.2"""

    class Limited(AgentHook):
        def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
            raise RateLimited("busy")

    with pytest.raises(HookFailed) as raised:
        await ToolHooks([Limited()], STATE).run_before(a_call("c1"))

    failure = failure_of(raised.value, "look")
    assert failure.message == "RateLimited in a hook before the call: busy"
    assert (failure.type, failure.tool_name, failure.exception) == (
        ErrorType.RATE_LIMIT,
        "look",
        "HookFailed",
    )
