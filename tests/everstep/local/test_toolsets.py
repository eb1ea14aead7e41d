"""Toolsets in-process: listed once; then their tools are like any other."""

from everstep import AgentBuilder, ErrorPolicy, ScriptedModel, ToolCallingDriver, calls
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool
from tests.toolsets import FakeToolset


def an_agent(shelf: FakeToolset, *script: object, **more: object) -> AgentBuilder:
    model = ScriptedModel(*script)  # pyright: ignore[reportArgumentType] -- turns of a script
    return AgentBuilder.base().with_driver(ToolCallingDriver(model)).with_toolset(shelf)


def descriptions_in(state: AgentState) -> list[str]:
    return [message.text for message in state.messages if message.is_tool]


def test_its_tools_are_called_like_any_other() -> None:
    """9.10.1: the model gets their definitions, and they are listed once."""
    shelf = FakeToolset({"fetch": lambda args, context: f"fetched for {context.tenant_id}"})
    agent = an_agent(shelf, calls(("fetch", {})), "Done", calls(("fetch", {})), "Again").build()

    first, second = agent.run("Go"), agent.run("Go")

    assert descriptions_in(first) == descriptions_in(second) == ["fetched for default"]
    assert len(shelf.askers) == 1


def test_a_tool_of_the_agent_takes_precedence() -> None:
    """9.10.1"""
    shelf = FakeToolset({"fetch": lambda _args, _context: "theirs"})
    agent = an_agent(shelf, calls(("fetch", {})), "Done").with_tools(
        [MockTool.returning("fetch", "", "ours")]
    )

    assert descriptions_in(agent.build().run("Go")) == ["ours"]


def test_a_toolset_that_cannot_be_listed_fails_the_step() -> None:
    """9.10.1, 4.5.4: and is listed again, if the error policy retries."""
    shelf = FakeToolset({}, fails=InvalidInput("the server is gone"))

    state = an_agent(shelf, "Done").with_error_policy(ErrorPolicy.retry_all(2)).build().run("Go")

    assert (state.status, state.steps[-1].errors_as_text) == (AgentStatus.FAILED, "the server is gone")
    assert len(shelf.askers) > 1
