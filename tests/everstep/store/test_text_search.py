"""Full-text search: both stores find the same messages."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.disclosure import PUBLIC_CONTENT
from everstep.agent_domain.messages.messages import Message, system, tool_message, user
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.sessions import ExecutionFilter, SessionFilter
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.storage.text_search import HitKind, SearchTooSlow, TextHit
from everstep.agent_domain.values import frozen_map
from everstep.store import migrate, postgres_text_search
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.postgres import PostgresStore
from everstep.store.postgres_text_search import CANDIDATES, ONLY_INDEX, query_text
from everstep.store.sessions import PostgresSessions
from everstep.store.transaction import transaction
from tests.everstep.store.session_words import ANN, BOB, a_message, new_session_id
from tests.everstep.store.store_words import (
    OTHERS,
    TENANT,
    a_call,
    a_reply,
    a_result,
    a_step_start,
    accept_execution,
    end_execution,
    result_record,
    run_step,
)

ALL = Scope(TENANT)
ANY = ExecutionFilter()


async def search(
    store: ExecutionStore, words: str, scope: Scope = ALL, wanted: ExecutionFilter = ANY
) -> list[TextHit]:
    """All hits."""
    return [*(await store.search_text(scope, TextQuery.parse(words), wanted, limit=100)).rows]


async def found_by(store: ExecutionStore, words: str, **options: Any) -> list[UUID]:
    """The executions of all hits."""
    return [hit.ref.execution_id for hit in await search(store, words, **options)]


async def is_found(store: ExecutionStore, said: str | Message, *searches: str) -> list[bool]:
    """Whether each search finds a message with this text."""
    ref = await accept_execution(store, said)
    return [ref.execution_id in await found_by(store, each) for each in searches]


def marked(hit: TextHit) -> list[str]:
    """The words that an excerpt marks."""
    excerpt = hit.location.excerpt
    return [excerpt.text[start:end] for start, end in excerpt.marks]


async def test_messages_calls_and_results_are_found_where_they_are(store: ExecutionStore) -> None:
    """Follows rules 16.6.3 and 16.6.6."""
    ref = await accept_execution(store, "Where is my parcel?")
    await store.begin_step(a_step_start(ref))
    call = a_call("c1", "track_parcel", number="NO-4711", note="line\nbreak")
    await store.record_reply(a_reply(ref, "I look it up.", call))
    await store.reserve_call(ref, "c1", 1)
    said = (tool_message("It is in Bergen.", "c1", "track_parcel"),)
    await store.record_call(result_record(ref, a_result("c1"), messages=said))

    places = {}
    for words in ("parcel where", "look", "4711", "track", "break", "bergen"):
        (hit,) = await search(store, words)
        place = hit.location
        places[words] = (hit.step, place.kind, place.tool, place.call_id, marked(hit))
        assert (hit.ref, hit.agent) == (ref, "helper")

    assert places == {
        "parcel where": (0, HitKind.MESSAGE, None, None, ["Where", "parcel"]),
        "look": (1, HitKind.REPLY, None, None, ["look"]),
        "4711": (1, HitKind.ARGUMENTS, "track_parcel", "c1", ["4711"]),
        "track": (1, HitKind.ARGUMENTS, "track_parcel", "c1", ["track"]),
        "break": (1, HitKind.ARGUMENTS, "track_parcel", "c1", ["break"]),
        "bergen": (1, HitKind.RESULT, "track_parcel", "c1", ["Bergen"]),
    }


WORDS = [
    ("The Quick brown", "quick", "QUICK", "quic", "quic*", "the brown"),
    ("see docs/readme.md and a_b@example.com", "readme", "docs/readme.md", "example", "md.readme", "a_b"),
    (
        "unpaid invoice",
        '"unpaid invoice"',
        '"invoice unpaid"',
        "unpaid-invoice",
        "unpaidinvoice",
        "invoice -unpaid",
    ),
    ("paid", "unpaid OR paid", "unpaid or refund", "paid -refund", "refund -paid", '-"not paid" paid'),
    ("東京都の天気は晴れです。", "天気", "京都の", "天気は晴", "京天", "晴れ*"),
    ("สวัสดีครับ ภาษาไทย", "ครับ", "ภาษา", "ไทย", "ทยไ", "สวัสดี"),
    ("Größe “Über” naïve, Привет", "GRÖSSE", "größe", "über", "naive", "ПРИВЕТ"),
    ("soft\u00adhyphen \u202eabc\u202c x\u200by", "softhyphen", "hyphen", "abc", "xy", "soft"),
    ("O'Brien <b>bold</b> &amp; 3.14 'quoted\\", "brien", "bold", "3.14", "amp", "quoted\\'"),
    ("emoji 😀 हिन्दी", "हिन्दी", "emoji", "हिन्द", "हि*", "😁"),
]
FOUND = [
    [True, True, False, True, True],
    [True, True, True, False, True],
    [True, False, True, False, False],
    [True, False, True, False, True],
    [True, True, True, False, True],
    [True, True, True, False, True],
    [False, True, True, False, True],
    [True, False, True, True, False],
    [True, True, True, True, True],
    [True, True, False, True, False],
]


@pytest.mark.parametrize(("case", "found"), [*zip(WORDS, FOUND, strict=True)], ids=range(len(WORDS)))
async def test_words_of_any_language_are_found(
    store: ExecutionStore, case: tuple[str, ...], found: list[bool]
) -> None:
    """Follows rules 16.6.1 and 16.6.2."""
    assert await is_found(store, *case) == found


async def test_instructions_and_internal_errors_are_not_searched(store: ExecutionStore) -> None:
    """16.6.3: what a viewer may not read is not found either."""
    told = frozen_map({PUBLIC_CONTENT: "Error: ask the operator"})
    quoting = Message.from_string("Error: dial tcp secrethost refused", "tool")
    said = (system("You obey hiddenrule"), user("hello"), Message(quoting.role, quoting.content, told))
    ref = await accept_execution(store, *said)

    assert await found_by(store, "hiddenrule") == []
    assert await found_by(store, "secrethost") == []
    assert await found_by(store, "operator") == [ref.execution_id]


async def test_text_of_other_users_and_tenants_is_not_found(store: ExecutionStore) -> None:
    """16.6.4"""
    hers = await accept_execution(store, "the launch code", user_id=ANN)
    await accept_execution(store, "the launch code", user_id=BOB)
    await accept_execution(store, "the launch code", user_id=ANN, tenant=OTHERS)

    assert await found_by(store, "launch", scope=Scope(TENANT, ANN)) == [hers.execution_id]
    assert len(await found_by(store, "launch")) == 2
    assert await found_by(store, "launch", scope=Scope("nobody")) == []
    assert (
        await found_by(store, "launch", scope=Scope(TENANT, ANN), wanted=ExecutionFilter(user_id=BOB)) == []
    )


async def test_filters_narrow_a_search(store: ExecutionStore) -> None:
    """16.6.6"""
    first = await accept_execution(store, "blue parcel", agent="desk", user_id=ANN)
    second = await accept_execution(store, "blue letter", agent="helper", user_id=BOB)
    await run_step(store, second)
    await end_execution(store, second)

    for wanted, expected in (
        (ANY, [second, first]),
        (ExecutionFilter(agent="desk"), [first]),
        (ExecutionFilter(user_id=BOB), [second]),
        (ExecutionFilter(status=ExecutionStatus.COMPLETED), [second]),
        (ExecutionFilter(session_id=first.execution_id), []),
    ):
        assert await found_by(store, "blue", wanted=wanted) == [each.execution_id for each in expected]


async def test_hits_come_page_by_page(
    store: ExecutionStore, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """16.6.6: those of the newest execution first, its latest message first."""
    monkeypatch.setattr(postgres_text_search, "FEW", few)
    older = await accept_execution(store, "red one")
    newer = await accept_execution(store, "red two")
    for ref in (older, newer):
        await run_step(store, ref, 1, "red reply")
        await run_step(store, ref, 2, "a red answer")
    seen, cursor = list[tuple[ExecutionRef, int]](), None
    while True:
        page = await store.search_text(ALL, TextQuery.parse("red"), ANY, cursor=cursor, limit=2)
        seen += [(hit.ref, hit.step) for hit in page.rows]
        cursor = page.cursor
        if cursor is None:
            break

    assert seen == [(ref, step) for ref in (newer, older) for step in (2, 1, 0)]
    with pytest.raises(InvalidInput, match="cursor cannot be read"):
        await store.search_text(ALL, TextQuery.parse("red"), ANY, cursor="bm9wZQ")


@pytest.fixture(params=[5000, 0], ids=["few", "many"])
def few(request: pytest.FixtureRequest) -> int:
    """How many matches are put in order; of more, the newest are looked for."""
    return request.param


def tokens(chosen: random.Random, count: int) -> str:
    """Words that are as many, as short and as different as they can be."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789éß東\u0e01😀"
    return "".join(
        f"{''.join(chosen.choices(alphabet, k=chosen.randint(1, 4)))}{chosen.choice(' -./@:_&<>%')}"
        for _ in range(count)
    )


