"""A support desk with three tools. `everstep.toml` names its model."""

from everstep import AgentBuilder, ToolContext, UseUserInput, tool


@tool
def find_order(number: int) -> dict[str, object]:
    """Look up an order."""
    return {"number": number, "item": "a kettle", "price": 42}


@tool
def track_parcel(number: int) -> str:
    """Look up where the parcel of an order is."""
    return f"The parcel of order {number} was lost in Hamburg."


@tool
def refund(number: int, amount: int, context: ToolContext) -> str:
    """Pay an order back."""
    # Give your payment service `context.tool_call_id` as its idempotency key: each attempt has the same.
    return f"{amount} euros are paid back for order {number}"


agents = [
    AgentBuilder.base()
    .with_name("support-desk", "Finds orders and pays them back")
    .with_system_prompt("You work at a support desk. Ask before you pay an order back.")
    .with_tools([find_order, track_parcel, refund])
    .with_capability(UseUserInput())
    .with_approval("refund", "always")
]
