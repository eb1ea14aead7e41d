"""One process at a time runs services on a data directory.

The kernel's lock on the file counts, not the file: it ends with the process that holds it,
however that ended. The file only tells the others whom to ask.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from everstep.runtime.embedded.errors import DataInUse

PATIENCE: Final = 0.5
"""Seconds to wait for a lock that is held for a moment, by `lock_holder` or a fork that is about to exec."""

INTERVAL: Final = 0.05


@asynccontextmanager
async def locked(data: Path) -> AsyncGenerator[None]:
    """Hold the lock of the data directory; `DataInUse` when another process does."""
    file = os.open(_file(data), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        attempts = round(PATIENCE / INTERVAL)
        while not _taken(file, fcntl.LOCK_EX):
            attempts -= 1
            if not attempts:
                raise DataInUse(data, _pid(file))
            await asyncio.sleep(INTERVAL)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def lock_holder(data: Path) -> int | None:
    """The process that holds the lock of the data directory now."""
    with suppress(FileNotFoundError):
        file = os.open(_file(data), os.O_RDONLY)
        try:
            return None if _taken(file, fcntl.LOCK_SH) else _pid(file)
        finally:
            os.close(file)
    return None


def _file(data: Path) -> Path:
    return data / "lock"


def _taken(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(file: int) -> int | None:
    written = os.pread(file, 32, 0).strip()
    return int(written) if written.isdigit() else None
