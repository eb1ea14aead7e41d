"""The content of messages on a shared bus, before it is encrypted.

A writer sends the envelopes of one stream: the epoch of the journal, and one envelope per line. A gateway
sends the streams that it wants from now on, and periodically all that it wants, in parts, because a bus may
lose messages.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.reader import MAX_EPOCH
from everstep.agent_domain.values import as_list, json_text, reading

STREAMS_PER_PART = 5000
"""The usual number of streams in one part of all that a gateway wants."""

_LINE_BREAK = b"\n"


@dataclass(frozen=True, slots=True)
class PushedLines:
    """From a writer: envelopes of a stream as JSON; without lines, some that were too large for the bus."""

    epoch: str
    lines: Sequence[bytes] = ()

    def encode(self) -> bytes:
        """The message."""
        return _LINE_BREAK.join([self.epoch.encode(), *self.lines])


@dataclass(frozen=True, slots=True)
class GatewayInterest:
    """From a gateway: streams that it wants, either changes or a part of all of them."""

    gateway_id: UUID
    want: frozenset[UUID] = frozenset()
    unwant: frozenset[UUID] = frozenset()
    part: int | None = None
    """The number of the part, from 0; None for changes."""
    parts: int = 1
    """Into how many parts all streams are divided."""

    def encode(self) -> bytes:
        """The message."""
        return json_text(
            {
                "gateway": str(self.gateway_id),
                "want": [*map(str, self.want)],
                "unwant": [*map(str, self.unwant)],
                "part": self.part,
                "parts": self.parts,
            }
        ).encode()

    def apply(self, wanted: frozenset[UUID]) -> frozenset[UUID]:
        """The streams that the gateway wants now, given those that it wanted before."""
        if self.part is None:
            return (wanted | self.want) - self.unwant
        others = {each for each in wanted if each.int % self.parts != self.part} if self.parts > 1 else ()
        return self.want.union(others)


def all_interests(gateway_id: UUID, stream_ids: Collection[UUID]) -> list[GatewayInterest]:
    """All streams that a gateway wants, in parts of a limited size."""
    parts = max(1, -(-len(stream_ids) // STREAMS_PER_PART))
    wanted: list[set[UUID]] = [set() for _ in range(parts)]
    for each in stream_ids:
        wanted[each.int % parts].add(each)
    return [
        GatewayInterest(gateway_id, frozenset(each), part=part, parts=parts)
        for part, each in enumerate(wanted)
    ]


def changed_interests(
    gateway_id: UUID, want: Collection[UUID], unwant: Collection[UUID]
) -> list[GatewayInterest]:
    """Changes of what a gateway wants, in messages of a limited size."""
    wanted, unwanted = [*want], [*unwant]
    starts = range(0, max(len(wanted), len(unwanted)), STREAMS_PER_PART)
    return [
        GatewayInterest(
            gateway_id,
            frozenset(wanted[start : start + STREAMS_PER_PART]),
            frozenset(unwanted[start : start + STREAMS_PER_PART]),
        )
        for start in starts
    ]


def parse_lines(content: bytes) -> PushedLines:
    """Parse the message of a writer.

    Raises:
        InvalidInput: It is malformed.
    """
    first, *lines = content.split(_LINE_BREAK)
    if not 0 < len(first) <= MAX_EPOCH:
        raise InvalidInput(f"epoch has {len(first)} bytes")
    with reading("the writer's message"):
        return PushedLines(first.decode(), lines)


def parse_interest(content: bytes) -> GatewayInterest:
    """Parse the message of a gateway; unknown keys are ignored.

    Raises:
        InvalidInput: It is malformed.
    """
    with reading("the gateway's message"):
        data = cast("dict[str, Any]", json.loads(content))
        want, unwant = (frozenset(map(UUID, as_list(data[word], word))) for word in ("want", "unwant"))
        part, parts = data["part"], int(data["parts"])
        if part is not None and not 0 <= int(part) < parts:
            raise InvalidInput(f"part {part} of {parts}")
        return GatewayInterest(UUID(data["gateway"]), want, unwant, part, parts)
