"""One client for each event loop.

A client's connections belong to the event loop in which they were opened, and fail in every other one
("Event loop is closed"). A program may run many loops: one after the other, as each blocking call of an agent
does, or several at once in threads. So the same model has a client in each of them.

A client is closed together with its loop. Loops have no callback for that, but before `asyncio.run` and
`asyncio.Runner` close a loop, they close its asynchronous generators that are still suspended. So each client
is held by one.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class ClosableClient(Protocol):
    """The part of the SDKs' clients that is used here."""

    def close(self) -> Awaitable[None]:
        """Close all connections."""
        ...


C = TypeVar("C", bound=ClosableClient)


class LoopClients(Generic[C]):
    """Clients by event loop, made on first use."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._clients: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None]]] = {}
        self._lock = threading.Lock()

    async def get(self) -> C:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = self._make()
            holder = _close_with_loop(client)
            with self._lock:
                for each in [each for each in self._clients if each.is_closed()]:
                    del self._clients[each]
                self._clients[loop] = client, holder
            # Nothing is awaited before the first `yield`, so no other task runs in between.
            await anext(holder)
        return self._clients[loop][0]

    async def aclose(self) -> None:
        """Close the client of the running loop; the next use makes another one."""
        with self._lock:
            _, holder = self._clients.pop(asyncio.get_running_loop(), (None, None))
        if holder is not None:
            await holder.aclose()

    def __len__(self) -> int:
        return sum(not loop.is_closed() for loop in self._clients)


async def _close_with_loop(client: ClosableClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.close()
