"""The process that serves the HTTP API."""

import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from everstep.agent_domain.redaction import Redaction
from everstep.broadcast_gateway.sse import Feeds
from everstep.http_api.app import create_app
from everstep.http_api.dependencies import Api, Logs
from everstep.http_api.metrics import Metrics
from everstep.runtime.authorization import (
    build_authenticator,
    build_browser_sessions,
    build_identity_provider,
    channel_signer,
    local_token,
)
from everstep.runtime.connection_limits import ConnectionLimits
from everstep.runtime.data_folder import API_URL_FILE, data_folder
from everstep.runtime.embedded import write_private
from everstep.runtime.gateway import open_feeds
from everstep.runtime.installation import Installation
from everstep.runtime.metrics_page import MetricsPage
from everstep.runtime.public_hosts import allowed_hosts
from everstep.runtime.readiness import Readiness
from everstep.runtime.secrets import secrets
from everstep.runtime.serving import bind_socket, format_address, serve_app
from everstep.runtime.settings import Settings
from everstep.runtime.system_report import SystemReport
from everstep.runtime.viewing import gateway_url
from everstep.runtime.waiting import Port
from everstep.store.accounts import PostgresAccounts
from everstep.store.backlog import PostgresBacklog
from everstep.store.definition_history import read_definition_uses
from everstep.store.streams import PostgresStreams


def build_api(installation: Installation, feeds: Feeds | None = None, page: MetricsPage | None = None) -> Api:
    """Build the HTTP API of an installation."""
    settings, keys = installation.settings, installation.keys
    authenticate, metrics = build_authenticator(settings, keys), Metrics()
    streams = PostgresStreams(installation.store.engine)
    return Api(
        installation.sessions,
        keys,
        PostgresAccounts(installation.store.engine, installation.store.replica),
        installation.schedules.store,
        installation.webhooks,
        streams,
        authenticate,
        channel_signer(settings),
        feeds and feeds.open,
        partial(gateway_url, settings),
        Readiness(installation.store.engine, installation.temporal, settings.task_queue),
        settings.allowed_origins,
        allowed_hosts(settings, settings.http_host, "EVERSTEP_HTTP"),
        metrics,
        page and partial(page.render, metrics.registry),
        Redaction(tuple(secrets(settings, os.environ))),
        build_browser_sessions(installation.store.engine, authenticate),
        build_identity_provider(settings),
        settings.auth == "on",
        _workflows_url(settings),
        system=SystemReport(installation),
        definition_uses=partial(read_definition_uses, installation.store.engine),
        logs=feeds and Logs(feeds.open_lines, streams),
        limits=lambda: installation.limits.book,
    )


def _workflows_url(settings: Settings) -> str | None:
    """Return the address of the list of workflows in Temporal's web UI."""
    if settings.ui_url is None:
        return None
    return f"{settings.ui_url.rstrip('/')}/namespaces/{settings.temporal_namespace}/workflows"


def api_port(settings: Settings) -> Port:
    """Return the port of the API, for a process that waits before it serves."""
    hosts = allowed_hosts(settings, settings.http_host, "EVERSTEP_HTTP")
    return Port(bind_socket(settings.http_host, settings.http_port), hosts)


@asynccontextmanager
async def open_api(installation: Installation, *, listener: socket.socket) -> AsyncGenerator[str]:
    """Serve the HTTP API within the block, on the given listener; yield the URL."""
    settings = installation.settings
    page = MetricsPage(PostgresBacklog(installation.store.engine), settings.metrics_tenants)
    async with open_feeds(settings, installation.store.engine) as feeds, page.open_sources():
        app = create_app(build_api(installation, feeds, page), max_upload=settings.attachment_max_bytes)
        limits = ConnectionLimits(settings.http_connections, settings.http_connections_per_address)
        where = settings.http_host, settings.http_port
        async with serve_app(app, *where, limits, listener=listener) as url:
            try:
                yield url
            finally:
                if feeds:
                    # Feeds do not end by themselves, so close them before waiting for open requests.
                    feeds.close()


@dataclass(frozen=True, slots=True)
class LocalApi:
    """The address of a local installation and the token that opens it."""

    url: str
    token: str | None
    """None if authentication is off."""


@asynccontextmanager
async def open_local_api(installation: Installation) -> AsyncGenerator[LocalApi]:
    """Serve the HTTP API on the configured or a free port, and store its URL for other processes."""
    with bind_local_api(installation.settings) as (listener, api):
        async with open_api(installation, listener=listener):
            yield api


@contextmanager
def bind_local_api(settings: Settings) -> Generator[tuple[socket.socket, LocalApi]]:
    """Bind the configured or a free port for the HTTP API before it is served; store its URL for commands."""
    url_file = data_folder(settings) / API_URL_FILE
    with bind_socket(settings.http_host, settings.http_port, or_any=True) as listener:
        url = f"http://{format_address(settings.http_host, listener.getsockname()[1])}"
        write_private(url_file, url + "\n")
        try:
            yield listener, LocalApi(url, None if settings.auth == "off" else local_token(settings))
        finally:
            url_file.unlink(missing_ok=True)
