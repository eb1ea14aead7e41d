"""The route from a viewer to one of the servers, which can be cut and held."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

HOST = "127.0.0.1"
Address = tuple[str, int]
"""A host and a port."""
NARROW = ((socket.SOL_SOCKET, socket.SO_RCVBUF, 4096), (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536))
"""The buffers of a narrow route hold so little that a viewer that does not read is noticed."""


class _End(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, way: "Way") -> None:
        self.way = way
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other and self.other.transport:
            self.other.transport.write(data)
        else:
            self._waiting.append(data)

    def join(self, other: "_End") -> None:
        """From now on, send the data of this end to that one."""
        self.other = other
        for data in self._waiting:
            if other.transport:
                other.transport.write(data)
        self._waiting.clear()

    def pause_writing(self) -> None:
        if self.other and self.other.transport:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other and self.other.transport and not self.way.is_held:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.transport = None
        self.way.on_disconnect(self)
        if self.other and self.other.transport:
            self.other.transport.close()


class Way:
    """Connections of one viewer, each to the server that is selected at that moment."""

    def __init__(self, choose: Callable[[], Address], *, is_narrow: bool = False) -> None:
        self.port = 0
        self.is_held = False
        self.cuts = 0
        self._choose = choose
        self._is_narrow = is_narrow
        self._fronts: dict[_End, None] = {}
        self._backs: dict[_End, None] = {}
        self._opening = set[asyncio.Task[None]]()

    @classmethod
    @asynccontextmanager
    async def open(cls, choose: Callable[[], Address], *, is_narrow: bool = False) -> AsyncGenerator["Way"]:
        """A route that ends with the block."""
        way = cls(choose, is_narrow=is_narrow)
        server = await asyncio.get_running_loop().create_server(way._front, HOST, 0)
        way.port = server.sockets[0].getsockname()[1]
        try:
            yield way
        finally:
            server.close()
            for task in way._opening:
                task.cancel()
            await asyncio.gather(*way._opening, return_exceptions=True)
            way.cut()

    def cut(self) -> None:
        """Break all connections, on both sides."""
        for end in [*self._fronts, *self._backs]:
            if end.transport:
                self.cuts += 1
                end.transport.abort()

    async def hold(self, seconds: float) -> None:
        """Read nothing from the server for the time of the block."""
        self.is_held = True
        for end in self._backs:
            if end.transport:
                end.transport.pause_reading()
        await asyncio.sleep(seconds)
        self.is_held = False
        for end in self._backs:
            if end.transport and not end.transport.is_closing():
                end.transport.resume_reading()

    def on_disconnect(self, end: _End) -> None:
        """One end has closed."""
        self._fronts.pop(end, None)
        self._backs.pop(end, None)

    def _front(self) -> _End:
        end = _End(self)
        self._fronts[end] = None
        task = asyncio.create_task(self._connect_back(end))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return end

    async def _connect_back(self, front: _End) -> None:
        loop = asyncio.get_running_loop()
        made = socket.socket()
        made.setblocking(False)
        try:
            for option in NARROW if self._is_narrow else ():
                made.setsockopt(*option)
            await loop.sock_connect(made, self._choose())
            _, back = await loop.create_connection(lambda: _End(self), sock=made)
        except OSError:
            made.close()
            if front.transport:
                front.transport.abort()
            return
        except asyncio.CancelledError:
            made.close()
            raise
        self._backs[back] = None
        if front.transport is None:
            # It was cut in between.
            if back.transport:
                back.transport.abort()
            return
        with suppress(RuntimeError):
            if self.is_held and back.transport:
                back.transport.pause_reading()
        back.join(front)
        front.join(back)
