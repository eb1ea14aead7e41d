"""The lock of a data directory: one process at a time runs services on it.

The kernel's lock on the file counts, not the file's existence: it is released when its process ends, however
it ends. The file's content names the holder for other processes.
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
"""Seconds to wait for a lock that is held for a moment, by `lock_holder` or by a fork before its exec."""

INTERVAL: Final = 0.05


@asynccontextmanager
async def data_lock(data: Path) -> AsyncGenerator[None]:
    """Hold the lock of the data directory.

    Raises:
        DataInUse: Another process holds it.
    """
    file = os.open(_file(data), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        attempts = round(PATIENCE / INTERVAL)
        while not _try_lock(file, fcntl.LOCK_EX):
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
    """Return the process that holds the lock of the data directory now, or None."""
    with suppress(FileNotFoundError):
        file = os.open(_file(data), os.O_RDONLY)
        try:
            return None if _try_lock(file, fcntl.LOCK_SH) else _pid(file)
        finally:
            os.close(file)
    return None


def _file(data: Path) -> Path:
    return data / "lock"


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(file: int) -> int | None:
    written = os.pread(file, 32, 0).strip()
    return int(written) if written.isdigit() else None
