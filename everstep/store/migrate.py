"""Schema upgrades, safe to run from several processes at once.

An upgrade is one transaction under an advisory lock. A second process waits, finds nothing left to do, and
returns. A process that fails leaves the schema unchanged.

The full-text index is built afterwards, outside of a transaction, so that processes of the earlier version go
on writing. Search works without it, but slowly. A build that was interrupted is repeated by the next upgrade.

Alembic is imported where it is used: most commands never do, and it imports a library of templates and its
syntax highlighting.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.store.columns import IS_SEARCHED, PENDING_KB, SEARCH_INDEX, SEARCH_VECTOR
from everstep.store.deadline_connection import ServerConnection
from everstep.store.engine import STATEMENT_SECONDS, create_upgrade_engine
from everstep.store.errors import SchemaTooNew, StoreError, error_translation

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

T = TypeVar("T")

OPTIONS: dict[str, Any] = {
    # The application that shares the database may use Alembic too, with its default version table.
    "version_table": "agent_schema_version",
}

# An arbitrary number that never changes. Other applications must not use the same one.
_LOCK = text("SELECT pg_advisory_xact_lock(7204190518261311)")

_SEARCH_LOCK = text("SELECT pg_try_advisory_lock(7204190518261312)")
_SEARCH_UNLOCK = text("SELECT pg_advisory_unlock(7204190518261312)")
"""A pooler keeps the session, and with it the lock."""

_SEARCH_INDEX_STATE = text(f"""
    SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{SEARCH_INDEX}')
""")  # noqa: S608 -- constants only

_CREATE_SEARCH_INDEX = text(f"""
    CREATE INDEX CONCURRENTLY {SEARCH_INDEX} ON agent_transcript USING gin ({SEARCH_VECTOR})
      WITH (gin_pending_list_limit = {PENDING_KB})
     WHERE {IS_SEARCHED}
""")


class HowToMigrate(StoreError):
    """Alembic was run by hand."""

    def __init__(self) -> None:
        super().__init__("revisions are applied by `everstep db upgrade`, not by `alembic upgrade`")


class PooledConnection(StoreError):
    """The tables cannot be upgraded through a pooler."""

    def __init__(self) -> None:
        super().__init__(
            "the database URL leads to a connection pooler, and an upgrade locks a session of PostgreSQL; "
            "set DATABASE_DIRECT_URL to the server itself"
        )


async def upgrade(url: str, *, may_be_pooled: bool = False) -> None:
    """Apply every revision that the database does not have yet, and build its full-text index.

    Args:
        url: The database URL.
        may_be_pooled: Whether a pooler that keeps a session for each client is in between.

    Raises:
        PooledConnection: A pooler is in between.
    """
    await _run_on(url, _advise_session if may_be_pooled else _require_session)
    await _run_on(url, _upgrade)
    await _run_on(url, _build_search_index, isolation_level="AUTOCOMMIT")


async def pending(database: str | AsyncEngine) -> list[str]:
    """Return the revisions that the database does not have yet, in order of application.

    Args:
        database: Its URL, for a connection of its own, or the engine whose pool has one.
    """
    if isinstance(database, str):
        return await _run_on(database, _pending, STATEMENT_SECONDS)
    with error_translation(database.url):
        async with database.connect() as connection:
            return await connection.run_sync(_pending)


async def _run_on(
    url: str,
    work: Callable[[Connection], T],
    statement_timeout: float = 0,
    isolation_level: IsolationLevel = "READ COMMITTED",
) -> T:
    engine = create_upgrade_engine(url, statement_timeout)
    try:
        with error_translation(engine.url):
            async with engine.execution_options(isolation_level=isolation_level).begin() as connection:
                return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _require_session(connection: Connection) -> None:
    driver: ServerConnection | None = connection.connection.driver_connection
    if driver and driver.is_pooled:
        raise PooledConnection


def _advise_session(connection: Connection) -> None:
    driver: ServerConnection | None = connection.connection.driver_connection
    if driver and driver.is_pooled:
        log.warning(
            "DATABASE_DIRECT_URL leads to a connection pooler; it has to keep a session for each client, or "
            "name the server itself"
        )


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 -- see above

    connection.execute(_LOCK)
    if _pending(connection):
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _build_search_index(connection: Connection) -> None:
    """Build the index if it is missing or unfinished, unless another process does so now."""
    # Without waiting: a build waits for all transactions, also for those that wait for a lock.
    if not connection.execute(_SEARCH_LOCK).scalar():
        if not connection.execute(_SEARCH_INDEX_STATE).scalar():
            log.warning("another process builds the index for the search; until then it is slow")
        return
    try:
        is_valid = connection.execute(_SEARCH_INDEX_STATE).scalar()
        if is_valid is False:
            connection.execute(text(f"DROP INDEX CONCURRENTLY {SEARCH_INDEX}"))
        if not is_valid:
            connection.execute(_CREATE_SEARCH_INDEX)
    finally:
        connection.execute(_SEARCH_UNLOCK)


def _pending(connection: Connection) -> list[str]:
    from alembic.migration import MigrationContext  # noqa: PLC0415 -- see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415 -- see above
    from alembic.script.revision import RevisionError  # noqa: PLC0415 -- see above

    scripts = ScriptDirectory.from_config(_config())
    current = MigrationContext.configure(connection, opts=OPTIONS).get_current_heads()
    try:
        applied = {revision.revision for revision in scripts.iterate_revisions(current, "base")}
    except RevisionError:
        raise SchemaTooNew(", ".join(current)) from None
    oldest_first = reversed(list(scripts.walk_revisions()))
    return [revision.revision for revision in oldest_first if revision.revision not in applied]


def _config() -> "Config":
    from alembic.config import Config  # noqa: PLC0415 -- see above

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
