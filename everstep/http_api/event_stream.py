"""Responses that take long: server-sent events, and a response that waits for an execution."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)

SEND_SECONDS = 10.0
"""Seconds within which a client must read an event."""


class EventStream(Response):
    """Sends the items of an iterator; a client that reads too slowly is disconnected and may reconnect."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        status_code: int = 200,
        patience: float = SEND_SECONDS,
        *,
        marks: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(status_code=status_code)
        self._marks = marks
        self._events = events
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the iterator ends or the client disconnects."""
        del scope
        # A proxy that buffers whole responses would buffer this one forever.
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            *self._marks,
        ]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            failure, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
        if isinstance(failure, TimeoutError):
            log.info("a client did not read for %g seconds and was disconnected", self._patience)
        elif isinstance(failure, Exception):
            raise failure

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for data in events:
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


class LateResponse(Response):
    """A response that is made after its request was handled, for as long as the client waits for it.

    The time limit of requests does not count for it. If the client disconnects, it is not made.

    Args:
        make: Makes the response; it raises nothing.
    """

    def __init__(self, make: Callable[[], Awaitable[Response]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the response and send it."""
        making = asyncio.ensure_future(self._make())
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((making, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (making, leaving):
                task.cancel()
            made, _ = await asyncio.gather(making, leaving, return_exceptions=True)
        if isinstance(made, Response):
            await made(scope, receive, send)
        elif isinstance(made, Exception):
            raise made
