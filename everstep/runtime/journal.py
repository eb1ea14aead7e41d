"""The gateway's journal, read from PostgreSQL."""

from collections.abc import Collection, Mapping
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.broadcast_gateway.frames import entry_from
from everstep.broadcast_gateway.ports import JournalPage, RecordedText
from everstep.store.journal import JournalTables, StoredText


class PostgresJournal:
    """Returns stored envelopes in the form in which publishers push them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._tables = JournalTables(engine)

    async def read_page(self, stream_id: UUID, after: int | None, limit: int) -> JournalPage | None:
        """Return the next envelopes after a seq, in order, or None if there is no such stream.

        Args:
            stream_id: The stream.
            after: The last seq that the caller has; None returns no envelopes.
            limit: The largest number of envelopes.
        """
        found = await self._tables.page(stream_id, after, limit)
        if found is None:
            return None
        entries = [*map(entry_from, found.envelopes)]
        return JournalPage(found.epoch, found.head, found.oldest, entries)

    async def read_heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        """Return the epoch, and the last seq of each of these streams that exists."""
        return await self._tables.heads(stream_ids)

    async def read_texts(self, stream_id: UUID) -> Mapping[str, RecordedText | None]:
        """Return the running executions of a stream, each with the text of its current step if it has one."""
        found = await self._tables.texts(stream_id)
        return {str(execution_id): _text(noted) for execution_id, noted in found.items()}


def _text(noted: StoredText | None) -> RecordedText | None:
    return noted and RecordedText(noted.at, noted.content, noted.after_seq, noted.noted_at)
