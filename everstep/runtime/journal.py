"""The gateway's journal, read from PostgreSQL."""

from collections.abc import Collection, Mapping
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.stream.envelopes import Envelope
from everstep.broadcast_gateway.frames import entry_of
from everstep.broadcast_gateway.ports import Page, Text
from everstep.store.journal import JournalTables, NotedText


class PostgresJournal:
    """Returns stored envelopes in the form in which publishers push them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._tables = JournalTables(engine)

    async def page(self, stream_id: UUID, after: int | None, limit: int) -> Page | None:
        """Return the next envelopes after a seq, in order, or None if there is no such stream.

        Args:
            stream_id: The stream.
            after: The last seq that the caller has; None returns no envelopes.
            limit: The largest number of envelopes.
        """
        found = await self._tables.page(stream_id, after, limit)
        if found is None:
            return None
        entries = [entry_of(Envelope.placed(stored)) for stored in found.envelopes]
        return Page(found.epoch, found.head, found.oldest, entries)

    async def heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        """Return the epoch, and the last seq of each of these streams that exists."""
        return await self._tables.heads(stream_ids)

    async def texts(self, stream_id: UUID) -> Mapping[str, Text | None]:
        """Return the running executions of a stream, each with the text of its current step if it has one."""
        found = await self._tables.texts(stream_id)
        return {str(execution_id): _text(noted) for execution_id, noted in found.items()}


def _text(noted: NotedText | None) -> Text | None:
    return noted and Text(noted.at, noted.content, noted.after_seq, noted.noted_at)
