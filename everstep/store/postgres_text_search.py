"""Full-text search in PostgreSQL.

Few matches are found by the index, and put in order. For a word that most messages have, the index would
return all of them: then executions are read from the newest on, until there are enough matches. Which of the
two is chosen by counting, as the planner's estimate can be wrong by orders of magnitude.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Executable,
    Integer,
    Row,
    Select,
    Uuid,
    and_,
    cast,
    exists,
    func,
    select,
    text,
    true,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.messages.messages import Role
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.text_query import INVISIBLE, QueryTerm, TextQuery
from everstep.agent_domain.storage.text_search import (
    SEARCHED_CHARACTERS,
    SearchedCall,
    SearchedMessage,
    SearchTooSlow,
    TextHit,
)
from everstep.store.columns import IS_SEARCHED, SEARCH_VECTOR
from everstep.store.cursors import TextCursor, page_size
from everstep.store.errors import error_translation
from everstep.store.reading import PostgresReader
from everstep.store.tables import executions, sessions, transcript
from everstep.store.transaction import transaction

SEARCH_SECONDS = 5.0
"""The limit for each statement of a search."""

FEW = 5000
"""Up to so many matches are put in order; of more, the newest are looked for."""

_LIMITS = text("""
    SELECT set_config('statement_timeout', CAST(:milliseconds AS text), true),
           -- The matches of a frequent word fit into memory, exactly.
           set_config('work_mem', '32MB', true)
""")
ONLY_INDEX = text(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true)"
)

# The lexeme of the tenant is in the index, so that messages of others are not even read.
_QUERY = "(CAST(md5(CAST(:tenant_id AS text)) AS tsquery) && to_tsquery('simple', CAST(:query AS text)))"
_HAS_WORDS = "numnode(to_tsquery('simple', CAST(:query AS text))) > 0"

# A phrase has to be looked for in each text that has its words. A regular expression does it in a fraction of
# the time of the exact condition, which then decides about what is left. Concatenating nothing hides it from
# the index.
_IS_MATCH = f"""{IS_SEARCHED} AND {_HAS_WORDS}
           AND NOT EXISTS (SELECT 1
                             FROM unnest(CAST(:phrases AS text[])) AS phrase
                            WHERE CAST(content AS text) !~* phrase AND CAST(metadata AS text) !~* phrase)
           AND ({SEARCH_VECTOR} || CAST('' AS tsvector)) @@ {_QUERY}"""  # noqa: S608 -- constants only

_WORDS = "(CAST(md5(CAST(:tenant_id AS text)) AS tsquery) && to_tsquery('simple', CAST(:words AS text)))"

CANDIDATES = text(f"""
    SELECT execution_id, step, idx
      FROM agent_transcript
     WHERE {IS_SEARCHED} AND tenant_id = :tenant_id AND {_HAS_WORDS} AND {SEARCH_VECTOR} @@ {_WORDS}
       AND (NOT :has_phrases OR {_IS_MATCH})
     LIMIT :limit
