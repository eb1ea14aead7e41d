"""Anybody's code: tools, hooks, processors, models. It may block, and raise whatever it likes.

What is not awaited runs in a thread of its own: in the event loop it would keep every other execution of the
worker from saying that it lives, and so have their calls given up. What would end the worker, look like a
cancel, or have Temporal try the same activity for ever, is an error like any other.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

from everstep.agent_domain.errors import Escaped

T = TypeVar("T")

PASSES = (KeyboardInterrupt, GeneratorExit)
"""Somebody at the keyboard, and a coroutine that is thrown away: neither is what the code wants to say."""


@contextmanager
def contained() -> Generator[None]:
    """Whatever the body raises is an `Exception`, unless the work itself is given up."""
    try:
        yield
    except (Exception, *PASSES):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise
        raise Escaped(f"{type(error).__name__}: {error}") from error


async def in_thread(work: Callable[[], T]) -> T:
    """In a thread of its own: no pool limits how many run, and nobody waits for one that was given up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            _ = future.set_exception(error) if error else future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except (StopIteration, *PASSES) as raised:
            # Futures refuse the first. The others mean something in the loop's thread alone.
            error = Escaped(f"{type(raised).__name__}: {raised}")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 -- handed over to whoever waits
            error = raised
        # Given up, and the loop with it: there is nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    context = copy_context()
    threading.Thread(target=run, name="everstep", daemon=True).start()
    return await future
