"""The agent of the recorded run in `runs`, with what a test changes about it."""

from pathlib import Path
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.function_tool import tool

RUN = Path(__file__).parent / "runs" / "desk_0f804d81.json"


def find_order(number: int) -> dict[str, Any]:
    """Find an order by its number."""
    raise NotImplementedError(number)


def refund(number: int, amount: float) -> str:
    """Pay the price of an order back."""
    raise NotImplementedError(number, amount)


def a_desk(
    prompt: str = "You help the customers of a shop.", *, refund_tool: Any = None
) -> DefinitionBuilder:
    """The agent as it was, without a model."""
    tools = [tool(find_order), refund_tool or tool(refund)]
    agent = DefinitionBuilder.base().with_name("desk").with_system_prompt(prompt).with_tools(tools)
    agent = agent.with_approval("refund", "always").with_error_policy(ErrorPolicy.retry_tool_errors())
    return agent.with_driver(ToolCallingDriver())


def another_refund(*names: str) -> MockTool:
    """A tool with other parameters."""
    properties = {name: {"type": "string"} for name in names}
    return MockTool(
        "refund", "Pay the price of an order back.", schema={"type": "object", "properties": properties}
    )
