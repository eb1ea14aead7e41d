"""The host names that a server accepts.

Another site can resolve its own name to this machine (DNS rebinding). The browser then sends that site's
requests here, with the site's name as their host and as their origin. So a server accepts only the names that
it is configured with.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import truncate

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
    def parse(cls, text: str) -> "Host | None":
        """Parse a `Host` header; the name is in lower case and without the trailing dot of a full name."""
        match = _HOST.fullmatch(text.strip(" \t"))
        if match is None:
            return None
        name, port = match["name"].lower().strip("[]").removesuffix("."), match["port"]
        return cls(name, int(port) if port else None) if name else None

    @property
    def address(self) -> Address | None:
        """The IP address, or None for a name."""
        try:
            return ip_address(self.name)
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        """Whether it is the loopback address or `localhost`, which mean this machine on every machine."""
        return self.name == "localhost" or (self.address is not None and self.address.is_loopback)

    @property
    def is_public(self) -> bool:
        """Whether it is a name by which other machines are found."""
        return self.address is None and not self.is_loopback


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The host names of a server. Those of the loopback interface are always accepted."""

    hosts: frozenset[Host] = frozenset()
    parents: tuple[str, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    is_any: bool = False
    public: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str], public: Iterable[str] = ()) -> "AllowedHosts":
        """Parse a list of accepted hosts.

        Args:
            names: Names (`api.example.com`), with a port to accept only that port; `*.example.com` for all
                subdomains; addresses, and ranges of them (`10.0.0.0/8`); `*` for any host.
            public: The names under which everyone reaches the server, with ports or without. Addresses and
                names of this machine do not count.

        Raises:
            InvalidInput: An entry is not a host; the message shows the accepted forms.
        """
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
        parsed = (Host.parse(name) for name in public)
        shared = frozenset(host.name for host in parsed if host and host.is_public)
        return cls(frozenset(hosts), tuple(parents), tuple(networks), is_any, shared)

    def admits(self, host: Host) -> bool:
        """Whether the server accepts this host."""
        address = host.address
        return (
            self.is_any
            or host.is_loopback
            or host in self.hosts
            or Host(host.name) in self.hosts
            or host.name.endswith(self.parents)
            or (address is not None and any(address in network for network in self.networks))
        )

    def hides_metrics(self, headers: Sequence[str]) -> bool:
        """Whether a request with these `Host` headers comes from outside, where metrics are not shown."""
        hosts = [Host.parse(each) for each in headers]
        return any(host is not None and host.name in self.public for host in hosts)

    def refusal(self, headers: Sequence[str]) -> str | None:
        """The reason to refuse a request with these `Host` headers, or None to accept it."""
        if self.is_any:
            return None
        if len(headers) != 1:
            return f"A request needs exactly one Host header; this one has {len(headers) or 'none'}."
        host = Host.parse(headers[0])
        if host is None or not self.admits(host):
            shown = truncate(headers[0], 100)
            return f"The host {shown!r} is not served here; {SETTING} lists the accepted hosts."
        return None


def _host(text: str) -> Host:
    host = Host.parse(text)
    if host is None:
        raise InvalidInput(
            f"'{truncate(text, 100)}' in {SETTING} is not a host; write names without scheme and path, "
            "such as api.example.com, api.example.com:8443, *.example.com, 10.0.0.0/8 or *"
        )
    return host


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        _host(text)
        raise
