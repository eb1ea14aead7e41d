"""The network policy of commands: allowed host names, and addresses that are always blocked.

The proxy, which is the sandbox's only connection to the network, checks both names and addresses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import truncate

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = bool | tuple[str, ...]
"""False: no network; True: all public names; or a list of names."""

HTTP_PORT: Final = 80
TLS_PORT: Final = 443
PORTS: Final = (HTTP_PORT, TLS_PORT)
"""The ports of listed hosts without a port."""

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_LONGEST_NAME: Final = 253

# Networks that `is_global` allows, or has allowed in some release of Python, but that are not the internet.
_BLOCKED: Final = (
    IPv4Network("192.0.0.0/24"),  # special purposes; metadata of Oracle's cloud
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("168.63.129.16/32"),  # Azure's host, as its machines see it
    IPv6Network("2001::/23"),  # special purposes; Teredo, which embeds an IPv4 address
    IPv6Network("2001:db8::/32"),
    IPv6Network("2002::/16"),  # 6to4, which embeds an IPv4 address
    IPv6Network("3fff::/20"),
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""The globally routable addresses; excludes loopback, link-local, unique local, mapped and NAT64."""


def is_public(address: Address) -> bool:
    """Whether an address belongs to the internet, and not to this machine, its networks or its cloud."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    is_closed = any(address in closed for closed in _BLOCKED if closed.version == address.version)
    return address.is_global and not address.is_multicast and not address.is_reserved and not is_closed


def host_name(text: str) -> str:
    """The canonical form of a host name: lower case, ASCII (IDNA), without a final dot.

    Raises:
        InvalidInput: It is not a host name.
    """
    name = text.strip().lower().removesuffix(".")
    try:
        name = name.encode("ascii").decode() if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        raise InvalidInput(f"{truncate(text, 100)!r} is not a host name") from None
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdecimal():
        # A name that ends in a number would be parsed as an address.
        raise InvalidInput(f"{truncate(text, 100)!r} is not a host name")
    return name


def parse_address(text: str) -> Address | None:
    """Parse an IP address, with or without brackets; None for a name."""
    try:
        address = ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id else address


@dataclass(frozen=True, slots=True)
class HostRule:
    """An entry of the list: `example.com` is one name, `*.example.com` each name below it, at any depth."""

    name: str
    with_subdomains: bool
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "HostRule":
        """Parse an entry.

        Raises:
            InvalidInput: It is malformed; the error says what to write instead.
        """
        pattern, colon, port = text.strip().partition(":")
        if "//" in text or "/" in text or parse_address(text.strip()) or parse_address(pattern):
            raise InvalidInput(
                f"network lists {truncate(text, 100)!r}; list names of hosts, like pypi.org, *.github.com or "
                "example.com:8443"
            )
        if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
            raise InvalidInput(
                f"network lists {truncate(text, 100)!r}; its port must be a number from 1 to 65535"
            )
        wildcard = pattern.startswith("*.")
        return cls(
            host_name(pattern[2:] if wildcard else pattern), wildcard, (int(port),) if colon else PORTS
        )

    def allows(self, name: str, port: int) -> bool:
        """Whether the entry allows this port of this host, whose name is in canonical form."""
        is_meant = name.endswith(f".{self.name}") if self.with_subdomains else name == self.name
        return is_meant and port in self.ports


def parse_network(given: object) -> Network:
    """Validate the network setting of a policy: true, false, or a list of names.

    Raises:
        InvalidInput: It is none of these, or an entry is malformed.
    """
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
        HostRule.parse(each)
    return tuple(names) or False


@dataclass(frozen=True, slots=True)
class AllowedNetwork:
    """The hosts that a policy allows."""

    rules: tuple[HostRule, ...] | None
    """None for all public names."""

    @classmethod
    def of(cls, given: Network) -> "AllowedNetwork":
        """Create it from a validated setting."""
        if isinstance(given, bool):
            return cls(None if given else ())
        return cls(tuple(map(HostRule.parse, given)))

    def refusal(self, host: str, port: int) -> str | None:
        """The error message for the command if this host and port are not allowed; None if they are."""
        address = parse_address(host)
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


def blocked_address_text(host: str) -> str:
    """The error message for a host whose addresses are all blocked."""
    return (
        f"{host} leads to no public address. Loopback, link-local, private and metadata addresses are closed "
        "to commands, whatever the network policy allows."
    )
