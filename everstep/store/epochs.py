"""Which history the journal has: the epoch changes when what was stored may not be what is stored now.

It follows from three things, so that most of what can happen changes it without anybody's doing:

- which database cluster this is (PostgreSQL's system identifier): a dump that was restored elsewhere
- its timeline: a failover, and a restore to a point in time
- a number of our own: for what PostgreSQL cannot know, such as a file system that was set back. An operator
  who did that says so (`everstep db restored`).

The timeline is that of what is being written, as the control file learns of another one minutes late. Where
the server does not tell the first two, the third is all there is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, TextClause, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from everstep.store.errors import translated

_OWN = "(SELECT epoch FROM agent_journal)"

_SERVER = """(SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery()
         THEN upper(lpad((SELECT to_hex(timeline_id) FROM pg_control_checkpoint()), 8, '0'))
         ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8)
    END"""

_NOT_TOLD = (
    "42501",  # insufficient privilege
    "42883",  # no such function
    "0A000",  # not supported
)

RENEW = text("""
    INSERT INTO agent_journal DEFAULT VALUES
        ON CONFLICT (is_only) DO UPDATE SET epoch = gen_random_uuid()
""")


def _hashed(*parts: str) -> str:
    """Short, and without saying which server it is. Evaluated once for a statement."""
    together = f"concat_ws('/', {', '.join(parts)})"
    return f"(SELECT left(encode(sha256(convert_to({together}, 'UTF8')), 'hex'), 20))"


@dataclass(frozen=True, slots=True)
class Dated:
    """A statement that answers with the epoch along with what else it is asked."""

    with_server: TextClause
    alone: TextClause

    @classmethod
    def of(cls, sql: str) -> "Dated":
        """The statement, in which `{epoch}` stands for it."""
        return cls(text(sql.format(epoch=_hashed(_OWN, _SERVER))), text(sql.format(epoch=_hashed(_OWN))))


EPOCH = Dated.of("SELECT {epoch} AS epoch")


class DatedReader:
    """Asks such statements. What the server tells of itself is found out with the first one."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._knows_server: bool | None = None

    async def _dated(self, asked: Dated, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        with translated(self.engine.url):
            async with self.engine.connect() as connection:
                if self._knows_server is None:
                    self._knows_server = await _tells(connection)
                statement = asked.with_server if self._knows_server else asked.alone
                return (await connection.execute(statement, values)).all()

    async def _all(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        with translated(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement, values)).all()

    async def _run(self, statement: TextClause, values: Mapping[str, Any]) -> None:
        with translated(self.engine.url):
            async with self.engine.connect() as connection:
                await connection.execute(statement, values)


async def _tells(connection: AsyncConnection) -> bool:
    try:
        await connection.execute(EPOCH.with_server)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _NOT_TOLD:
            return False
        raise
    return True


async def renew_epoch(engine: AsyncEngine) -> None:
    """Say that stored history may have changed: every reader reads anew."""
    with translated(engine.url):
        async with engine.connect() as connection:
            await connection.execute(RENEW)
