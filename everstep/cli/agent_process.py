"""The program of the process that `everstep up --reload` starts again when agents change.

It is no command: the order that it reads from standard input is written by `everstep.runtime.agent_process`.
"""

import asyncio
import json
import logging
import os
import sys
from dataclasses import asdict
from typing import Final, NoReturn

from everstep.cli.command import print_error
from everstep.cli.error_messages import error_message
from everstep.cli.printing import visible_stream
from everstep.runtime.agent_process import AgentOrder, AgentReport, serve_agents
from everstep.runtime.signals import restore_for_children

# -P: a module of the project cannot hide an installed one, as in the command itself.
PROGRAM: Final = (sys.executable, "-P", "-m", "everstep.cli.agent_process")


async def _run() -> int:
    """Serve until the end; return the exit code."""
    control = os.fdopen(os.dup(0), "rb", buffering=0)
    # Nothing that agents run reads from the pipe.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), control)
    order = AgentOrder(**json.loads(await reader.readline()))
    asyncio.create_task(_exit_with_parent(reader))  # noqa: RUF006 -- it lasts as long as the process
    is_ready = False

    def send(report: dict[str, object]) -> None:
        with os.fdopen(order.report, "w", encoding="utf-8") as pipe:
            json.dump(report, pipe)

    def on_ready(report: AgentReport) -> None:
        nonlocal is_ready
        is_ready = True
        send(asdict(report))

    try:
        await serve_agents(order, on_ready)
    except Exception as error:  # noqa: BLE001 -- as in `everstep.cli.command`: it is shown in one sentence
        if is_ready:
            print_error(error)
        else:
            send({"error": error_message(error)})
        return 1
    return 0


async def _exit_with_parent(control: asyncio.StreamReader) -> NoReturn:
    """End this process at once if the first process is gone: its servers are gone, too."""
    await control.read()
    os._exit(1)


def main() -> NoReturn:
    """Run the process and exit, in the way of `everstep.cli.main`."""
    restore_for_children()
    sys.stdout, sys.stderr = visible_stream(sys.stdout), visible_stream(sys.stderr)
    with asyncio.Runner() as runner:
        code = runner.run(_run())
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
