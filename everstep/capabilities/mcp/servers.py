"""Addresses of servers.

Headers, env and arguments hold secrets: no repr here shows them, and no part of a server is recorded.
"""

import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import cast
from urllib.parse import urlsplit

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

Headers = Mapping[str, str]
HeadersFor = Callable[[str], Headers | Awaitable[Headers]]
"""Makes the headers for a tenant, in the worker, for each connection."""

_GENERIC_NAMES = frozenset(
    [
        "/",
        ".",
        "..",
        "bin",
        "build",
        "bun",
        "bunx",
        "deno",
        "dist",
        "dlx",
        "docker",
        "exec",
        "index",
        "lib",
        "local",
        "main",
        "node",
        "npx",
        "pnpm",
        "run",
        "src",
        "stdio",
        "tool",
        "usr",
        "uv",
        "uvx",
    ]
)
"""Commands that run others, and common directory names."""


@dataclass(frozen=True)
class StdioServer:
    """A program that the worker starts, and talks to over its standard input and output.

    Its environment is `env` and the few variables that every program needs (`PATH`, `HOME`, ...), never the
    worker's own.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = EMPTY
    cwd: str | Path | None = None

    def __post_init__(self) -> None:
        if sys.platform == "win32":
            raise InvalidInput("servers on stdio need a POSIX system; use HttpServer(url)")
        if isinstance(self.args, str):
            raise InvalidInput(
                "the args of a StdioServer are one text; pass a list, one text for each argument"
            )
        words = (self.command, *self.args)
        if not self.command or not all(map(_is_argument, words)):
            raise InvalidInput("the command and the args of a StdioServer have to be text without NUL")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "env", _text_map(self.env, "env"))

    def __repr__(self) -> str:
        return f"StdioServer({self.command!r})"

    @property
    def default_name(self) -> str:
        """The default prefix: after the program, not after the command that runs it."""
        for word in (self.command, *self.args):
            # Of a path, use the last part that is no common name; of `server@1.2`, the part before the
            # version.
            parts = (re.sub(r"(?<=.)@.*|\.\w{1,3}$", "", part) for part in reversed(PurePath(word).parts))
            names = [part for part in parts if part.lower() not in _GENERIC_NAMES]
            if names and not word.startswith("-") and not names[0].startswith("python"):
                return _without_affixes(names[0].replace("_", "-"))
        return "mcp"


@dataclass(frozen=True)
class HttpServer:
    """A server at a URL, over streamable HTTP.

    `headers` are sent with every request. A function makes them for the tenant whose agent connects.
    """

    url: str
    headers: Headers | HeadersFor = EMPTY

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise InvalidInput("the url of an HttpServer begins with http:// or https:// and names a host")
        if not callable(self.headers):
            object.__setattr__(self, "headers", as_headers(self.headers))

    def __repr__(self) -> str:
        return f"HttpServer({self.address!r})"

    @property
    def address(self) -> str:
        """The URL without the parts that may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def default_name(self) -> str:
        """The default prefix: the host."""
        return urlsplit(self.url).hostname or "mcp"


Server = StdioServer | HttpServer


def as_headers(raw: object) -> FrozenDict:
    """Headers that HTTP can carry.

    Raises:
        InvalidInput: A header cannot be sent; the message does not contain its value.
    """
    headers = _text_map(raw, "headers")
    for name, value in headers.items():
        if not name.isascii() or "\n" in name + value or "\r" in name + value:
            raise InvalidInput(f"the header {name!r} cannot be sent: it is one line, and its name is ASCII")
    return headers


def _is_argument(word: object) -> bool:
    return isinstance(word, str) and "\0" not in word


def _text_map(raw: object, what: str) -> FrozenDict:
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"{what} must be a map from text to text")
    for name, value in cast("Mapping[object, object]", raw).items():
        if not (isinstance(name, str) and isinstance(value, str)) or "\0" in name + value:
            raise InvalidInput(f"{what} must be a map from text to text; '{name}' is not")
    return frozen_map(cast("object", raw), what)


def _without_affixes(name: str) -> str:
    for affix in ("mcp-server-", "server-", "mcp-"):
        name = name.removeprefix(affix) or name
    for affix in ("-mcp-server", "-server", "-mcp"):
        name = name.removesuffix(affix) or name
    return name
