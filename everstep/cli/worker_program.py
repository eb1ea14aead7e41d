"""The program of each process of `everstep worker --processes N`.

It is no command: what it reads from standard input is written by `everstep.runtime.worker_processes`.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from functools import cache
from typing import Final, NoReturn

from everstep.cli.command import print_error, server_loop, warn
from everstep.cli.printing import visible_stream
from everstep.runtime.settings import Settings
from everstep.runtime.signals import restore_for_children
from everstep.runtime.telemetry_setup import configure_process_logs
from everstep.runtime.worker_run import run_worker

# -P: a module of the project cannot hide an installed one, as in the command itself.
PROGRAM: Final = (sys.executable, "-P", "-m", "everstep.cli.worker_program")


async def _run() -> int:
    """Work until the end; return the exit code."""
    control = os.fdopen(os.dup(0), "rb", buffering=0)
    # Nothing that agents run reads from the pipe.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), control)
    order = json.loads(await reader.readline())

    @cache
    def stop() -> asyncio.Event:
        event = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, event.set)
        return event

    async def stop_with_parent() -> None:
        await reader.read()
        stop().set()

    watching = asyncio.create_task(stop_with_parent())
    os.set_inheritable(order["report"], False)
    lines = os.fdopen(order["report"], "w", encoding="utf-8")

    def say(line: str) -> None:
        lines.write(f"{line}\n")
        lines.flush()

    try:
        settings = Settings.read(**order["settings"])
        configure_process_logs(settings)
        await run_worker(settings, stop, warn, say)
    except Exception as error:  # noqa: BLE001 -- as in `everstep.cli.command`: it is shown in one sentence
        print_error(error)
        return 1
    finally:
        lines.close()
        watching.cancel()
    return 0


def main() -> NoReturn:
    """Run the process and exit, in the way of `everstep.cli.main`."""
    restore_for_children()
    sys.stdout, sys.stderr = visible_stream(sys.stdout), visible_stream(sys.stderr)
    with asyncio.Runner(loop_factory=server_loop) as runner:
        code = runner.run(_run())
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
