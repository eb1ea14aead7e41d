"""The parts that commands share: the wrapper around a command's coroutine, options, output and signals."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from everstep.cli.error_messages import error_message, with_parameters
from everstep.cli.options import AGENTS_HELP, SOURCE
from everstep.cli.printing import echo, visible
from everstep.telemetry.log_lines import NOTICES, writes_json

P = ParamSpec("P")

notices = logging.getLogger(NOTICES)


def command(
    fn: Callable[P, Coroutine[Any, Any, None]], loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Callable[P, None]:
    """Turn a coroutine function into a command that reports errors in one sentence.

    Args:
        fn: The coroutine function.
        loop: Makes the event loop; by default asyncio's.
    """

    @wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(fn(*args, **kwargs))
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            # A broken pipe means that the reader, such as `head`, has read enough; click exits silently.
            raise
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            context = click.get_current_context()
            shows_traceback = context.find_root().params["traceback"]
            if writes_json():
                log_error(error, shows_traceback=shows_traceback)
                raise click.exceptions.Exit(1) from error
            if shows_traceback:
                raise
            text = with_parameters(error_message(error), context.command.params)
            raise click.ClickException(visible(text)) from error

    return run


def server_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of workers and gateways: uvloop's. A step takes a fifth less CPU time with it.

    Not of the HTTP API: under a thousand refused bodies its memory grew by 74 MB with uvloop, and by less
    than 40 MB with asyncio.
    """
    import uvloop  # noqa: PLC0415 -- most commands serve nothing

    return uvloop.new_event_loop()


def server_command(fn: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn a coroutine function into a command, like `command`, that runs on `server_loop`."""
    return command(fn, server_loop)


def _add_agents(context: click.Context, _option: click.Parameter, sources: tuple[str, ...]) -> None:
    if sources:
        root = context.find_root().params
        root["agents"] = (*root["agents"], *sources)
        context.obj = context.obj.model_copy(update={"agents": root["agents"]})


with_agents = click.option(
    "--agents", multiple=True, metavar=SOURCE, help=AGENTS_HELP, expose_value=False, callback=_add_agents
)
"""`--agents` after the name of a command that loads agents; adds to the `--agents` before the name."""


attach_option = click.option(
    "--attach",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="An image, a PDF or a text file for the model; may be repeated.",
)
"""`--attach` of the commands that send a message."""


def print_line(text: object) -> None:
    """Print a line to standard output."""
    echo(text)


def announce(text: str) -> None:
    """Print to standard output what a serving process does; a line of the log where that is JSON."""
    if writes_json():
        notices.info("%s", text)
    else:
        echo(text)


def note(text: str) -> None:
    """Print to standard error what a serving process does; a line of the log where that is JSON."""
    if writes_json():
        notices.info("%s", text)
    else:
        echo(text, err=True)


def warn(text: str) -> None:
    """Print a line for the operator to standard error; a line of the log where that is JSON."""
    if writes_json():
        notices.warning("%s", text)
    else:
        echo(text, err=True)


def log_error(error: Exception, *, shows_traceback: bool = False) -> None:
    """Log in one sentence why a serving process ends."""
    notices.error("%s", error_message(error), exc_info=error if shows_traceback else None)


def print_error(error: Exception) -> None:
    """Print in one sentence why a serving process ends; a line of the log where that is JSON."""
    if writes_json():
        log_error(error)
    else:
        echo(f"Error: {visible(error_message(error))}", err=True)


def stop_on_signals(closing: str = "running model calls may finish") -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set.

    Args:
        closing: What the process does before it exits; printed when a signal arrives.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        # Nothing may read it any more: a closed terminal, or a program for logs that has ended.
        with suppress(OSError):
            note(f"stopping; {closing}")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop
