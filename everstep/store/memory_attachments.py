"""Attached files in memory, for tests and demos."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.storage.attachments import AttachmentKey, AttachmentUse


@dataclass
class _StoredFile:
    tenant_id: str
    user_id: str | None
    attachment: Attachment
    uses: dict[UUID, AttachmentUse] = field(default_factory=dict[UUID, AttachmentUse])


class MemoryAttachments:
    """The index and the content of files; nothing expires."""

    def __init__(self) -> None:
        self._files: dict[UUID, _StoredFile] = {}
        self._contents: dict[AttachmentKey, bytes] = {}

    async def add(self, tenant_id: str, user_id: str | None, new: Attachment, seconds: float) -> None:
        """Describe a file."""
        del seconds
        known = self._files.get(new.id)
        if known and known.tenant_id != tenant_id:
            raise NotFound("attachment", new.id)
        uses = known.uses if known else {}
        self._files[new.id] = _StoredFile(tenant_id, user_id, new.without_data, uses)

    async def add_artifact(
        self, ref: ExecutionRef, call_id: str, user_id: str | None, new: Attachment
    ) -> None:
        """Describe a file that a tool call returned, and record its use."""
        await self.add(ref.tenant_id, user_id, new, 0)
        use = AttachmentUse(new.without_data, call_id, datetime.now(UTC))
        self._files[new.id].uses.setdefault(ref.execution_id, use)

    async def find_readable(self, scope: Scope, ids: Sequence[UUID]) -> Sequence[Attachment]:
        """Return those of the files that the scope covers."""
        found = (self._files[each] for each in ids if each in self._files)
        return [
            each.attachment
            for each in found
            if each.tenant_id == scope.tenant_id and scope.covers(each.user_id)
        ]

    async def list_uses(self, ref: ExecutionRef) -> Sequence[AttachmentUse]:
        """Return the files that calls of an execution returned, oldest first."""
        uses = (
            each.uses[ref.execution_id]
            for each in self._files.values()
            if each.tenant_id == ref.tenant_id and ref.execution_id in each.uses
        )
        return sorted(uses, key=lambda use: use.created_at)

    async def list_garbage(self, limit: int) -> Sequence[AttachmentKey]:
        """Return nothing: files are kept as long as the process."""
        del limit
        return ()

    async def expire_orphans(self) -> None:
        """Let nothing expire."""

    async def count_orphans(self) -> int:
        """Return 0: nothing expires."""
        return 0

    async def remove(self, keys: Sequence[AttachmentKey]) -> None:
        """Delete the descriptions of files."""
        for key in keys:
            self._files.pop(key.id, None)

    async def write(self, key: AttachmentKey, data: bytes) -> None:
        """Store the content."""
        self._contents[key] = data

    async def read(self, key: AttachmentKey) -> bytes | None:
        """Return the content; None if there is none."""
        return self._contents.get(key)

    async def delete(self, key: AttachmentKey) -> None:
        """Delete the content."""
        self._contents.pop(key, None)
