"""Full-text search in the memory store: it reads all messages."""

from collections.abc import Iterator

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.storage.text_search import SEARCHED_ROLES, SearchedMessage, TextHit
from everstep.store.cursors import TextCursor, page_size
from everstep.store.memory_base import MemoryBase
from everstep.store.memory_records import MemoryExecution


class MemoryTextSearch(MemoryBase):
    """A memory store whose messages can be searched."""

    async def search_text(
        self,
        scope: Scope,
        query: TextQuery,
        wanted: ExecutionFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[TextHit]:
        """Return a page of messages that match: those of the newest execution first, its latest first."""
        size = page_size(limit)
        after = None if cursor is None else TextCursor.parse(cursor)
        found = sorted(
            (
                (TextCursor(execution.created_at, execution.ref.execution_id, *place), execution, said)
                for execution in self._executions.values()
                if _fits(execution, scope, wanted)
                for place, said in _searched(execution)
                if query.matches(said.text)
            ),
            key=lambda each: each[0],
            reverse=True,
        )
        left = [each for each in found if after is None or each[0] < after]
        hits = tuple(_hit(execution, place.step, said, query) for place, execution, said in left[:size])
        return Page(hits, left[size - 1][0].text if len(left) > size else None)


def _fits(execution: MemoryExecution, scope: Scope, wanted: ExecutionFilter) -> bool:
    return (
        execution.ref.tenant_id == scope.tenant_id
        and scope.user_id in {None, execution.user_id}
        and wanted.session_id in {None, execution.ref.session_id}
        and wanted.parent_execution_id in {None, execution.parent_execution_id}
        and wanted.status in {None, execution.status}
        and wanted.agent in {None, execution.spec.agent}
        and wanted.user_id in {None, execution.user_id}
        and (wanted.since is None or execution.created_at >= wanted.since)
    )


def _searched(execution: MemoryExecution) -> Iterator[tuple[tuple[int, int], SearchedMessage]]:
    """Yield the messages that viewers see, with their places."""
    for place, message in execution.messages.items():
        if _is_searched(place, message):
            yield place, SearchedMessage.of(message)


def _is_searched(place: tuple[int, int], message: Message) -> bool:
    step, idx = place
    return message.role in SEARCHED_ROLES and (step > 0 or idx >= 0)


def _hit(execution: MemoryExecution, number: int, said: SearchedMessage, query: TextQuery) -> TextHit:
    step = execution.steps.get(number)
    return TextHit(
        execution.ref,
        execution.spec.agent,
        execution.user_id,
        None,
        number,
        step.started_at if step else execution.created_at,
        said.locate(query),
    )
