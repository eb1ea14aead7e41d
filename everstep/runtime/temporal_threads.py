"""The threads of Temporal's SDK, which end before the interpreter does.

The SDK's core runs on threads of its own, which deliver results by taking the interpreter's lock. It ends
them when nothing refers to its runtime any more. The SDK's default runtime is a global, so that is while
the interpreter is torn down. A thread that waits for the lock then is ended by CPython in a way that Rust
does not survive (the process aborts: `PyGILState_Release: thread state must be current when releasing`),
or it waits for ever, and the interpreter for it (https://github.com/temporalio/sdk-python/issues/300). So
our clients share a runtime of our own, which ends at exit, while threads can still come and go.
"""

import atexit
import gc
import os
import sys
import threading
import time
from typing import Final

from temporalio.runtime import Runtime, TelemetryConfig

LEAVING_SECONDS: Final = 1.0
"""How long threads that are not Python's own may take to leave the interpreter, at its end."""


class _Shared:
    """The runtime of this process."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._pid = 0
        self._inherited: list[Runtime] = []

    def get(self) -> Runtime:
        """The runtime; a fork gets one of its own, as threads stay behind."""
        if self._runtime is not None and self._pid != os.getpid():
            self._inherited.append(self._runtime)
            self._runtime = None
        if self._runtime is None:
            self._runtime, self._pid = Runtime(telemetry=TelemetryConfig()), os.getpid()
            atexit.register(self.end)
        return self._runtime

    def end(self) -> None:
        """End its threads; where a client or a worker is still referred to, let them come to rest."""
        if self._pid != os.getpid():
            return
        self._runtime = None
        # Clients and workers refer to the runtime as well, and are in reference cycles.
        gc.collect()
        deadline = time.monotonic() + LEAVING_SECONDS
        while foreign_threads() and time.monotonic() < deadline:
            time.sleep(0.001)


_shared = _Shared()


def temporal_runtime() -> Runtime:
    """The runtime for each client of this process: `Client.connect(..., runtime=temporal_runtime())`."""
    return _shared.get()


def foreign_threads() -> set[int]:
    """The threads that Python did not start and that are in the interpreter, or wait for its lock."""
    # The only list of all threads in the interpreter that also names those without a Python frame.
    present = sys._current_exceptions()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return {*present} - {each.ident for each in threading.enumerate()}
