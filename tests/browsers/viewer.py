"""A viewer in node: with our client for browsers, or with a script's own client."""

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.browsers.scripted_gateway import CHANNEL, DEADLINE
from tests.node import installed_modules, node

HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "everstep" / "http_api" / "static" / "everstep-client.js"
LOCK = HERE / "node"


def as_module(folder: Path) -> Path:
    """The client under a name that every version of node treats as a module."""
    return Path(shutil.copy(CLIENT, folder / "everstep-client.mjs"))


class Viewer:
    """The viewer's events, and its commands."""

    def __init__(self, process: Process, url: str) -> None:
        self.url = url
        self.said: list[dict[str, Any]] = []
        self.has_left = False
        self._process = process
        self._more = asyncio.Condition()

    async def listen(self) -> None:
        """Record everything that the client reports."""
        assert self._process.stdout
        async for line in self._process.stdout:
            async with self._more:
                self.said.append(json.loads(line))
                self._more.notify_all()
        async with self._more:
            self.has_left = True
            self._more.notify_all()

    def command(self, what: str, **given: Any) -> None:
        """Run one of the commands of `viewer.mjs`."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"does": what, **given}).encode() + b"\n")

    def connect(
        self, tokens: str | list[str | None] = "a-token", *, builtin: bool = False, **options: Any
    ) -> None:
        """Connect to the gateway; a list of tokens is returned by a function, one after the other."""
        self.command(
            "connect",
            options={"url": self.url.removesuffix("/v1"), "retryMin": 0.02} | options,
            tokens=tokens,
            builtin=builtin,
        )

    def watch(self, since: Any = None, *, channel: str = CHANNEL, fails: str | None = None) -> None:
        """Subscribe to a channel."""
        self.command("subscribe", channel=channel, since=since, fails=fails)

    def events_of(self, kind: str, channel: str | None = CHANNEL) -> list[Any]:
        """All events of this kind; without a channel, those of the connection."""
        return [each["value"] for each in self.said if (each["kind"], each["channel"]) == (kind, channel)]

    async def until(
        self, kind: str, number: int = 1, channel: str | None = CHANNEL, *, seconds: float = DEADLINE
    ) -> list[Any]:
        """Wait for this many events of a kind."""
        return await self.until_true(
            lambda: len(self.events_of(kind, channel)) >= number and self.events_of(kind, channel),
            seconds=seconds,
        )

    async def until_true(self, what: Callable[[], Any], *, seconds: float = DEADLINE) -> Any:
        """Wait until a condition on the events holds."""
        async with asyncio.timeout(seconds), self._more:
            await self._more.wait_for(lambda: self.has_left or what())
        assert not self.has_left, "the viewer is gone; what it complained about follows"
        return what()

    async def query(self, what: str, channel: str | None = CHANNEL) -> Any:
        """The result of a command."""
        before = len(self.events_of(what, channel))
        self.command(what, channel=channel)
        return (await self.until(what, before + 1, channel))[-1]

    async def is_idle(self) -> None:
        """Wait until nothing is pending."""
        async with asyncio.timeout(DEADLINE):
            while await self.query("timers", None):
                pass

    @property
    def seqs(self) -> list[int]:
        """The numbers of the stored envelopes that it received."""
        return [each["seq"] for each in self.events_of("event")]

    @property
    def texts(self) -> list[str]:
        """The text, each time it changed."""
        return [each["content"] for each in self.events_of("text")]


def viewer(url: str, folder: Path) -> AbstractAsyncContextManager[Viewer]:
    """A viewer with our client that has not connected yet."""
    return in_node(
        HERE / "viewer.mjs", as_module(folder), installed_modules(LOCK) / "ws" / "wrapper.mjs", url=url
    )


@asynccontextmanager
async def in_node(script: Path, *arguments: Path | str, url: str = "") -> AsyncGenerator[Viewer]:
    """A process that takes commands and reports as `viewer.mjs` does, and has not connected yet."""
    process = await asyncio.create_subprocess_exec(
        node(), script, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    client = Viewer(process, url)
    listening = asyncio.create_task(client.listen())
    try:
        await client.until("ready", 1, None)
        yield client
    finally:
        assert process.stdin
        assert process.stderr
        process.stdin.close()
        async with asyncio.timeout(DEADLINE):
            complaints = (await process.stderr.read()).decode()
            await process.wait()
            await listening
    assert not complaints
