"""Schema upgrades, safe to run from several processes at once.

An upgrade is one transaction under an advisory lock. A second process waits, finds nothing left to do, and
returns. A process that fails leaves the schema unchanged.

Alembic is imported where it is used: most commands never do, and it imports a library of templates and its
syntax highlighting.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, text

from everstep.store.engine import STATEMENT_SECONDS, create_upgrade_engine
from everstep.store.errors import SchemaTooNew, StoreError, error_translation

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")

OPTIONS: dict[str, Any] = {
    # The application that shares the database may use Alembic too, with its default version table.
    "version_table": "agent_schema_version",
}

# An arbitrary number that never changes. Other applications must not use the same one.
_LOCK = text("SELECT pg_advisory_xact_lock(7204190518261311)")


class HowToMigrate(StoreError):
    """Alembic was run by hand."""

    def __init__(self) -> None:
        super().__init__("revisions are applied by `everstep db upgrade`, not by `alembic upgrade`")


async def upgrade(url: str) -> None:
    """Apply every revision that the database does not have yet."""
    await _run_on(url, _upgrade)


async def pending(url: str) -> list[str]:
    """Return the revisions that the database does not have yet, in order of application."""
    return await _run_on(url, _pending, STATEMENT_SECONDS)


async def _run_on(url: str, work: Callable[[Connection], T], statement_timeout: float = 0) -> T:
    engine = create_upgrade_engine(url, statement_timeout)
    try:
        with error_translation(engine.url):
            async with engine.begin() as connection:
                return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 -- see above

    connection.execute(_LOCK)
    if _pending(connection):
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


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
