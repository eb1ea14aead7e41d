"""A model behind HTTP for the fleet's bench: Chat Completions, streamed at 20 words a second.

One process serves all executions, without a framework, so that it takes as little of the machine as possible.

    python bench/typing_server.py
"""

import asyncio
import json
from contextlib import suppress
from typing import Final

import uvloop
from fleet_agents import EVERY, mark, words_in

TICK: Final = 0.005
"""Seconds between two looks at who is due: one timer for all."""
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT: Final = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"typing",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
USAGE: Final = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"typing","choices":[],'
    '"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":10}}\n\ndata: [DONE]\n\n'
)


def chunk(text: str) -> bytes:
    """A part of the body."""
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


class Answer:
    """An answer that is being written."""

    def __init__(self, writer: asyncio.StreamWriter, words: int) -> None:
        self._writer = writer
        self._words = words
        self._number = 0
        writer.write(HEAD)

    def write_word(self) -> bool:
        """Write the next word; return whether more follow."""
        if self._writer.transport.is_closing():
            return False
        self._number += 1
        if self._number > self._words:
            self._writer.write(chunk(EVENT % ("{}", '"stop"') + USAGE % self._words) + b"0\r\n\r\n")
            return False
        self._writer.write(chunk(EVENT % (f'{{"content":"{mark(self._number)}"}}', "null")))
        return True


class Wheel:
    """Writes the words that are due."""

    def __init__(self) -> None:
        self._slots: list[list[Answer]] = [[] for _ in range(round(EVERY / TICK))]
        self._next = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(
                    int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")
                )
                text = str(json.loads(await reader.readexactly(length))["messages"][-1]["content"])
                answer = Answer(writer, words_in(text))
                # The first word at once, the others every `EVERY` seconds.
                if answer.write_word():
                    self._slots[self._next - 1].append(answer)
        writer.close()

    async def turn(self) -> None:
        """Turn until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            due += TICK
            await asyncio.sleep(due - clock())
            slot = self._slots[self._next]
            self._slots[self._next] = [each for each in slot if each.write_word()]
            self._next = (self._next + 1) % len(self._slots)


async def serve() -> None:
    """Serve until the process is terminated."""
    wheel = Wheel()
    server = await asyncio.start_server(wheel.answer, "127.0.0.1", 0, backlog=1024)
    async with server:
        host, port = server.sockets[0].getsockname()
        # `process` in bench/gateway.py reads the port from a URL of this scheme.
        print(f"types at ws://{host}:{port}", flush=True)
        await wheel.turn()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(serve())