@pytest.mark.parametrize("kind", ["words", "one", "unspaced", "control", "calls"])
async def test_any_text_can_be_stored(store: ExecutionStore, kind: str) -> None:
    """16.6.7"""
    chosen = random.Random(7)  # noqa: S311 -- a test
    said = {
        "words": tokens(chosen, 30_000),
        "one": "x" * 1_000_000,
        "unspaced": "東京" * 200_000,
        "control": "".join(map(chr, (*range(1, 0x300), *range(0x2000, 0x2100), 0xFFFF, 0x1F600))) * 50,
        "calls": "short",
    }[kind]
    ref = await accept_execution(store, f"beginning {said} ending")
    await store.begin_step(a_step_start(ref))
    arguments = tokens(chosen, 20_000) if kind == "calls" else '\\n \\u0041 " \\'
    await store.record_reply(a_reply(ref, "recorded", a_call("c1", text=arguments)))

    assert await found_by(store, "beginning") == [ref.execution_id]
    assert await found_by(store, "recorded") == [ref.execution_id]
    is_short = len(said) < 50_000
    assert await found_by(store, "ending") == ([ref.execution_id] if is_short else [])


@pytest.fixture
def sessions(postgres: PostgresStore) -> PostgresSessions:
    """The store with sessions."""
    return PostgresSessions(postgres.engine)


