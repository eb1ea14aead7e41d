"""An installation that serves HTTP on a port, and clients of other protocols in node."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest_asyncio
from fastapi import FastAPI

from everstep.broadcast_gateway.hub import HubTimings
from everstep.http_api.dependencies import Logs
from everstep.runtime.gateway import open_feeds
from everstep.runtime.serving import serve_app
from everstep.store.streams import PostgresStreams
from tests.everstep.http_api.conftest import ann, api_setup, http_database, sign_in, work
from tests.everstep.http_api.house import SECRET, ApiSetup, make_app

__all__ = ["ann", "api_setup", "http_database", "sign_in", "work"]

# The workers of these tests push nothing, so the table has to be compared often.
QUICK = HubTimings(compare=0.05)


@pytest_asyncio.fixture
async def app(api_setup: ApiSetup) -> AsyncGenerator[FastAPI]:
    """The API with the logs of streams."""
    settings = api_setup.settings.model_copy(update={"auth_secret": SECRET})
    async with open_feeds(settings, api_setup.keys.engine, QUICK) as feeds:
        assert feeds is not None
        logs = Logs(feeds.open_lines, PostgresStreams(api_setup.keys.engine))
        yield make_app(replace(api_setup.api, feed=feeds.open, logs=logs))
        feeds.close()


@pytest_asyncio.fixture
async def url(app: FastAPI) -> AsyncGenerator[str]:
    """The address of the API."""
    async with serve_app(app, "127.0.0.1", 0) as url:
        yield url
