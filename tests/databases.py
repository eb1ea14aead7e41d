"""Databases on the test session's server, created and dropped by name."""

from uuid import uuid4

import psycopg
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices
from everstep.store.migrate import upgrade

MIGRATED, SHARED = "migrated", "shared"
"""A database with empty tables, from which others are copied; and one that many tests use in turn."""


class Databases:
    """Databases on the test server, created and dropped by name."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, statement: str, database: str = "postgres") -> None:
        """Run a statement in one of the databases."""
        with psycopg.connect(self.url_of(database).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    def url_of(self, name: str) -> str:
        """The URL of a database."""
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def create(self, template: str = "template0") -> str:
        """Create a database and return its URL."""
        name = f"test_{uuid4().hex}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url_of(name)

    def drop(self, url: str) -> None:
        """Drop a database, even while clients are connected."""
        self.run(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def databases(services: EmbeddedServices) -> Databases:
    """The test server's databases, one of them migrated."""
    databases = Databases(services.database_url)
    databases.run(f"CREATE DATABASE {MIGRATED}")
    await upgrade(databases.url_of(MIGRATED))
    databases.run(f"CREATE DATABASE {SHARED} TEMPLATE {MIGRATED}")
    return databases
