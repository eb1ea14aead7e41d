"""Tools know their user and its request: over HTTP, with the tokens of users."""

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.agent_domain.values import parse_json
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.subagents import UseSubagents
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller
from tests.everstep.http_api.test_waits import at_work
from tests.workflows.harness import eventually

ORDERS = {"ann": {7: "a train to Bergen"}, "bob": {8: "a bicycle"}}


class ObedientModel:
    """A model that calls what the message says, such as `my_orders {"customer": "bob"}`."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del on_text
        last = request.messages[-1]
        if last.is_tool:
            return says(last.text)
        wanted = [line.partition(" ") for line in last.text.splitlines()]
        return calls(*((name, parse_json(args or "{}")) for name, _, args in wanted))


class NotesState(AgentHook):
    """A hook that keeps the states in which steps begin."""

    def __init__(self, states: list[AgentState]) -> None:
        self.states = states

    def before_step(self, state: AgentState) -> AgentState:
        self.states.append(state)
        return state


@dataclass
class Shop:
    """An agent whose tools note their contexts."""

    contexts: dict[str, ToolContext] = field(default_factory=dict[str, ToolContext])
    states: list[AgentState] = field(default_factory=list[AgentState])
    is_waiting: threading.Event = field(default_factory=threading.Event)
    was_cancelled: threading.Event = field(default_factory=threading.Event)

    def definition(self) -> Any:
        """The agent, with tools of each kind."""

        @tool
        def my_orders(context: ToolContext) -> list[str]:
            """List the orders of the customer."""
            self.contexts["my_orders"] = context
            return list(ORDERS[context.user_id or ""].values())

        @tool(options=ToolOptions(quick=True))
        def read_order(number: int, context: ToolContext) -> str:
            """Read an order of the customer."""
            self.contexts["read_order"] = context
            return ORDERS[context.user_id or ""].get(number, "There is no such order")

        @tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
        async def pay(context: ToolContext) -> str:
            """Pay."""
            self.contexts["pay"] = context
            return "paid"

        @tool
        def wait_for_stock(context: ToolContext) -> str:
            """Wait, in a thread that nothing can stop."""
            self.is_waiting.set()
            while not context.is_cancelled:
                self.was_cancelled.wait(0.01)
            self.was_cancelled.set()
            return "never read"

        aide = AgentSpec("aide", "Does one thing", "You are an aide.")
        return (
            DefinitionBuilder.new()
            .with_name("shop", "Knows orders")
            .with_driver(ToolCallingDriver(ObedientModel()))
            .with_tools([my_orders, read_order, pay, wait_for_stock])
            .with_capability(UseSubagents(AgentSpecRegistry([aide])))
            .with_capability(UseMetadataTools())
            .with_error_policy(ErrorPolicy.retry_tool_errors())
            .add_hook(NotesState(self.states))
            .definition()
        )


@asynccontextmanager
async def open_shop(api_setup: ApiSetup) -> AsyncGenerator[Shop]:
    """The shop's agent on a worker; it answers all messages that name no other agent."""
    shop = Shop()
    definition, client = shop.definition(), api_setup.sessions.client
    object.__setattr__(client, "agents", {**client.agents, "shop": definition})
    async with at_work(api_setup, definition):
        yield shop


async def _say(caller: ApiCaller, text: str, **given: Any) -> tuple[str, str]:
    """Begin a session with this message; returns the session and the answer."""
    sent = await caller.post("/agent/messages", {"content": text, "agent": "shop", **given})
    ended = await caller.wait_for_status(sent["execution_id"], "completed", "failed")
    return sent["message"]["session_id"], ended["output"]["response"] or ""


