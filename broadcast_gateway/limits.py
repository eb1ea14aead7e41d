"""The limits of the gateway: its buffers, and the rates of its viewers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one stream. Bytes count envelopes and drafts; the frames built from them are extra."""

    ring: int = 1024
    """Envelopes that are cached."""
    ring_bytes: int = 1 << 20
    early: int = 1024
    """Envelopes that wait for a predecessor."""
    chunks: int = 64
    """The last chunks of a draft, for viewers that lack fewer; viewers that lack more receive a snapshot."""
    early_chunks: int = 256
    """Chunks of a draft that wait for a predecessor."""
    room: int = 64 * 1024
    """Bytes, roughly, handed to a transport before it is asked whether it is full."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of a gateway and its connections."""

    connections: int = 50_000
    """Connections in total; the limit of file descriptors may be lower."""
    per_address: int = 2000
    """Connections from one address, which may be an office or a proxy."""
    per_user: int = 200
    """Connections of one user."""
    channels: int = 100
    """Channels watched over one connection."""
    handshakes: float = 1000.0
    """New connections per second; also the size of a burst."""
    frames: float = 100.0
    """Frames from one connection per second; also the size of a burst."""
    waiting: int = 200
    """Frames of one connection that wait for the one before them."""
    sweep_seconds: float = 1.0
    """Between two sweeps over all connections."""
    hello_seconds: float = 10.0
    """Seconds for a new connection to authenticate."""
    ping_after: float = 30.0
    """Seconds of silence before a ping."""
    silent_after: float = 60.0
    """Seconds of silence after which the connection is closed."""
    patience: float = 10.0
    """Seconds without progress after which a connection with a full write buffer is closed."""
    closing_seconds: float = 5.0
    """Seconds for a viewer to read the last frame."""
    recheck_seconds: float = 30.0
    """Between two checks of keys that do not expire by themselves."""
    drain_seconds: float = 5.0
    """Seconds over which a stopping gateway spreads the closing of its connections."""


STREAM_LIMITS = StreamLimits()
