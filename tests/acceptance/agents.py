"""The agents of the acceptance tests, as worker processes load them.

They record their actions in the worker's folder, one line each and flushed to disk before they continue, so
that the actions of a killed worker can be counted. They also report where they are (`at`): there a failpoint
can be armed (`EVERSTEP_TEST_FUSE`), once per folder, and this worker can be held until the test opens the
gates (`EVERSTEP_TEST_GATES`, each for all executions or for those of one message).
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import Model, OnText, ToolCallingDriver
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.inference.scripted import (
    Pace,
    Scenario,
    ScenarioModel,
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedTurn,
)

FOLDER = Path(os.environ.get("EVERSTEP_TEST_FOLDER", "."))
FUSE = os.environ.get("EVERSTEP_TEST_FUSE")
GATES = frozenset(os.environ.get("EVERSTEP_TEST_GATES", "").split(";"))

JOURNAL, ARMED, SPENT, OPEN = "journal", "armed", "spent", "open"
"""Files in the folder: the journal; the failpoint's flag; the mark that it was armed before; the open gates.
"""


def note(event: str, where: str, **told: Any) -> None:
    """Append a line to the journal."""
    line = json.dumps({"event": event, "where": where, "pid": os.getpid(), **told}) + "\n"
    journal = os.open(FOLDER / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(journal, line.encode())
    finally:
        os.close(journal)


def spark(where: str) -> None:
    """Arm the failpoint if this is its place and it was never armed before."""
    if where != FUSE:
        return
    try:
        (FOLDER / SPENT).touch(exist_ok=False)
    except FileExistsError:
        return
    (FOLDER / ARMED).touch()


async def at(where: str, about: str = "") -> None:
    """Mark a place: fires the failpoint and waits at the gate, if there is one."""
    spark(where)
    if GATES & {where, f"{about}: {where}"}:
        note("waiting", where, about=about)
        while not (FOLDER / OPEN).exists():  # noqa: ASYNC110 -- there is no signal between processes
            await asyncio.sleep(0.02)


class WitnessedModel:
    """A model whose requests and complete replies are journalled."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        conversation = request.messages[request.cached_messages :]
        turn = sum(message.is_assistant for message in conversation) + 1
        about, pieces = conversation[0].text, 0

        def on_piece(text: str) -> None:
            nonlocal pieces
            pieces += 1
            spark(f"turn {turn}, piece {pieces}")
            on_text(text)

        note("asked", f"turn {turn}", about=about, last=conversation[-1].text)
        await at(f"turn {turn}", about)
        response = await self.model.respond(request, on_piece)
        note("answered", f"turn {turn}", about=about)
        spark(f"turn {turn} answered")
        return response


async def _run_tool(context: ToolContext, name: str, result: str) -> str:
    note("ran", name, execution=str(context.execution_id), key=context.tool_call_id)
    await at(f"{name} ran")
    return result


@tool
async def look_up(city: str, context: ToolContext) -> str:
    """Look up hotels in a city."""
    return await _run_tool(context, "look_up", f"Hotel de la Gare in {city}")


@tool
async def book(hotel: str, context: ToolContext) -> str:
    """Book a room; booking it again under the same key books it once."""
    return await _run_tool(context, "book", f"booked {hotel}")


@tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
async def pay(euros: int, context: ToolContext) -> str:
    """Pay."""
    return await _run_tool(context, "pay", f"paid {euros}")


@tool(options=ToolOptions(quick=True))
async def jot(text: str, context: ToolContext) -> str:
    """Jot something down."""
    return await _run_tool(context, "jot", f"jotted {text}")


@tool(options=ToolOptions(quick=True, effect=Effect.AT_MOST_ONCE))
async def ring(times: int, context: ToolContext) -> str:
    """Ring a bell."""
    return await _run_tool(context, "ring", f"rang {times} times")


@tool(options=ToolOptions(need=CallNeed.INPUT))
async def ask(prompt: str, choices: list[str]) -> str:
    """Ask the user."""
    raise AssertionError(prompt, choices)


class Delegate:
    """Hands a task to another clerk."""

    name = "delegate"
    description = "Hand a task over to a clerk."
    schema: FrozenDict = frozen_map(
        {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
    )
    options = ToolOptions(need=CallNeed.SUBAGENT)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        raise AssertionError(args, context)

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn:
        del context
        return Spawn("clerk", (user(args["task"]),))

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        del args
        return f"{end.status}: {end.response}"


def _turns(name: str, **args: Any) -> tuple[ScriptedTurn, ...]:
    """Look something up, then make this call, then write a slow reply."""
    return (
        ScriptedTurn(
            text="Let me see.",
            calls=(ScriptedCall(name="look_up", args={"city": "Paris"}),),
            usage=Usage(input=10, output=5),
        ),
        ScriptedTurn(calls=(ScriptedCall(name=name, args=args),), usage=Usage(input=20, output=3)),
        ScriptedTurn(
            text="Your room in the Hotel de la Gare is ready.",
            usage=Usage(input=30, output=7, reasoning=2),
            pace=Pace(characters=4, seconds=0.01),
        ),
    )


SCRIPT = Script(
    scenarios=(
        Scenario(when="book", turns=_turns("book", hotel="Hotel de la Gare")),
        Scenario(when="pay", turns=_turns("pay", euros=80)),
        Scenario(when="approve", turns=_turns("transfer", euros=80)),
        Scenario(when="jot", turns=_turns("jot", text="Gare")),
        Scenario(when="ring", turns=_turns("ring", times=2)),
        Scenario(when="delegate", turns=_turns("delegate", task="book")),
        Scenario(when="refuse", turns=(ScriptedTurn(error=ScriptedError(type="refused", times=None)),)),
        Scenario(when="ask", turns=_turns("ask", prompt="Which floor?", choices=["high", "low"])),
    )
)


@tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
async def transfer(euros: int, context: ToolContext) -> str:
    """Pay, after a person's approval."""
    return await _run_tool(context, "transfer", f"transferred {euros}")


def _agent(name: str, policy: ErrorPolicy) -> DefinitionBuilder:
    return (
        DefinitionBuilder.base()
        .with_name(name, "Books hotels")
        .with_system_prompt("You book hotels.")
        .with_tools([look_up, book, pay, transfer, jot, ring, ask, Delegate()])
        .with_approval("transfer", "always")
        .with_error_policy(policy)
        .with_driver(ToolCallingDriver(WitnessedModel(ScenarioModel(SCRIPT))))
    )


agents = [
    # Continues when a tool fails, and reads the reason.
    _agent("clerk", ErrorPolicy.ignore_tool_errors()),
    # Stops at any failure.
    _agent("novice", ErrorPolicy()),
    # Its model calls begin in the worker that runs the workflow.
    _agent("sprinter", ErrorPolicy.ignore_tool_errors()).with_profile("burst"),
]