async def test_lists_have_what_a_message_of_theirs_matches(
    sessions: PostgresSessions, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """16.6.8"""
    monkeypatch.setattr(postgres_text_search, "FEW", few)
    hers, his = await new_session_id(sessions, ANN, title="Trip"), await new_session_id(sessions, BOB)
    posted = await sessions.post(a_message(hers, "green parcel"))
    await sessions.post(a_message(his, "green letter", scope=Scope(TENANT, BOB), user_id=BOB))
    query = TextQuery.parse("green parcel")

    listed = await sessions.executions_of(ALL, ExecutionFilter(query=query))
    assert [row.ref for row in listed.rows] == [posted.execution]
    assert [row.id for row in (await sessions.sessions(ALL, SessionFilter(query=query))).rows] == [hers]
    green = TextQuery.parse("green")
    for scope, expected in ((ALL, {hers, his}), (Scope(TENANT, BOB), {his}), (Scope(OTHERS), set[UUID]())):
        page = await sessions.sessions(scope, SessionFilter(query=green))
        assert {row.id for row in page.rows} == expected
        runs = await sessions.executions_of(scope, ExecutionFilter(query=green))
        assert {row.ref.session_id for row in runs.rows} == expected
    (hit,) = await search(sessions, "green parcel")
    assert (hit.title, hit.user_id, hit.ref.session_id) == ("Trip", ANN, hers)


async def test_few_matches_are_read_from_the_index(postgres: PostgresStore) -> None:
    """16.6.9: and not the messages of other tenants."""
    for number in range(3):
        await accept_execution(postgres, f"orange {number}", tenant=OTHERS)
    query = TextQuery.parse("orange")
    values = {
        "tenant_id": TENANT,
        "query": query_text(query),
        "words": query_text(query),
        "phrases": list[str](),
        "has_phrases": False,
        "limit": 10,
    }
    async with transaction(postgres.engine) as connection:
        await connection.execute(ONLY_INDEX)
        found = await connection.execute(text(f"EXPLAIN (ANALYZE, COSTS OFF) {CANDIDATES}"), values)
    plan = "\n".join(row[0] for row in found.rows)

    scan = plan[plan.index("Bitmap Index Scan on agent_transcript_search") :]
    assert re.search(r"rows=0(\.00)?\b", scan), plan


async def test_erased_text_is_not_found(sessions: PostgresSessions) -> None:
    """16.6.5"""
    hers = await new_session_id(sessions, ANN)
    posted = await sessions.post(a_message(hers, "purple elephant"))
    await run_step(sessions, posted.execution)
    await end_execution(sessions, posted.execution)
    assert await found_by(sessions, "elephant") == [posted.execution.execution_id]

    assert await sessions.delete_session(Scope(TENANT, ANN), hers)

    assert await found_by(sessions, "elephant") == []


async def test_a_search_that_takes_too_long_says_what_to_do(
    postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """16.6.9"""
    for _ in range(5):
        await accept_execution(postgres, "alpha beta " + tokens(random.Random(3), 15_000))  # noqa: S311 -- a test
    monkeypatch.setattr(postgres_text_search, "FEW", few)
    monkeypatch.setattr(postgres_text_search, "_LIMIT_VALUES", {"milliseconds": "5"})

    with pytest.raises(SearchTooSlow, match="given up after 5 seconds; name a rarer word"):
        # A phrase has to be looked for in each message.
        await search(postgres, '"alpha beta"')

    monkeypatch.undo()
    assert await found_by(postgres, "nothing") == []


async def test_the_index_is_built_again_after_an_interrupted_build(own_database: str) -> None:
    """16.6.10"""
    libpq = own_database.replace("+psycopg", "")
    state = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'agent_transcript_search'::regclass"
    async with (
        await psycopg.AsyncConnection.connect(libpq, autocommit=True) as connection,
        await psycopg.AsyncConnection.connect(libpq) as writer,
    ):
        await connection.execute("DROP INDEX agent_transcript_search; SET statement_timeout = '50ms'")
        await writer.execute("DELETE FROM agent_transcript WHERE false")
        with pytest.raises(psycopg.errors.QueryCanceled):
            await connection.execute(
                "CREATE INDEX CONCURRENTLY agent_transcript_search ON agent_transcript (execution_id)"
            )
        await writer.commit()
        assert await (await connection.execute(state)).fetchone() == (False,)

        await upgrade(own_database)

        assert await (await connection.execute(state)).fetchone() == (True,)


@pytest_asyncio.fixture
async def own_store(own_database: str) -> AsyncGenerator[PostgresStore]:
    """The store in a database of this test's own."""
    engine = create_engine(own_database, lock_timeout=1)
    yield PostgresStore(engine)
    await engine.dispose()


async def test_writers_go_on_while_the_index_is_built(own_database: str, own_store: PostgresStore) -> None:
    """16.6.10: also those of an earlier version, and a search finds the same without the index."""
    libpq, store = own_database.replace("+psycopg", ""), own_store
    before = await accept_execution(store, "yellow submarine")
    async with await psycopg.AsyncConnection.connect(libpq) as reader:
        await reader.execute("DROP INDEX agent_transcript_search")
        await reader.commit()
        assert await found_by(store, "submarine") == [before.execution_id]
        # The build waits for this transaction, which has written to the table.
        await reader.execute("DELETE FROM agent_transcript WHERE false")
        building = asyncio.create_task(upgrade(own_database))
        async with await psycopg.AsyncConnection.connect(libpq, autocommit=True) as onlooker:
            while not await (
                await onlooker.execute(
                    "SELECT 1 FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"
                )
            ).fetchone():
                assert not building.done()
        during = await accept_execution(store, "yellow submarine")
        # A second process does not wait.
        await migrate.upgrade(own_database)
        await reader.commit()
    await building

    assert await found_by(store, "submarine") == [during.execution_id, before.execution_id]
