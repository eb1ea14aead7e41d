"""The agents of the installation that is upgraded; both releases load this file.

It uses only what both releases document, and its model is the test's, so that both write the same stories.
"""

import os

from everstep import (
    AgentBuilder,
    AgentRegistry,
    AgentSpec,
    SubagentPolicy,
    UseSubagents,
    UseUserInput,
    tool,
)

MODEL = f"openai-chat:m@{os.environ['STORY_MODEL_URL']}/v1"


@tool
def pay(euros: int) -> str:
    """Pay an invoice."""
    return f"paid {euros}"


@tool
def look(place: str) -> str:
    """Look around."""
    return f"{place} is quiet"


HELPER = AgentSpec(name="helper", description="Writes stories", system_prompt="Write a story.")

agents = [
    AgentBuilder.base()
    .with_name("clerk", "Writes stories")
    .with_model(MODEL)
    .with_capability(UseUserInput())
    .with_capability(UseSubagents(AgentRegistry([HELPER]), SubagentPolicy()))
    .with_tools([pay, look])
    .with_approval("pay", "always", approver=["owner"])
]
