"""The storm's agent: a message holds a program, and the model plays it turn by turn.

Each model call and each tool run appends a line to the journal of `agents.py`, flushed to disk before it
continues. The journal counts outside the product: the accounts compare it with the answers that clients
received.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import Effect, ToolCall, ToolContext, ToolOptions
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.capabilities.user_input import UseUserInput
from tests.acceptance.agents import note

Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Program:
    """What a model says and calls, turn by turn; after the last turn it gives its answer."""

    token: str
    turns: Sequence[Calls] = field(default_factory=list[Calls])

    def text(self) -> str:
        return json.dumps({"program": self.token, "turns": self.turns})

    @classmethod
    def find(cls, text: str) -> "Program | None":
        if not text.startswith('{"program"'):
            return None
        given = json.loads(text)
        return cls(given["program"], [[(name, args) for name, args in calls] for calls in given["turns"]])

    @property
    def calls(self) -> Calls:
        return [call for calls in self.turns for call in calls]


PLAIN = ("count", "charge", "jot", "stamp", "stumble", "linger")


def draw_program(dice: Random, token: str, *, depth: int = 0) -> Program:
    """A program of one to three turns, each with up to three calls; every call has a unique token."""
    turns: list[Calls] = []
    for turn in range(dice.randint(1, 3)):
        calls: Calls = []
        for place in range(dice.choice((1, 1, 2, 3))):
            mark = f"{token}.{turn}.{place}"
            kind = dice.random()
            if kind < 0.12 and not depth:
                calls.append(("transfer", {"mark": mark}))
            elif kind < 0.22 and not depth:
                calls.append(("user_input", {"prompt": f"What about {mark}?"}))
            elif kind < 0.30 and not depth:
                child = draw_program(dice, f"{mark}c", depth=depth + 1)
                calls.append(("delegate", {"task": child.text()}))
            else:
                calls.append((dice.choice(PLAIN), {"mark": mark}))
        turns.append(calls)
    return Program(token, turns)


class Player:
    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """The next turn, written word by word."""
        conversation = request.messages[request.cached_messages :]
        program, turn = _place(conversation)
        said = [message.text for message in conversation if message.is_user]
        note("asked", program.token, turn=turn, users=said)
        calls = program.turns[turn] if turn < len(program.turns) else []
        text = f"Turn {turn} of {program.token}." if calls else f"{program.token} is done."
        for word in text.split():
            on_text(f"{word} ")
            await asyncio.sleep(0.01)
        note("answered", program.token, turn=turn)
        made = [
            ToolCall(f"{program.token}-{turn}-{n}", name, frozen_map(args))
            for n, (name, args) in enumerate(calls)
        ]
        usage = Usage(input=10, output=len(text))
        return InferenceResponse(
            text if not calls else "", tuple(made), "tool_calls" if calls else "stop", usage
        )


def _place(conversation: Sequence[Message]) -> tuple[Program, int]:
    """Find the latest program and how many of its turns were played."""
    found, played = Program("nothing"), 0
    for message in conversation:
        program = Program.find(message.text) if message.is_user else None
        if program:
            found, played = program, 0
        elif message.is_assistant:
            played += 1
    return found, played


async def _run_tool(name: str, mark: str, context: ToolContext) -> str:
    note("ran", name, mark=mark, execution=str(context.execution_id), key=context.tool_call_id)
    await asyncio.sleep(0.02)
    return f"{name} {mark}"


@tool
async def count(mark: str, context: ToolContext) -> str:
    """Count; a repeated key counts once."""
    return await _run_tool("count", mark, context)


@tool
async def linger(mark: str, context: ToolContext) -> str:
    """Work for a while, so that faults hit a running call."""
    note("lingers", mark)
    await asyncio.sleep(0.8)
    return await _run_tool("linger", mark, context)


@tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
async def charge(mark: str, context: ToolContext) -> str:
    """Charge, at most once."""
    return await _run_tool("charge", mark, context)


@tool(options=ToolOptions(quick=True))
async def jot(mark: str, context: ToolContext) -> str:
    """Add a note, at once."""
    return await _run_tool("jot", mark, context)


@tool(options=ToolOptions(quick=True, effect=Effect.AT_MOST_ONCE))
async def stamp(mark: str, context: ToolContext) -> str:
    """Stamp, at once and at most once."""
    return await _run_tool("stamp", mark, context)


@tool
async def stumble(mark: str, context: ToolContext) -> str:
    """Fail after the work."""
    await _run_tool("stumble", mark, context)
    raise ValueError(f"stumbled over {mark}")


@tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE))
async def transfer(mark: str, context: ToolContext) -> str:
    """Transfer, once a person approves."""
    return await _run_tool("transfer", mark, context)


class Delegate:
    """Gives a program to a subagent."""

    name = "delegate"
    description = "Give a program to a subagent."
    schema: FrozenDict = frozen_map(
        {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
    )
    options = ToolOptions(need=CallNeed.SUBAGENT)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        raise AssertionError(args, context)

    def spawn(self, args: Mapping[str, Any], context: ToolContext) -> Spawn:
        del context
        return Spawn("player", (user(args["task"]),))

    def report(self, args: Mapping[str, Any], end: ChildEnd) -> str:
        del args
        return f"{end.status}: {end.response}"


AT_MOST_ONCE = frozenset({"charge", "stamp", "transfer"})

agents = [
    DefinitionBuilder.new()
    .with_name("player", "Plays programs")
    .with_tools([count, linger, charge, jot, stamp, stumble, transfer, Delegate()])
    .with_capability(UseUserInput())
    .with_approval("transfer", "always")
    .with_error_policy(ErrorPolicy.ignore_tool_errors())
    .with_driver(ToolCallingDriver(Player()))
]
