"""Opens the client with which programs of others start agents. A part of the public API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from everstep.client.client import Client
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings


@asynccontextmanager
async def open_client(**settings: Any) -> AsyncGenerator[Client]:
    """Connect to an installation, and close the connections at the end of the block.

    Without arguments this is the installation that commands in this folder use: the one that the environment
    and `everstep.toml` name, or that of `everstep up`.

    Args:
        **settings: Settings that take precedence over the environment and `everstep.toml`, such as
            `database_url`, `temporal_address` or `agents`.

    Raises:
        InvalidInput: A setting cannot be used, or a server is not named.
        TemporalUnreachable: The Temporal server does not answer.
    """
    async with open_installation(Settings.read(**settings), "everstep client") as installation:
        yield installation.client
