"""Where viewers find the gateway of an installation."""

from pathlib import Path

from everstep.runtime.data_folder import known_data_folder
from everstep.runtime.settings import Settings

GATEWAY_URL = "gateway-url"
"""The file in which a local installation says where its gateway is."""


def gateway_url(settings: Settings) -> str | None:
    """The one that is set, or that of the local installation, if it has one."""
    if settings.gateway_url:
        return settings.gateway_url
    data = known_data_folder(settings)
    return data and local_gateway(data)


def local_gateway(data: Path) -> str | None:
    """Where the gateway of a local installation answers, if it does."""
    try:
        return (data / GATEWAY_URL).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
