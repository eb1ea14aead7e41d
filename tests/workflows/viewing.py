"""A viewer of an execution, and a model that writes for it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.stream.bus import Frame, TextChunk
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.testing import says
from everstep.streams.memory_bus import MemoryBus, StreamListener
from tests.workflows.harness import DEADLINE

BEGINNINGS = {"agent.step.started", "agent.attempt.superseded"}


class Viewer:
    """Keeps events in the order in which they arrive."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._changed = asyncio.Condition()

    async def watch(self, listener: StreamListener) -> None:
        async for frame in listener:
            self.frames.append(frame)
            async with self._changed:
                self._changed.notify_all()

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(met)

    async def until_over(self) -> None:
        """Wait until the execution has ended."""
        await self.until(lambda: self.in_words[-1] in {"status completed", "status failed", "status stopped"})

    @property
    def envelopes(self) -> list[StoredEnvelope]:
        return [frame for frame in self.frames if isinstance(frame, StoredEnvelope)]

    @property
    def chunks(self) -> list[TextChunk]:
        return [frame for frame in self.frames if isinstance(frame, TextChunk)]

    @property
    def beginnings(self) -> int:
        return sum(envelope.type in BEGINNINGS for envelope in self.envelopes)

    @property
    def in_words(self) -> list[str]:
        """The events, in words."""
        return [_in_words(frame) for frame in self.frames]


def _in_words(frame: Frame) -> str:
    if isinstance(frame, TextChunk):
        return f"{frame.attempt.step_number}.{frame.attempt.number}#{frame.index} {frame.content or '(end)'}"
    payload, kind = frame.payload, frame.type.removeprefix("agent.")
    match kind:
        case "status":
            return f"status {payload['status']}" + (f": {payload['detail']}" if payload.get("detail") else "")
        case "attempt.superseded":
            return f"superseded {payload['step_number']}.{payload['attempt']} by {payload['next_attempt']}"
        case "step.started" | "step.completed" | "continuation":
            return f"{kind} {payload['step_number']}"
        case _:
            return kind


@asynccontextmanager
async def viewing(bus: MemoryBus, stream_id: UUID) -> AsyncGenerator[Viewer]:
    """Watch a stream for the time of the block."""
    viewer = Viewer()
    with bus.open_listener(stream_id) as listener:
        watching = asyncio.create_task(viewer.watch(listener))
        try:
            yield viewer
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


class Speaker:
    """Replies in pieces: the first once its attempt has begun, each once the previous one was seen."""

    def __init__(self, *script: Sequence[str] | InferenceResponse | Exception) -> None:
        self.script = script
        self.asked = self.silent = 0
        self.viewer = Viewer()
        self.fails: dict[int, Exception] = {}
        """The error that ends a request, by its number."""
        self.ears: list[OnText] = []
        self.is_seen = True
        """Whether its text is published; otherwise it does not wait for a viewer between pieces."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request
        self.asked += 1
        self.ears.append(on_text)
        number, entry = self.asked, self.script[min(self.asked, len(self.script)) - 1]
        if isinstance(entry, Exception):
            self.silent += 1
            raise entry
        pieces = ([entry.text] if entry.text else []) if isinstance(entry, InferenceResponse) else entry
        if self.is_seen:
            await self.viewer.until(lambda: self.viewer.beginnings + self.silent >= number)
        for piece in pieces:
            seen = len(self.viewer.chunks)
            on_text(piece)
            # Between two pieces models wait for their provider.
            await asyncio.sleep(0)
            if self.is_seen:
                await self._until_seen(seen)
        if error := self.fails.get(number):
            raise error
        return entry if isinstance(entry, InferenceResponse) else says("".join(entry))

    async def _until_seen(self, seen: int) -> None:
        await self.viewer.until(lambda: len(self.viewer.chunks) > seen)
