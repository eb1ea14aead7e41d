"""Retention by the settings: which rows an installation removes, and when."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from everstep.runtime.installation import HOW_TO_START, locate_services
from everstep.runtime.settings import Settings
from everstep.store.engine import MAINTENANCE_SECONDS, create_engine
from everstep.store.retention import PostgresRetention


@dataclass(frozen=True, slots=True)
class TableRetention:
    """The retention of one table."""

    table: str
    setting: str
    days: float | None
    """None: the rows live as long as their owner."""
    prune: Callable[..., AsyncGenerator[int]]

    async def remove_old(self, *, dry_run: bool) -> AsyncGenerator[int]:
        """Remove older rows, or count them on a dry run; yield the number of rows per batch."""
        if self.days is None:
            return
        before = datetime.now(UTC) - timedelta(days=self.days)
        async for count in self.prune(before, dry_run=dry_run):
            yield count


@asynccontextmanager
async def open_retention(settings: Settings) -> AsyncGenerator[Sequence[TableRetention]]:
    """Open the retention of all tables, in the order that removes most at once."""
    url = settings.database_url or locate_services(settings).require("database_url", HOW_TO_START)
    engine = create_engine(url, application_name="everstep prune", statement_timeout=MAINTENANCE_SECONDS)
    store = PostgresRetention(engine)
    try:
        yield [
            _retention(settings, "agent_sessions", "keep_sessions_days", store.prune_sessions),
            _retention(settings, "agent_executions", "keep_executions_days", store.prune_executions),
            _retention(settings, "agent_envelopes", "keep_envelopes_days", store.prune_envelopes),
            _retention(settings, "agent_answers", "keep_answers_days", store.prune_answers),
        ]
    finally:
        await engine.dispose()


def _retention(
    settings: Settings, table: str, setting: str, prune: Callable[..., AsyncGenerator[int]]
) -> TableRetention:
    return TableRetention(table, f"EVERSTEP_{setting.upper()}", getattr(settings, setting), prune)
