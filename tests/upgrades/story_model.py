"""A provider of models, whose answers a test can slow down in the middle.

The first message of a conversation says what the model does: a verb and a name, such as `write a1`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from everstep.runtime.serving import serve_app
from tests.everstep.inference.dialects import Answer, Call, ChatDialect, answer_with_calls

WORDS: Final = 40
SLOW_SECONDS: Final = 1.0
"""Seconds between two words of a story that is held."""


def story(name: str) -> list[str]:
    """The words of the story with this name, as they are streamed."""
    return [f"{name}.{number} " for number in range(WORDS)]


def _call(name: str, turn: int, tool: str, **arguments: Any) -> Call:
    return Call(f"{name}-{turn}", tool, [json.dumps(arguments)])


def _answer(verb: str, name: str, turn: int) -> Answer:
    """The answer of a turn, from 0: the call of the verb's tool, and then a story."""
    calls = {
        "pay": _call(name, turn, "pay", euros=80),
        "ask": _call(name, turn, "user_input", prompt="Which one?"),
        "walk": _call(name, turn, "look", place=name),
        "delegate": _call(name, turn, "spawn_subagent", subagent="helper", prompt=f"write {name}-child"),
    }
    if turn == 0 and verb in calls:
        return answer_with_calls(calls[verb], text=story(f"{name}-first") if verb == "walk" else ())
    return Answer(story(name))


class StoryModel:
    """Answers requests of workers."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.requests = Counter[str]()
        """How often each turn of each story was requested."""
        self._gates = dict[str, asyncio.Event]()
        self._held = Counter[str]()

    def hold(self, *names: str) -> None:
        """Slow the first turns of these stories down in the middle, and do not end them."""
        for name in names:
            self._gates[name] = asyncio.Event()

    def release(self, *names: str) -> None:
        """Let them continue."""
        for name in names:
            self._gates[name].set()

    def is_held(self, name: str) -> bool:
        """Whether a request is in the middle of this story."""
        return self._held[name] > 0

    async def respond(self, request: Request) -> StreamingResponse:
        """Stream the answer to one request."""
        messages = (await request.json())["messages"]
        first = next(each["content"] for each in messages if each["role"] == "user")
        text = first if isinstance(first, str) else first[0]["text"]
        verb, name = text.split()
        turn = sum(each["role"] == "assistant" for each in messages)
        self.requests[f"{name}/{turn}"] += 1
        events = ChatDialect().events(_answer(verb, name, turn))
        return StreamingResponse(self._stream(events, name, turn), media_type="text/event-stream")

    async def _stream(self, events: list[bytes], name: str, turn: int) -> AsyncIterator[bytes]:
        gate = self._gates.get(name) if turn == 0 else None
        for number, event in enumerate(events):
            if gate is None or gate.is_set() or number < WORDS // 2:
                await asyncio.sleep(0.002)
            else:
                self._held[name] += 1
                try:
                    await self._pause(gate, is_last=number >= WORDS - 1)
                finally:
                    self._held[name] -= 1
            yield event

    @staticmethod
    async def _pause(gate: asyncio.Event, *, is_last: bool) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if is_last else SLOW_SECONDS):
                await gate.wait()


@asynccontextmanager
async def open_story_model() -> AsyncGenerator[StoryModel]:
    """A model behind a port."""
    model = StoryModel()
    app = Starlette(routes=[Route("/v1/chat/completions", model.respond, methods=["POST"])])
    async with serve_app(app) as url:
        model.url = url
        yield model
