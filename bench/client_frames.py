"""WebSocket frames and handshakes by hand, as clients send them."""

import os
from base64 import b64encode
from typing import Any, Final

from everstep.agent_domain.values import json_text

TEXT: Final = 0x81
PING: Final = 0x89
PONG: Final = 0x8A
IN_TWO_BYTES: Final = 126
IN_EIGHT_BYTES: Final = 127


def frame(body: bytes, kind: int = TEXT) -> bytes:
    """A frame; its mask changes nothing."""
    size = len(body)
    if size < IN_TWO_BYTES:
        head = bytes((kind, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((kind, 0x80 | IN_TWO_BYTES)) + size.to_bytes(2)
    else:
        head = bytes((kind, 0x80 | IN_EIGHT_BYTES)) + size.to_bytes(8)
    return head + bytes(4) + body


def span(data: bytes, at: int) -> tuple[int, int]:
    """The start and end of the body of a server's frame; the end is beyond the data if more has to come."""
    size = data[at + 1] if at + 1 < len(data) else 0
    if size == IN_TWO_BYTES:
        return at + 4, at + 4 + int.from_bytes(data[at + 2 : at + 4])
    if size == IN_EIGHT_BYTES:
        return at + 10, at + 10 + int.from_bytes(data[at + 2 : at + 10])
    return at + 2, at + 2 + size


def json_frame(**fields: Any) -> bytes:
    """A frame of JSON."""
    return frame(json_text(fields).encode())


def request(path: str, **headers: str) -> bytes:
    """The request of a handshake."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    key = b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
    ).encode()
