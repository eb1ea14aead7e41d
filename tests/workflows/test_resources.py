"""Resources and the context of durable executions: in tools of each kind, hooks, processors and criteria."""

from typing import Annotated, Any

from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spawning import Spawn, needed_resources
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.resources import Resource
from everstep.agent_domain.tools.tools import ToolCall, ToolOptions
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.subagents import UseSubagents
from everstep.runtime.agents import AgentBook
from everstep.runtime.worker import make_worker
from everstep.steps.resource_lifetimes import open_resources
from tests.everstep.steps.resources_words import Pool, a_pool
from tests.workflows.harness import NoModels, an_agent, an_office, at_work, final_result, progress
from tests.workflows.reviewing import serves


class Audit(AgentHook):
    """Asks the pool around steps and calls."""

    def __init__(self, pool: Resource[Pool]) -> None:
        self.pool = pool

    def query(self, state: AgentState, text: str) -> AgentState:
        """Ask, and note the answer in the metadata."""
        answer = state.execution.resources[self.pool].query(f"{text} {state.run.user_id}")
        return state.with_metadata(text.replace(" ", "_"), answer)

    def before_step(self, state: AgentState) -> AgentState:
        return self.query(state, "before step")

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        return self.query(state, f"before {call.name}")

    def process(self, state: AgentState) -> AgentState:
        """The processor."""
        return self.query(state, "processor")


def an_agent_with(pool: Resource[Pool], *script: Any) -> DefinitionBuilder:
    @tool
    async def look(pool: Annotated[Pool, pool]) -> str:
        """Look something up."""
        return pool.query("look")

    @tool(options=ToolOptions(quick=True))
    def peek(pool: Annotated[Pool, pool]) -> str:
        """Look something up at once."""
        return pool.query("peek")

    audit = Audit(pool)
    aide = UseSubagents(AgentSpecRegistry([AgentSpec("aide", "Does one thing", "You are an aide.")]))
    builder = an_agent(*script, tools=[look, peek]).with_capability(aide)
    return builder.add_hook(audit).add_processor(audit.process)


async def run_with_resources(temporal: TemporalClient, agent: AgentDefinition) -> dict[str, Any]:
    """Run the agent with its resources, and return its metadata."""
    office = an_office(temporal, agent)
    async with open_resources(needed_resources([agent])) as resources:
        book = AgentBook(office.agents, NoModels(), resources)
        async with make_worker(temporal, office.port, book, office.settings, bus=office.bus):
            execution = await office.start(user_id="ann")
            result = await final_result(execution)
    assert result.stop_reason is StopReason.COMPLETED
    return dict((await execution.get()).metadata)


async def test_all_code_of_an_agent_shares_the_objects_of_its_worker(temporal: TemporalClient) -> None:
    """9.9.6: tools in activities of their own and in that of the model, subagents, hooks and processors."""
    log = list[str]()
    spawn = calls(("spawn_subagent", {"subagent": "aide", "prompt": "Look"}))
    script = [calls(("look", {}), ("peek", {})), spawn, calls(("look", {})), "Looked", "Done"]
    agent = an_agent_with(a_pool("pool", log), *script).definition()

    metadata = await run_with_resources(temporal, agent)

    assert (log[0], log[-1]) == ("start pool", "stop pool")
    assert sorted(each for each in log if each.startswith(("pool look", "pool peek"))) == [
        "pool look",
        "pool look",
        "pool peek",
    ]
    names = ("before_step", "before_look", "before_peek", "processor")
    assert [metadata[name] for name in names] == [
        "pool: before step ann",
        "pool: before look ann",
        "pool: before peek ann",
        "pool: processor ann",
    ]


async def test_a_criterion_knows_the_user_and_not_the_metadata(temporal: TemporalClient) -> None:
    """9.9.9: so workflow history contains no text of the request."""
    agent = an_agent("Hi").add_continuation_criteria(serves(user="ann"))
    async with at_work(temporal, agent) as office:
        ended = {}
        for name in ("ann", "bob"):
            execution, result = await office.run(user_id=name, metadata={"plan": "gold"})
            facts = (await progress(execution)).facts
            assert facts.run == RunContext(name, office.client.tenant_id)
            ended[name] = result.stop_reason
    assert ended == {"ann": StopReason.COMPLETED, "bob": StopReason.GUARD}


async def test_without_criteria_of_its_own_the_history_has_no_user(temporal: TemporalClient) -> None:
    """9.9.9"""
    async with at_work(temporal, an_agent("Hi")) as office:
        execution, _ = await office.run(user_id="ann")
        assert (await progress(execution)).facts.run == RunContext()


async def test_a_criterion_of_a_subagent_knows_the_user_of_its_parent(temporal: TemporalClient) -> None:
    """9.9.9, 9.9.3"""
    child = an_agent("Hi").with_name("child").add_continuation_criteria(serves(user="ann")).definition()
    parent = an_agent(*[calls(("ask_child", {})), "Done"] * 2, tools=[StartsChild()])
    async with at_work(temporal, parent, child) as office:
        for name, expected in (("ann", "completed"), ("bob", "guard")):
            execution, _ = await office.run(user_id=name)
            assert (await office.conversation(execution))[2] == expected


class StartsChild:
    """A tool that starts the agent `child`, and reports why it stopped."""

    name, description, schema = "ask_child", "Asks the child.", frozen_map({"type": "object"})
    options = ToolOptions(need=CallNeed.SUBAGENT)

    def spawn(self, args: dict[str, Any], context: Any) -> Spawn:
        del args, context
        return Spawn("child", (user("Go"),))

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        del args
        return str(end.stop_reason)

    def call(self, args: dict[str, Any], context: Any) -> Any:
        raise AssertionError
