"""Makes a listening socket inside of a sandbox, for the proxy outside of it.

    listener.py PID DESCRIPTOR PORT

It is a separate program because only a process with one thread can enter another user namespace. It enters
the network namespace of process PID, listens there on the loopback interface, and sends the socket over
DESCRIPTOR. A socket stays in the namespace in which it was made, so the worker accepts connections there
without entering it.
"""

import ctypes
import fcntl
import os
import socket
import sys
from typing import Final

_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_GET_OWNER: Final = 0xB701  # NS_GET_USERNS
BACKLOG: Final = 64


def enter(descriptor: int, kind: int) -> None:
    """Enter a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def enter_network(process: int) -> None:
    """Enter the network namespace of a process.

    Root enters it directly; other users enter the user namespace that owns it first.
    """
    try:
        enter(os.open(f"/proc/{process}/ns/net", os.O_RDONLY), _NEW_NETWORK)
    except PermissionError:
        if os.geteuid() == 0:
            # Root in a container, without the capabilities of root: enter as the sandbox's user.
            owner = os.stat(f"/proc/{process}")
            os.setgroups([])
            os.setgid(owner.st_gid)
            os.setuid(owner.st_uid)
        network = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
        enter(fcntl.ioctl(network, _GET_OWNER), _NEW_USER)
        enter(network, _NEW_NETWORK)


def main(process: int, descriptor: int, port: int) -> None:
    """Make the socket and send it; the arguments are those of the command line."""
    enter_network(process)
    with socket.socket(fileno=descriptor) as line, socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        socket.send_fds(line, [b"\n"], [listener.fileno()])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
