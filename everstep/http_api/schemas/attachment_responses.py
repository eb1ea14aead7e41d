"""Response models of attached files."""

from typing import Self
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.storage.attachments import AttachmentUse
from everstep.http_api import samples
from everstep.http_api.samples import example
from everstep.http_api.schemas.text import Moment, ResponseModel


class AttachmentResponse(ResponseModel):
    """A file: an upload, or one that a tool returned. Its content is at `/agent/attachments/{id}`."""

    model_config = example(samples.ATTACHMENT)

    id: UUID
    name: str
    media_type: str
    size: int = Field(description="The size in bytes.")
    sha256: str

    @classmethod
    def of(cls, attachment: Attachment) -> Self:
        """Convert a reference."""
        return cls(
            id=attachment.id,
            name=attachment.name,
            media_type=attachment.media_type,
            size=attachment.size,
            sha256=attachment.sha256,
        )


class ExecutionFile(AttachmentResponse):
    """A file of an execution."""

    model_config = example({**samples.ATTACHMENT, "tool_call_id": None, "created_at": samples.AT})

    tool_call_id: str | None = Field(description="The call that returned it; null for a file of a message.")
    created_at: Moment

    @classmethod
    def from_use(cls, use: AttachmentUse) -> Self:
        """Convert a stored row."""
        reference = AttachmentResponse.of(use.attachment).model_dump()
        return cls(**reference, tool_call_id=use.call_id, created_at=use.created_at)
