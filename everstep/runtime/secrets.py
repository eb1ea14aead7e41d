"""The secrets of this process, whose values never reach a model, a store or a subscriber."""

import re
from collections.abc import Iterator, Mapping

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.redaction import Redaction
from everstep.runtime.settings import Settings

SECRET_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)
"""Names of environment variables that hold secrets of any program."""

SECRET_SETTINGS = ("payload_key", "auth_secret", "broadcast_secret", "temporal_api_key")


def disclosure_of(settings: Settings, environ: Mapping[str, str]) -> Disclosure:
    """Return how much of an error this installation discloses."""
    return Disclosure(Redaction(tuple(secrets(settings, environ))), is_full=settings.error_details)


def secrets(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield all secrets: settings, passwords in URLs, provider keys, and variables by their names."""
    for name in SECRET_SETTINGS:
        if value := getattr(settings, name):
            yield value
    named = {str(section.get("api_key_env")) for section in settings.presets.values()}
    for name, value in environ.items():
        if SECRET_NAMES.search(name) or name in named:
            yield value.strip()
        else:
            yield from _passwords(value)
    for addresses in (settings.database_url, settings.nats_url):
        yield from _passwords(addresses or "")


def _passwords(addresses: str) -> Iterator[str]:
    """Yield the passwords in addresses, of which some settings hold several with commas between them."""
    for address in addresses.split(","):
        if "://" not in address or "@" not in address:
            continue
        try:
            url = make_url(address.strip())
        except (ArgumentError, ValueError):
            continue
        # NATS has tokens in the place of a name and a password.
        token = url.username if url.drivername in {"nats", "tls"} and not url.password else None
        if password := url.password or token:
            yield str(password)