async def test_a_model_reads_only_the_callers_orders(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """9.9.3, 9.9.4: the model tries another customer's id, in every way that it has."""
    async with open_shop(api_setup) as shop:
        for name in ("ann", "bob"):
            caller, own = await sign_in(name), next(iter(ORDERS[name].values()))
            assert own in (await _say(caller, "my_orders"))[1]
        ann = await sign_in("ann")

        for args in ('{"customer": "bob"}', '{"user_id": "bob"}', '{"context": {"user_id": "bob"}}'):
            _, answer = await _say(ann, f"my_orders {args}")
            assert "Unexpected keyword argument" in answer
        assert (await _say(ann, 'read_order {"number": 8}'))[1] == "There is no such order"
        _, answer = await _say(ann, 'metadata_write {"key": "user_id", "value": "bob"}\nmy_orders')
        assert "a bicycle" not in answer
        _, answer = await _say(ann, "my_orders", metadata={"user_id": "bob"})
        assert answer == '["a train to Bergen"]'
        assert shop.contexts["my_orders"].request_metadata == {"user_id": "bob"}
        assert shop.contexts["my_orders"].user_id == "ann"
        for schema in api_setup.sessions.client.agents["shop"].tools.schemas[:3]:
            assert "context" not in schema["function"]["parameters"]["properties"]


@pytest.mark.parametrize("call", ["my_orders", 'read_order {"number": 7}', "pay"])
async def test_each_kind_of_tool_has_the_whole_context(
    api_setup: ApiSetup, sign_in: MakeCaller, call: str
) -> None:
    """9.9.3: in an activity, in the one that asked the model, and reserved; hooks read it in the state."""
    request = {"related_type": "order", "related_id": 7, "metadata": {"plan": "gold"}}
    async with open_shop(api_setup) as shop:
        ann = await sign_in("ann")
        session, _ = await _say(ann, call, **request)
        context = shop.contexts[call.partition(" ")[0]]

        assert (context.user_id, context.tenant_id, str(context.session_id)) == (
            "ann",
            ann.api_setup.tenant,
            session,
        )
        assert (context.related_type, context.related_id) == ("order", "7")
        assert context.request_metadata == {"plan": "gold"}
        assert (context.attempt, context.is_cancelled) == (1, False)
        run = shop.states[0].execution.run
        assert (run.user_id, run.related_id, run.request_metadata) == ("ann", "7", {"plan": "gold"})

        # A later message names nothing: it has no metadata, and is about what its session is about.
        sent = await ann.post_message(session, call, agent="shop")
        await ann.wait_for_status(sent["execution_id"], "completed")
        context = shop.contexts[call.partition(" ")[0]]
        assert (context.related_id, context.request_metadata) == ("7", {})


async def test_subagents_and_forks_work_for_the_same_user(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """9.9.3: with the request of the execution that they come from."""
    async with open_shop(api_setup) as shop:
        ann = await sign_in("ann")
        spawn = 'spawn_subagent {"subagent": "aide", "prompt": "my_orders"}'
        given = {"content": spawn, "agent": "shop", "metadata": {"plan": "gold"}}
        begun = await ann.post("/agent/executions", given)
        await ann.wait_for_status(begun["id"], "completed")
        aide = shop.contexts.pop("my_orders")
        support = await sign_in("support", "sessions:all")
        fork = await support.post(
            f"/agent/executions/{begun['id']}/fork", {"step": 0, "content": "my_orders"}
        )
        await ann.wait_for_status(fork["id"], "completed")

    for context in (aide, shop.contexts["my_orders"]):
        assert (context.user_id, context.request_metadata) == ("ann", {"plan": "gold"})
        assert (context.session_id, context.related_type) == (None, None)


async def test_a_thread_sees_that_its_execution_was_cancelled(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """9.9.5: nothing can stop a thread, so it reads this and returns."""
    async with open_shop(api_setup) as shop:
        ann = await sign_in("ann")
        sent = await ann.post("/agent/messages", {"content": "wait_for_stock", "agent": "shop"})
        await _until(shop.is_waiting.is_set)
        await ann.post(f"/agent/executions/{sent['execution_id']}/cancel")
        await ann.wait_for_status(sent["execution_id"], "cancelled")
        await _until(shop.was_cancelled.is_set)


async def _until(is_so: Callable[[], bool]) -> None:
    async def check() -> bool:
        return is_so()

    await eventually(check)
