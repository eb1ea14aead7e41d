"""The server of the local model, as the process sees it that needs the model.

The server is started on first use, once per process and window, and ends with the process: it holds the other
end of a pipe that only this process has. `everstep up` starts one for all of its processes.
"""

import asyncio
import atexit
import json
import os
import secrets
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.values import truncate
from everstep.inference.local_endpoint import FindEndpoint, LocalEndpoint
from everstep.inference.presets import LOCAL_LIMITS, Preset
from everstep.runtime.embedded.child import exit_text
from everstep.runtime.local_model.qwen import WEIGHTS
from everstep.runtime.local_model.weights import models_folder
from everstep.runtime.settings import Settings

PROGRAM: Final = (sys.executable, "-P", "-m", "everstep.runtime.local_model.program")
STOP_SECONDS: Final = 5.0
NEEDS_EXTRA: Final = "the local model needs an extra; install it: pip install 'everstep[local-model]'"


def has_runtime() -> bool:
    """Return whether the extra is installed."""
    return find_spec("xllamacpp") is not None


def require_runtime() -> None:
    """Require the extra.

    Raises:
        InvalidInput: It is not installed.
    """
    if not has_runtime():
        raise InvalidInput(NEEDS_EXTRA)


def missing_part(settings: Settings) -> str | None:
    """Return what is missing for the local model, and how to get it; None if it can be used."""
    if settings.local_model_url:
        return None
    if not has_runtime():
        return NEEDS_EXTRA
    if not WEIGHTS.are_in(models_folder(settings.models_dir)):
        return "the local model is not downloaded; run `everstep models download local` (1.1 GB, once)"
    return None


def find_endpoint(settings: Settings, preset: Preset) -> FindEndpoint:
    """Return a function that finds the server for a preset.

    Raises:
        InvalidInput: The extra or the weights are missing.
    """
    if settings.local_model_url:
        return _found(LocalEndpoint.parse(settings.local_model_url))
    if problem := missing_part(settings):
        raise InvalidInput(problem)
    weights = models_folder(settings.models_dir) / WEIGHTS.file_name
    return _shared_server(weights, preset.context_window or LOCAL_LIMITS["context_window"]).find


def _found(endpoint: LocalEndpoint) -> FindEndpoint:
    async def find() -> LocalEndpoint:
        return endpoint

    return find


class ModelServer:
    """A server process, started on first use and again if it has ended."""

    def __init__(self, weights: Path, context_window: int) -> None:
        self.weights = weights
        self.context_window = context_window
        self._lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self._endpoint: LocalEndpoint | None = None

    async def find(self) -> LocalEndpoint:
        """Return the running server.

        Raises:
            ModelError: It cannot be started.
        """
        return await asyncio.to_thread(self._find)

    def _find(self) -> LocalEndpoint:
        with self._lock:
            if self.process is not None and self.process.poll() is not None:
                _end(self.process)
                self.process = None
            if self._endpoint is None or self.process is None:
                self.process, self._endpoint = self._start()
            return self._endpoint

    def _start(self) -> tuple[subprocess.Popen[str], LocalEndpoint]:
        order: dict[str, Any] = {
            "weights": str(self.weights),
            "context_window": self.context_window,
            "key": secrets.token_hex(16),
            # A second thread helps little, and waits actively while other programs need the core.
            "threads": max(1, (os.cpu_count() or 2) // 2),
        }
        with TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(  # noqa: S603 -- a module of this package
                PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C reaches the whole group of a terminal, and a call may still be running.
                start_new_session=True,
            )
            assert process.stdin and process.stdout  # noqa: S101, PT018 -- they are pipes
            answer = ""
            with process.stdout, suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            if not answer:
                _end(process)
                problem = (
                    f"the local model cannot be started: {_last_line(log) or exit_text(process.returncode)}"
                )
                raise ModelError(problem, advice=problem)
        return process, LocalEndpoint(json.loads(answer)["url"], order["key"])

    def stop(self) -> None:
        """Stop the process."""
        with self._lock:
            if self.process is not None:
                _end(self.process)
            self.process = None


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process, which ends by itself once its standard input does."""
    with suppress(BrokenPipeError):
        if process.stdin:
            process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    return truncate(lines[-1], 300) if lines else ""


_SERVERS: dict[tuple[Path, int], ModelServer] = {}
"""The servers of this process. They serve any number of installations and event loops."""


def _shared_server(weights: Path, context_window: int) -> ModelServer:
    server = _SERVERS.setdefault((weights, context_window), ModelServer(weights, context_window))
    atexit.register(server.stop)
    return server
