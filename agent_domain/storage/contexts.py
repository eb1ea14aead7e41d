"""Contexts of sessions and messages: the policy port of applications, and canonical URLs.

A URL in a context is later shown to other people as a link. It must therefore be http or https, or a path on
the page's own origin, and must not contain anything that a browser or a person could misread.
"""

import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol
from urllib.parse import quote

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.session_messages import MAX_CONTEXT, limited_text
from everstep.agent_domain.values import is_hidden

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65_535
_MAX_PORT_DIGITS = 10
_MAX_LABEL = 63

_ABSOLUTE = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?P<fragment>#.*)?",
    re.IGNORECASE,
)
_RELATIVE = re.compile(r"(?P<path>/[^?#]*)(?P<query>\?[^#]*)?(?P<fragment>#.*)?")
_LABEL = re.compile(r"[a-z0-9_-]+")
_DOT = re.compile("[.\u3002\uff0e\uff61]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NOT_IN_IDNA_2003 = frozenset("\u00df\u03c2")
"""Sharp s and final sigma: the codec replaces them, which yields a different host than in browsers."""
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_UNESCAPED = "!$&'()*+,;=:@/?%[]"
"""Characters that stay unescaped in a URL, in addition to the unreserved ones."""


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The subject of a message or a new session, as a `ContextPolicy` receives it."""

    related_type: str | None = None
    related_id: str | None = None
    context_url: str | None = None
    initial_context_url: str | None = None
    """The page on which a new session began; set only in the request that creates the session."""


@dataclass(frozen=True, slots=True)
class ContextCaller:
    """The sender. A service that acts for a person has the person's `user_id` and its own scopes."""

    user_id: str
    tenant_id: str
    scopes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class ContextPolicy(Protocol):
    """An application's check of contexts; the setting `EVERSTEP_CONTEXT_POLICY` names it."""

    async def check(self, context: MessageContext, caller: ContextCaller) -> MessageContext:
        """Check a context and return it, changed or unchanged.

        The checks of types and URLs run before this method, and again on its result.

        Raises:
            InvalidInput: The context cannot be used (HTTP 422).
            ContextForbidden: The caller may not see its subject (HTTP 403).
        """
        ...


def canonical_url(url: str, name: str = "context_url") -> str:
    """The canonical form of a URL, the same for all its spellings.

    Scheme and host are in lower case, the host in ASCII, without a default port. The path has no `.` or `..`.
    Only characters that need an escape have one.

    Args:
        url: The URL.
        name: The name of the field, for error messages.

    Raises:
        InvalidInput: It is neither http(s) nor a path that begins with exactly one slash.
    """
    limited_text(name, url, MAX_CONTEXT)
    url = url.strip(" ")
    if any(is_hidden(char) for char in url):
        raise InvalidInput(f"{name} has control or formatting characters; leave them out")
    if "\\" in url:
        raise InvalidInput(f"{name} has a backslash; write slashes")
    if found := _ABSOLUTE.fullmatch(url):
        origin = (
            f"{found['scheme'].lower()}://{_authority(found['scheme'].lower(), found['authority'], name)}"
        )
    elif found := _RELATIVE.fullmatch(url):
        origin = ""
    else:
        raise InvalidInput(_NO_LINK.format(name=name))
    path = _remove_dot_segments(_normalize_escapes(found["path"])) or "/"
    if not origin and path.startswith("//"):
        raise InvalidInput(_NO_LINK.format(name=name))
    canonical = (
        origin
        + path
        + _normalize_escapes(found["query"] or "")
        + _normalize_escapes(found["fragment"] or "", "#")
    )
    return limited_text(name, canonical, MAX_CONTEXT)


_NO_LINK = "{name} must begin with http:// or https:// and a host, or with exactly one slash"


def _authority(scheme: str, authority: str, name: str) -> str:
    if "@" in authority:
        raise InvalidInput(f"{name} names a user; leave out everything before the @")
    host, port = _split_port(authority)
    if port is not None:
        try:
            canonical = _ipv6(host[1:-1]) if host.startswith("[") and host.endswith("]") else _name(host)
        except ValueError:
            canonical = ""
        if canonical:
            return canonical if port in (0, _DEFAULT_PORTS[scheme]) else f"{canonical}:{port}"
    raise InvalidInput(f"{name} has no valid host; check the part after //")


def _split_port(authority: str) -> tuple[str, int | None]:
    """The host and the port: 0 without a port, None for an invalid one."""
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        return authority, 0
    if not port:
        return host, 0
    if not (port.isascii() and port.isdecimal() and len(port) <= _MAX_PORT_DIGITS):
        return host, None
    return host, int(port) if 0 < int(port) <= _MAX_PORT else None


def _ipv6(text: str) -> str:
    if "%" in text:  # A zone is meaningful on one machine only, and may contain any character.
        raise ValueError(text)
    address = IPv6Address(text)
    if mapped := address.ipv4_mapped:
        return f"[::ffff:{int(mapped) >> 16:x}:{int(mapped) & 0xFFFF:x}]"
    return f"[{address}]"


def _name(host: str) -> str:
    """A host name in ASCII, or an IPv4 address: browsers parse each name that ends in a number as one."""
    labels = [_ascii(label) for label in _DOT.split(host)]
    significant = labels[:-1] if len(labels) > 1 and not labels[-1] else labels
    if not all(_LABEL.fullmatch(label) for label in significant):
        raise ValueError(host)
    if _NUMBER.fullmatch(significant[-1]):
        return str(IPv4Address(".".join(significant)))
    return ".".join(labels)


def _ascii(label: str) -> str:
    # Character by character: on whole words, `lower` turns a capital sigma at the end into a final one.
    lower = "".join(char.lower() for char in label)
    if _NOT_IN_IDNA_2003.isdisjoint(lower):
        return lower.encode("idna").decode("ascii").lower()
    # Encoded only to validate the remaining characters.
    "".join(char for char in lower if char not in _NOT_IN_IDNA_2003).encode("idna")
    encoded = f"xn--{unicodedata.normalize('NFKC', lower).encode('punycode').decode('ascii')}"
    if len(encoded) > _MAX_LABEL:
        raise ValueError(label)
    return encoded


def _normalize_escapes(part: str, first: str = "") -> str:
    """Escape only where needed, with hexadecimal digits in upper case."""
    prefix = part[: len(first)] if part.startswith(first) else ""
    text = part[len(prefix) :]
    text = re.sub("%(?![0-9A-Fa-f]{2})", "%25", text)
    text = _ESCAPED.sub(_normalize_escape, text)
    return prefix + quote(text, safe=_UNESCAPED)


def _normalize_escape(match: re.Match[str]) -> str:
    char = chr(int(match[0][1:], 16))
    return char if char in _UNRESERVED else match[0].upper()


def _remove_dot_segments(path: str) -> str:
    """RFC 3986, 5.2.4."""
    segments = list[str]()
    parts = path.split("/")
    for part in parts[1:]:
        if part == "..":
            del segments[-1:]
        elif part != ".":
            segments.append(part)
    if parts[-1] in (".", ".."):
        segments.append("")
    return "/" + "/".join(segments) if len(parts) > 1 else ""
