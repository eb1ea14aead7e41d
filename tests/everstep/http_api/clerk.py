"""The agent of these tests: what it does is said by whoever talks to it.

`ask` asks which day, `wonder` why, `form` asks for a form, `book` wants to book and needs approval; anything
else is answered at once.
"""

from agent_domain.builder import AgentBuilder
from agent_domain.cached_context import InferenceRequest
from agent_domain.drivers import OnText, ToolCallingDriver
from agent_domain.function_tool import tool
from agent_domain.steps import InferenceResponse
from agent_domain.testing import calls, says
from everstep.capabilities.user_input import UseUserInput

SCHEMA = {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]}


class Clerk:
    """A model that does as it is told."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        last = request.messages[-1]
        if last.is_tool:
            return says(f"So be it: {last.text}")
        match last.text.split(" ")[0]:
            case "ask":
                return calls(("user_input", {"prompt": "Which day?", "choices": ["Monday", "Friday"]}))
            case "wonder":
                return calls(("user_input", {"prompt": "Why?"}))
            case "form":
                return calls(("user_input", {"prompt": "How many?", "schema": SCHEMA}))
            case "book":
                return calls(("book", {"hotel": "Harbour Inn"}))
            case _:
                on_text(last.text)
                return says(f"You said: {last.text}")


@tool
def book(hotel: str) -> str:
    """Book a room."""
    return f"a room at {hotel}"


CLERK = (
    AgentBuilder.new()
    .with_name("clerk", "Books rooms")
    .with_driver(ToolCallingDriver(Clerk()))
    .with_tools([book])
    .with_approval("book", "always")
    .with_capability(UseUserInput())
)

OTHER = AgentBuilder.new().with_name("other", "Says what you say").with_driver(ToolCallingDriver(Clerk()))

agents = [CLERK, OTHER]
