"""What writers and gateways say to each other: a WebSocket, opened by the writer, and only text on it.

A writer first tells the epoch of the journal, and again whenever it changes. Then it pushes what happens in
the streams that the gateway wants, many lines to a message, in the order in which they were put. A gateway
says which streams it wants and which no longer; over a new connection, all that it wants.
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
"""A message is smaller, or holds one line."""

MOST_NAMED = 5000
"""So many streams are named in one message."""

_ID = 36
"""The length of a stream's id; a space follows it."""


@dataclass(frozen=True, slots=True)
class Told:
    """A writer says of which history it tells."""

    epoch: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """A writer says what happened: envelopes as JSON, each with its stream."""

    lines: tuple[tuple[UUID, bytes], ...]


@dataclass(frozen=True, slots=True)
class Interest:
    """A gateway says what it wants to hear of from now on, and what no longer."""

    want: frozenset[UUID] = frozenset()
    unwant: frozenset[UUID] = frozenset()


Message: TypeAlias = str | bytes
"""Bytes are the text in UTF-8."""


def link_token(secret: str) -> str:
    """What a writer shows as its bearer token: the gateway knows the same secret."""
    return hmac.new(secret.encode(), b"everstep/link", hashlib.sha256).hexdigest()


def told(epoch: str) -> str:
    """The first message of a writer."""
    return json_text({"epoch": epoch})


def line(stream_id: UUID, envelope: Envelope) -> bytes:
    """An envelope as it is pushed."""
    return f"{stream_id} {json_text(envelope.to_dict())}".encode()


def messages(lines: Iterable[bytes]) -> list[bytes]:
    """These lines in as few messages as they fit in."""
    made, size = list[list[bytes]](), MOST_BYTES
    for each in lines:
        size += len(each) + 1
        if size >= MOST_BYTES:
            made.append([])
            size = len(each)
        made[-1].append(each)
    return [b"\n".join(together) for together in made]


def interests(want: Iterable[UUID], unwant: Iterable[UUID] = ()) -> list[str]:
    """What a gateway wants and what no longer, in as many messages as it takes."""
    named = [("want", str(each)) for each in want] + [("unwant", str(each)) for each in unwant]
    made = list[str]()
    for start in range(0, len(named), MOST_NAMED):
        message: dict[str, list[str]] = {}
        for word, stream_id in named[start : start + MOST_NAMED]:
            message.setdefault(word, []).append(stream_id)
        made.append(json_text(message))
    return made


def read_writer(message: Message) -> Told | Pushed:
    """A message of a writer; `InvalidInput` if it is none."""
    with reading("what a writer says"):
        data = message.encode() if isinstance(message, str) else message
        if data.startswith(b"{"):
            epoch = valid_text(_object(data)["epoch"], "epoch")
            if not 0 < len(epoch) <= MAX_EPOCH:
                raise InvalidInput(f"epoch has {len(epoch)} characters")
            return Told(epoch)
        return Pushed(tuple(map(_line, data.split(b"\n"))))


def read_gateway(message: Message) -> Interest:
    """A message of a gateway; `InvalidInput` if it is none. What it does not know is ignored."""
    with reading("what a gateway says"):
        said = _object(message)
        return Interest(*(frozenset(map(UUID, listed(said.get(w, ()), w))) for w in ("want", "unwant")))


def _object(message: Message) -> dict[str, Any]:
    try:
        data = json.loads(message if isinstance(message, str) else message.decode())
    except RecursionError:
        raise InvalidInput("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidInput("it is no object")
    return cast("dict[str, Any]", data)


def _line(data: bytes) -> tuple[UUID, bytes]:
    if data[_ID : _ID + 1] != b" ":
        raise InvalidInput("a line is a stream's id, a space, and an envelope")
    return UUID(data[:_ID].decode()), data[_ID + 1 :]
