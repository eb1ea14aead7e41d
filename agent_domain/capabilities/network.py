"""Which hosts a command may reach, and which addresses nothing in a sandbox ever does.

Names are decided here, addresses as well; both are asked by the proxy that is the sandbox's only way out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import cut

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = bool | tuple[str, ...]
"""No network, all public names, or the names that are listed."""

HTTP_PORT: Final = 80
TLS_PORT: Final = 443
PORTS: Final = (HTTP_PORT, TLS_PORT)
"""The ports of hosts that are listed without one."""

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_LONGEST_NAME: Final = 253

# What `is_global` allows, or has allowed in some release of Python, and leads elsewhere than to the internet.
_CLOSED: Final = (
    IPv4Network("192.0.0.0/24"),  # special purposes; metadata of Oracle's cloud
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("168.63.129.16/32"),  # Azure's host, as its machines see it
    IPv6Network("2001::/23"),  # special purposes; Teredo, which embeds an IPv4 address
    IPv6Network("2001:db8::/32"),
    IPv6Network("2002::/16"),  # 6to4, which embeds an IPv4 address
    IPv6Network("3fff::/20"),
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""What is given out to be reached from everywhere; not loopback, link-local, unique local, mapped, NAT64."""


def is_public(address: Address) -> bool:
    """Whether this is a host of the internet, and not of this machine, its networks or its cloud."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    is_closed = any(address in closed for closed in _CLOSED if closed.version == address.version)
    return address.is_global and not address.is_multicast and not address.is_reserved and not is_closed


def host_name(text: str) -> str:
    """A name in its one form: lower case, ASCII (IDNA), no final dot; `InvalidInput` if it is none."""
    name = text.strip().lower().removesuffix(".")
    try:
        name = name.encode("ascii").decode() if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        raise InvalidInput(f"{cut(text, 100)!r} is no name of a host") from None
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdecimal():
        # A name that ends in a number would be read as an address.
        raise InvalidInput(f"{cut(text, 100)!r} is no name of a host")
    return name


def literal(text: str) -> Address | None:
    """The address that this text is, in brackets or without; None for a name."""
    try:
        address = ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id else address


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of a list: `example.com` is that name, `*.example.com` each name below it, at any depth."""

    name: str
    with_subdomains: bool
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """An entry as it is written; `InvalidInput` says what to write instead."""
        pattern, colon, port = text.strip().partition(":")
        if "//" in text or "/" in text or literal(text.strip()) or literal(pattern):
            raise InvalidInput(
                f"network lists {cut(text, 100)!r}; list names of hosts, like pypi.org, *.github.com or "
                "example.com:8443"
            )
        if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
            raise InvalidInput(f"network lists {cut(text, 100)!r}; its port must be a number from 1 to 65535")
        wildcard = pattern.startswith("*.")
        return cls(
            host_name(pattern[2:] if wildcard else pattern), wildcard, (int(port),) if colon else PORTS
        )

    def allows(self, name: str, port: int) -> bool:
        """Whether this host and port are meant; the name is in its one form."""
        is_meant = name.endswith(f".{self.name}") if self.with_subdomains else name == self.name
        return is_meant and port in self.ports


def network(given: object) -> Network:
    """What a policy says about the network, checked: true, false, or a list of names."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput(
            f"network is {given!r}; use true, false, or a list of names, like ['pypi.org', '*.github.com']"
        )
    entries = tuple(cast("Iterable[object]", given))
    names = [each for each in entries if isinstance(each, str)]
    for each in entries:
        if not isinstance(each, str):
            raise InvalidInput(f"network lists {each!r}; list names of hosts, like pypi.org or *.github.com")
        Rule.parse(each)
    return tuple(names) or False


@dataclass(frozen=True, slots=True)
class AllowedNetwork:
    """What the policy lets a command reach."""

    rules: tuple[Rule, ...] | None
    """None for all public names."""

    @classmethod
    def of(cls, given: Network) -> "AllowedNetwork":
        """What a checked policy says."""
        if isinstance(given, bool):
            return cls(None if given else ())
        return cls(tuple(map(Rule.parse, given)))

    def refusal(self, host: str, port: int) -> str | None:
        """Why this host and port are not reached, as a sentence for the command; None if they may be."""
        address = literal(host)
        if address is None:
            try:
                host = host_name(host)
            except InvalidInput as error:
                return f"{error}."
        if self.rules is None:
            if port not in PORTS:
                return f"The network policy allows the ports 80 and 443, and not {port} of {host}."
            return None
        if address is None and any(rule.allows(host, port) for rule in self.rules):
            return None
        return f"The network policy does not allow {host}:{port}; it allows {self}."

    def __str__(self) -> str:
        if self.rules is None:
            return "all public names"
        return ", ".join(
            f"{'*.' if rule.with_subdomains else ''}{rule.name}"
            + ("" if rule.ports == PORTS else f":{rule.ports[0]}")
            for rule in self.rules
        )


def closed_address(host: str) -> str:
    """The sentence for a host whose addresses are all closed."""
    return (
        f"{host} leads to no public address. Loopback, link-local, private and metadata addresses are closed "
        "to commands, whatever the network policy allows."
    )
