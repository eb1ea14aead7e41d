"""The registry of open connections. It does not import the SDK, so closing none costs nothing."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar


class ClosableConnection(Protocol):
    """The part of a connection that is needed here."""

    @property
    def is_over(self) -> bool:
        """Whether the next request needs another connection."""
        ...

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call this function once everything is closed."""
        ...

    async def close(self) -> None:
        """Close it, even if callers still wait for an answer."""
        ...


C = TypeVar("C", bound=ClosableConnection)

Key = tuple[Hashable, str, str]
"""Server, name and tenant."""


class ConnectionPool(Generic[C]):
    """The open connections by key, separately for each event loop."""

    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, dict[Key, list[C]]] = {}
        """The last connection of a key is current; those before it are closing."""

    def get(self, key: Key, make: Callable[[], C]) -> C:
        """The connection for the key; a new one if there is none, or if it is over."""
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            self._open = {each: entries for each, entries in self._open.items() if not each.is_closed()}
        connections = self._open.setdefault(loop, {}).setdefault(key, [])
        if not connections or connections[-1].is_over:
            connection = make()
            connections.append(connection)
            connection.on_end(lambda: self._forget(loop, key, connection))
        return connections[-1]

    def _forget(self, loop: asyncio.AbstractEventLoop, key: Key, connection: C) -> None:
        entries = self._open[loop]
        entries[key].remove(connection)
        if not entries[key]:
            del entries[key]
        if not entries:
            del self._open[loop]

    async def close(self, server: Hashable = None) -> None:
        """Close the connections of this event loop: to one server, or all."""
        entries = self._open.get(asyncio.get_running_loop(), {})
        connections = [
            each for key, held in entries.items() for each in held if server is None or key[0] == server
        ]
        await asyncio.gather(*(connection.close() for connection in connections))

    def __len__(self) -> int:
        return sum(len(held) for ours in self._open.values() for held in ours.values())


CONNECTIONS: ConnectionPool[Any] = ConnectionPool()
