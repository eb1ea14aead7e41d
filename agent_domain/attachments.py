"""Files of a conversation: images, PDF and text that users send, and files that tools return.

A message contains a *reference*: id, name, media type, size and digest of a file. The content is in an
attachment store, and is read for each request to a model. So histories, snapshots, envelopes and workflows
stay small, and a file is deleted in one place.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, Self, TypeAlias, cast, runtime_checkable
from uuid import UUID, uuid5

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.media_types import (
    EXTENSIONS,
    FileKind,
    checked_media_type,
    kind_of,
)
from everstep.agent_domain.values import is_hidden, parse_uuid, read_key, truncate, valid_text

PART: Final = "attachment"
"""The type of a message part that refers to a file."""

MAX_NAME: Final = 255
"""The maximum length of a file's name, in characters."""

_NAMESPACE = UUID("2f0d5b0e-6f5c-4a53-9a0e-1b0f3a6d7c42")
"""The namespace of ids of files that are no uploads; it must never change."""


@runtime_checkable
class ReadableFile(Protocol):
    """A file with a name, such as `pathlib.Path("photo.png")`."""

    @property
    def name(self) -> str:
        """The name, without a path."""
        ...

    def read_bytes(self) -> bytes:
        """The content."""
        ...


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of a conversation. `data` is its content, where that was read already; it is never exported."""

    id: UUID
    name: str
    media_type: str
    size: int
    sha256: str
    data: bytes | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_bytes(
        cls,
        name: str,
        data: bytes | bytearray | memoryview,
        media_type: str | None = None,
        *,
        new_id: UUID | None = None,
    ) -> "Attachment":
        """A file with this content.

        Args:
            name: The name that people and models read.
            data: The content.
            media_type: The type; found in the content by default.
            new_id: The id; derived from the content by default.

        Raises:
            InvalidInput: The name is a path, the content is empty or it is of another type.
        """
        if not isinstance(cast("object", data), bytes | bytearray | memoryview):
            raise InvalidInput(f"the content of {name!r} is of type {type(data).__name__}; pass bytes")
        data, name = bytes(data), file_name(name)
        if not data:
            raise InvalidInput(f"the file '{name}' is empty; send one with content")
        media_type, digest = checked_media_type(data, media_type, name), hashlib.sha256(data).hexdigest()
        own_id = new_id or uuid5(_NAMESPACE, f"{digest}/{name}")
        return cls(own_id, name, media_type, len(data), digest, data)

    @classmethod
    def from_file(cls, file: ReadableFile, media_type: str | None = None) -> "Attachment":
        """Read a file, such as `pathlib.Path("photo.png")`.

        Raises:
            InvalidInput: It cannot be read, or used as an attachment.
        """
        try:
            data = file.read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidInput(f"the file '{file}' cannot be read: {reason}") from None
        return cls.from_bytes(file.name, data, media_type)

    @property
    def kind(self) -> FileKind:
        """How models read it."""
        return kind_of(self.media_type)

    @property
    def without_data(self) -> "Attachment":
        """The reference alone."""
        return self if self.data is None else replace(self, data=None)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, without the content."""
        return {
            "id": str(self.id),
            "name": self.name,
            "media_type": self.media_type,
            "size": self.size,
            "sha256": self.sha256,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(given, "id", partial(parse_uuid, where="the id")),
            read_key(given, "name", str),
            read_key(given, "media_type", str),
            read_key(given, "size", int),
            read_key(given, "sha256", str),
        )

    def to_part(self) -> dict[str, Any]:
        """The part of a message that refers to the file."""
        return {"type": PART, **self.to_dict()}

    def __str__(self) -> str:
        return f"{self.name} ({self.media_type}, {size_text(self.size)})"


Attachable: TypeAlias = Attachment | ReadableFile
"""What can be attached to a message in a program."""


def as_attachments(given: Iterable[Attachable]) -> tuple[Attachment, ...]:
    """Read the files that are none yet.

    Raises:
        InvalidInput: One is neither an attachment nor a file that can be read.
    """
    return tuple(map(_as_attachment, given))


def _as_attachment(given: object) -> Attachment:
    if isinstance(given, Attachment):
        return given
    if isinstance(given, ReadableFile):
        return Attachment.from_file(given)
    raise InvalidInput(
        f"{truncate(repr(given), 100)} cannot be attached; "
        "pass pathlib.Path('photo.png') or Attachment.from_bytes(...)"
    )


def is_attachment_part(part: object) -> bool:
    """Whether a part of a message refers to a file."""
    return isinstance(part, Mapping) and cast("Mapping[str, Any]", part).get("type") == PART


def content_with(text: str, attachments: Sequence[Attachment]) -> str | list[dict[str, Any]]:
    """The content of a message: the text alone, or text and references."""
    if not attachments:
        return text
    written = [{"type": "text", "text": text}] if text else []
    return [*written, *(each.to_part() for each in attachments)]


def file_name(text: object, media_type: str = "") -> str:
    """The name of a file, after a check that it is one.

    Args:
        text: The name; without one, a name for the type is returned.
        media_type: The type of the file.

    Raises:
        InvalidInput: It is a path, too long, or has characters that are not shown.
    """
    if text is None or text == "":
        extension = EXTENSIONS.get(media_type, "")
        return f"file.{extension}" if extension else "file"
    name = valid_text(text, "the name of the file").strip()
    shown = repr(truncate(name, 60))
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise InvalidInput(f"the name {shown} is no file name; send a name without a path, such as photo.png")
    if any(is_hidden(char) for char in name):
        raise InvalidInput(f"the name {shown} has control characters; send a name without them")
    if len(name) > MAX_NAME:
        raise InvalidInput(f"the name of the file has {len(name)} characters; send at most {MAX_NAME}")
    return name


def size_text(size: int) -> str:
    """A size in bytes for people."""
    for unit, factor in (("MB", 1_000_000), ("KB", 1_000)):
        if size >= factor:
            return f"{size / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} byte" if size == 1 else f"{size} bytes"


@dataclass(frozen=True, slots=True)
class AttachmentLimits:
    """How many files, how large and of which types."""

    max_bytes: int = 10_000_000
    """The size of one file."""
    max_message_bytes: int = 25_000_000
    """The size of all files of one message."""
    max_count: int = 10
    """The files of one message, and of one tool call."""

    def require_size(self, name: str, size: int) -> None:
        """Refuse a file that is too large.

        Raises:
            InvalidInput: It is.
        """
        if size > self.max_bytes:
            raise InvalidInput(
                f"the file '{name}' has {size_text(size)}; a file has at most {size_text(self.max_bytes)}"
            )

    def require_count(self, count: int) -> None:
        """Refuse too many files.

        Raises:
            InvalidInput: They are.
        """
        if count > self.max_count:
            raise InvalidInput(f"a message has at most {self.max_count} files, not {count}")

    def require_total(self, attachments: Sequence[Attachment]) -> None:
        """Refuse files that are too large together.

        Raises:
            InvalidInput: They are.
        """
        size = sum(each.size for each in attachments)
        if size > self.max_message_bytes:
            limit = size_text(self.max_message_bytes)
            raise InvalidInput(
                f"the files of the message have {size_text(size)} together; send at most {limit}"
            )


DEFAULT_LIMITS: Final = AttachmentLimits()
