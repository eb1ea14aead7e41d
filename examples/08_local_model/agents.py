"""A shop whose agents ask the small model of this machine."""

from collections.abc import AsyncIterator
from typing import Annotated

from everstep import AgentBuilder, ErrorPolicy, ToolContext, resource, tool


class Orders:
    """The shop's orders, by customer and number."""

    def __init__(self) -> None:
        self.rows = {("ann", 7): "a kettle for 42 euros", ("bob", 8): "a bicycle for 300 euros"}


@resource
async def orders() -> AsyncIterator[Orders]:
    """Connect to the shop's database."""
    yield Orders()


@tool
def read_order(number: int, orders: Annotated[Orders, orders], context: ToolContext) -> str:
    """Read an order of the customer."""
    return orders.rows.get((context.user_id or "", number), "There is no such order")


@tool
def refund_order(number: int) -> str:
    """Pay an order back."""
    return f"Order {number} is paid back"


FRIEND = "You are a friend. Answer in one short sentence."


def desk(name: str, prompt: str, model: str = "local") -> AgentBuilder:
    """An agent that asks the local model, with patience for a busy machine."""
    builder = AgentBuilder.base().with_name(name).with_model(model).with_system_prompt(prompt)
    return builder.with_timeout(900).with_error_policy(ErrorPolicy.retry_tool_errors())


agents = [
    desk("order-desk", "You are the order desk of a shop. Be brief.").with_tools([read_order]),
    desk("refund-desk", "You are the refund desk of a shop. Be brief.")
    .with_tools([refund_order])
    .with_approval("refund_order", "always"),
    desk("friend", FRIEND),
    desk("old-friend", FRIEND, model="small"),
]
