"""Attached files in PostgreSQL: descriptions, uses and, unless another store is chosen, their content."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.attachments import AttachmentKey, AttachmentUse
from everstep.store import attachment_statements
from everstep.store.parameters import execution_key
from everstep.store.postgres_writing import PostgresWriter
from everstep.store.transaction import BoundStatement, QueryResult

GRACE_SECONDS: Final = 600
"""Longer than any transaction: a file that is used before it expires is not removed."""


class PostgresAttachmentIndex(PostgresWriter):
    """Knows all files, who may read them, and which executions use them."""

    async def add(self, tenant_id: str, user_id: str | None, new: Attachment, seconds: float) -> None:
        """Describe a file that expires after this time, unless an execution uses it before."""
        found = await self._fetch_all(
            attachment_statements.ADD, _described(tenant_id, user_id, new) | {"seconds": seconds}
        )
        if not found:
            raise NotFound("attachment", new.id)

    async def add_artifact(
        self, ref: ExecutionRef, call_id: str, user_id: str | None, new: Attachment
    ) -> None:
        """Describe a file that a tool call returned, and record its use."""
        values = _described(ref.tenant_id, user_id, new) | {"seconds": GRACE_SECONDS}
        use = execution_key(ref) | {"attachment_ids": [new.id], "call_id": call_id}
        async with self._transaction() as connection:
            _, used = await connection.together(
                (attachment_statements.ADD, values), (attachment_statements.USE, use), last=True
            )
        if used.first() is None:
            raise NotFound("execution", ref.execution_id)

    async def find_readable(self, scope: Scope, ids: Sequence[UUID]) -> Sequence[Attachment]:
        """Return those of the files that the scope covers."""
        values = {"attachment_ids": list(ids), "tenant_id": scope.tenant_id, "user_id": scope.user_id}
        return tuple(map(_attachment, await self._fetch_all(attachment_statements.READABLE, values)))

    async def list_uses(self, ref: ExecutionRef) -> Sequence[AttachmentUse]:
        """Return the files of an execution's messages and results, oldest first."""
        found = await self._fetch_all(attachment_statements.USED_BY, execution_key(ref))
        return tuple(AttachmentUse(_attachment(row), row.call_id, row.created_at) for row in found)

    async def list_garbage(self, limit: int) -> Sequence[AttachmentKey]:
        """Return files that have expired, and that no execution uses."""
        values = {"limit": limit, "grace": GRACE_SECONDS}
        found = await self._fetch_all(attachment_statements.EXPIRED, values)
        return tuple(AttachmentKey(row.tenant_id, row.id) for row in found)

    async def remove(self, keys: Sequence[AttachmentKey]) -> None:
        """Delete the descriptions of expired files."""
        values = {"attachment_ids": [key.id for key in keys]}
        async with self._transaction() as connection:
            await connection.together((attachment_statements.REMOVE, values), last=True)

    async def expire_orphans(self) -> None:
        """Let the files of executions expire that were removed."""
        async with self._transaction() as connection:
            await connection.together((attachment_statements.EXPIRE_ORPHANS, {}), last=True)

    async def count_orphans(self) -> int:
        """Return how many files `expire_orphans` and `expired` would find."""
        (row,) = await self._fetch_all(attachment_statements.COUNT_ORPHANS, {"grace": GRACE_SECONDS})
        return row.many


class PostgresAttachmentStore(PostgresWriter):
    """Stores the content of files in the database."""

    async def write(self, key: AttachmentKey, data: bytes) -> None:
        """Store the content; that of an earlier attempt is replaced."""
        async with self._transaction() as connection:
            await connection.together((attachment_statements.WRITE, _key(key) | {"data": data}), last=True)

    async def read(self, key: AttachmentKey) -> bytes | None:
        """Return the content; None if there is none."""
        found = await self._fetch_all(attachment_statements.READ, _key(key))
        return bytes(found[0].data) if found else None

    async def delete(self, key: AttachmentKey) -> None:
        """Delete the content."""
        async with self._transaction() as connection:
            await connection.together((attachment_statements.DELETE_CONTENT, _key(key)), last=True)


def use_statements(ref: ExecutionRef, messages: Sequence[Message]) -> list[BoundStatement]:
    """Return the statement that records the use of the files of these messages, if there are any."""
    used = [each.id for message in messages for each in message.attachments]
    if not used:
        return []
    return [(attachment_statements.USE, execution_key(ref) | {"attachment_ids": used, "call_id": None})]


def require_used(messages: Sequence[Message], answers: Sequence[QueryResult]) -> None:
    """Raise `NotFound` for a file that does not exist or has expired."""
    used = {row.id for answer in answers for row in answer.rows}
    for message in messages:
        for each in message.attachments:
            if each.id not in used:
                raise NotFound("attachment", each.id)


def _described(tenant_id: str, user_id: str | None, new: Attachment) -> dict[str, Any]:
    return {
        "id": new.id,
        "tenant_id": tenant_id,
        "user_id": user_id,
        "name": new.name,
        "media_type": new.media_type,
        "size": new.size,
        "sha256": new.sha256,
    }


def _key(key: AttachmentKey) -> dict[str, Any]:
    return {"id": key.id, "tenant_id": key.tenant_id}


def _attachment(row: Row[Any]) -> Attachment:
    return Attachment(row.id, row.name, row.media_type, row.size, row.sha256)
