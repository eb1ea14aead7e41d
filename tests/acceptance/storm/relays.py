"""TCP relays between processes and servers, which can be cut or fall silent."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHUNK = 65536


class Relay:
    """Relays bytes in both directions unless it is silent.

    A silent relay accepts connections, acknowledges what it receives, and relays nothing: to a client the
    server looks alive and never answers.
    """

    def __init__(self, name: str, connect: Callable[[], Awaitable[Streams]]) -> None:
        self.name = name
        self.port = 0
        self._connect = connect
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._writers = set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()

    @classmethod
    @asynccontextmanager
    async def open(cls, name: str, connect: Callable[[], Awaitable[Streams]]) -> AsyncGenerator["Relay"]:
        """Open a relay that listens on a free port of the loopback interface."""
        relay = cls(name, connect)
        server = await asyncio.start_server(relay._accept, "127.0.0.1", 0)
        relay.port = server.sockets[0].getsockname()[1]
        try:
            yield relay
        finally:
            server.close()
            relay.cut()
            for task in relay._tasks:
                task.cancel()
            await asyncio.gather(*relay._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Abort every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def fall_silent(self, seconds: float) -> None:
        """Relay nothing for a while."""
        self._speaks.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._speaks.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._speaks.wait()
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._speaks.wait()
                writer.write(data)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()
