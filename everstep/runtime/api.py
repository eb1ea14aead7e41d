"""The process that answers HTTP."""

import logging
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from everstep.http_api.api import Api, Feed
from everstep.http_api.app import create_app
from everstep.http_api.metrics import Metrics
from everstep.runtime.authorization import door, local_token, signer
from everstep.runtime.connections import ConnectionLimits
from everstep.runtime.data_folder import data_folder
from everstep.runtime.embedded import write_private
from everstep.runtime.gateway import feeding
from everstep.runtime.hosts import allowed_hosts
from everstep.runtime.installation import Installation
from everstep.runtime.readiness import Readiness
from everstep.runtime.serving import bound, serving
from everstep.runtime.settings import Settings
from everstep.runtime.viewing import gateway_url
from everstep.runtime.waiting import Port
from everstep.store.accounts import PostgresAccounts
from everstep.store.streams import PostgresStreams

URL = "api-url"
"""The file in which a local installation says where its API is."""


def http_api(installation: Installation, feed: Feed | None = None) -> Api:
    """What the HTTP API of an installation is made of."""
    settings, keys = installation.settings, installation.keys
    return Api(
        installation.sessions,
        keys,
        PostgresAccounts(installation.store.engine),
        PostgresStreams(installation.store.engine),
        door(settings, keys),
        signer(settings),
        feed,
        partial(gateway_url, settings),
        Readiness(settings, installation.temporal),
        settings.allowed_origins,
        allowed_hosts(settings, settings.http_host, "EVERSTEP_HTTP"),
        Metrics(lambda: vars(installation.reconciler.total)),
    )


def api_port(settings: Settings) -> Port:
    """The port of the API, on which it answers as soon as somebody serves it."""
    hosts = allowed_hosts(settings, settings.http_host, "EVERSTEP_HTTP")
    return Port(bound(settings.http_host, settings.http_port), hosts)


@asynccontextmanager
async def answering(
    installation: Installation, *, or_any_port: bool = False, listener: socket.socket | None = None
) -> AsyncGenerator[str]:
    """Answer HTTP meanwhile, on the listener if one is given; the URL."""
    settings = installation.settings
    async with feeding(settings, installation.store.engine) as feeds:
        app = create_app(http_api(installation, feeds and feeds.open))
        limits = ConnectionLimits(settings.http_connections, settings.http_connections_per_address)
        where = settings.http_host, settings.http_port
        async with serving(app, *where, limits, or_any=or_any_port, listener=listener) as url:
            try:
                yield url
            finally:
                if feeds:
                    # Before requests under way are waited for: these would not end by themselves.
                    feeds.close()


@dataclass(frozen=True, slots=True)
class LocalDoor:
    """Where a local installation is entered, and with what."""

    url: str
    token: str | None
    """None if it is not locked."""


@asynccontextmanager
async def answering_locally(installation: Installation) -> AsyncGenerator[LocalDoor]:
    """Answer HTTP meanwhile, on the port that is set or a free one, and let other processes know where."""
    settings = installation.settings
    told = data_folder(settings) / URL
    async with answering(installation, or_any_port=True) as url:
        write_private(told, url + "\n")
        try:
            yield LocalDoor(url, None if settings.auth == "off" else local_token(settings))
        finally:
            told.unlink(missing_ok=True)


def local_url(data: Path) -> str | None:
    """Where the API of a local installation answers, if it does."""
    try:
        return (data / URL).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def log_requests() -> None:
    """One line for each request, beside what else is worth knowing."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("everstep").setLevel(logging.INFO)
