"""The files that a tool call returns to the user."""

from collections.abc import Sequence
from uuid import UUID

from everstep.agent_domain.attachments import DEFAULT_LIMITS, Attachment, AttachmentLimits
from everstep.agent_domain.errors import InvalidInput

NO_FILES = AttachmentLimits(max_count=0)
"""The limits where no store for files is known."""


class Artifacts:
    """Collects the files of one call, from any thread."""

    __slots__ = ("_files", "limits")

    def __init__(self, limits: AttachmentLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._files: dict[UUID, Attachment] = {}

    def add(self, new_id: UUID, name: str, data: bytes | str, media_type: str | None) -> Attachment:
        """Add a file; see `ToolContext.attach`."""
        content = data.encode() if isinstance(data, str) else data
        attachment = Attachment.from_bytes(name, content, media_type, new_id=new_id)
        self.limits.require_size(attachment.name, attachment.size)
        if not self.limits.max_count:
            raise InvalidInput("this worker has no store for files; EVERSTEP_ATTACHMENTS names one")
        count = len(self._files.keys() | {new_id})
        if count > self.limits.max_count:
            raise InvalidInput(f"a call attaches at most {self.limits.max_count} files")
        self._files[new_id] = attachment
        return attachment.without_data

    def restore(self, attachment: Attachment) -> None:
        """Add a file that an earlier run of the same call returned; its content is not at hand."""
        self._files[attachment.id] = attachment

    @property
    def files(self) -> Sequence[Attachment]:
        """The files with their content, in the order of their names' first use."""
        return tuple(self._files.values())
