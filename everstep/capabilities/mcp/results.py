"""A tool's result as text for the model.

Models read text, so other parts are named with their type and size, and not kept: an image of megabytes would
be paid for in every later step of the conversation.
"""

import json
from collections.abc import Iterable
from typing import Any, cast

import mcp_types as types

from everstep.agent_domain.values import escape_unstorable, json_text, truncate

NOTHING = "(the tool answered with nothing)"
MAX_ERROR_CHARACTERS = 4_000
_DETAIL_CHARACTERS = 500
"""The limit for the server's texts about a part of its answer: names, descriptions, addresses."""


def text_of(result: types.CallToolResult, most_characters: int) -> str:
    """All of the answer as one text, cut if it is too long."""
    parts = [_part(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, result.content):
        parts.append(json_text(result.structured_content))
    return limit_text(escape_unstorable("\n".join(parts)) or NOTHING, most_characters)


def limit_text(text: str, most_characters: int) -> str:
    """The text up to a length, with a note about the rest."""
    if len(text) <= most_characters:
        return text
    beginning = f"{text[:most_characters]}\n"
    return f"{beginning}[cut: these are the first {most_characters:,} of {len(text):,} characters]"


def error_text(text: str) -> str:
    """The server's text about a failure, as far as a model needs it."""
    return limit_text(escape_unstorable(text).strip() or "it does not say why", MAX_ERROR_CHARACTERS)


def _is_repeated(structured: Any, content: Iterable[types.ContentBlock]) -> bool:
    """Whether one of the texts repeats the structured value, as the protocol asks of servers.

    A value in a map with one key counts, too: many servers wrap a text that way.
    """
    texts = [block.text for block in content if isinstance(block, types.TextContent)]
    values = [structured]
    if isinstance(structured, dict) and len(inner := cast("dict[str, Any]", structured)) == 1:
        values += inner.values()
    return any(text == value or _same_json(text, value) for text in texts for value in values)


def _same_json(text: str, value: Any) -> bool:
    try:
        return json.loads(text) == value
    except (ValueError, RecursionError):
        return False


def _part(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent():
            return _omitted_text("image", block.mime_type, _decoded_size(block.data))
        case types.AudioContent():
            return _omitted_text("audio", block.mime_type, _decoded_size(block.data))
        case types.EmbeddedResource():
            return _resource(block.resource)
        case types.ResourceLink():
            return _link(block)


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    where = f"resource {_detail(resource.uri)}"
    if isinstance(resource, types.TextResourceContents):
        return f"[{where}]\n{resource.text}"
    return _omitted_text(where, resource.mime_type, _decoded_size(resource.blob))


def _link(link: types.ResourceLink) -> str:
    details = [f"link to the resource {_detail(link.uri)}", f"named {_detail(link.title or link.name)}"]
    details += [_detail(link.mime_type)] if link.mime_type else []
    details += [f"{link.size:,} bytes"] if link.size is not None else []
    return f"[{', '.join(details)}]" + (f" {_detail(link.description)}" if link.description else "")


def _omitted_text(what: str, mime_type: str | None, size: int) -> str:
    return f"[{what}, {_detail(mime_type or 'of unknown type')}, {size:,} bytes, not shown]"


def _detail(text: str) -> str:
    return truncate(text, _DETAIL_CHARACTERS)


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
