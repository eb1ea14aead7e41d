"""Where the local model is served."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from everstep.agent_domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """A running server of the local model."""

    url: str
    """Its base URL, which ends with /v1."""
    key: str

    @property
    def address(self) -> str:
        """URL and key as one text."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://:{self.key}@{rest}"

    @classmethod
    def parse(cls, address: str) -> "LocalEndpoint":
        """Read an address.

        Raises:
            InvalidInput: It is no such address.
        """
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidInput(
                "local_model_url is no address; write it like http://:KEY@127.0.0.1:PORT/v1, or leave it out"
            )
        host = parts.netloc.rpartition("@")[2]
        return cls(f"{parts.scheme}://{host}{parts.path.rstrip('/')}", parts.password or "none")


FindEndpoint: TypeAlias = Callable[[], Awaitable[LocalEndpoint]]
"""Returns the server, which it starts if none runs."""
