"""The agent of these tests: the first word of a message selects what it does.

`ask` asks for a day, `wonder` asks why, `form` asks for a form, `fail` is an error. `ask then book` books
afterwards. `book` makes a booking that its owner approves (`book aloud` says so), `refund` pays back what an
approver allows, `wire` what another person allows. `look` describes all attached files, `export NAME` returns
one. It answers any other message at once, and `ponder` after a moment; `spend 0.25` costs that much in
dollars, and `spend` an unknown amount. The chief does the same, and `send A & B` starts subagents for A and
B.
"""

import asyncio
from decimal import Decimal
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.user_input import UseUserInput

SCHEMA = {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]}


QUESTIONS: dict[str, dict[str, Any]] = {
    "ask": {"prompt": "Which day?", "choices": ["Monday", "Friday"]},
    "wonder": {"prompt": "Why?"},
    "form": {"prompt": "How many?", "schema": SCHEMA},
}


class ClerkModel:
    """A model that follows the commands of a message."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        last = request.messages[-1]
        if last.is_tool and (then := _calls_in(request.messages[-3].text.partition(" then ")[2])):
            return calls(*then)
        if last.is_tool:
            return says(f"So be it: {last.text}")
        if last.text == "look":
            files = [file for message in request.messages for file in message.attachments]
            return says(f"You sent: {', '.join(f'{file.name} {file.data!r}' for file in files)}")
        if last.text == "ponder":
            await asyncio.sleep(0.2)
        if last.text == "fail":
            raise ModelError("the model is broken")
        if wanted := _calls_in(last.text):
            aloud = "I look for a room." if last.text == "book aloud" else ""
            on_text(aloud)
            return calls(*wanted, text=aloud)
        if last.text.startswith("spend"):
            _, _, dollars = last.text.partition(" ")
            usage = Usage(input=100, output=20).with_cost(Decimal(dollars) if dollars else None)
            return InferenceResponse("Spent", finish_reason="stop", usage=usage, model="m-1")
        on_text(last.text)
        return says(f"You said: {last.text}")


def _calls_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    word, _, rest = text.partition(" ")
    match word:
        case "ask" | "wonder" | "form":
            return [("user_input", QUESTIONS[word])]
        case "book":
            return [("book", {"hotel": "Harbour Inn"})]
        case "export":
            return [("export", {"name": rest})]
        case "refund" | "wire":
            return [(word, {"euros": 80})]
        case "send":
            return [("spawn_subagent", {"subagent": "aide", "prompt": task}) for task in rest.split(" & ")]
        case _:
            return []


@tool
def book(hotel: str) -> str:
    """Book a room."""
    return f"a room at {hotel}"


@tool
def refund(euros: int) -> str:
    """Pay money back."""
    return f"{euros} euros are paid back"


@tool
def wire(euros: int) -> str:
    """Send money."""
    return f"{euros} euros are on their way"


@tool
def export(name: str, context: ToolContext) -> str:
    """Return a file."""
    context.attach(name, "day;hotel\nFriday;Harbour Inn\n", "text/csv")
    return f"{name} is attached"


def _clerk(name: str, description: str) -> DefinitionBuilder:
    agent = DefinitionBuilder.new().with_name(name, description).with_driver(ToolCallingDriver(ClerkModel()))
    agent = agent.with_tools([book, refund, wire, export]).with_capability(UseUserInput())
    agent = agent.with_approval("book", "always", approver="owner").with_approval("refund", "always")
    return agent.with_approval(
        "wire", "always", approver=["owner", "approve", "role:head of sales"], four_eyes=True
    )


CLERK = _clerk("clerk", "Books rooms")
AIDE = AgentSpec("aide", "Does one thing", "You are an aide.")
CHIEF = _clerk("chief", "Has others book rooms").with_capability(UseSubagents(AgentSpecRegistry([AIDE])))

OTHER = (
    DefinitionBuilder.new()
    .with_name("other", "Says what you say")
    .with_driver(ToolCallingDriver(ClerkModel()))
)

agents = [CLERK, OTHER, CHIEF]
