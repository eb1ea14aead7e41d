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
    """The first of the preferred ports that is free, else any that is; 0 and None prefer nothing."""
    for port in preferred:
        if port and port not in taken and is_free(port):
            return port
    # Not from where the kernel takes the ports of outgoing connections: while a server restarts, one of
    # those could get its port, even a client's that tries to reach it, which then talks to itself.
    for _ in range(ATTEMPTS):
        port = LOWEST + secrets.randbelow(max(_ephemeral() - LOWEST, 1))
        if port not in taken and is_free(port):
            return port
    with socket.socket() as listener:
        listener.bind((LOCALHOST, 0))
        return listener.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as listener:
        # As servers do: connections that linger after their server has gone are not in the way.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOCALHOST, port))
            listener.listen()
        except (OSError, OverflowError):
            return False
    return True


def _ephemeral() -> int:
    """The lowest port of outgoing connections; 32768 and 49152 are the usual ones."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768