""")  # noqa: S608 -- constants only

Condition: TypeAlias = ColumnElement[bool]

SelectT = TypeVar("SelectT", bound=Select[*tuple[Any, ...]])


@dataclass(frozen=True, slots=True)
class Candidates:
    """The messages of a tenant that match a query."""

    query: TextQuery
    tenant_id: str
    places: Sequence[tuple[UUID, int, int]] | None
    """The execution, the step and the index of each; None if there are too many to list."""

    def executions(self) -> Condition:
        """Return the condition that a message of the execution matches."""
        if self.places is not None:
            ids = {execution_id for execution_id, _, _ in self.places}
            return executions.c.id == func.any(cast(list(ids), ARRAY(Uuid)))
        return exists(select(1).where(transcript.c.execution_id == executions.c.id, self.is_match()))

    def sessions(self) -> Condition:
        """Return the condition that a message of the session matches."""
        matching = select(executions.c.session_id).where(self.executions())
        if self.places is not None:
            return sessions.c.id.in_(matching)
        return exists(matching.where(executions.c.session_id == sessions.c.id))

    def hits(self) -> Any:
        """Return the step and the index of each match of the execution that it is joined with."""
        own = select(transcript.c.step, transcript.c.idx).where(transcript.c.execution_id == executions.c.id)
        if self.places is None:
            # The offset keeps the planner from reading all matches first.
            return own.where(self.is_match()).offset(0).lateral("hit")
        ids, steps, places = zip(*self.places, strict=True) if self.places else ((), (), ())
        listed = (
            func.unnest(
                cast(list(ids), ARRAY(Uuid)),
                cast(list(steps), ARRAY(Integer)),
                cast(list(places), ARRAY(Integer)),
            )
            .table_valued("execution_id", "step", "idx")
            .render_derived()
        )
        return select(listed).subquery("hit")

    def is_match(self) -> Any:
        """Return the condition on a message that it matches, without the index."""
        values = {"query": query_text(self.query), "phrases": phrase_patterns(self.query)}
        return text(_IS_MATCH).bindparams(tenant_id=self.tenant_id, **values)


_SAID = transcript.alias("said")
_PARTS = """
    left(coalesce(said.metadata ->> 'told',
                  CASE json_typeof(said.content)
                      WHEN 'string' THEN said.content #>> '{}'
                      WHEN 'array' THEN (SELECT string_agg(part ->> 'text', E'\n')
                                           FROM json_array_elements(said.content) AS part) END,
                  ''), :most) AS text,
    CASE WHEN said.role = 'assistant' AND json_typeof(said.metadata -> 'tool_calls') = 'array'
         THEN (SELECT json_agg(json_build_array(call ->> 'id', call -> 'function' ->> 'name',
                                                left(call -> 'function' ->> 'arguments', :most)))
                 FROM json_array_elements(said.metadata -> 'tool_calls') AS call) END AS calls,
    said.metadata ->> 'tool_name' AS tool,
    said.metadata ->> 'tool_call_id' AS call_id
