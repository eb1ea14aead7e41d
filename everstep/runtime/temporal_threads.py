"""The threads of Temporal's SDK, ended before the interpreter is finalized.

The SDK's core runs on its own threads, which deliver results by taking the interpreter's lock. It ends them
when nothing refers to its runtime any more. The SDK's default runtime is a global, so that happens while the
interpreter is finalized. CPython ends a thread that waits for the lock at that time in a way that Rust does
not survive (the process aborts: `PyGILState_Release: thread state must be current when releasing`), or the
thread waits forever, and the interpreter for it (https://github.com/temporalio/sdk-python/issues/300). So all
clients share one runtime that is ended at exit, while threads can still come and go.
"""

import atexit
import gc
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from everstep.runtime.embedded.free_ports import free_port

log = logging.getLogger(__name__)

PORT_ATTEMPTS: Final = 3

HEARTBEAT_INTERVAL: Final = timedelta(seconds=10)
"""How often a worker reports its slots to Temporal, where operators read them."""
SDK_LOGGING: Final = LoggingConfig(
    TelemetryFilter(core_level="WARN", other_level="ERROR"),
    LogForwardingConfig(logging.getLogger("temporalio.core"), append_target_to_name=False),
)
"""The SDK's core writes into the log of the process; by default it would write to standard output."""
EXIT_SECONDS: Final = 1.0
"""How long foreign threads may take to leave the interpreter at exit."""


class _SharedRuntime:
    """The runtime of this process."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._pid = 0
        self._inherited: list[Runtime] = []
        self.exports_metrics = False
        self.metrics_port: int | None = None
        """The port of the loopback interface at which the SDK serves its metrics."""

    def get(self) -> Runtime:
        """Return the runtime; a fork gets a new one, because threads are not copied."""
        if self._runtime is not None and self._pid != os.getpid():
            self._inherited.append(self._runtime)
            self._runtime = None
        if self._runtime is None:
            self._runtime, self._pid = self._create(), os.getpid()
            atexit.register(self.end)
        return self._runtime

    def _create(self) -> Runtime:
        self.metrics_port = None
        if self.exports_metrics:
            # The SDK does not say which port it got, so it gets a number. Another process may take it first.
            for port in (free_port() for _ in range(PORT_ATTEMPTS)):
                config = PrometheusConfig(
                    bind_address=f"127.0.0.1:{port}",
                    counters_total_suffix=True,
                    unit_suffix=True,
                    durations_as_seconds=True,
                )
                with suppress(RuntimeError, ValueError):
                    runtime = Runtime(
                        telemetry=TelemetryConfig(logging=SDK_LOGGING, metrics=config),
                        worker_heartbeat_interval=HEARTBEAT_INTERVAL,
                    )
                    self.metrics_port = port
                    return runtime
            log.warning("no port is free for the metrics of Temporal's SDK")
        return Runtime(
            telemetry=TelemetryConfig(logging=SDK_LOGGING), worker_heartbeat_interval=HEARTBEAT_INTERVAL
        )

    def end(self) -> None:
        """End the runtime's threads; if a client or a worker is referenced, wait until they are idle."""
        if self._pid != os.getpid():
            return
        self._runtime = None
        # Clients and workers refer to the runtime too, and are in reference cycles.
        gc.collect()
        deadline = time.monotonic() + EXIT_SECONDS
        while foreign_threads() and time.monotonic() < deadline:
            time.sleep(0.001)


_shared = _SharedRuntime()


def temporal_runtime() -> Runtime:
    """Return the runtime of all clients in this process, for `Client.connect(runtime=...)`."""
    return _shared.get()


def export_sdk_metrics() -> None:
    """Let the SDK count, for the page of metrics of this process; call it before the first connection."""
    _shared.exports_metrics = True


def sdk_metrics_port() -> int | None:
    """Return the port of the loopback interface at which the SDK serves its metrics, if it does."""
    return _shared.metrics_port


def foreign_threads() -> set[int]:
    """Return the threads that Python did not start and that are in the interpreter, or wait for its lock."""
    # The only list of all threads in the interpreter that includes those without a Python frame.
    present = sys._current_exceptions()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return {*present} - {each.ident for each in threading.enumerate()}
