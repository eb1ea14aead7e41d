"""The registry of open connections. It does not import the SDK, so closing none costs nothing."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """The part of a connection that is needed here."""

    @property
    def is_over(self) -> bool:
        """Whether the next request needs another connection."""
        ...

    def on_end(self, told: Callable[[], None]) -> None:
        """Call this function once everything is closed."""
        ...

    async def close(self) -> None:
        """Close it, even if callers still wait for an answer."""
        ...


C = TypeVar("C", bound=Closable)

Key = tuple[Hashable, str, str]
"""Server, name and tenant."""


class Connections(Generic[C]):
    """The open connections by key, separately for each event loop."""

    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, dict[Key, list[C]]] = {}
        """The last connection of a key is current; those before it are closing."""

    def get(self, key: Key, make: Callable[[], C]) -> C:
        """The connection for the key; a new one if there is none, or if it is over."""
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            self._open = {each: held for each, held in self._open.items() if not each.is_closed()}
        ours = self._open.setdefault(loop, {}).setdefault(key, [])
        if not ours or ours[-1].is_over:
            made = make()
            ours.append(made)
            made.on_end(lambda: self._forget(loop, key, made))
        return ours[-1]

    def _forget(self, loop: asyncio.AbstractEventLoop, key: Key, ended: C) -> None:
        held = self._open[loop]
        held[key].remove(ended)
        if not held[key]:
            del held[key]
        if not held:
            del self._open[loop]

    async def close(self, server: Hashable = None) -> None:
        """Close the connections of this event loop: to one server, or all."""
        ours = self._open.get(asyncio.get_running_loop(), {})
        meant = [each for key, held in ours.items() for each in held if server is None or key[0] == server]
        await asyncio.gather(*(connection.close() for connection in meant))

    def __len__(self) -> int:
        return sum(len(held) for ours in self._open.values() for held in ours.values())


CONNECTIONS: Connections[Any] = Connections()
