"""The ways that an execution can take, each run on a real server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.contracts import INFER
from everstep.activities.failpoints import Failpoint
from everstep.activities.subagents import SUBAGENT_IS_RUNNING
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.plan import REGISTERED, CriterionRef
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.errors import ModelError, RateLimited, ToolFailed
from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolExecution, ToolOptions
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.client.client import Execution
from everstep.workflows import activity_options, agent_execution
from tests import scenarios
from tests.toolsets import FakeToolset
from tests.workflows.harness import (
    HeldModel,
    an_agent,
    at_work,
    events_of,
    eventually,
    fail_activity,
    failure_of_pending,
    final_result,
    progress,
    reset_execution,
    scheduled_activities,
)

Way: TypeAlias = Callable[[TemporalClient], Awaitable[Execution]]
Act: TypeAlias = Callable[[Execution], Awaitable[object]]

WAYS: dict[str, Way] = {}

BROKEN = REGISTERED.build(CriterionRef(name="tests.broken"))
assert scenarios  # the decorator registers it

MOST_EVENTS = {"rolled_over": 40}
"""Histories that are cut earlier than usual: a thousand events would show no more."""


def cut_like(name: str, patch: pytest.MonkeyPatch) -> None:
    """Set the history's limit to the one with which this history was recorded."""
    for module in (activity_options, agent_execution):
        patch.setattr(module, "ROLL_OVER_EVENTS", MOST_EVENTS.get(name, activity_options.ROLL_OVER_EVENTS))


def way(go: Way) -> Way:
    """Register a way under the name of the function."""
    WAYS[go.__name__.removesuffix("_way")] = go
    return go


def fails(**_args: object) -> None:
    raise ToolFailed("it does not work")


def having(*script: InferenceResponse | str | Exception, model: HeldModel | None = None) -> DefinitionBuilder:
    """An agent with a tool of each kind."""
    tools = [
        MockTool("look"),
        MockTool("quick", options=ToolOptions(quick=True)),
        MockTool("bad", handler=fails),
        MockTool("ask", options=ToolOptions(need=CallNeed.INPUT)),
        MockTool("ask_briefly", options=ToolOptions(need=CallNeed.INPUT, wait_seconds=0.05)),
    ]
    return an_agent(*script, tools=tools, model=model)


def calling(*names: str) -> InferenceResponse:
    """A response that calls these tools."""
    return calls(*((name, {"prompt": "?"}) for name in names))


async def alone(temporal: TemporalClient, agent: DefinitionBuilder) -> Execution:
    """Runs without people."""
    async with at_work(temporal, agent) as office:
        execution, _ = await office.run()
        return execution


async def with_people(temporal: TemporalClient, agent: DefinitionBuilder, *acts: Act) -> Execution:
    """Runs an action whenever the execution waits."""
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        for act in acts:
            await office.until_waiting(execution)
            await act(execution)
            await office.until_running_again(execution)
        await final_result(execution)
        return execution


async def with_action_while_writing(
    temporal: TemporalClient, *acts: Act, says: InferenceResponse | str
) -> Execution:
    """Runs an action while the model writes; at each later wait, it resumes the execution."""
    model = HeldModel(says, "Done")
    async with at_work(temporal, having(model=model)) as office:
        execution = await office.start()
        await model.begun.wait()
        for act in acts:
            await act(execution)
        model.go_on.set()
        if pause in acts:
            await office.until_waiting(execution)
            await execution.resume()
        await final_result(execution)
        return execution


async def answer(execution: Execution) -> None:
    await execution.submit_input("Blue")


async def answer_by_signals(execution: Execution) -> None:
    """Refused, unknown and accepted."""
    await execution.workflow.signal("user_input", {"answer": "Blue"})
    await execution.workflow.signal("user-input", "Blue")
    await execution.workflow.signal("user_input", "Blue")


async def approve(execution: Execution) -> None:
    await execution.approve()


async def approve_all(execution: Execution) -> None:
    await execution.approve(remember=True)


async def deny(execution: Execution) -> None:
    await execution.deny(reason="No")


async def edit(execution: Execution) -> None:
    await execution.edit({"prompt": "!"})


async def steer(execution: Execution) -> None:
    await execution.steer("Blue, please")


