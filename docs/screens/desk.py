"""The agent of the screens in docs/terminal.md, with a script as its model: see docs/screens.py."""

import asyncio

from everstep import (
    AgentBuilder,
    ErrorPolicy,
    ScenarioModel,
    Script,
    ToolCallingDriver,
    ToolContext,
    UseUserInput,
    tool,
)

SCRIPT = Script.from_yaml("""
scenarios:
  - when: A-1007
    turns:
      - text: I look at the order and at the parcel first.
        calls: [{name: find_order, args: {number: A-1007}}, {name: track, args: {parcel: "00340"}}]
        usage: {input: 812, output: 64}
        pace: {seconds: 1.2}
      - text: The parcel is lost, so the customer gets the money back.
        calls: [{name: refund, args: {order: A-1007, euros: 19.9, reason: the parcel is lost}}]
        usage: {input: 1130, output: 58}
        pace: {seconds: 0.8}
      - text: The customer gets 19.90 euros back within three days.
        usage: {input: 1290, output: 31}
        pace: {seconds: 0.6}
  - when: train
    turns:
      - text: I need to know the day.
        calls: [{name: user_input, args: {prompt: "Which day suits you?", choices: [Thursday, Friday]}}]
        usage: {input: 512, output: 22}
      - text: Your train is booked.
        usage: {input: 560, output: 12}
  - when: stock
    turns:
      - calls: [{name: count_stock, args: {article: tent}}]
        usage: {input: 401, output: 15}
      - text: The warehouse does not answer. Please try again later.
        usage: {input: 467, output: 20}
""")


@tool
async def find_order(number: str) -> dict[str, object]:
    """Find an order."""
    await asyncio.sleep(0.8)
    return {"number": number, "customer": "Ann", "items": ["tent", "lamp"], "euros": 19.9}


@tool
async def track(parcel: str, context: ToolContext) -> str:
    """Ask the carrier for a parcel."""
    for part in range(4):
        context.progress(f"office {part + 1} of 4", part / 4)
        await asyncio.sleep(0.5)
    return f"{parcel}: lost in Bergen on 14 January"


@tool
async def refund(order: str, euros: float, reason: str) -> str:
    """Pay money back."""
    await asyncio.sleep(0.4)
    return f"refunded {euros:.2f} euros of {order}: {reason}"


@tool
async def count_stock(article: str) -> int:
    """Count what is in stock."""
    await asyncio.sleep(0.3)
    raise ConnectionError(f"the warehouse does not answer for {article}")


agents = [
    AgentBuilder.base()
    .with_name("desk", "Helps customers")
    .with_tools([find_order, track, refund, count_stock])
    .with_approval("refund", "always")
    .with_capability(UseUserInput())
    .with_error_policy(ErrorPolicy.retry_tool_errors())
    .with_driver(ToolCallingDriver(ScenarioModel(SCRIPT))),
]
