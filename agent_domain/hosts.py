"""Which names a server answers to.

A page of another site can have its own name resolved to this machine (DNS rebinding). The browser then sends
that page's requests here, with the page's name as their host and as their origin. So a server answers only to
the names that it is meant to have.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import cut

ANY: Final = "*"
SETTING: Final = "EVERSTEP_ALLOWED_HOSTS"

_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Host:
    """A name or an address, with the port where one is given."""

    name: str
    port: int | None = None

    @classmethod
    def read(cls, text: str) -> "Host | None":
        """What a `Host` header says: in lower case, and without the dot that ends a full name."""
        match = _HOST.fullmatch(text.strip(" \t"))
        if match is None:
            return None
        name, port = match["name"].lower().strip("[]").removesuffix("."), match["port"]
        return cls(name, int(port) if port else None) if name else None

    @property
    def address(self) -> Address | None:
        """The address, if it is one and no name."""
        try:
            return ip_address(self.name)
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        """Whether it means this machine, whoever looks it up."""
        return self.name == "localhost" or (self.address is not None and self.address.is_loopback)


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The names of a server. Those of the loopback interface are always among them.

    Args:
        names: names (`api.example.com`), with a port where only that one is meant; `*.example.com` for all
            names below one; addresses, and ranges of them (`10.0.0.0/8`); `*` for any.
    """

    hosts: frozenset[Host] = frozenset()
    parents: tuple[str, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    is_any: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> "AllowedHosts":
        """Those names; `InvalidInput` says which is none, and how it is written."""
        hosts, parents, networks, is_any = set[Host](), list[str](), list[IPv4Network | IPv6Network](), False
        for each in names:
            text = each.strip()
            if text == ANY:
                is_any = True
            elif "/" in text:
                networks.append(_network(text))
            elif text.startswith(("*.", ".")):
                parents.append(f".{_host(text.lstrip('*').lstrip('.')).name}")
            else:
                hosts.add(_host(f"[{text}]" if text.count(":") > 1 and "[" not in text else text))
        return cls(frozenset(hosts), tuple(parents), tuple(networks), is_any)

    def admits(self, host: Host) -> bool:
        """Whether a host is one of them."""
        address = host.address
        return (
            self.is_any
            or host.is_loopback
            or host in self.hosts
            or Host(host.name) in self.hosts
            or host.name.endswith(self.parents)
            or (address is not None and any(address in network for network in self.networks))
        )

    def refusal(self, given: Sequence[str]) -> str | None:
        """Why a request with these `Host` headers is not answered, if it is not."""
        if self.is_any:
            return None
        if len(given) != 1:
            return f"A request names one Host; this one names {len(given) or 'none'}."
        host = Host.read(given[0])
        if host is None or not self.admits(host):
            return f"The host {cut(given[0], 100)!r} is not served here; {SETTING} names those that are."
        return None


def _host(text: str) -> Host:
    host = Host.read(text)
    if host is None:
        raise InvalidInput(
            f"'{cut(text, 100)}' in {SETTING} is no host; write names without scheme and path, such as "
            "api.example.com, api.example.com:8443, *.example.com, 10.0.0.0/8 or *"
        )
    return host


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        _host(text)
        raise
