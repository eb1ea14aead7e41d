"""How much the gateway holds, and sends at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one stream. Bytes are those of envelopes and drafts; frames that were built of them come on top."""

    ring: int = 1024
    """Envelopes that are held."""
    ring_bytes: int = 1 << 20
    early: int = 1024
    """Envelopes that wait for one before them."""
    chunks: int = 64
    """The last chunks of a draft, for who is behind by less; who is further behind gets a snapshot."""
    early_chunks: int = 256
    """Chunks of a draft that wait for what comes before them."""
    room: int = 64 * 1024
    """Bytes, about, that are handed to a transport before it is asked whether it wants more."""


LIMITS = Limits()
