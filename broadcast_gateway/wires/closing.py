"""The common parts of the protocols: frames, and close reasons."""

from dataclasses import dataclass

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, frozen_map, parse_json

MAX_FRAME = 16 * 1024
"""Bytes per frame of a viewer: enough for a token, and for a position with all its drafts."""
MAX_CHANNEL = 200
"""Characters."""

# RFC 6455: a text frame without continuation, and the markers of lengths that do not fit into a byte.
_TEXT = 0x81
_IN_TWO_BYTES = 126
_IN_EIGHT_BYTES = 127


def text_frame(body: bytes) -> bytes:
    """Return a WebSocket text frame from server to client, ready for a transport."""
    size = len(body)
    if size < _IN_TWO_BYTES:
        return bytes((_TEXT, size)) + body
    if size < 1 << 16:
        return bytes((_TEXT, _IN_TWO_BYTES)) + size.to_bytes(2) + body
    return bytes((_TEXT, _IN_EIGHT_BYTES)) + size.to_bytes(8) + body


@dataclass(frozen=True, slots=True)
class Closing:
    """A reason for closing a connection, with its code in each protocol."""

    reason: str
    native: int
    pusher: int
    reconnect_in: float | None = None
    """When to reconnect, in seconds; None for never, or not with the same request."""


# Native: 3000 to 3499 invite to reconnect, 3500 to 3999 do not. Pusher clients reconnect after a second on
# 4100, at once on 4200 to 4299, and never on 4000 to 4099 and from 4300 on. 4000 would make them reconnect
# over TLS.
RESTARTING = Closing("The gateway is restarted", 3000, 4200, 0.0)
TOO_SLOW = Closing("This connection did not keep up; resume", 3001, 4100, 1.0)
HISTORY_CHANGED = Closing("The history has changed; join again", 3002, 4200, 0.0)
EXPIRED = Closing("The token has expired; send a newer one", 3003, 4200, 0.0)
SILENT = Closing("Nothing was received in time", 3004, 4201, 1.0)
FULL = Closing("There are too many connections; try again later", 3005, 4100, 5.0)
STORE_UNAVAILABLE = Closing("The stored events cannot be read now; reconnect", 3006, 4100, 2.0)
FLOODING = Closing("Too many frames at once; send fewer", 3007, 4100, 5.0)
BAD_FRAME = Closing("The protocol does not allow this frame", 3500, 4300)
TOO_LARGE = Closing("This frame is too large", 3501, 4302)
UNAUTHORIZED = Closing("The token is missing or no longer valid", 3502, 4009)
UNKNOWN_KEY = Closing("No application has this key", 3503, 4001)
WRONG_PROTOCOL = Closing("This version of the protocol is not supported", 3504, 4007)

CLOSINGS = (
    RESTARTING,
    TOO_SLOW,
    HISTORY_CHANGED,
    EXPIRED,
    SILENT,
    FULL,
    STORE_UNAVAILABLE,
    FLOODING,
    BAD_FRAME,
    TOO_LARGE,
    UNAUTHORIZED,
    UNKNOWN_KEY,
    WRONG_PROTOCOL,
)


class BadFrame(InvalidInput):
    """A viewer sent a frame that its protocol does not allow; the connection is closed."""

    def __init__(self, message: str, closing: Closing = BAD_FRAME) -> None:
        self.closing = closing
        super().__init__(message)


def parse_frame(data: bytes) -> FrozenDict:
    """Parse the JSON object of a text frame."""
    if len(data) > MAX_FRAME:
        raise BadFrame(f"the frame has {len(data)} bytes; send at most {MAX_FRAME}", TOO_LARGE)
    try:
        return frozen_map(parse_json(data.decode(), "the frame"), "the frame")
    except (InvalidInput, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from None


def text_field(frame: FrozenDict, name: str, limit: int = MAX_FRAME) -> str:
    """Return a required text field of a frame."""
    value = frame.get(name)
    if not isinstance(value, str) or len(value) > limit:
        raise BadFrame(f"{name} must be text of at most {limit} characters")
    return value
