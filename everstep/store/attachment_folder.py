"""The content of attached files in a folder, which all processes of an installation share."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.storage.attachments import AttachmentKey

T = TypeVar("T")


class AttachmentFolder:
    """Stores each file under the tenant's digest and the file's id; a file is either complete or missing."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def write(self, key: AttachmentKey, data: bytes) -> None:
        """Store the content; that of an earlier attempt is replaced."""
        await self._run(_write, self._path(key), data)

    async def read(self, key: AttachmentKey) -> bytes | None:
        """Return the content; None if there is none."""
        return await self._run(_read, self._path(key))

    async def delete(self, key: AttachmentKey) -> None:
        """Delete the content."""
        await self._run(_delete, self._path(key))

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await asyncio.to_thread(work, *args)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreUnavailable(
                f"the folder of attachments {self.root} cannot be used: {reason}"
            ) from error

    def _path(self, key: AttachmentKey) -> Path:
        # Names of tenants may contain slashes and dots.
        tenant = hashlib.sha256(key.tenant_id.encode()).hexdigest()[:32]
        return self.root / tenant / key.id.hex[:2] / str(key.id)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
