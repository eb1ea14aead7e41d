"""Retention by the settings: which rows an installation removes, and when."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from everstep.runtime.file_store import build_attachments
from everstep.runtime.installation import HOW_TO_START, locate_services
from everstep.runtime.settings import Settings
from everstep.steps.attachments import Attachments
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
    engine = create_engine(
        url,
        application_name="everstep prune",
        statement_timeout=MAINTENANCE_SECONDS,
        preparing=settings.database_prepared,
    )
    store, files = PostgresRetention(engine), _FileRetention(build_attachments(settings, engine))
    try:
        yield [
            _retention(settings, "agent_sessions", "keep_sessions_days", store.prune_sessions),
            _retention(settings, "agent_executions", "keep_executions_days", store.prune_executions),
            _retention(settings, "agent_envelopes", "keep_envelopes_days", store.prune_envelopes),
            _retention(settings, "agent_answers", "keep_answers_days", store.prune_answers),
            _retention(settings, "agent_webhook_deliveries", "keep_deliveries_days", store.prune_deliveries),
            _retention(settings, "agent_attachments", "keep_uploads_days", files.prune),
        ]
    finally:
        await engine.dispose()


@dataclass(frozen=True)
class _FileRetention:
    """Removes files that no message or result uses; it comes last, after their executions."""

    attachments: Attachments

    async def prune(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Remove files that have expired: each has its own time, from the setting at its upload."""
        del before
        if dry_run:
            yield await self.attachments.index.count_orphans()
            return
        await self.attachments.index.expire_orphans()
        while removed := await self.attachments.remove_garbage():
            yield removed


def _retention(
    settings: Settings, table: str, setting: str, prune: Callable[..., AsyncGenerator[int]]
) -> TableRetention:
    return TableRetention(table, f"EVERSTEP_{setting.upper()}", getattr(settings, setting), prune)
