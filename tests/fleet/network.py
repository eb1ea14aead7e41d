"""Hosts of one network, each a network namespace, and partitions between them.

The network is a bridge in a namespace of its own, which this process enters: no address and no interface
exists outside of the run. A partition drops the packets that arrive, so to both sides the other is silent: no
connection is refused, and none is reset.
"""

import ctypes
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from tests.servers.postgres import NotInstalled
from tests.servers.programs import run

PREFIX: Final = "everstep-fleet"
NETWORK: Final = "10.77.0"
RANGE: Final = f"{NETWORK}.0/24"
CLONE_NEWNET: Final = 0x40000000
FILTER: Final = """
table inet fleet {
    set away { type ipv4_addr; }
    chain input { type filter hook input priority 0; ip saddr @away drop; }
}
"""
"""Packets from the addresses in the set are dropped."""


@dataclass(frozen=True)
class Host:
    """A host with one address."""

    name: str
    namespace: str
    address: str

    def command(self, *command: str) -> Sequence[str]:
        """The command that runs a command on this host."""
        return "ip", "netns", "exec", self.namespace, *command


class Network:
    """A bridge, and the hosts that are connected to it."""

    def __init__(self) -> None:
        self._name = f"{PREFIX}-{os.getpid()}"
        self.hosts: dict[str, Host] = {}
        self._parted = Counter[tuple[str, str]]()

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator["Network"]:
        """A network without hosts, which ends with the block. This process is on it, at address 1.

        Raises:
            NotInstalled: The user is not root, or a program is missing.
        """
        if os.geteuid():
            raise NotInstalled("network namespaces need root: run `sudo make fleet`")
        for program, package in (("ip", "iproute2"), ("nft", "nftables"), ("setpriv", "util-linux")):
            if not which(program):
                raise NotInstalled(f"`{program}` is not installed: on Debian, `apt-get install {package}`")
        await _remove_leftovers()
        network = cls()
        try:
            await run("ip", "netns", "add", network._name)
            _enter(network._name)
            await run("ip", "link", "set", "lo", "up")
            await run("ip", "link", "add", "bridge", "type", "bridge")
            await run("ip", "address", "add", f"{NETWORK}.1/24", "dev", "bridge")
            await run("ip", "link", "set", "bridge", "up")
            yield network
        finally:
            for host in network.hosts.values():
                await run("ip", "netns", "delete", host.namespace)
            await run("ip", "netns", "delete", network._name)

    async def add(self, name: str) -> Host:
        """Connect another host."""
        number = len(self.hosts) + 2
        host = Host(name, f"{self._name}-{name}", f"{NETWORK}.{number}")
        await run("ip", "netns", "add", host.namespace)
        self.hosts[name] = host
        link = f"to-{number}"
        await run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        await run("ip", "link", "set", link, "master", "bridge", "up")
        for command in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "address", "add", f"{host.address}/24", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("nft", FILTER),
        ):
            await run(*host.command(*command))
        return host

    async def part(self, one: Host, other: Host) -> None:
        """Let no packet from one host arrive at the other. In one direction: call it twice for both."""
        self._parted[one.name, other.name] += 1
        if self._parted[one.name, other.name] == 1:
            await run(*other.command("nft", f"add element inet fleet away {{ {one.address} }}"))

    async def join(self, one: Host, other: Host) -> None:
        """End a partition; the last end of several lets packets pass again."""
        self._parted[one.name, other.name] -= 1
        if not self._parted[one.name, other.name]:
            await run(*other.command("nft", f"delete element inet fleet away {{ {one.address} }}"))


def _enter(namespace: str) -> None:
    """Move this thread into the namespace. Threads and processes that it starts later are there, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (Path("/run/netns") / namespace).open("rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


async def _remove_leftovers() -> None:
    """Remove the namespaces of runs that were killed."""
    for name in re.findall(rf"^{PREFIX}-\d+\S*", await run("ip", "netns", "list"), re.MULTILINE):
        if not Path(f"/proc/{name.removeprefix(PREFIX).split('-')[1]}").exists():
            await run("ip", "netns", "delete", name)
