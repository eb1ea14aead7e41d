"""An agent that asks which day, and books only what a person approves. It follows a script and needs no keys.

everstep --agents examples.travel_desk:agents up
"""

from everstep import AgentBuilder, ToolCallingDriver, UseUserInput, tool
from everstep.inference.scripted import ScenarioModel, Script

SCRIPT = Script.from_yaml("""
turns:
  - text: I need to know the day.
    calls: [{name: user_input, args: {prompt: "Which day suits you?", choices: [Thursday, Friday]}}]
  - text: The 8:25 is free.
    calls: [{name: book_train, args: {train: "8:25 to Bergen"}}]
  - text: Your train to Bergen is booked.
""")


@tool
def book_train(train: str) -> str:
    """Book a seat."""
    return f"seat 12 in the {train}"


agents = [
    AgentBuilder.base()
    .with_name("travel-desk", "Books trains")
    .with_capability(UseUserInput())
    .with_tools([book_train])
    # The traveller decides about the own booking, and so does a service that has a Temporal client only.
    .with_approval("book_train", "always", approver=["owner", "role:temporal"])
    .with_driver(ToolCallingDriver(ScenarioModel(SCRIPT)))
]
