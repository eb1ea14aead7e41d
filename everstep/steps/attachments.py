"""Attached files: uploads, files of messages for models, and files that tools return."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID, uuid4

from everstep.agent_domain.attachments import (
    DEFAULT_LIMITS,
    Attachable,
    Attachment,
    AttachmentLimits,
    file_name,
)
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.media_types import UPLOAD_TYPES, checked_media_type, require_accepted
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.messages.readable_parts import files_to_load
from everstep.agent_domain.storage.attachments import (
    AttachmentIndex,
    AttachmentKey,
    AttachmentStore,
    AttachmentUse,
)
from everstep.agent_domain.values import EMPTY

log = logging.getLogger(__name__)

UPLOAD_SECONDS = 86_400.0
"""How long an upload waits for a message that uses it."""

REMOVED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file from a URL."""

    name: str
    media_type: str | None
    """What its server claims."""
    data: bytes


class FetchesFiles(Protocol):
    """Reads files from URLs, under a policy."""

    async def fetch(self, url: str, max_bytes: int) -> FetchedFile:
        """Read a file.

        Raises:
            InvalidInput: It cannot be read, or the policy does not allow the URL.
        """
        ...


@dataclass(frozen=True)
class Attachments:
    """The attached files of an installation."""

    index: AttachmentIndex
    store: AttachmentStore
    limits: AttachmentLimits = DEFAULT_LIMITS
    accepted: Sequence[str] = UPLOAD_TYPES
    """The media types of uploads."""
    keep_seconds: float = UPLOAD_SECONDS
    urls: FetchesFiles | None = None
    """Reads files from URLs; None if users may send none."""

    async def fetch(
        self, tenant_id: str, user_id: str | None, url: str, name: str | None = None, *, new_id: UUID
    ) -> Attachment:
        """Read a file from a URL and store it; return its reference.

        Args:
            tenant_id: The tenant.
            user_id: The owner of the file.
            url: The address, http or https.
            name: The name of the file; by default that of the URL.
            new_id: The id of the file.

        Raises:
            InvalidInput: URLs are not allowed, or the file cannot be read or attached.
        """
        if self.urls is None:
            raise InvalidInput(
                "files from URLs are not allowed here; upload the file, or set EVERSTEP_ATTACHMENT_URLS=on"
            )
        found = await self.urls.fetch(url, self.limits.max_bytes)
        new = self.new_file(name or found.name, found.data, found.media_type, new_id)
        return await self.upload(tenant_id, user_id, new)

    def new_file(
        self, name: str | None, data: bytes, media_type: str | None, new_id: UUID | None = None
    ) -> Attachment:
        """A file that was sent, with a name if it has none.

        Raises:
            InvalidInput: It is empty, has a bad name, or its type and its content do not agree.
        """
        found = checked_media_type(data, media_type, name or "") if data else None
        return Attachment.from_bytes(file_name(name, found or ""), data, found, new_id=new_id)

    async def upload(self, tenant_id: str, user_id: str | None, new: Attachment) -> Attachment:
        """Store a file; return its reference.

        Args:
            tenant_id: The tenant.
            user_id: The owner of the file.
            new: The file with its content.

        Raises:
            InvalidInput: It is too large, or its type is not accepted.
        """
        require_accepted(new.media_type, self.accepted)
        self.limits.require_size(new.name, new.size)
        # Described first: what a process that is lost in between leaves behind expires.
        await self.index.add(tenant_id, user_id, new, self.keep_seconds)
        await self.store.write(AttachmentKey(tenant_id, new.id), new.data or b"")
        return new.without_data

    async def find(self, scope: Scope, ids: Sequence[UUID]) -> tuple[Attachment, ...]:
        """The references of files, in the order of their ids.

        Raises:
            NotFound: The scope does not cover one, or it has expired.
        """
        if not ids:
            return ()
        found = {each.id: each for each in await self.index.find_readable(scope, ids)}
        for each in ids:
            if each not in found:
                raise NotFound("attachment", each)
        return tuple(found[each] for each in dict.fromkeys(ids))

    async def for_message(
        self, scope: Scope, given: Sequence[Attachable | UUID], user_id: str | None
    ) -> tuple[Attachment, ...]:
        """The references of the files of a new message; those that are not stored yet are uploaded.

        Args:
            scope: The sender's scope, which has to cover the uploaded files.
            given: Ids of uploaded files, and files.
            user_id: The owner of new files.

        Raises:
            NotFound: The scope does not cover one, or it has expired.
            InvalidInput: They are too many, too large together, or one cannot be attached.
        """
        self.limits.require_count(len(given))
        new = Message.user(attachments=[each for each in given if not isinstance(each, UUID)])
        (uploaded,) = await self.upload_files_of(scope.tenant_id, user_id, (new,))
        following = iter(uploaded.attachments)
        ids = [each if isinstance(each, UUID) else next(following).id for each in given]
        attachments = await self.find(scope, tuple(dict.fromkeys(ids)))
        self.limits.require_total(attachments)
        return attachments

    async def open(self, scope: Scope, attachment_id: UUID) -> tuple[Attachment, bytes]:
        """A file with its content.

        Raises:
            NotFound: The scope does not cover it, it has expired, or its content is gone.
        """
        (attachment,) = await self.find(scope, (attachment_id,))
        data = await self._read(scope.tenant_id, attachment)
        if data is None:
            raise NotFound("attachment", attachment_id)
        return attachment, data

    async def load_contents(self, tenant_id: str, messages: Messages) -> Mapping[str, bytes]:
        """The content of the files of these messages by id.

        If all are too large together, the latest ones.
        """
        wanted = files_to_load(messages)
        if not wanted:
            return EMPTY
        read = {str(each.id): await self._read(tenant_id, each) for each in wanted}
        return {key: data for key, data in read.items() if data is not None}

    async def keep_artifacts(
        self, ref: ExecutionRef, call_id: str, user_id: str | None, artifacts: Sequence[Attachment]
    ) -> tuple[Attachment, ...]:
        """Store the files that a call returned, and return their references; repeating it changes nothing."""
        for each in artifacts:
            await self.index.add_artifact(ref, call_id, user_id, each)
            await self.store.write(AttachmentKey(ref.tenant_id, each.id), each.data or b"")
        return tuple(each.without_data for each in artifacts)

    async def list_uses(self, ref: ExecutionRef) -> Sequence[AttachmentUse]:
        """The files of an execution."""
        return await self.index.list_uses(ref)

    async def upload_files_of(
        self, tenant_id: str, user_id: str | None, messages: Sequence[Message]
    ) -> tuple[Message, ...]:
        """The messages with references to stored files; those with content are uploaded."""
        return tuple([await self._upload_files(tenant_id, user_id, message) for message in messages])

    async def _upload_files(self, tenant_id: str, user_id: str | None, message: Message) -> Message:
        if not message.files:
            return message
        self.limits.require_count(len(message.attachments))
        self.limits.require_total(message.attachments)
        kept = [
            each if each.data is None else await self.upload(tenant_id, user_id, replace(each, id=uuid4()))
            for each in message.attachments
        ]
        return message.with_attachments(kept)

    async def remove_garbage(self, limit: int = REMOVED_AT_ONCE) -> int:
        """Remove files that have expired and that no execution uses; return how many."""
        expired = await self.index.list_garbage(limit)
        for key in expired:
            await self.store.delete(key)
        if expired:
            await self.index.remove(expired)
        return len(expired)

    async def _read(self, tenant_id: str, attachment: Attachment) -> bytes | None:
        data = await self.store.read(AttachmentKey(tenant_id, attachment.id))
        if data is not None and hashlib.sha256(data).hexdigest() != attachment.sha256:
            log.error("the content of the attachment %s has changed, so it is not used", attachment.id)
            return None
        return data
