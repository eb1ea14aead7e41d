"""Opens the network of one sandbox: a namespace in which the worker's proxy listens."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Final

from everstep.capabilities.bash import listener
from everstep.capabilities.bash.proxy import Proxy

PORT: Final = 3128
"""Where the proxy listens in the sandbox, which has all ports to itself."""
URL: Final = f"http://127.0.0.1:{PORT}"

VARIABLES: Final = {
    **dict.fromkeys(
        ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), URL
    ),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}
"""They point programs to the proxy. Nothing else leads out, even if a program ignores them."""

SECONDS: Final = 20.0


async def open_way_out(proxy: Proxy, process: int) -> None:
    """Make the proxy listen in the network namespace of a process.

    Raises:
        OSError: The namespace cannot be entered.
    """
    our_end, their_end = socket.socketpair()
    with our_end:
        with their_end:
            helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(listener.__file__))),
                *(str(process), str(their_end.fileno()), str(PORT)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(their_end.fileno(),),
                env={},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(SECONDS):
                _, error = await helper.communicate()
        finally:
            if helper.returncode is None:
                helper.kill()
        our_end.setblocking(False)
        lines = error.decode(errors="replace").strip().splitlines()
        try:
            _, descriptors, _, _ = socket.recv_fds(our_end, 1, 1)
        except BlockingIOError:
            descriptors = []
        if not descriptors:
            raise OSError(lines[-1] if lines else "no socket came")
        proxy.start(socket.socket(fileno=descriptors[0]))
