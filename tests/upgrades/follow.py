"""A viewer in a process of its own, run by the interpreter of either release.

It follows sessions over one gateway and prints each event as a line of JSON. It reads the sessions from its
standard input, one id a line.
"""

import asyncio
import json
import sys
from contextlib import aclosing

from everstep import Happened, Position, Wrote, stream


def write(**line: object) -> None:
    """Write one line for the test."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def follow(url: str, token: str, session: str) -> None:
    """Print the events of a session from its beginning."""
    channel = f"agent.session.{session}"
    async with aclosing(stream(url, channel, token=token, since=Position())) as events:
        async for event in events:
            match event:
                case Happened(envelope):
                    ended = envelope.payload.get("status") if envelope.type == "agent.status" else None
                    execution = str(envelope.execution_id)
                    write(session=session, seq=envelope.seq, execution=execution, status=ended)
                case Wrote():
                    where = {"step": event.step_number, "attempt": event.attempt}
                    write(session=session, execution=str(event.execution_id), text=event.text, **where)
                case _:
                    write(session=session, reload=True)


async def main() -> None:
    """Follow every session that the test names."""
    url, token = sys.argv[1:]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(follow(url, token, line.decode().strip()))


asyncio.run(main())
