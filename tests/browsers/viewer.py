"""A viewer in node: with our client for browsers, or with a script's own client."""

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterable, Callable
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

    def __init__(self, write: Callable[[bytes], Any], url: str = "") -> None:
        self.url = url
        self.said: list[dict[str, Any]] = []
        self.has_left = False
        self._write = write
        self._more = asyncio.Condition()

    async def listen(self, lines: AsyncIterable[bytes]) -> None:
        """Record everything that the client reports."""
        async for line in lines:
            async with self._more:
                self.said.append(json.loads(line))
                self._more.notify_all()
        async with self._more:
            self.has_left = True
            self._more.notify_all()

    def command(self, what: str, **given: Any) -> None:
        """Run one of the commands of `viewer.mjs`."""
        self._write(json.dumps({"does": what, **given}).encode() + b"\n")

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
    assert process.stdin
    assert process.stdout
    client = Viewer(process.stdin.write, url)
    listening = asyncio.create_task(client.listen(process.stdout))
    try:
        await client.until("ready", 1, None)
        yield client
    finally:
        assert process.stderr
        process.stdin.close()
        async with asyncio.timeout(DEADLINE):
            complaints = (await process.stderr.read()).decode()
            await process.wait()
            await listening
    assert not complaints


class SharedNode:
    """A process as of `in_node` for the tests of a file, one after the other: its imports take CPU time.

    Its script counts the commands that run, and a process that a test leaves at work is replaced.
    """

    def __init__(self, script: Path, *arguments: Path | str) -> None:
        self._command = (node(), script, *arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        """The begin of a line whose end has not been read."""

    @asynccontextmanager
    async def open_viewer(self) -> AsyncGenerator[Viewer]:
        """A viewer for one test, in its event loop."""
        is_new = self._process is None
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        client = Viewer(process.stdin.write)
        loop.add_reader(process.stdout, self._read, process, lines)
        listening = asyncio.create_task(client.listen(_until_none(lines)))
        is_idle = False
        try:
            if is_new:
                await client.until("ready", 1, None)
            yield client
            is_idle = await client.query("running", None) == 0
        finally:
            loop.remove_reader(process.stdout)
            lines.put_nowait(None)
            await listening
            if not is_idle:
                self.close()

    def close(self) -> None:
        """End the process, which has written nothing to stderr."""
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return
        with process:
            _, complaints = process.communicate(timeout=DEADLINE)
        assert not complaints.decode()

    def _start(self) -> subprocess.Popen[bytes]:
        # Unbuffered: a command is written as a whole, and what is read is all that there is.
        return subprocess.Popen(self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0)  # noqa: S603 -- fixed command

    def _read(self, process: subprocess.Popen[bytes], lines: asyncio.Queue[bytes | None]) -> None:
        assert process.stdout
        more = process.stdout.read(1 << 16)
        *whole, self._rest = (self._rest + more).split(b"\n")
        for line in whole:
            lines.put_nowait(line)
        if not more:
            asyncio.get_running_loop().remove_reader(process.stdout)
            lines.put_nowait(None)


async def _until_none(lines: asyncio.Queue[bytes | None]) -> AsyncGenerator[bytes]:
    while (line := await lines.get()) is not None:
        yield line
