"""An agent that plans a day out, slowly enough to watch. It follows a script and needs no keys."""

import asyncio
from pathlib import Path

from everstep import AgentBuilder, ToolCallingDriver, tool
from everstep.inference.scripted import ScenarioModel, Script

SCRIPT = Script.load(Path(__file__).parent / "guide.yaml")


@tool
async def forecast(city: str) -> str:
    """Get the weather forecast for tomorrow."""
    await asyncio.sleep(1)
    return f"{city}: dry until noon, then rain, 14 degrees"


@tool
async def find_train(origin: str, destination: str) -> str:
    """Find a train."""
    await asyncio.sleep(1.5)
    return f"{origin} to {destination}: 08:25, 12:03, 15:43"


@tool
async def book_table(place: str, time: str) -> str:
    """Book a table for two."""
    await asyncio.sleep(1)
    return f"a table for two at the {place}, {time}"


agents = [
    AgentBuilder.base()
    .with_name("guide", "Plans days out")
    .with_tools([forecast, find_train, book_table])
    .with_driver(ToolCallingDriver(ScenarioModel(SCRIPT)))
]
