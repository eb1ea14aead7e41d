"""Runs user code, which may block or raise any exception: tools, hooks, processors, models.

Synchronous code runs in a thread of its own. In the event loop it would block the heartbeats of every other
execution of the worker, so that Temporal would give up their activities. An exception that would end the
worker, look like a cancel, or make Temporal retry the activity forever is converted to an ordinary error.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

from everstep.agent_domain.errors import Escaped

T = TypeVar("T")

UNCONVERTED = (KeyboardInterrupt, GeneratorExit)
"""Ctrl-C, and the closing of a generator. User code does not raise them to report an error."""


@contextmanager
def error_boundary() -> Generator[None]:
    """Convert every `BaseException` of the body to `Escaped`, except a cancel of the current task."""
    try:
        yield
    except (Exception, *UNCONVERTED):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise
        raise Escaped(f"{type(error).__name__}: {error}") from error


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread: no pool limits their number, and shutdown waits for none of them."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_result(result: Any, error: BaseException | None) -> None:
        if not future.done():
            _ = future.set_exception(error) if error else future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except (StopIteration, *UNCONVERTED) as raised:
            # A future refuses `StopIteration`. The others have a meaning in the main thread alone.
            error = Escaped(f"{type(raised).__name__}: {raised}")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 -- raised where the result is awaited
            error = raised
        # The loop is closed: the await was abandoned, and so was the loop.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_result, result, error)

    context = copy_context()
    threading.Thread(target=run, name="everstep", daemon=True).start()
    return await future
