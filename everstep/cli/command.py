"""The parts that all commands share: the wrapper around a command's coroutine, options and output."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import click

from everstep.cli.error_messages import complaint
from everstep.cli.printing import echo, visible

P = ParamSpec("P")

SOURCE = "DIR|FILE|MODULE:ATTRIBUTE"
AGENTS_HELP = "Where your agents are; may be repeated."


def command(
    fn: Callable[P, Coroutine[Any, Any, None]], loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Callable[P, None]:
    """Run a coroutine; what goes wrong is said in one sentence, not in a stack trace."""

    @wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(fn(*args, **kwargs))
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            # Whoever read what is printed has read enough, as `head` does; click ends without a word.
            raise
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            if click.get_current_context().find_root().params["traceback"]:
                raise
            raise click.ClickException(visible(complaint(error))) from error

    return run


def _also(context: click.Context, _option: click.Parameter, sources: tuple[str, ...]) -> None:
    """Add these sources to those that stand before the command's name."""
    if sources:
        before = context.find_root().params["agents"]
        context.obj = context.obj.model_copy(update={"agents": (*before, *sources)})


with_agents = click.option(
    "--agents", multiple=True, metavar=SOURCE, help=AGENTS_HELP, expose_value=False, callback=_also
)
"""For commands that need to know agents: the option may also stand behind their name."""


def say(text: object) -> None:
    """Print a line."""
    echo(text)


def told(sentence: str) -> None:
    """Tell the operator, beside what is printed."""
    echo(sentence, err=True)


def stopped_by_signals(meanwhile: str = "running model calls may finish") -> asyncio.Event:
    """Set when this process is told to stop; it says what happens until it does."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        echo(f"stopping; {meanwhile}", err=True)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop
