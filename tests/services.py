"""The real servers, once per test session.

A test whose marker says `loop_scope="session"` may also stop and start them. Other tests use the addresses in
the fixture: they run in their own event loop, and the servers belong to another one.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest_asyncio

from everstep.runtime.embedded import EmbeddedConfig, EmbeddedServices, open_services

CARELESS: Final = {"fsync": "off"}
"""PostgreSQL without waiting for the disk. Committed data survive a killed server, but no power cut; without
`synchronous_commit` they would not even survive the former.
"""


@contextmanager
def data_directory() -> Generator[Path]:
    """A directory that is removed afterwards.

    Not below pytest's: each session of pytest closes that one to other users, and under root PostgreSQL, also
    one of another session, runs as such a user.
    """
    with TemporaryDirectory(prefix="everstep-test-") as folder:
        yield Path(folder)


def careless(data: Path) -> EmbeddedConfig:
    """Servers on free ports that do not wait for the disk."""
    return EmbeddedConfig(data, temporal_port=0, ui_port=0, postgres_settings=CARELESS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def services() -> AsyncGenerator[EmbeddedServices]:
    """PostgreSQL and Temporal, on free ports and in a directory of this session."""
    with data_directory() as data:
        async with open_services(careless(data)) as running:
            yield running
