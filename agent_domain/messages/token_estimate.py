"""An estimate of the input tokens of a request, without the model's tokenizer.

The estimate is meant as an upper bound: for usual text it is not below the count of any tokenizer that it
was compared with (OpenAI's cl100k and o200k, Claude 2, Llama 2 and 3). For English and code it is about half
as much again as the count of a current model. It counts pieces, as tokenizers do:

| text | tokens |
|---|---|
| lower-case ASCII letters | 1 for each 3 of a word |
| capitals, digits, punctuation, tabs and new lines of ASCII | 1 each |
| spaces | none for a single one, 1 for each run of more |
| lower-case Cyrillic | 1 each |
| Chinese, Japanese and Korean | 2 each |
| every other character | 1 for each byte in UTF-8, which no tokenizer exceeds |
| long opaque items of a provider, such as encrypted reasoning | 1 for each 4 characters |
| an image | 5,000 |
| another file | 1 for each 4 characters of its data, at least 5,000 |
| an attached text file | as its text; 1 for each byte while its content is not read |
| each message, call, tool, and the request itself | a fixed overhead |

A provider's own count is better, and so is the usage that it reported for the same messages: see
`everstep.agent_domain.agents.token_counting`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from everstep.agent_domain.attachments import Attachment, is_attachment_part
from everstep.agent_domain.media_types import FileKind, decode_text
from everstep.agent_domain.messages.cached_context import InferenceRequest, ResponseFormat
from everstep.agent_domain.messages.messages import PROVIDER_ITEMS, Message, is_text_part
from everstep.agent_domain.values import EMPTY, FrozenDict, json_text

_PIECE = re.compile(r"[a-z]{1,3}| {2,}|[\x00-\x1f!-`{-\x7f]")
_CYRILLIC = re.compile(r"[\u0430-\u044f]")
_EAST_ASIAN = re.compile(r"[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff00-\uffef]")
_COUNTED = re.compile(
    r"[\x00-\x7f\u0430-\u044f\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff00-\uffef]+"
)
_OPAQUE = re.compile(r"[A-Za-z0-9+/=_-]{120,}")

MESSAGE_OVERHEAD = 8
CALL_OVERHEAD = 16
TOOL_OVERHEAD = 16
REQUEST_OVERHEAD = 16
TOOLS_OVERHEAD = 700
"""Anthropic adds instructions to each request with tools: several hundred tokens, depending on the model."""
IMAGE_TOKENS = 5_000
CHARACTERS_OF_DATA = 4
FILE_OVERHEAD = 150
"""The name of a file, or the words that describe it instead."""


def estimate_text(text: str) -> int:
    """The estimated tokens of a text."""
    pieces = len(_PIECE.findall(text))
    if text.isascii():
        return pieces
    others = _COUNTED.sub("", text).encode("utf-8", "surrogatepass")
    return pieces + len(_CYRILLIC.findall(text)) + 2 * len(_EAST_ASIAN.findall(text)) + len(others)


def estimate_message(message: Message) -> int:
    """The estimated tokens of a message, with its calls and what the provider requires back."""
    plain = _content(message) + sum(_call(call) for call in message.calls)
    items = message.metadata.get(PROVIDER_ITEMS)
    # The items are sent instead of the text and the calls, and repeat them.
    return MESSAGE_OVERHEAD + (plain if items is None else max(plain, _items(json_text(items))))


def estimate_messages(messages: Iterable[Message]) -> int:
    """The estimated tokens of messages."""
    return sum(map(estimate_message, messages))


def estimate_settings(request: InferenceRequest) -> int:
    """The estimated tokens of a request without its messages: its tools and its response format."""
    tools = [TOOL_OVERHEAD + estimate_text(json_text(schema)) for schema in request.tools]
    return REQUEST_OVERHEAD + (TOOLS_OVERHEAD if tools else 0) + sum(tools) + _format(request.response_format)


def estimate_request(request: InferenceRequest) -> int:
    """The estimated input tokens of a request."""
    return estimate_settings(request) + estimate_messages(request.messages)


def _content(message: Message) -> int:
    if isinstance(message.content, str):
        return estimate_text(message.content)
    parts = sum(_part(part) for part in message.content if not is_attachment_part(part))
    return parts + sum(map(_file, message.attachments))


def _file(attachment: Attachment) -> int:
    match attachment.kind:
        case FileKind.IMAGE:
            return IMAGE_TOKENS
        case FileKind.TEXT:
            text = None if attachment.data is None else decode_text(attachment.data)
            return FILE_OVERHEAD + (attachment.size if text is None else estimate_text(text))
        case FileKind.PDF:
            # Base64 has 4 characters for 3 bytes.
            return max(IMAGE_TOKENS, attachment.size * 4 // 3 // CHARACTERS_OF_DATA)
        case FileKind.OTHER:
            return FILE_OVERHEAD


def _part(part: object) -> int:
    if is_text_part(part):
        return estimate_text(cast("Mapping[str, str]", part)["text"])
    given = part if isinstance(part, FrozenDict) else FrozenDict()
    if "image" in str(given.get("type")):
        return IMAGE_TOKENS
    return max(IMAGE_TOKENS, len(json_text(given)) // CHARACTERS_OF_DATA)


def _call(call: Mapping[str, Any]) -> int:
    function = cast("Mapping[str, Any]", call.get("function") or {})
    name, arguments = function.get("name"), function.get("arguments")
    return CALL_OVERHEAD + estimate_text(f"{name} {arguments}")


def _items(text: str) -> int:
    opaque = sum(len(found) for found in _OPAQUE.findall(text))
    return opaque // CHARACTERS_OF_DATA + estimate_text(_OPAQUE.sub(" ", text))


def _format(response_format: ResponseFormat | None) -> int:
    return (
        0 if response_format is None else TOOL_OVERHEAD + estimate_text(json_text(response_format.to_dict()))
    )


def is_surely_within(request: InferenceRequest, tokens: int) -> bool:
    """Whether a request has at most this many tokens, found without reading its texts."""
    most = estimate_settings(request)
    for message in request.messages:
        most += _most_tokens(message)
        if most > tokens:
            return False
    return True


def _most_tokens(message: Message) -> int:
    """A bound that costs no reading of plain text: no text has more tokens than bytes."""
    if PROVIDER_ITEMS in message.metadata or not isinstance(message.content, str):
        return estimate_message(message)
    called = (call.get("function") or EMPTY for call in message.calls)
    calls = sum(
        CALL_OVERHEAD + 1 + sum(_bytes(str(part)) for part in function.values()) for function in called
    )
    return MESSAGE_OVERHEAD + _bytes(message.content) + calls


def _bytes(text: str) -> int:
    """At least as many bytes as the text has in UTF-8."""
    return len(text) if text.isascii() else 4 * len(text)
