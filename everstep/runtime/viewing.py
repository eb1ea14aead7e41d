"""The addresses of an installation's gateway, and of the pages that use it."""

from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

from everstep.runtime.data_folder import known_data_folder, local_url
from everstep.runtime.settings import Settings

GATEWAY_URL = "gateway-url"
"""The file in which a local installation stores the URL of its gateway."""


def gateway_url(settings: Settings) -> str | None:
    """Return the configured URL, or that of the local installation's gateway, if it has one."""
    if settings.gateway_url:
        return settings.gateway_url
    data = known_data_folder(settings)
    return data and local_gateway(data)


def local_gateway(data: Path) -> str | None:
    """Return the URL of a local installation's gateway if it runs."""
    try:
        return (data / GATEWAY_URL).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def console_ports(settings: Settings) -> Collection[int]:
    """Return the ports at which the console may be served: those of the API."""
    data = known_data_folder(settings)
    urls = (settings.public_url, data and local_url(data))
    parts = [urlsplit(url) for url in urls if url]
    return {settings.http_port, *(each.port or (443 if each.scheme == "https" else 80) for each in parts)}