"""


class PostgresTextSearch(PostgresReader):
    """A store whose messages can be searched."""

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
        candidates = await self._find_candidates(scope.tenant_id, query)
        page = _page(candidates, filter_executions(_PLACE, scope, wanted), after, size + 1)
        found = await self._fetch_matches(page)
        shown = found[:size]
        last = _cursor(shown[-1]).text if len(found) > size else None
        return Page(tuple(_hit(row, scope.tenant_id, query) for row in shown), last)

    async def _find_candidates(self, tenant_id: str, query: TextQuery) -> Candidates:
        values = {
            "tenant_id": tenant_id,
            "query": query_text(query),
            "words": query_text(query, with_phrases=False),
            "phrases": phrase_patterns(query),
            "has_phrases": any(len(term.words) > 1 for terms in query.alternatives for term in terms),
            "limit": FEW + 1,
        }

        async def ask(engine: AsyncEngine) -> Sequence[Row[Any]]:
            with error_translation(engine.url), _limited():
                async with transaction(engine) as connection:
                    *_, found = await connection.together(
                        (_LIMITS, _LIMIT_VALUES), (ONLY_INDEX, {}), (CANDIDATES, values), last=True
                    )
                    return found.all()

        rows = await self._read_list(ask)
        return Candidates(query, tenant_id, None if len(rows) > FEW else [tuple(row) for row in rows])

    async def _fetch_matches(self, statement: Executable) -> Sequence[Row[Any]]:
        """Execute a statement that reads matches; it has a limit of its own."""

        async def ask(engine: AsyncEngine) -> Sequence[Row[Any]]:
            with error_translation(engine.url), _limited():
                async with transaction(engine) as connection:
                    await connection.together((_LIMITS, _LIMIT_VALUES))
                    return (await connection.execute(statement)).all()

        return await self._read_list(ask)


def filter_executions(query: SelectT, scope: Scope, wanted: ExecutionFilter) -> SelectT:
    """Return a query of executions with the conditions of a filter, except for its text."""
    query = query.where(executions.c.tenant_id == scope.tenant_id)
    if scope.user_id is not None:
        query = query.where(executions.c.user_id == scope.user_id)
    columns = {
        executions.c.session_id: wanted.session_id,
        executions.c.parent_execution_id: wanted.parent_execution_id,
        executions.c.status: wanted.status,
        executions.c.agent_type: wanted.agent,
        executions.c.user_id: wanted.user_id,
    }
    for column, value in columns.items():
        if value is not None:
            query = query.where(column == value)
    return query if wanted.since is None else query.where(executions.c.created_at >= wanted.since)


def query_text(query: TextQuery, *, with_phrases: bool = True) -> str:
    """Return the query for `to_tsquery`; its words have no quotes.

    Without phrases it matches more: all texts with their words.
    """
    parts = (
        " & ".join(
            _term_text(term, " <-> " if with_phrases else " & ")
            for term in terms
            if with_phrases or not (term.is_excluded and len(term.words) > 1)
        )
        for terms in query.alternatives
    )
    return " | ".join(f"({part})" for part in parts)


def _term_text(term: QueryTerm, joined: str) -> str:
    words = joined.join(f"'{word}'" for word in term.words) + (":*" if term.is_prefix else "")
    return f"!({words})" if term.is_excluded else f"({words})"


def phrase_patterns(query: TextQuery) -> list[str]:
    """Return regular expressions that match the stored JSON of all texts with the phrases of a query."""
    first, *others = query.alternatives
    if others:
        return []
    terms = (term for term in first if len(term.words) > 1 and not term.is_excluded)
    return [_BETWEEN.join(_WITHIN.join(word) for word in term.words) for term in terms]


_WITHIN = f"[{INVISIBLE}]*"
# An escape, or any characters but ASCII's letters and digits: a few too many are no harm.
_BETWEEN = r"(\\.|[^a-zA-Z0-9])*"


_LIMIT_VALUES = {"milliseconds": f"{SEARCH_SECONDS * 1000:.0f}"}
_TIMED_OUT = "57014"


@contextmanager
def _limited() -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _TIMED_OUT:
            raise SearchTooSlow(SEARCH_SECONDS) from None
        raise


_PLACE: Any = select(executions.c.created_at, executions.c.id)
_WHOSE = (executions.c.session_id, executions.c.user_id, executions.c.agent_type)


def _page(candidates: Candidates, wanted: Select[Any], after: TextCursor | None, limit: int) -> Select[Any]:
    """Return the query of a page of hits, with their texts."""
    hit = candidates.hits()
    is_own = hit.c.execution_id == executions.c.id if "execution_id" in hit.c else true()
    wanted = wanted.add_columns(hit.c.step, hit.c.idx, *_WHOSE).select_from(executions.join(hit, is_own))
    place = (executions.c.created_at, executions.c.id, hit.c.step, hit.c.idx)
    if after is not None:
        # The first condition follows from the second, and an index has it.
        wanted = wanted.where(tuple_(*place[:2]) <= (after.created_at, after.id))
        wanted = wanted.where(tuple_(*place) < (after.created_at, after.id, after.step, after.idx))
    page = wanted.order_by(*(column.desc() for column in place)).limit(limit).subquery("page")
    is_said = and_(_SAID.c.execution_id == page.c.id, _SAID.c.step == page.c.step, _SAID.c.idx == page.c.idx)
    said = text(_PARTS).bindparams(most=SEARCHED_CHARACTERS)
    columns = (page, sessions.c.title, _SAID.c.role, _SAID.c.created_at.label("said_at"), said)
    return (
        select(*columns)
        .select_from(page.join(_SAID, is_said).outerjoin(sessions, sessions.c.id == page.c.session_id))
        .order_by(*(page.c[name].desc() for name in ("created_at", "id", "step", "idx")))
    )


def _cursor(row: Row[Any]) -> TextCursor:
    return TextCursor(row.created_at, row.id, row.step, row.idx)


def _hit(row: Row[Any], tenant_id: str, query: TextQuery) -> TextHit:
    calls = tuple(SearchedCall(*(part or "" for part in call)) for call in row.calls or ())
    said = SearchedMessage(Role.parse(row.role), row.text, calls, row.tool, row.call_id)
    return TextHit(
        ExecutionRef(row.id, tenant_id, row.session_id),
        row.agent_type,
        row.user_id,
        row.title,
        row.step,
        row.said_at,
        said.locate(query),
    )
