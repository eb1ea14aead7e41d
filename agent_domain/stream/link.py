"""The link protocol between writers and gateways: text messages on a WebSocket that the writer opens.

A writer first sends the epoch of the journal, and sends it again when it changes. Then it pushes the events
of the streams that the gateway wants, many lines per message, in the order in which they were queued. A
gateway sends the streams that it wants and those that it no longer wants. On a new connection it sends all
that it wants.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, cast
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.reader import MAX_EPOCH
from everstep.agent_domain.values import as_list, json_text, reading, valid_text

SUBPROTOCOL = "everstep.link.v1"

MAX_LINK_MESSAGE_BYTES = 256 * 1024
"""The maximum size of a message with more than one line."""

MAX_STREAMS_PER_MESSAGE = 5000
"""The maximum number of streams in one message."""

_ID = 36
"""The length of a stream's id, which a space follows."""


@dataclass(frozen=True, slots=True)
class EpochMessage:
    """From a writer: the epoch of its journal."""

    epoch: str


@dataclass(frozen=True, slots=True)
class PushMessage:
    """From a writer: envelopes as JSON, each with its stream."""

    lines: tuple[tuple[UUID, bytes], ...]


@dataclass(frozen=True, slots=True)
class InterestMessage:
    """From a gateway: the streams to subscribe to and those to unsubscribe from."""

    want: frozenset[UUID] = frozenset()
    unwant: frozenset[UUID] = frozenset()


LinkMessage: TypeAlias = str | bytes
"""Bytes are the text in UTF-8."""


def link_token(secret: str) -> str:
    """The bearer token of a writer, derived from the secret that it shares with the gateway."""
    return hmac.new(secret.encode(), b"everstep/link", hashlib.sha256).hexdigest()


def epoch_message(epoch: str) -> str:
    """The message with the epoch, which a writer sends first."""
    return json_text({"epoch": epoch})


def line_from(stream_id: UUID, envelope: bytes) -> bytes:
    """An envelope in JSON as a line of the protocol."""
    return f"{stream_id} ".encode() + envelope


def pack_lines(lines: Iterable[bytes]) -> list[bytes]:
    """Join lines into as few messages as possible."""
    return [b"\n".join(together) for together in group_lines(lines, MAX_LINK_MESSAGE_BYTES)]


def group_lines(lines: Iterable[bytes], limit: int) -> list[list[bytes]]:
    """Divide lines into as few groups of this size as possible; a longer line is a group by itself."""
    groups, size = list[list[bytes]](), limit
    for each in lines:
        size += len(each) + 1
        if size >= limit:
            groups.append([])
            size = len(each)
        groups[-1].append(each)
    return groups


def interest_messages(want: Iterable[UUID], unwant: Iterable[UUID] = ()) -> list[str]:
    """The messages of a gateway that subscribe to streams and unsubscribe from others."""
    entries = [("want", str(each)) for each in want] + [("unwant", str(each)) for each in unwant]
    texts = list[str]()
    for start in range(0, len(entries), MAX_STREAMS_PER_MESSAGE):
        message: dict[str, list[str]] = {}
        for word, stream_id in entries[start : start + MAX_STREAMS_PER_MESSAGE]:
            message.setdefault(word, []).append(stream_id)
        texts.append(json_text(message))
    return texts


def parse_writer_message(message: LinkMessage) -> EpochMessage | PushMessage:
    """Parse a message of a writer.

    Raises:
        InvalidInput: The message is malformed.
    """
    with reading("the writer's message"):
        data = message.encode() if isinstance(message, str) else message
        if data.startswith(b"{"):
            epoch = valid_text(_parse_object(data)["epoch"], "epoch")
            if not 0 < len(epoch) <= MAX_EPOCH:
                raise InvalidInput(f"epoch has {len(epoch)} characters")
            return EpochMessage(epoch)
        return PushMessage(tuple(map(_parse_line, data.split(b"\n"))))


def parse_gateway_message(message: LinkMessage) -> InterestMessage:
    """Parse a message of a gateway; unknown keys are ignored.

    Raises:
        InvalidInput: The message is malformed.
    """
    with reading("the gateway's message"):
        data = _parse_object(message)
        return InterestMessage(
            *(frozenset(map(UUID, as_list(data.get(w, ()), w))) for w in ("want", "unwant"))
        )


def _parse_object(message: LinkMessage) -> dict[str, Any]:
    try:
        data = json.loads(message if isinstance(message, str) else message.decode())
    except RecursionError:
        raise InvalidInput("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidInput("it is not an object")
    return cast("dict[str, Any]", data)


def _parse_line(data: bytes) -> tuple[UUID, bytes]:
    if data[_ID : _ID + 1] != b" ":
        raise InvalidInput("a line must contain a stream's id, a space, and an envelope")
    return _stream_id(data[:_ID]), data[_ID + 1 :]


@lru_cache(maxsize=10_000)
def _stream_id(data: bytes) -> UUID:
    """Parse an id; thousands of lines in a second have the ids of a few streams."""
    return UUID(data.decode())
