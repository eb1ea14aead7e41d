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
from typing import Any, TypeAlias, cast
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import MAX_EPOCH
from everstep.agent_domain.values import json_text, listed, reading, valid_text

SUBPROTOCOL = "everstep.link.v1"

MOST_BYTES = 256 * 1024
"""The maximum size of a message with more than one line."""

MOST_NAMED = 5000
"""The maximum number of streams in one message."""

_ID = 36
"""The length of a stream's id, which a space follows."""


@dataclass(frozen=True, slots=True)
class Told:
    """From a writer: the epoch of its journal."""

    epoch: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """From a writer: envelopes as JSON, each with its stream."""

    lines: tuple[tuple[UUID, bytes], ...]


@dataclass(frozen=True, slots=True)
class Interest:
    """From a gateway: the streams to subscribe to and those to unsubscribe from."""

    want: frozenset[UUID] = frozenset()
    unwant: frozenset[UUID] = frozenset()


Message: TypeAlias = str | bytes
"""Bytes are the text in UTF-8."""


def link_token(secret: str) -> str:
    """The bearer token of a writer, derived from the secret that it shares with the gateway."""
    return hmac.new(secret.encode(), b"everstep/link", hashlib.sha256).hexdigest()


def told(epoch: str) -> str:
    """The message with the epoch, which a writer sends first."""
    return json_text({"epoch": epoch})


def line(stream_id: UUID, envelope: Envelope) -> bytes:
    """An envelope as a line of the protocol."""
    return f"{stream_id} {json_text(envelope.to_dict())}".encode()


def messages(lines: Iterable[bytes]) -> list[bytes]:
    """Join lines into as few messages as possible."""
    made, size = list[list[bytes]](), MOST_BYTES
    for each in lines:
        size += len(each) + 1
        if size >= MOST_BYTES:
            made.append([])
            size = len(each)
        made[-1].append(each)
    return [b"\n".join(together) for together in made]


def interests(want: Iterable[UUID], unwant: Iterable[UUID] = ()) -> list[str]:
    """The messages of a gateway that subscribe to streams and unsubscribe from others."""
    named = [("want", str(each)) for each in want] + [("unwant", str(each)) for each in unwant]
    made = list[str]()
    for start in range(0, len(named), MOST_NAMED):
        message: dict[str, list[str]] = {}
        for word, stream_id in named[start : start + MOST_NAMED]:
            message.setdefault(word, []).append(stream_id)
        made.append(json_text(message))
    return made


def read_writer(message: Message) -> Told | Pushed:
    """Parse a message of a writer.

    Raises:
        InvalidInput: The message is malformed.
    """
    with reading("the writer's message"):
        data = message.encode() if isinstance(message, str) else message
        if data.startswith(b"{"):
            epoch = valid_text(_object(data)["epoch"], "epoch")
            if not 0 < len(epoch) <= MAX_EPOCH:
                raise InvalidInput(f"epoch has {len(epoch)} characters")
            return Told(epoch)
        return Pushed(tuple(map(_line, data.split(b"\n"))))


def read_gateway(message: Message) -> Interest:
    """Parse a message of a gateway; unknown keys are ignored.

    Raises:
        InvalidInput: The message is malformed.
    """
    with reading("the gateway's message"):
        data = _object(message)
        return Interest(*(frozenset(map(UUID, listed(data.get(w, ()), w))) for w in ("want", "unwant")))


def _object(message: Message) -> dict[str, Any]:
    try:
        data = json.loads(message if isinstance(message, str) else message.decode())
    except RecursionError:
        raise InvalidInput("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidInput("it is not an object")
    return cast("dict[str, Any]", data)


def _line(data: bytes) -> tuple[UUID, bytes]:
    if data[_ID : _ID + 1] != b" ":
        raise InvalidInput("a line must contain a stream's id, a space, and an envelope")
    return UUID(data[:_ID].decode()), data[_ID + 1 :]
