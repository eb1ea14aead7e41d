"""Models in one line: `provider:model`, or `provider:model@address`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.hosts import Host
from everstep.agent_domain.values import truncate

ADDRESS_KEYS = ("base_url", "api_key_env", "extra_headers")
"""Settings that only presets may contain: the model's address, which of the process's secrets is sent there,
and headers, by which gateways choose another address.
"""

_ADDRESS = re.compile(r"@(?=https?://)")
EXAMPLE = "openai:gpt-5.5"


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model of a provider. The provider is a preset, whose other settings apply, or a driver."""

    provider: str
    model: str
    base_url: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName | None":
        """Read a model's name; None for a text without a colon, which is the name of a preset.

        Raises:
            InvalidInput: Nothing is written before or after the colon.
        """
        provider, colon, rest = text.partition(":")
        if not colon:
            return None
        model, *address = _ADDRESS.split(rest, maxsplit=1)
        if not provider.strip() or not model.strip():
            raise InvalidInput(
                f"'{truncate(text, 100)}' names no model; write the provider, a colon and the model, "
                f"as in {EXAMPLE}"
            )
        return cls(provider.strip(), model.strip(), address[0].strip() if address else None)


def require_no_address(model: str | Mapping[str, Any] | None, key: str = "model") -> None:
    """Refuse a model at an address of its own, in a file that others may have written.

    This machine's own addresses are accepted, as no key is sent to them.

    Raises:
        InvalidInput: The model names an address or a key.
    """
    if problem := address_problem(model):
        raise InvalidInput(f"'{key}' must not hold {problem}")


def address_problem(model: str | Mapping[str, Any] | None) -> str:
    """What a model in an agent's file must not hold, and what to do instead; empty if it is allowed."""
    instead = "write a preset into everstep.toml, and its name under 'model'"
    for name in _names(model):
        parsed = ModelName.parse(name)
        if parsed and parsed.base_url and not _is_loopback(parsed.base_url):
            address = truncate(parsed.base_url, 100)
            return f"the address {address}, which would receive conversations; {instead}"
    if isinstance(model, Mapping):
        for key in ADDRESS_KEYS:
            if key in model:
                return f"'{key}': an agent's file could send any secret anywhere; {instead}"
    return ""


def _names(model: str | Mapping[str, Any] | None) -> list[str]:
    """All models that the setting names: itself, or the preset that it changes and the fallbacks."""
    if not isinstance(model, Mapping):
        return [model] if model else []
    fallback: object = model.get("fallback")
    named = [
        model.get("preset"),
        *(cast("list[Any]", fallback) if isinstance(fallback, list | tuple) else ()),
    ]
    return [name for name in named if isinstance(name, str)]


def _is_loopback(address: str) -> bool:
    try:
        host = Host.parse(urlsplit(address).netloc)
    except ValueError:
        return False
    return host is not None and host.is_loopback
