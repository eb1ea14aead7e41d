"""The envelopes that the gateway relays: their bytes and the few fields it reads.

The writer that stores an envelope encodes it, and it is never encoded again: each wire puts its own frame
around the same bytes, once for all viewers on that wire.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.bus import encode_frame
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.stream.reader import AttemptKey, Place, fence_from, place_from
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import parse_moment, reading, valid_text


class Wire(Protocol):
    """How one protocol frames envelopes. Equal wires make equal frames, and share them."""

    def encode(self, envelope: "RelayedEnvelope") -> bytes:
        """Return the complete frame of an envelope, ready for a transport."""
        ...


class RelayedEnvelope:
    """An envelope and its frames, one per wire."""

    __slots__ = ("_frames", "body", "kind", "seq")

    def __init__(self, kind: str, body: bytes, seq: int = 0) -> None:
        self.kind = kind
        self.seq = seq
        """The sequence number; 0 if it is not stored."""
        self.body = body
        """The envelope as JSON."""
        self._frames: dict[Wire, bytes] = {}

    def frame(self, wire: Wire) -> bytes:
        """Return the frame for this wire, built at the first call."""
        frame = self._frames.get(wire)
        if frame is None:
            frame = self._frames[wire] = wire.encode(self)
        return frame


class RelayedEntry(RelayedEnvelope):
    """A stored envelope."""

    __slots__ = ("execution_id", "fence")

    def __init__(
        self, kind: str, body: bytes, seq: int, execution_id: str, fence: AttemptKey | None = None
    ) -> None:
        super().__init__(kind, body, seq)
        self.execution_id = execution_id
        self.fence = fence
        """The first attempt that may still write text after this envelope; None if it ends none."""


class RelayedChunk(RelayedEnvelope):
    """A part of a model's text, which is not stored."""

    __slots__ = ("after_seq", "at", "content", "execution_id", "is_complete", "timestamp")

    def __init__(
        self,
        body: bytes,
        execution_id: str,
        at: Place,
        content: str,
        *,
        is_complete: bool = False,
        after_seq: int = 0,
        timestamp: datetime,
    ) -> None:
        super().__init__(EnvelopeType.AGENT_STREAM_CHUNK, body)
        self.execution_id = execution_id
        self.at = at
        """Its attempt and index."""
        self.content = content
        self.is_complete = is_complete
        self.after_seq = after_seq
        """The seq of the stored envelope that it follows; 0 for none."""
        self.timestamp = timestamp


def entry_from(stored: StoredEnvelope) -> RelayedEntry:
    """Return a stored envelope with the bytes that its writer would have pushed."""
    fence = fence_from(stored.type, stored.payload)
    return RelayedEntry(stored.type, encode_frame(stored), stored.seq, str(stored.execution_id), fence)


def parse_envelope(body: bytes) -> RelayedEntry | RelayedChunk:
    """Parse an envelope that a writer pushed.

    Raises:
        InvalidInput: It is malformed, or of a type that is not relayed.
    """
    with reading("the envelope"):
        try:
            data = json.loads(body.decode())
        except RecursionError:
            raise InvalidInput("it is nested too deeply") from None
        return _parse_chunk(body, data) if data["seq"] is None else _parse_entry(body, data)


@lru_cache(maxsize=10_000)
def _canonical_id(text: str) -> str:
    return str(UUID(text))


def _parse_entry(body: bytes, data: Mapping[str, Any]) -> RelayedEntry:
    kind = valid_text(data["type"], "type")
    seq = data["seq"]
    if type(seq) is not int or seq < 1:
        raise InvalidInput(f"seq is {seq!r}; it counts from 1")
    execution_id = _canonical_id(data["execution_id"])
    return RelayedEntry(kind, body, seq, execution_id, fence_from(kind, data["payload"]))


def _parse_chunk(body: bytes, data: Mapping[str, Any]) -> RelayedChunk:
    if data["type"] != EnvelopeType.AGENT_STREAM_CHUNK:
        raise InvalidInput("only chunks are relayed without being stored")
    payload = data["payload"]
    after_seq = payload["after_seq"] or 0
    if type(after_seq) is not int or after_seq < 0:
        raise InvalidInput(f"after_seq is {after_seq!r}; it names a stored envelope")
    return RelayedChunk(
        body,
        _canonical_id(data["execution_id"]),
        place_from(payload, "chunk_index"),
        valid_text(payload["content"], "content"),
        is_complete=payload["is_complete"] is True,
        after_seq=after_seq,
        timestamp=parse_moment(data["timestamp"], "timestamp"),
    )
