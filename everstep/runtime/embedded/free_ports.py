"""Free TCP ports on this machine."""

import secrets
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Final

LOCALHOST: Final = "127.0.0.1"

LOWEST: Final = 20_000
ATTEMPTS: Final = 200


def free_port(*preferred: int | None, taken: Collection[int] = ()) -> int:
    """Return the first preferred port that is free, else any free one; 0 and None are no preference."""
    for port in preferred:
        if port and port not in taken and is_free(port):
            return port
    # Not in the range of ephemeral ports: while a server restarts, an outgoing connection could take its
    # port, even that of a client that connects to it, which would then be connected to itself.
    for _ in range(ATTEMPTS):
        port = LOWEST + secrets.randbelow(max(_ephemeral() - LOWEST, 1))
        if port not in taken and is_free(port):
            return port
    with socket.socket() as listener:
        listener.bind((LOCALHOST, 0))
        return listener.getsockname()[1]


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as listener:
        # As servers do: lingering connections of a stopped server do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOCALHOST, port))
            listener.listen()
        except (OSError, OverflowError):
            return False
    return True


def _ephemeral() -> int:
    """Return the lowest ephemeral port; 32768 and 49152 are the usual ones."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768
