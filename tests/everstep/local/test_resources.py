"""Resources of agents that run in this process."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput, ResourceFailed
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.agent_domain.tools.function_tool import BaseTool, tool
from everstep.agent_domain.tools.resources import Resource
from everstep.agent_domain.tools.tools import Tool, ToolCall, ToolContext
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.subagents import UseSubagents
from everstep.local.local_agent import Agent
from everstep.steps.resource_lifetimes import open_resources
from tests.everstep.steps.resources_words import Pool, a_pool


@dataclass
class Shop:
    """An agent with a pool, and what happens to the pool."""

    log: list[str]
    pool: Resource[Pool]
    agent: Agent


def query_tool(pool: Resource[Pool]) -> Tool:
    @tool
    async def query(text: str, pool: Annotated[Pool, pool], context: ToolContext) -> str:
        """Ask the database."""
        assert context.resources[Pool] is pool
        return pool.query(text)

    return query


class QueryTool(BaseTool):
    """Ask the database."""

    name = "query"


def a_shop(*script: Any, tools: Any = None, fault: Exception | None = None) -> Shop:
    log = list[str]()
    pool = a_pool("pool", log, fault)
    aide = UseSubagents(AgentSpecRegistry([AgentSpec("aide", "Does one thing", "You are an aide.")]))
    builder = DefinitionBuilder.base().with_driver(ToolCallingDriver(ScriptedModel(*script)))
    builder.with_tools(tools(pool) if tools else [query_tool(pool)]).with_capability(aide)
    return Shop(log, pool, Agent(builder.definition()))


QUERY = calls(("query", {"text": "orders"}))
ONCE = ["start pool", "pool orders", "stop pool"]


def test_a_run_starts_what_its_tools_need_and_stops_it() -> None:
    """9.9.6: each way to run does, and a conversation goes on."""
    shop = a_shop(*[QUERY, "Done"] * 4)

    state = shop.agent.run("Go")
    assert [message.text for message in state.messages][2:] == ["pool: orders", "Done"]
    assert shop.log == ONCE
    shop.agent.run(state.with_user_message("Again"))
    assert len(list(shop.agent.iterator("Go"))) == 2
    assert shop.log == ONCE * 3
    shop.agent.next_step("Go")
    assert shop.log == ONCE * 4


def test_an_iterator_that_is_left_stops_them() -> None:
    """9.9.6"""
    shop = a_shop(QUERY, "Done")
    steps = shop.agent.iterator("Go")
    next(steps)
    assert shop.log == ONCE[:2]
    steps.close()
    assert shop.log == ONCE


def test_the_model_neither_sees_nor_passes_a_resource() -> None:
    """9.9.6, 9.9.4"""
    wrong = calls(("query", {"text": "orders", "pool": {"name": "other"}}))
    shop = a_shop(wrong, QUERY, "Done")
    (schema,) = [each for each in shop.agent.definition.tools.schemas if each["function"]["name"] == "query"]
    assert list(schema["function"]["parameters"]["properties"]) == ["text"]

    state = shop.agent.run("Go")
    assert "Unexpected keyword argument" in next(each.text for each in state.messages if each.is_tool)
    assert "pool orders" not in shop.log


def test_classes_take_them_too_also_with_free_arguments() -> None:
    """9.9.6, 9.9.4"""

    def tools(pool: Resource[Pool]) -> list[Tool]:
        class Query(QueryTool):
            def __call__(self, text: str, pool: Annotated[Pool, pool]) -> str:
                return pool.query(text)

        class Free(QueryTool):
            name = "free"

            def __call__(self, pool: Annotated[Pool, pool], **arguments: Any) -> str:
                return pool.query(arguments["text"])

            def to_tool_schema(self) -> dict[str, Any]:
                schema = {"type": "object", "properties": {"text": {"type": "string"}}}
                function = {"name": "free", "description": "Ask freely.", "parameters": schema}
                return {"type": "function", "function": function}

        return [Query(), Free()]

    both = calls(("query", {"text": "a"}), ("free", {"text": "b", "pool": "mine"}))
    shop = a_shop(both, "Done", tools=tools)
    shop.agent.run("Go")
    assert sorted(shop.log) == ["pool a", "pool b", "start pool", "stop pool"]


def test_a_test_replaces_one() -> None:
    """9.9.8"""
    shop = a_shop(QUERY, "Done")
    other = list[str]()
    state = shop.agent.run("Go", resources={shop.pool: Pool("fake", other)})
    assert (shop.log, other) == ([], ["fake orders"])
    assert state.execution.resources[shop.pool].name == "fake"


async def test_an_application_opens_them_once() -> None:
    """9.9.8"""
    shop = a_shop(*[QUERY, "Done"] * 3)
    async with open_resources([shop.pool]) as opened:
        await asyncio.gather(*(shop.agent.arun("Go", resources=opened) for _ in range(3)))
        assert shop.log == ["start pool", *["pool orders"] * shop.log.count("pool orders")]
    assert shop.log[-1] == "stop pool"


def test_hooks_processors_and_subagents_use_them() -> None:
    """9.9.6"""
    spawn = calls(("spawn_subagent", {"subagent": "aide", "prompt": "Ask"}))
    shop = a_shop(spawn, QUERY, "Asked", "Done")
    pool = shop.pool

    class Audit(AgentHook):
        def before_step(self, state: AgentState) -> AgentState:
            return noted(state, "before step")

        def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
            del call
            return noted(state, "before tool")

    def noted(state: AgentState, what: str) -> AgentState:
        state.execution.resources[pool].query(what)
        return state

    def process(state: AgentState) -> AgentState:
        return noted(state, "processor")

    definition = shop.agent.definition
    builder = DefinitionBuilder.base().with_driver(definition.driver).with_tools(definition.tools)  # type: ignore[arg-type]
    builder.add_hook(Audit()).add_processor(process).with_resources(pool)
    Agent(builder.definition()).run("Go")

    # The subagent has the tool of its parent, and no hooks.
    step = ["pool before step"]
    assert shop.log == [
        "start pool",
        *step,
        "pool orders",
        "pool processor",
        *step,
        "pool processor",
        "stop pool",
    ]


@contextmanager
def no_loop_left() -> Generator[None]:
    yield
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_one_that_cannot_be_started_ends_the_run_before_its_first_step() -> None:
    """9.9.7"""
    shop = a_shop(QUERY, "Done", fault=OSError("refused"))
    with (
        no_loop_left(),
        pytest.raises(ResourceFailed, match="the resource 'pool' cannot be started: OSError"),
    ):
        shop.agent.run("Go")
    assert shop.log == ["start pool"]


def test_nothing_else_is_a_resource() -> None:
    shop = a_shop("Done")
    with pytest.raises(InvalidInput, match="the resources are 7; pass a map such as"):
        shop.agent.run("Go", resources=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="with_resources holds 7, which is no resource"):
        DefinitionBuilder.base().with_resources(7)  # type: ignore[arg-type]


def test_a_tool_may_use_the_name_for_something_else() -> None:
    """A tool that is written without Everstep's classes."""

    class Cloud:
        name, description, schema = "cloud", "Lists machines.", frozen_map({"type": "object"})
        resources = ("machines", 7)

        def call(self, args: dict[str, Any], context: ToolContext) -> str:
            del args, context
            return "two"

    def clouds(pool: Resource[Pool]) -> list[Tool]:
        del pool
        return [Cloud()]

    shop = a_shop(calls(("cloud", {})), "Done", tools=clouds)
    assert [each.text for each in shop.agent.run("Go").messages if each.is_tool] == ["two"]
