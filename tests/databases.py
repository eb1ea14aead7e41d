"""Databases on the tests' server, created and dropped by name."""

from typing import Final
from uuid import uuid4

import psycopg
from sqlalchemy import make_url

from everstep.store import attachment_tables
from everstep.store.tables import metadata

# Importing a module of tables adds them to the metadata.
assert attachment_tables.attachments.metadata is metadata

MIGRATED: Final = "migrated"
"""A database with empty tables, from which others are copied: quicker than to make tables."""


EMPTIED: Final = "; ".join(
    f"DELETE FROM {table.name}"  # noqa: S608 -- fixed names
    for table in reversed(metadata.sorted_tables)
    # The journal's one row is made with its table.
    if table.name != "agent_journal"
)
"""Deletes all rows. A test's database has few, and `TRUNCATE` would make a new file for each table."""


class Databases:
    """Databases on the test server, created and dropped by name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._free: list[str] = []

    def run(self, statement: str, database: str = "postgres") -> None:
        """Run a statement in one of the databases."""
        with psycopg.connect(self.url_of(database).replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    def url_of(self, name: str) -> str:
        """The URL of a database."""
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def create(self, template: str = "template0", name: str = "test") -> str:
        """Create a database whose name begins like this, and return its URL."""
        own = f"{name}_{uuid4().hex}"
        # The other strategy writes the copy into the log as well.
        self.run(f"CREATE DATABASE {own} TEMPLATE {template} STRATEGY FILE_COPY")
        return self.url_of(own)

    def take(self) -> str:
        """Return the URL of a database with empty tables, which nothing else uses until it is given back."""
        return self._free.pop() if self._free else self.create(MIGRATED)

    def give_back(self, url: str) -> None:
        """Empty a database's tables for its next user."""
        self.empty(url)
        self._free.append(url)

    def empty(self, url: str) -> None:
        """Delete all rows."""
        self.run(EMPTIED, make_url(url).database or "")

    def drop(self, url: str) -> None:
        """Drop a database, even while clients are connected.

        `WITH (FORCE)` is refused while a process of the superuser's autovacuum is in it; without it, the
        server ends that process itself.
        """
        name = make_url(url).database
        clients = f"pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"
        self.run(f"SELECT pg_terminate_backend(pid) FROM {clients}")  # noqa: S608 -- own names
        self.run(f"DROP DATABASE IF EXISTS {name}")
