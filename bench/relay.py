"""The baseline for the gateway: a relay on `websockets` that broadcasts as its documentation recommends.

A connection to `/push` pushes lines: a stream's id, and the text for all viewers of the stream. Every other
connection sends the id of the stream that it watches, and is answered; with a `*` before it, the stored lines
of the stream are sent first. With `--every`, the relay itself writes timestamps to each watched stream: that
is one hop, from the process that writes to a viewer.

    python bench/relay.py [--keep N] [--every SECONDS --times N]
"""

import argparse
import asyncio
import time
from collections import defaultdict, deque
from contextlib import suppress

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

WORD = '{{"type":"token","session_id":"{}","payload":{{"content":"{}","padding":"{}"}}}}'


class Relay:
    """The viewers of each stream, and its last lines."""

    def __init__(self, keep: int, every: float, times: int) -> None:
        self._watching: defaultdict[str, set[ServerConnection]] = defaultdict(set)
        self._kept: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=keep))
        self._every = every
        self._times = times
        self._writers: dict[str, asyncio.Task[None]] = {}

    async def serve(self, connection: ServerConnection) -> None:
        """Serve one connection, until it is closed."""
        with suppress(ConnectionClosed):
            if connection.request and connection.request.path == "/push":
                await self._listen(connection)
            else:
                await self._show(connection)

    async def _listen(self, writer: ServerConnection) -> None:
        async for message in writer:
            assert isinstance(message, str)
            for line in message.split("\n"):
                stream, _, payload = line.partition(" ")
                self._kept[stream].append(payload)
                broadcast(self._watching[stream], payload)

    async def _show(self, viewer: ServerConnection) -> None:
        stream_request = str(await viewer.recv())
        stream = stream_request.removeprefix("*")
        if self._every and stream not in self._writers:
            self._writers[stream] = asyncio.create_task(self._write(stream))
        await viewer.send("watching")
        if stream_request != stream:
            for stored_line in tuple(self._kept[stream]):
                await viewer.send(stored_line)
        self._watching[stream].add(viewer)
        try:
            await viewer.wait_closed()
        finally:
            self._watching[stream].discard(viewer)

    async def _write(self, stream: str) -> None:
        await asyncio.sleep(2)  # Until all have come.
        for number in range(1, self._times + 1):
            await asyncio.sleep(self._every)
            mark = f"#{number:010}{time.monotonic_ns():019}"
            broadcast(self._watching[stream], WORD.format(stream, mark, "." * 250))


async def relay(keep: int, every: float, times: int) -> None:
    """Serve as long as the bench runs."""
    relaying = Relay(keep, every, times)
    async with serve(
        relaying.serve, "127.0.0.1", 0, compression=None, max_size=64 << 20, backlog=1024
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"viewers watch at ws://127.0.0.1:{port}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Run the process: the relay uses uvloop, like gateways; the writer does not, like workers."""
    parser = argparse.ArgumentParser(description="A relay, to compare the gateway with.")
    parser.add_argument("--keep", type=int, default=0, help="how many lines of a stream are kept (0)")
    parser.add_argument("--every", type=float, default=0, help="seconds between two words of a stream")
    parser.add_argument("--times", type=int, default=0, help="how many words")
    arguments = parser.parse_args()
    work = relay(arguments.keep, arguments.every, arguments.times)
    with suppress(KeyboardInterrupt):
        if arguments.every:
            asyncio.run(work)
        else:
            uvloop.run(work)


if __name__ == "__main__":
    main()
