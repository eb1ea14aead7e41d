"""The ports that store attached files: their descriptions and rights, and their content."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.ids import ExecutionRef, Scope


@dataclass(frozen=True, slots=True)
class AttachmentKey:
    """The place of a file's content."""

    tenant_id: str
    id: UUID


@dataclass(frozen=True, slots=True)
class AttachmentUse:
    """A file of an execution."""

    attachment: Attachment
    call_id: str | None
    """The tool call that returned it; None for a file of a message."""
    created_at: datetime


class AttachmentStore(Protocol):
    """Stores the content of files."""

    async def write(self, key: AttachmentKey, data: bytes) -> None:
        """Store the content; that of an earlier attempt is replaced."""
        ...

    async def read(self, key: AttachmentKey) -> bytes | None:
        """The content; None if there is none."""
        ...

    async def delete(self, key: AttachmentKey) -> None:
        """Delete the content; without any, nothing happens."""
        ...


class AttachmentIndex(Protocol):
    """Knows all files, who may read them, and which executions use them."""

    async def add(self, tenant_id: str, user_id: str | None, new: Attachment, seconds: float) -> None:
        """Describe a file that expires after this time, unless an execution uses it before.

        Raises:
            NotFound: Another tenant has a file with this id.
        """
        ...

    async def add_artifact(
        self, ref: ExecutionRef, call_id: str, user_id: str | None, new: Attachment
    ) -> None:
        """Describe a file that a tool call returned, and record its use; a repetition changes nothing.

        Raises:
            NotFound: There is no such execution.
        """
        ...

    async def find_readable(self, scope: Scope, ids: Sequence[UUID]) -> Sequence[Attachment]:
        """Those of the files that the scope covers: own uploads, and files of own conversations."""
        ...

    async def list_uses(self, ref: ExecutionRef) -> Sequence[AttachmentUse]:
        """The files of an execution's messages and results, oldest first."""
        ...

    async def list_garbage(self, limit: int) -> Sequence[AttachmentKey]:
        """Files that have expired, and that no execution uses."""
        ...

    async def expire_orphans(self) -> None:
        """Let files expire whose executions were removed."""
        ...

    async def count_orphans(self) -> int:
        """How many files `expire_orphans` and `expired` would find."""
        ...

    async def remove(self, keys: Sequence[AttachmentKey]) -> None:
        """Delete the descriptions of expired files."""
        ...
