"""How much the gateway holds and sends at once, and how much it takes from whom."""

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


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a gateway and its connections."""

    connections: int = 50_000
    """Of all; file descriptors may allow fewer."""
    per_address: int = 2000
    """Connections from one address: offices and proxies have one, too."""
    per_user: int = 200
    """Connections of one person."""
    channels: int = 100
    """That a connection watches."""
    handshakes: float = 1000.0
    """New connections in a second, and as many at once after a quiet one."""
    frames: float = 100.0
    """That a connection sends in a second, and as many at once after a quiet one."""
    waiting: int = 200
    """Frames of a connection that wait for the one before them."""
    sweep_seconds: float = 1.0
    """Between two looks at all connections."""
    hello_seconds: float = 10.0
    """In which a connection has to say what it wants."""
    ping_after: float = 30.0
    """Seconds of silence."""
    silent_after: float = 60.0
    """Seconds of silence after which nobody is there."""
    patience: float = 10.0
    """Seconds in which a viewer may take nothing at all while something waits for him."""
    closing_seconds: float = 5.0
    """For a viewer to take the last frame."""
    recheck_seconds: float = 30.0
    """Between two looks whether a key is still good, which does not expire by itself."""
    drain_seconds: float = 5.0
    """Over which the connections of a gateway that stops are closed."""


LIMITS = Limits()
