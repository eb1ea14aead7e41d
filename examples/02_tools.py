"""An agent that uses tools, and a trace that shows its work and why it stopped. Needs no keys.

The model is a script, so that this runs anywhere. Everything else is real: the loop, the tools, the limits,
the error policy, and the votes that decide whether another step follows.
"""

import asyncio

from everstep import (
    AgentBuilder,
    ErrorPolicy,
    ScriptedModel,
    ToolCallingDriver,
    ToolFailed,
    Trace,
    Usage,
    calls,
    says,
    tool,
)

TEMPERATURES = {"Oslo": -4, "Rome": 17}


@tool
async def temperature(city: str) -> int:
    """Look up today's temperature of a city.

    Args:
        city: Its English name.
    """
    await asyncio.sleep(0.02)  # a service takes a while; calls of one step run at the same time
    if city not in TEMPERATURES:
        raise ToolFailed(f"No station in {city}. Known: {', '.join(TEMPERATURES)}")
    return TEMPERATURES[city]


@tool
def difference(a: float, b: float) -> float:
    """Subtract the smaller of two numbers from the larger."""
    return abs(a - b)


model = ScriptedModel(
    calls(("temperature", {"city": "Oslo"}), ("temperature", {"city": "Roma"}), usage=Usage(210, 34)),
    calls(("temperature", {"city": "Rome"}), text="Roma is not known, I try Rome.", usage=Usage(290, 21)),
    calls(("difference", {"a": -4, "b": 17}), usage=Usage(330, 18)),
    says("Rome is 21 degrees warmer than Oslo today.", usage=Usage(360, 14)),
)

agent = (
    AgentBuilder.base()
    .with_system_prompt("You compare the weather of cities.")
    .with_tools([temperature, difference])
    .with_error_policy(ErrorPolicy.retry_tool_errors())
    .with_driver(ToolCallingDriver(model))
    .build()
)

print("Question: How much warmer is Rome than Oslo?\n")
state = agent.wiretap(Trace(print)).run("How much warmer is Rome than Oslo?")
print(f"\nAnswer:   {state.final_response}")
