"""The journal's epoch: it changes when the stored history may differ from what was read earlier.

It is derived from three values, so that most incidents change it automatically:

- PostgreSQL's system identifier, which differs after a dump is restored to another cluster
- the timeline, which differs after a failover and after a restore to a point in time
- a number in the database, for changes that PostgreSQL cannot detect, such as a file system rollback. An
  operator changes it with `everstep db restored`.

The timeline is taken from the WAL position, because the control file is minutes late. If the server does not
reveal the first two values, only the third is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, TextClause, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from everstep.store.errors import error_translation

_DATABASE_EPOCH = "(SELECT epoch FROM agent_journal)"

_SERVER = """(SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery()
         THEN upper(lpad((SELECT to_hex(timeline_id) FROM pg_control_checkpoint()), 8, '0'))
         ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8)
    END"""

_HIDDEN_CODES = (
    "42501",  # insufficient privilege
    "42883",  # no such function
    "0A000",  # not supported
)

RENEW = text("""
    INSERT INTO agent_journal DEFAULT VALUES
        ON CONFLICT (is_only) DO UPDATE SET epoch = gen_random_uuid()
""")


def _hash_sql(*parts: str) -> str:
    """Hash the parts, which makes them short and hides the server. Evaluated once per statement."""
    together = f"concat_ws('/', {', '.join(parts)})"
    return f"(SELECT left(encode(sha256(convert_to({together}, 'UTF8')), 'hex'), 20))"


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """A statement that also returns the epoch, with and without the server's identity."""

    with_server: TextClause
    without_server: TextClause

    @classmethod
    def of(cls, sql: str) -> "EpochQuery":
        """Return the statement whose text contains `{epoch}` as a placeholder."""
        return cls(
            text(sql.format(epoch=_hash_sql(_DATABASE_EPOCH, _SERVER))),
            text(sql.format(epoch=_hash_sql(_DATABASE_EPOCH))),
        )


EPOCH = EpochQuery.of("SELECT {epoch} AS epoch")


class EpochReader:
    """Executes `EpochQuery` statements. The first one finds out what the server reveals."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._knows_server: bool | None = None

    async def _query_with_epoch(self, query: EpochQuery, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                if self._knows_server is None:
                    self._knows_server = await _reveals_identity(connection)
                statement = query.with_server if self._knows_server else query.without_server
                return (await connection.execute(statement, values)).all()

    async def _all(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement, values)).all()

    async def _run(self, statement: TextClause, values: Mapping[str, Any]) -> None:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                await connection.execute(statement, values)


async def _reveals_identity(connection: AsyncConnection) -> bool:
    try:
        await connection.execute(EPOCH.with_server)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _HIDDEN_CODES:
            return False
        raise
    return True


async def renew_epoch(engine: AsyncEngine) -> None:
    """Change the epoch, because stored history may have changed: every subscriber reads it again."""
    with error_translation(engine.url):
        async with engine.connect() as connection:
            await connection.execute(RENEW)
