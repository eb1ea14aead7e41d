"""The user and the request of an agent that runs in this process."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolContext
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.subagents import UseSubagents
from everstep.local.local_agent import Agent

ANN = RunContext("ann", "acme", UUID(int=3), "order", "7", frozen_map({"plan": "gold"}))


def an_agent(*script: Any) -> tuple[Agent, list[ToolContext]]:
    """An agent that follows the script, and the contexts that its tool receives."""
    contexts: list[ToolContext] = []

    @tool
    async def note(context: ToolContext) -> str:
        """Note the user."""
        await asyncio.sleep(0)
        contexts.append(context)
        return context.user_id or "nobody"  # a result that no user has

    driver = ToolCallingDriver(ScriptedModel(*script))
    aide = UseSubagents(AgentSpecRegistry([AgentSpec("aide", "Does one thing", "You are an aide.")]))
    builder = DefinitionBuilder.base().with_tools([note]).with_capability(aide).with_driver(driver)
    return Agent(builder.definition()), contexts


def run_context_of(context: ToolContext) -> RunContext:
    """What a tool's context says of its run."""
    return RunContext(
        context.user_id,
        context.tenant_id,
        context.session_id,
        context.related_type,
        context.related_id,
        context.request_metadata,
    )


async def test_each_way_to_run_takes_a_context() -> None:
    """9.9.3"""
    agent, contexts = an_agent(*[calls(("note", {})), "Done"] * 4)

    await agent.arun("Go", context=ANN)
    await agent.afinal_step("Go", context=ANN)
    assert len([state async for state in agent.aiterator("Go", context=ANN)]) == 2
    state = await agent.anext_step("Go", context=ANN)
    assert [run_context_of(each) for each in contexts] == [ANN] * 4
    assert {each.attempt for each in contexts} == {1}
    assert state.execution.run == ANN


@pytest.mark.parametrize("method", ["run", "final_step", "next_step", "iterator"])
def test_so_do_the_blocking_ways(method: str) -> None:
    agent, contexts = an_agent(calls(("note", {})), "Done")

    result = getattr(agent, method)("Go", context=ANN)
    if method == "iterator":
        list(result)

    assert run_context_of(contexts[0]) == ANN


async def test_a_conversation_keeps_its_user_until_another_is_named() -> None:
    """9.9.3: a state keeps its context, as it does its metadata."""
    agent, contexts = an_agent(*[calls(("note", {})), "Done"] * 3)

    state = await agent.arun("Go", context=ANN)
    state = await agent.arun(state.with_user_message("Again"))
    await agent.arun(state.with_user_message("And now"), context=RunContext("bob"))

    assert [each.user_id for each in contexts] == ["ann", "ann", "bob"]
    assert run_context_of(contexts[2]) == RunContext("bob")


async def test_a_subagent_works_for_the_user_of_its_parent() -> None:
    """9.9.3"""
    spawn = calls(("spawn_subagent", {"subagent": "aide", "prompt": "Note"}))
    agent, contexts = an_agent(spawn, calls(("note", {})), "Noted", "Done")

    await agent.arun("Go", context=ANN)

    assert [run_context_of(each) for each in contexts] == [ANN]


async def test_runs_at_the_same_time_have_contexts_of_their_own() -> None:
    agent, contexts = an_agent(*[calls(("note", {}))] * 8)

    await asyncio.gather(*(agent.anext_step("Go", context=RunContext(f"user {n}")) for n in range(8)))

    assert {each.user_id for each in contexts} == {f"user {n}" for n in range(8)}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"user_id": 7}, "the user_id of the context is 7; pass a text"),
        ({"tenant_id": None}, "the tenant_id of the context is None; pass a text"),
        ({"session_id": "s1"}, "the session_id of the context is 's1'; pass a UUID"),
        ({"related_id": "7"}, "related_id needs a related_type; pass both, or neither"),
        ({"request_metadata": {"at": object()}}, "request_metadata"),
    ],
    ids=["user", "tenant", "session", "related", "metadata"],
)
def test_a_wrong_context_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        RunContext(**given)


def test_a_run_takes_nothing_else_as_its_context() -> None:
    agent, _ = an_agent("Done")

    with pytest.raises(InvalidInput, match=r"the context is 'ann'; pass RunContext\(user_id=\.\.\.\)"):
        agent.run("Go", context="ann")  # type: ignore[arg-type]
