"""Attached files in a form that models read.

Providers get the parts of Chat Completions: `image_url` and `file` with the content in a `data:` URL, and
text for text files. Each driver converts them to its own format. A file that the model cannot read, or whose
content is not at hand, is described in words, so that the model can say so.
"""

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from everstep.agent_domain.attachments import Attachment, is_attachment_part
from everstep.agent_domain.media_types import FileKind, decode_text
from everstep.agent_domain.messages.messages import Message, Messages

MAX_REQUEST_BYTES: Final = 25_000_000
"""The size of all files in one request; providers accept 32 to 50 MB, and base64 adds a third."""

UNREAD: Final = "which you cannot see; say so if the question is about it"
"""What the model reads of a file of a kind that it does not read."""


def readable_messages(messages: Messages, accepts: Collection[str] | None = None) -> Messages:
    """The messages with their files as parts that a model reads.

    Args:
        messages: The messages; files have their content, or are described in words.
        accepts: What the model reads: `image`, `pdf`; None if that is unknown. Every model reads text.
    """
    if not any(has_attachments(message) for message in messages):
        return messages
    return tuple(_readable(message, accepts) for message in messages)


def described_messages(messages: Messages, accepts: Collection[str] | None) -> Messages:
    """The messages with files that the model does not read in words, as they are sent; others stay."""
    if accepts is None or not any(map(has_attachments, messages)):
        return messages
    return tuple(_described(message, accepts) for message in messages)


def has_attachments(message: Message) -> bool:
    """Whether the message refers to files."""
    return not isinstance(message.content, str) and any(map(is_attachment_part, message.content))


def files_to_load(messages: Messages) -> tuple[Attachment, ...]:
    """The files whose content a request needs: the latest ones, if all are too large together."""
    wanted, size = dict[str, Attachment](), 0
    for message in reversed(messages):
        for each in message.attachments if has_attachments(message) else ():
            if each.data is None and str(each.id) not in wanted:
                size += each.size
                if size > MAX_REQUEST_BYTES:
                    return tuple(wanted.values())
                wanted[str(each.id)] = each
    return tuple(wanted.values())


def with_contents(messages: Messages, contents: Mapping[str, bytes]) -> Messages:
    """The messages with the content of their files."""
    if not contents:
        return messages
    return tuple(
        replace(message, files={**message.files, **contents}) if has_attachments(message) else message
        for message in messages
    )


def sent_kinds(messages: Messages, accepts: Collection[str] | None) -> tuple[FileKind, ...]:
    """The kinds of files, other than text, that a request with these messages contains."""
    kinds = (
        each.kind
        for message in messages
        for each in message.attachments
        if each.data is not None and _is_accepted(each, accepts)
    )
    return tuple(dict.fromkeys(kind for kind in kinds if kind in (FileKind.IMAGE, FileKind.PDF)))


def _readable(message: Message, accepts: Collection[str] | None) -> Message:
    if not has_attachments(message):
        return message
    attachments = iter(message.attachments)
    parts = list[Any]()
    for part in message.content:
        if is_attachment_part(part):
            parts.extend(_parts(next(attachments), accepts))
        else:
            parts.append(part)
    return replace(message, content=cast("Any", parts))


def _described(message: Message, accepts: Collection[str]) -> Message:
    if not has_attachments(message):
        return message
    attachments = iter(message.attachments)
    parts = list[Any]()
    for part in message.content:
        attachment = next(attachments) if is_attachment_part(part) else None
        is_left_out = attachment is not None and not _is_accepted(attachment, accepts)
        parts.append(_words(attachment, UNREAD) if attachment is not None and is_left_out else part)
    return replace(message, content=cast("Any", parts))


def _parts(attachment: Attachment, accepts: Collection[str] | None) -> Iterator[dict[str, Any]]:
    data = attachment.data
    if data is None:
        yield _words(attachment, "whose content is not shown here")
    elif not _is_accepted(attachment, accepts):
        yield _words(attachment, UNREAD)
    elif attachment.kind is FileKind.TEXT:
        text = decode_text(data) or ""
        name = attachment.name.replace('"', "'")
        yield {"type": "text", "text": f'<file name="{name}">\n{text}\n</file>'}
    elif attachment.kind is FileKind.IMAGE:
        yield {"type": "image_url", "image_url": {"url": _data_url(attachment, data)}}
    else:
        file = {"filename": attachment.name, "file_data": _data_url(attachment, data)}
        yield {"type": "file", "file": file}


def _is_accepted(attachment: Attachment, accepts: Collection[str] | None) -> bool:
    match attachment.kind:
        case FileKind.TEXT:
            return True
        case FileKind.OTHER:
            return False
        case kind:
            return accepts is None or kind in accepts


def _words(attachment: Attachment, reason: str) -> dict[str, Any]:
    kind = "image" if attachment.kind is FileKind.IMAGE else "file"
    return {"type": "text", "text": f"[The user attached the {kind} {attachment}, {reason}.]"}


def _data_url(attachment: Attachment, data: bytes) -> str:
    return f"data:{attachment.media_type};base64,{b64encode(data).decode()}"