async def pause(execution: Execution) -> None:
    await execution.pause()


async def resume(execution: Execution) -> None:
    await execution.resume()


async def cancel(execution: Execution) -> None:
    await execution.cancel()


async def cancel_by_temporal(execution: Execution) -> None:
    await execution.workflow.cancel()


# Without people.


@way
async def answered_at_once(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having("Done"))


@way
async def parallel_tools(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look", "quick", "look"), calling("quick"), "Done"))


@way
async def sequential_tools(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look", "quick"), "Done").with_parallel_tools(False))


@way
async def no_step(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having("Never").with_max_steps(0))


@way
async def steps_limit(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look")).with_max_steps(2))


@way
async def failures_forgiven_way(temporal: TemporalClient) -> Execution:
    script = (calling("bad"), RateLimited("busy", 0.01), ModelError("refused"), "Done")
    return await alone(temporal, having(*script).with_error_policy(ErrorPolicy.retry_all(9)))


@way
async def failed_way(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("bad", "look")))


@way
async def criterion_raised_way(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look")).add_continuation_criteria(BROKEN))


@way
async def unforeseen(temporal: TemporalClient) -> Execution:
    async with at_work(temporal, having("Never")) as office:
        plan = office.agents[0].plan().model_copy(update={"criteria": (CriterionRef(name="nobody.knows"),)})
        execution = await office.start_directly(plan)
        await final_result(execution)
        return execution


def passed_on(state: AgentState) -> AgentState:
    return state


@way
async def processed_way(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look", "quick"), "Done").add_processor(passed_on))


class Broken(AgentHook):
    """Raises at one place."""

    def __init__(self, where: str) -> None:
        self.where = where

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        del execution
        return self._at("after_tool", state)

    def after_step(self, state: AgentState) -> AgentState:
        return self._at("after_step", state)

    def _at(self, where: str, state: AgentState) -> AgentState:
        if where == self.where:
            raise ToolFailed("it does not work")
        return state


@way
async def processor_raised_way(temporal: TemporalClient) -> Execution:
    agent = having(calling("look")).add_hook(Broken("after_step"))
    return await alone(temporal, agent.with_error_policy(ErrorPolicy.retry_all(2)))


@way
async def hook_of_a_tool_raised_way(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look", "look")).add_hook(Broken("after_tool")))


@way
async def failed_hook_is_charged_way(temporal: TemporalClient) -> Execution:
    """All that the step used before its hook failed counts, so the limit of tokens ends the execution."""
    asks = calls(("llm_query", {"query": "?"}), usage=Usage(input=10, output=5))
    agent = having(asks, says("Blue", Usage(input=3, output=1)), "Done").with_tools([LlmQueryTool()])
    agent = agent.add_hook(Broken("after_tool")).with_error_policy(ErrorPolicy.retry_all(3))
    return await alone(temporal, agent.with_max_tokens(19))


@way
async def tool_failure_escapes_way(temporal: TemporalClient) -> Execution:
    """The failure of a tool is that of the step, and the policy allows another one."""
    agent = having(calling("look", "bad"), "Done").with_throw_on_tool_failure()
    return await alone(temporal, agent.with_error_policy(ErrorPolicy.retry_all(3)))


class Pausing(AgentHook):
    """Pauses the execution after its first step."""

    def after_step(self, state: AgentState) -> AgentState:
        return state if state.facts.recorded_steps else state.paused()


@way
async def paused_by_a_hook(temporal: TemporalClient) -> Execution:
    return await with_people(temporal, having(calling("quick"), "Done").add_hook(Pausing()), resume)


@way
async def asked_in_between(temporal: TemporalClient) -> Execution:
    """The cost of an inner request is a fact of the call."""
    asks, blue = calls(("llm_query", {"query": "?"})), says("Blue", Usage(input=3, output=1))
    return await alone(temporal, having(asks, blue, "Done").with_tools([LlmQueryTool()]))


@way
async def tools_listed_way(temporal: TemporalClient) -> Execution:
    shelf = FakeToolset({"fetch": fetched}, options=ToolOptions(effect=Effect.AT_MOST_ONCE))
    return await alone(temporal, having(calling("fetch", "look"), "Done").with_toolset(shelf))


def fetched(args: dict[str, Any], context: ToolContext) -> str:
    del args, context
    return "Blue"


@way
async def effect_unknown_way(temporal: TemporalClient) -> Execution:
    """An attempt leaves its reservation and no result; the policy passes tool errors to the model."""
    left = iter((Failpoint.TOOL_AFTER_RESERVE,))

    def strike(point: Failpoint) -> None:
        if point is Failpoint.TOOL_AFTER_RESERVE and next(left, None):
            raise RuntimeError("the worker is lost")

    pay = MockTool("pay", options=ToolOptions(effect=Effect.AT_MOST_ONCE))
    agent = having(calling("pay"), "Done").with_tools([pay])
    agent = agent.with_error_policy(ErrorPolicy.retry_tool_errors())
    async with at_work(temporal, agent, strike=strike) as office:
        execution, _ = await office.run()
        return execution


@way
async def rolled_over(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look")).with_max_steps(7))


# With people.


@way
async def questions_answered_way(temporal: TemporalClient) -> Execution:
    return await with_people(temporal, having(calling("ask", "look", "ask"), "Done"), answer, answer)


@way
async def answered_by_signal(temporal: TemporalClient) -> Execution:
    return await with_people(temporal, having(calling("ask"), "Done"), answer_by_signals)


@way
async def question_timed_out(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("ask_briefly"), "Done"))


@way
async def approvals_decided_way(temporal: TemporalClient) -> Execution:
    agent = having(calling("look", "look", "look", "quick"), "Done").with_approval("look", "always")
    return await with_people(temporal, agent, approve, deny, edit)


@way
async def approval_remembered_way(temporal: TemporalClient) -> Execution:
    """The second step waits for no approval."""
    agent = having(calling("look"), calling("look", "quick"), "Done").with_approval("look", "always")
    return await with_people(temporal, agent, approve_all)


@way
async def steered_way(temporal: TemporalClient) -> Execution:
    return await with_action_while_writing(temporal, steer, says="Red")


@way
async def paused_and_steered_way(temporal: TemporalClient) -> Execution:
    return await with_action_while_writing(temporal, pause, steer, says=calling("look"))


@way
async def cancelled_way(temporal: TemporalClient) -> Execution:
    return await with_action_while_writing(temporal, cancel, says="Never")


@way
async def cancelled_by_temporal(temporal: TemporalClient) -> Execution:
    return await with_action_while_writing(temporal, cancel_by_temporal, says="Never")


async def raise_budget(execution: Execution) -> None:
    await execution.raise_budget(steps=9)


@way
async def budget_exhausted_way(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("look"), "Done").with_budget(steps=1))


@way
async def budget_raised_way(temporal: TemporalClient) -> Execution:
    agent = having(calling("look"), "Done").with_budget(steps=1, on_exhausted="ask")
    return await with_people(temporal, agent, raise_budget)


@way
async def cancelled_while_paused_way(temporal: TemporalClient) -> Execution:
    return await with_people(temporal, having(calling("ask")), cancel)


# How workflows close since they close like their executions. The ways above closed as completed.


@way
async def failure_in_temporal(temporal: TemporalClient) -> Execution:
    return await alone(temporal, having(calling("bad", "look")))


@way
async def cancel_in_temporal(temporal: TemporalClient) -> Execution:
    return await with_people(temporal, having(calling("ask")), cancel)


@way
async def closed_by_a_cancel_of_temporal(temporal: TemporalClient) -> Execution:
    return await with_action_while_writing(temporal, cancel_by_temporal, says="Never")


@way
async def failure_of_the_activity_of_a_call(temporal: TemporalClient) -> Execution:
    """A tool error that the policy retries; a model error would end the execution."""
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    agent = an_agent(calls(("hang", {})), "Done", tools=[MockTool("hang", handler=hang)])
    async with at_work(temporal, agent.with_error_policy(ErrorPolicy.retry_tool_errors())) as office:
        execution = await office.start()
        await begun.wait()
        await fail_activity(execution, "2")
        await final_result(execution)
        return execution


# With children.


class Hire(MockTool):
    """Delegates the task to an agent."""

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        del context
        return Spawn(args["prompt"], (user("Work"),)) if args["prompt"] != "?" else "Whom?"

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        return f"{args['prompt']}: {end.response or end.status}"


def a_boss(*whom: str) -> DefinitionBuilder:
    """An agent that delegates."""
    script = calls(*(("hire", {"prompt": name}) for name in whom))
    return an_agent(script, "Done", tools=[Hire("hire", options=ToolOptions(need=CallNeed.SUBAGENT))])


async def with_hands(
    temporal: TemporalClient, boss: DefinitionBuilder, *acts: Act, wanted: bool = False
) -> Execution:
    """Runs an action whenever all its subagents wait; on the child that asks, if requested."""
    asking = having(calling("ask"), "Blue then").with_name("asking")
    async with at_work(temporal, boss, asking, having("Three").with_name("hand")) as office:
        execution = child = await office.start()
        for act in acts:
            await office.until_waiting(execution)
            (step,) = await execution.steps()
            child = office.client.execution(subagent_id(execution.id, step.calls[0].call.id))
            await act(child if act is answer else execution)
            await office.until_running_again(execution)
        await final_result(execution)
        return child if wanted else execution


@way
async def children(temporal: TemporalClient) -> Execution:
    return await with_hands(temporal, a_boss("asking", "hand", "?"), answer)


@way
async def a_child(temporal: TemporalClient) -> Execution:
    return await with_hands(temporal, a_boss("asking"), answer, wanted=True)


@way
async def children_cancelled_way(temporal: TemporalClient) -> Execution:
    return await with_hands(temporal, a_boss("asking", "hand"), cancel)


async def hold_both(temporal: TemporalClient, *, wanted: bool = False) -> Execution:
    """An execution is paused while its child calls a model, and both resume together."""
    model = HeldModel(calls(("look", {}), usage=Usage(input=3, output=1)), "Three")
    hand = having(model=model).with_name("hand")
    async with at_work(temporal, a_boss("hand"), hand) as office:
        execution = await office.start()
        await model.begun.wait()
        (step,) = await execution.steps()
        child = office.client.execution(subagent_id(execution.id, step.calls[0].call.id))
        await execution.pause()
        await eventually(lambda: holds_still(child))
        model.go_on.set()
        await office.until_waiting(execution)
        await execution.resume()
        await final_result(execution)
        return child if wanted else execution


async def holds_still(execution: Execution) -> bool:
    return (await progress(execution)).facts.is_paused


@way
async def paused_with_its_child(temporal: TemporalClient) -> Execution:
    return await hold_both(temporal)


@way
async def paused_by_its_parent(temporal: TemporalClient) -> Execution:
    return await hold_both(temporal, wanted=True)


@way
async def cancel_of_children(temporal: TemporalClient) -> Execution:
    return await with_hands(temporal, a_boss("asking", "asking"), cancel)


@way
async def a_cancelled_child(temporal: TemporalClient) -> Execution:
    async with at_work(temporal, a_boss("asking"), having(calling("ask")).with_name("asking")) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        (step,) = await execution.steps()
        await execution.cancel()
        await final_result(execution)
        return office.client.execution(subagent_id(execution.id, step.calls[0].call.id))


@way
async def reset_beside_its_child(temporal: TemporalClient) -> Execution:
    """The new run finds its child paused, and is cancelled."""
    async with at_work(temporal, a_boss("asking"), having(calling("ask")).with_name("asking")) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await reset_execution(execution)
        await eventually(lambda: _is_found(execution))
        await execution.cancel()
        await final_result(execution)
        return execution


async def _is_found(execution: Execution) -> bool:
    return await failure_of_pending(execution) == SUBAGENT_IS_RUNNING


@way
async def burst_way(temporal: TemporalClient) -> Execution:
    """Model calls and quick tools as local activities, in one workflow task."""
    return await alone(temporal, having(calling("quick"), calling("look"), "Done").with_profile("burst"))


@way
async def burst_moved_way(temporal: TemporalClient) -> Execution:
    """A model call that takes longer than a local activity waits."""
    model = HeldModel(calling("quick"), "Done")
    async with at_work(temporal, having(model=model).with_profile("burst")) as office:
        execution = await office.start()
        await eventually(lambda: _is_moved(execution))
        model.go_on.set()
        await final_result(execution)
        return execution


async def _is_moved(execution: Execution) -> bool:
    return bool(scheduled_activities(await events_of(execution), INFER))
