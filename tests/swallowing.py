"""A link that acknowledges what it receives, relays nothing, and closes nothing."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, make_url


@dataclass
class Connection:
    """Both ends of one connection through the link."""

    writers: tuple[StreamWriter, StreamWriter]
    swallows: bool


@dataclass
class SwallowingLink:
    """Between clients and one server, which may listen on a unix socket."""

    url: str
    target: URL
    takes_new: bool = True
    """Whether the link accepts new connections."""
    connections: list[Connection] = field(default_factory=list[Connection])
    swallowed: int = 0
    """Bytes that were not relayed."""

    def swallow(self, *, new: bool = True) -> None:
        """Stop relaying on existing connections for good, and on new ones until `flow`."""
        self.takes_new = self.takes_new and not new
        for connection in self.connections:
            connection.swallows = True

    def flow(self) -> None:
        """Relay on new connections. The swallowed bytes are lost, as are the connections that they were sent
        on.
        """
        self.takes_new = True

    def cut(self) -> None:
        for connection in self.connections:
            for writer in connection.writers:
                writer.transport.abort()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        there, other = await self._open()
        connection = Connection((writer, other), not self.takes_new)
        self.connections.append(connection)
        try:
            await asyncio.gather(
                self._carry(connection, reader, other), self._carry(connection, there, writer)
            )
        finally:
            self.connections.remove(connection)
            for each in connection.writers:
                each.transport.abort()

    async def _open(self) -> tuple[StreamReader, StreamWriter]:
        host, port = self.target.host or self.target.query.get("host", ""), self.target.port
        port = port or int(str(self.target.query["port"]))
        if str(host).startswith("/"):
            return await asyncio.open_unix_connection(Path(str(host)) / f".s.PGSQL.{port}")
        return await asyncio.open_connection(str(host), port)

    async def _carry(self, connection: Connection, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if connection.swallows:
                    self.swallowed += len(data)
                else:
                    writer.write(data)
        if not connection.swallows:
            writer.close()


@asynccontextmanager
async def swallowing_link(url: str) -> AsyncGenerator[SwallowingLink]:
    """A link to the server of this database URL."""
    target = make_url(url)
    link = SwallowingLink("", target)
    server = await asyncio.start_server(link.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kept = {name: value for name, value in target.query.items() if name not in {"host", "port"}}
    through = target.set(host="127.0.0.1", port=port, query=kept)
    link.url = through.render_as_string(hide_password=False)
    try:
        yield link
    finally:
        server.close()
        link.cut()
        await server.wait_closed()
