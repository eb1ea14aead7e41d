"""An agent that writes stories, and sometimes breaks off in the middle of a sentence.

Each attempt writes its own numbered words, so that text that is missing, repeated or of another attempt is
noticed. Model calls, breaks, replies and tool runs are journalled as in `agents.py`.
"""

import os
from random import Random
from uuid import uuid4

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.errors import ModelUnavailable
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.inference.scripted import (
    Pace,
    Scenario,
    ScenarioModel,
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedTurn,
)
from tests.acceptance.agents import note

ABORTED = float(os.environ.get("EVERSTEP_TEST_ABORTED", "0"))
"""The share of attempts that break off."""

STEPS = 4
WORDS, MANY = 60, 10_000


def is_long(about: str) -> bool:
    """Every fourth story takes long to end."""
    return int(about.rpartition(" ")[2]) % 4 == 0


def words(about: str, turn: int, nonce: str) -> str:
    """The text of one attempt."""
    count = MANY if turn == STEPS and is_long(about) else WORDS
    return " ".join(f"{nonce}·{turn}·{number}" for number in range(count))


CALLS = {
    1: ("weigh",),
    2: ("weigh", "pay", "jot"),
    3: ("pay",),
    4: (),
}
"""The tools that each turn calls."""


def script(about: str, turn: int) -> Script:
    """The reply of a turn, in words that occur in no other attempt."""
    dice = Random(uuid4().hex)  # noqa: S311 -- no secret
    text = words(about, turn, f"{dice.getrandbits(24):06x}")
    error = None
    if dice.random() < ABORTED:
        error = ScriptedError(type="unavailable", after=dice.randrange(1, len(text)))
    calls = tuple(ScriptedCall(name=name, args={"what": f"{about} {turn}"}) for name in CALLS[turn])
    size = len(text) // WORDS
    pace = Pace(characters=size, seconds=dice.uniform(0.005, 0.02))
    return Script(
        scenarios=(Scenario(turns=(ScriptedTurn(text=text, calls=calls, pace=pace, error=error),)),)
    )


class Teller:
    """Replies to the latest message of a conversation, turn by turn."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """The next turn, unless it breaks off."""
        conversation = request.messages[request.cached_messages :]
        asked = max(index for index, message in enumerate(conversation) if message.is_user)
        turn = sum(message.is_assistant for message in conversation[asked:]) + 1
        about = conversation[asked].text
        where = f"{about}, turn {turn}"
        note("asked", where)
        try:
            response = await ScenarioModel(script(about, turn)).respond(request, on_text)
        except ModelUnavailable:
            note("aborted", where)
            raise
        note("answered", where)
        return response


def _done(context: ToolContext, name: str) -> str:
    note("ran", name, execution=str(context.execution_id), key=context.tool_call_id)
    return f"{name}: done"


@tool
async def weigh(what: str, context: ToolContext) -> str:
    """Weigh something, any number of times."""
    del what
    return _done(context, "weigh")


@tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
async def pay(what: str, context: ToolContext) -> str:
    """Pay for something, at most once."""
    del what
    return _done(context, "pay")


@tool(options=ToolOptions(quick=True))
async def jot(what: str, context: ToolContext) -> str:
    """Jot something down."""
    del what
    return _done(context, "jot")


agents = [
    DefinitionBuilder.base()
    .with_name("teller", "Tells stories")
    .with_tools([weigh, pay, jot])
    .with_max_retries(50)
    .with_timeout(3600)
    .with_error_policy(ErrorPolicy.ignore_tool_errors())
    .with_driver(ToolCallingDriver(Teller()))
]
