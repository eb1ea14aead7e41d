"""Files in messages of other protocols: uploaded ones by their address, and contained ones."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.values import parse_uuid
from everstep.http_api.problems import Refusal, invalid_request
from everstep.http_api.threads import Threads
from everstep.wires.event_bodies import json_map

UPLOADED: Final = "/agent/attachments/"
"""The path of an uploaded file, before its id."""
OWN_PROVIDER: Final = "everstep"
"""The provider of a file that AG-UI names by its id."""
MEDIA_PARTS: Final = frozenset({"image", "audio", "video", "document", "binary"})
"""The types of AG-UI's parts that are files; `binary` is that of versions before 1.0."""


def file_of_part(threads: Threads, part: Mapping[str, Any]) -> UUID | Attachment:
    """The file of a part of an AG-UI message.

    Raises:
        Refusal: It is neither uploaded nor contained in the part.
        InvalidInput: It cannot be attached.
    """
    name = _name(json_map(part.get("metadata")), part)
    if part.get("type") != "binary":
        source = json_map(part.get("source"))
        value, media_type = source.get("value"), source.get("mimeType")
        match source.get("type"):
            case "data":
                return _contained(threads, value, media_type, name)
            case "url":
                return file_at_url(threads, value, media_type, name)
            case "file" if source.get("provider") == OWN_PROVIDER:
                return parse_uuid(value, "the id of the file")
            case _:
                raise _unusable_file()
    media_type = part.get("mimeType")
    if part.get("data") is not None:
        return _contained(threads, part["data"], media_type, name)
    if part.get("url") is not None:
        return file_at_url(threads, part["url"], media_type, name)
    return parse_uuid(part.get("id"), "the id of the file")


def file_at_url(threads: Threads, url: object, media_type: object, name: str | None) -> UUID | Attachment:
    """The file at the URL of a part: an uploaded one, or the content of a `data:` URL.

    Raises:
        Refusal: It is another URL.
        InvalidInput: The file cannot be attached.
    """
    if isinstance(url, str) and url[:5].lower() == "data:":
        head, comma, content = url[5:].partition(",")
        if not comma:
            raise invalid_request("a data: URL of a file has no comma; send data:TYPE;base64,CONTENT")
        declared, *parameters = head.split(";")
        if "base64" in parameters:
            return _contained(threads, content, media_type or declared, name)
        return _new_file(threads, unquote_to_bytes(content), media_type or declared, name)
    if isinstance(url, str) and UPLOADED in url:
        return parse_uuid(url.partition(UPLOADED)[2], "the id of the file")
    raise _unusable_file()


def _unusable_file() -> Refusal:
    return invalid_request(
        "a file of a message is neither uploaded nor contained in it; send its content as base64 (or as a "
        f"data: URL), or upload it with POST /agent/attachments and send its path, {UPLOADED}ID, as the URL"
    )


def _contained(threads: Threads, content: object, media_type: object, name: str | None) -> Attachment:
    if not isinstance(content, str):
        raise invalid_request("the content of a file is no text; send it as base64")
    try:
        data = base64.b64decode(content, validate=True)
    except binascii.Error:
        raise invalid_request("the content of a file is not base64; encode it again") from None
    return _new_file(threads, data, media_type, name)


def _new_file(threads: Threads, data: bytes, media_type: object, name: str | None) -> Attachment:
    attachments = threads.api.sessions.client.require_attachments()
    return attachments.new_file(
        name, data, media_type if isinstance(media_type, str) and media_type else None
    )


def _name(*places: Mapping[str, Any]) -> str | None:
    """The name that a client gave a file, which the protocol does not define."""
    given = (place.get(key) for place in places for key in ("filename", "name"))
    return next((name for name in given if isinstance(name, str) and name), None)
