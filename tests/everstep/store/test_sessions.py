"""Sessions in PostgreSQL: turns, their order, and lists."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import event

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.sessions import (
    ExecutionFilter,
    NewSession,
    OnBusy,
    Route,
    SessionBusy,
    SessionChanges,
    SessionFilter,
    SessionNotActive,
    SessionStatus,
    title_from,
)
from everstep.agent_domain.stream.session_messages import Context, MessageRole
from everstep.agent_domain.values import frozen_map
from everstep.store.engine import create_engine
from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.everstep.store.onlookers import count_round_trips, open_admin_connection, run_behind_lock
from tests.everstep.store.session_words import (
    ALL,
    ANN,
    BOB,
    HERS,
    a_first_message,
    a_message,
    all_messages,
    finish_execution,
    new_session_id,
    release_next,
    start_execution,
)
from tests.everstep.store.store_words import (
    OTHERS,
    TENANT,
    a_settlement,
    a_step_start,
    accept_execution,
    end_execution,
    run_step,
    texts,
)

LONG_AGO, FAR_AHEAD = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine)


class TestSessions:
    async def test_a_session_is_created_once(self, store: PostgresSessions) -> None:
        """8.1: with its subject."""
        context = Context("ticket", "42", "https://example.org/tickets/42")
        new = NewSession(uuid4(), TENANT, ANN, context, "Trip", frozen_map({"a": 1}))
        made = await store.create_session(new)

        assert await store.create_session(replace(new, title="Other")) == made
        assert (made.user_id, made.context, made.title) == (ANN, context, "Trip")
        assert (made.status, made.metadata) == (SessionStatus.ACTIVE, {"a": 1})
        assert await store.session(HERS, made.id) == made

    async def test_no_other_user_sees_it(self, store: PostgresSessions) -> None:
        session_id = await new_session_id(store)
        for scope in (Scope(TENANT, BOB), Scope(OTHERS, ANN), Scope(OTHERS)):
            assert await store.session(scope, session_id) is None
            assert (await store.sessions(scope)).rows == ()
            assert not await store.delete_session(scope, session_id)
            for refused in (
                store.change_session(scope, session_id, SessionChanges("Mine")),
                store.messages(scope, session_id),
                store.post(a_message(session_id, scope=scope)),
            ):
                with pytest.raises(NotFound, match="There is no session"):
                    await refused
        assert await store.session(ALL, session_id)

    async def test_an_id_of_another_tenant_is_no_session(self, store: PostgresSessions) -> None:
        session_id = await new_session_id(store)
        with pytest.raises(NotFound):
            await store.create_session(NewSession(session_id, OTHERS, BOB))

    async def test_they_are_listed_page_by_page(self, store: PostgresSessions) -> None:
        made = [await new_session_id(store, title=f"Number {number}") for number in range(5)]
        found, cursor = list[UUID](), None
        while True:
            page = await store.sessions(HERS, cursor=cursor, limit=2)
            found += [row.id for row in page.rows]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == made[::-1]

    @pytest.mark.parametrize(
        ("wanted", "titles"),
        [
            (SessionFilter(status=SessionStatus.ARCHIVED), ["Old trip"]),
            (SessionFilter(related_type="ticket"), ["Trip to Rome", "Rome again"]),
            (SessionFilter(related_type="ticket", related_id="2"), ["Trip to Rome"]),
            (SessionFilter(search="rome"), ["Trip to Rome", "Rome again"]),
            (SessionFilter(search="rome tr"), ["Trip to Rome"]),
            (SessionFilter(search="'ro & !:*"), ["Trip to Rome", "Rome again"]),
            (SessionFilter(search="paris"), []),
            (SessionFilter(agent="guide"), ["Rome again"]),
            (SessionFilter(user_id=BOB), []),
            (SessionFilter(related_type="ticket", since=LONG_AGO), ["Trip to Rome", "Rome again"]),
            (SessionFilter(since=FAR_AHEAD), []),
        ],
    )
    async def test_they_are_found_by_their_messages(
        self, store: PostgresSessions, wanted: SessionFilter, titles: list[str]
    ) -> None:
        old = await new_session_id(store, title="Old trip")
        await store.change_session(ALL, old, SessionChanges(status=SessionStatus.ARCHIVED))
        await new_session_id(
            store, title="Rome again", context=Context("ticket", "1"), metadata=frozen_map({"agent": "guide"})
        )
        await new_session_id(store, title="Trip to Rome", context=Context("ticket", "2"))
        await new_session_id(store)

        assert [row.title for row in (await store.sessions(HERS, wanted)).rows] == titles

    async def test_a_search_needs_a_word(self, store: PostgresSessions) -> None:
        with pytest.raises(InvalidInput, match="the search contains no word; send at least one"):
            await store.sessions(HERS, SessionFilter(search="!?"))

    async def test_omitted_fields_stay(self, store: PostgresSessions) -> None:
        session_id = await new_session_id(store, title="Trip", metadata=frozen_map({"a": 1, "b": 2}))
        changes = SessionChanges(metadata=frozen_map({"a": None, "c": 3}))
        changed = await store.change_session(HERS, session_id, changes)

        assert (changed.title, changed.status) == ("Trip", SessionStatus.ACTIVE)
        assert changed.metadata == {"b": 2, "c": 3}
        assert changed.updated_at > changed.created_at

    async def test_a_session_is_deleted_with_all_its_rows(self, store: PostgresSessions) -> None:
        session_id = await new_session_id(store)
        ref = await start_execution(store, session_id)
        with pytest.raises(SessionBusy):
            await store.delete_session(HERS, session_id)
        await finish_execution(store, ref)
        await finish_execution(store, await start_execution(store, session_id, "And then?"))

        assert await store.delete_session(HERS, session_id)
        assert await store.session(HERS, session_id) is None
        assert await store.execution(ref) is None
        assert await store.envelopes(TENANT, session_id) == ()
        assert not await store.delete_session(HERS, session_id)


class TestPosting:
    async def test_a_message_begins_an_execution(self, store: PostgresSessions) -> None:
        """8.2.4: at once, if no execution is in progress."""
        session_id = await new_session_id(store)
        message = a_message(session_id, "Book a trip", context=Context(url="https://example.org"))
        posted = await store.post(message)

        assert posted.route is Route.START
        assert posted.message
        assert (posted.message.role, posted.message.content) == (MessageRole.USER, "Book a trip")
        assert posted.message.context.url == "https://example.org"
        assert posted.message.execution_id is None
        launch = await store.launch(posted.execution)
        assert launch
        assert launch.plan["max_steps"] == 5
        assert texts(await store.transcript(posted.execution)) == ["Book a trip"]
        session = await store.session(HERS, session_id)
        assert session
        assert session.title == "Book a trip"

    async def test_a_message_creates_its_session(self, store: PostgresSessions) -> None:
        """8.2.2: both are stored, or neither is."""
        session_id = uuid4()
        new = NewSession(session_id, TENANT, ANN, title="Mine")
        await store.post(a_message(session_id, session=new))
        with pytest.raises(NotFound):
            await store.post(
                a_message(session_id, scope=Scope(TENANT, BOB), session=replace(new, user_id=BOB))
            )

        session = await store.session(HERS, session_id)
        assert session
        assert session.title == "Mine"

    async def test_the_conversation_continues(self, store: PostgresSessions) -> None:
        """8.2.4: with all earlier messages, except those of executions that never began."""
        session_id = await new_session_id(store)
        await finish_execution(store, await start_execution(store, session_id, "One"), "First")
        never = await store.post(a_message(session_id, "Never mind"))
        assert await store.cancel_pending(never.execution)
        await finish_execution(store, await start_execution(store, session_id, "Two"), "Second")
        third = await store.post(a_message(session_id, "Three"))

        heard = texts(await store.transcript(third.execution))
        assert heard == ["One", "First", "Two", "Second", "Three"]

    @pytest.mark.parametrize("status", [SessionStatus.ARCHIVED, SessionStatus.CLOSED])
    async def test_only_an_active_session_accepts_messages(
        self, store: PostgresSessions, status: SessionStatus
    ) -> None:
        """8.2.2"""
        session_id = await new_session_id(store)
        await store.change_session(HERS, session_id, SessionChanges(status=status))
        with pytest.raises(SessionNotActive, match=f"The session is {status}; make it active again"):
            await store.post(a_message(session_id))
        assert (await store.messages(HERS, session_id)).rows == ()

    async def test_queued_messages_are_processed_in_their_order(self, store: PostgresSessions) -> None:
        """8.3.1: `enqueue`"""
        session_id = await new_session_id(store)
        first = await start_execution(store, session_id)
        waiting = [await store.post(a_message(session_id, f"Message {number}")) for number in range(3)]

        assert {posted.route for posted in waiting} == {Route.QUEUE}
        assert [await store.launch(posted.execution) for posted in waiting] == [None] * 3
        ref = first
        for posted in waiting:
            assert await release_next(store, session_id) == ref.execution_id
            await finish_execution(store, ref)
            ref = posted.execution
            assert await release_next(store, session_id) == ref.execution_id
            assert await store.launch(ref)
        heard = texts(await store.transcript(ref))
        assert heard == ["Hello", "Hi", "Message 0", "Hi", "Message 1", "Hi", "Message 2"]

    async def test_a_late_message_does_not_overtake_the_queue(self, store: PostgresSessions) -> None:
        """8.3.1: not even right after an execution has ended."""
        session_id = await new_session_id(store)
        first = await start_execution(store, session_id)
        waiting = await store.post(a_message(session_id, "I was first"))
        await finish_execution(store, first)
        late = await store.post(a_message(session_id, "Me too"))

        assert late.route is Route.QUEUE
        assert await release_next(store, session_id) == waiting.execution.execution_id

    async def test_a_queued_execution_knows_its_place(self, store: PostgresSessions) -> None:
        """15.1.1: how many of its session come before it."""
        session_id = await new_session_id(store)
        first = await start_execution(store, session_id)
        refs = [(await store.post(a_message(session_id, f"Message {n}"))).execution for n in range(3)]

        async def places() -> list[int | None]:
            rows = [await store.execution(ref) for ref in (first, *refs)]
            return [row.ahead if row else None for row in rows]

        assert await places() == [None, 1, 2, 3]
        await finish_execution(store, first)
        assert await release_next(store, session_id) == refs[0].execution_id
        assert await places() == [None, None, 1, 2]

    async def test_a_steered_message_is_sent_to_the_current_execution(self, store: PostgresSessions) -> None:
        """8.3.1: `steer`"""
        session_id = await new_session_id(store)
        first = await start_execution(store, session_id)
        posted = await store.post(a_message(session_id, "Hurry", OnBusy.STEER))
        assert (posted.route, posted.execution) == (Route.STEER, first)
        await run_step(store, first)
        await store.begin_step(a_step_start(first, 2, hears=1))

        assert texts(await store.transcript(first)) == ["Hello", "Hi", "Hurry"]
        assert len((await store.executions_of(ALL, ExecutionFilter(session_id))).rows) == 1

    async def test_a_concurrent_end_and_steering_never_deadlock(self, store: PostgresSessions) -> None:
        """8.3.1: in either order the message is processed: by this execution, or by the next one."""
        session_id = await new_session_id(store)
        first = (await store.post(a_message(session_id, "Hello"))).execution
        await run_step(store, first)

        with open_admin_connection(store.engine) as holder:
            holder.execute("SELECT 1 FROM agent_executions WHERE id = %s FOR UPDATE", (first.execution_id,))
            end = store.settle(a_settlement(first, ExecutionStatus.COMPLETED))
            post = store.post(a_message(session_id, "Hurry", OnBusy.STEER))
            ended, posted = await run_behind_lock(store.engine, holder.commit, end, post)

        assert ended is not None
        assert posted.route in {Route.STEER, Route.START}

    async def test_unprocessed_messages_begin_another_execution(self, store: PostgresSessions) -> None:
        """8.3.1: no accepted message is dropped."""
        session_id = await new_session_id(store)
        first = await start_execution(store, session_id)
        queued = await store.post(a_message(session_id, "Later"))
        await store.post(a_message(session_id, "Hurry", OnBusy.STEER))
        await finish_execution(store, first)
        assert await release_next(store, session_id) == queued.execution.execution_id
        await finish_execution(store, queued.execution)
        following = await store.release(TENANT, session_id)

        assert following
        assert texts(await store.transcript(following)) == ["Hello", "Hi", "Later", "Hi", "Hurry"]
        launch = await store.launch(following)
        assert launch
        assert launch.plan["max_steps"] == 5
        await finish_execution(store, following)
        assert await release_next(store, session_id) is None

    async def test_an_interrupting_message_comes_next(self, store: PostgresSessions) -> None:
        """8.3.1: `interrupt`: ahead of the queue, after the execution that is cancelled."""
        session_id = await new_session_id(store)
        first = await start_execution(store, session_id)
        await store.post(a_message(session_id, "Later"))
        urgent = await store.post(a_message(session_id, "Stop that", OnBusy.INTERRUPT))

        assert (urgent.route, urgent.cancels) == (Route.INTERRUPT, first)
        assert await release_next(store, session_id) == first.execution_id
        await end_execution(store, first, ExecutionStatus.CANCELLED)
        assert await release_next(store, session_id) == urgent.execution.execution_id

    async def test_a_message_that_may_not_wait_is_refused(self, store: PostgresSessions) -> None:
        """8.3.1: `reject`: nothing is stored."""
        session_id = await new_session_id(store)
        await start_execution(store, session_id)
        before = await store.messages(HERS, session_id)
        with pytest.raises(SessionBusy, match=r"^Session is busy$"):
            await store.post(a_message(session_id, on_busy=OnBusy.REJECT))

        assert await store.messages(HERS, session_id) == before

    @pytest.mark.parametrize("on_busy", OnBusy)
    async def test_a_repeated_message_changes_nothing(self, store: PostgresSessions, on_busy: OnBusy) -> None:
        """1.1.3"""
        session_id = await new_session_id(store)
        if on_busy is not OnBusy.REJECT:
            await start_execution(store, session_id)
        message = a_message(session_id, on_busy=on_busy)
        first = await store.post(message)
        before = await store.envelopes(TENANT, session_id)
        again = await store.post(message)

        assert (again.message, again.execution) == (first.message, first.execution)
        assert await store.envelopes(TENANT, session_id) == before

    async def test_of_many_concurrent_messages_one_begins(self, store: PostgresSessions) -> None:
        """8.3.1: in arrival order, and never two at once; 7.7.1: each message is published once, in order."""
        session_id = await new_session_id(store)
        posted = await asyncio.gather(*(store.post(a_message(session_id, f"m{n}")) for n in range(30)))

        assert sorted(each.route for each in posted) == [Route.QUEUE] * 29 + [Route.START]
        arrived = [m.content for m in await all_messages(store, session_id) if m.role is MessageRole.USER]
        assert len(arrived) == 30
        heard = list[str]()
        while ref := await store.release(TENANT, session_id):
            await store.begin_step(a_step_start(ref))
            heard.append(texts(await store.transcript(ref))[-1])
            await end_execution(store, ref)
            if len(heard) == 20:
                break
        assert heard == arrived[:20]
        numbers = [envelope.seq for envelope in await store.envelopes(TENANT, session_id)]
        assert numbers == list(range(1, len(numbers) + 1))


ROUND_TRIPS = {
    "post, which makes its session": 2,
    "post, again": 5,
    "post, to an idle session": 3,
    "post, to a busy one": 3,
    "post, to steer": 5,
    "launch": 1,
    "release": 3,
}
"""The number of times that each method waits for the server."""


class TestTheFirstMessage:
    """The start of a session that the message itself creates."""

    async def test_each_method_has_its_number_of_round_trips(self, database: str, tmp_path: Path) -> None:
        store = PostgresSessions(create_engine(database, pool_size=1))
        waits, counted = count_round_trips(store.engine, tmp_path / "trace"), dict[str, int]()
        idle, made = await new_session_id(store), uuid4()
        first = a_message(made, session=NewSession(made, TENANT, ANN))
        calls: list[tuple[str, Awaitable[object]]] = [
            ("post, which makes its session", store.post(first)),
            ("post, again", store.post(first)),
            ("post, to an idle session", store.post(a_message(idle))),
            ("post, to a busy one", store.post(a_message(idle))),
            ("post, to steer", store.post(a_message(idle, on_busy=OnBusy.STEER))),
            ("launch", store.launch(ExecutionRef(first.execution_id, TENANT, made))),
            ("release", store.release(TENANT, made)),
        ]
        for name, call in calls:
            before = waits()
            await call
            counted[name] = waits() - before
        await store.engine.dispose()

        assert counted == ROUND_TRIPS

    async def test_its_execution_begins(self, store: PostgresSessions) -> None:
        """8.2.4: and the poster has the input that starts it."""
        posted = await store.post(a_first_message())

        assert posted.route is Route.START
        assert posted.launch
        assert posted.launch == await store.launch(posted.execution)
        assert await release_next(store, posted.launch.ref.stream_id) == posted.execution.execution_id

    async def test_of_concurrent_copies_one_begins(self, store: PostgresSessions) -> None:
        """1.1.3, 8.2.2: the others wait for it, and find the stored session."""
        message = a_first_message()
        with open_admin_connection(store.engine) as holder:
            holder.execute("LOCK TABLE agent_envelopes")
            posts = [store.post(message) for _ in range(3)]
            posted = await run_behind_lock(store.engine, holder.commit, *posts)

        launches = [each.launch for each in posted if each.launch]
        assert [launch.ref for launch in launches] == [posted[0].execution]
        assert {each.route for each in posted} == {Route.START}
        assert {each.execution for each in posted} == {posted[0].execution}
        assert len({each.message.id for each in posted}) == 1
        assert len((await store.executions_of(HERS, ExecutionFilter(message.session_id))).rows) == 1
        told_of = await all_messages(store, message.session_id)
        assert [m.content for m in told_of] == ["Hello", "Execution queued"]

    @pytest.mark.parametrize("is_kept", [True, False])
    async def test_it_waits_for_another_creator_of_the_same_session(
        self, store: PostgresSessions, *, is_kept: bool
    ) -> None:
        """8.2.2: and creates it, if the other transaction is lost."""
        message = a_first_message()
        with open_admin_connection(store.engine) as holder:
            holder.execute(
                "INSERT INTO agent_sessions (id, tenant_id, user_id, title) VALUES (%s, %s, %s, 'Theirs')",
                (message.session_id, TENANT, ANN),
            )
            let_go = holder.commit if is_kept else holder.rollback
            (posted,) = await run_behind_lock(store.engine, let_go, store.post(message))

        session = await store.session(HERS, message.session_id)
        assert session
        assert session.title == ("Theirs" if is_kept else "Hello")
        assert posted.launch.ref == posted.execution

    async def test_an_execution_already_begun_under_its_id_comes_first(self, store: PostgresSessions) -> None:
        """8.3.1"""
        message = a_first_message()
        before = await accept_execution(store, session_id=message.session_id, user_id=ANN)
        posted = await store.post(message)

        assert (posted.route, posted.launch) == (Route.QUEUE, None)
        assert await release_next(store, message.session_id) == before.execution_id

    async def test_ids_of_another_tenant_are_taken(self, store: PostgresSessions) -> None:
        """8.2.2: and nothing is left of the attempt."""
        theirs = a_first_message(tenant=OTHERS)
        await store.post(theirs)
        before = await store.messages(Scope(OTHERS), theirs.session_id)
        with pytest.raises(NotFound, match="There is no session"):
            await store.post(a_first_message(theirs.session_id))
        mine = a_first_message(execution_id=theirs.execution_id)
        with pytest.raises(InvalidInput, match="is taken; choose another one"):
            await store.post(mine)
        stream = a_first_message((await accept_execution(store, tenant=OTHERS)).execution_id)
        with pytest.raises(NotFound, match="There is no session"):
            await store.post(stream)

        assert await store.session(ALL, mine.session_id) is None
        assert await store.session(ALL, stream.session_id) is None
        assert await store.messages(Scope(OTHERS), theirs.session_id) == before

    @pytest.mark.parametrize(
        ("fields", "missing"),
        [({"scope": Scope(TENANT, BOB)}, "session"), ({"request_id": uuid4()}, "open question")],
    )
    async def test_no_session_is_created_for_a_message_of_another_session(
        self, store: PostgresSessions, *, fields: dict[str, Any], missing: str
    ) -> None:
        message = a_first_message(**fields)
        with pytest.raises(NotFound, match=f"There is no {missing}"):
            await store.post(message)

        assert await store.session(ALL, message.session_id) is None


class TestLists:
    async def test_executions(self, store: PostgresSessions) -> None:
        session_id = await new_session_id(store)
        ref = await start_execution(store, session_id)
        child = await accept_execution(store, session_id=session_id, parent_execution_id=ref.execution_id)
        wanted: Mapping[str, tuple[ExecutionFilter, list[ExecutionRef]]] = {
            "all": (ExecutionFilter(), [child, ref]),
            "session": (ExecutionFilter(session_id), [child, ref]),
            "children": (ExecutionFilter(parent_execution_id=ref.execution_id), [child]),
            "running": (ExecutionFilter(status=ExecutionStatus.RUNNING), [ref]),
            "agent": (ExecutionFilter(agent="helper"), [child, ref]),
            "another agent": (ExecutionFilter(agent="nobody"), []),
            "user": (ExecutionFilter(user_id=HERS.user_id), [child, ref]),
            "another user": (ExecutionFilter(user_id=BOB), []),
            "since then": (ExecutionFilter(since=LONG_AGO), [child, ref]),
            "since later": (ExecutionFilter(since=FAR_AHEAD), []),
            "none": (ExecutionFilter(uuid4()), []),
        }
        for name, (filter_, refs) in wanted.items():
            page = await store.executions_of(HERS, filter_)
            assert [row.ref for row in page.rows] == refs, name
        assert (await store.executions_of(Scope(TENANT, BOB), ExecutionFilter())).rows == ()

    async def test_snapshots(self, store: PostgresSessions) -> None:
        """8.1.3"""
        ref = await accept_execution(store)
        for number, status in enumerate((ExecutionStatus.PAUSED, ExecutionStatus.COMPLETED)):
            state = frozen_map({"number": number})
            await store.settle(a_settlement(ref, status, snapshot=state, is_final=number == 1))
        page = await store.snapshots(ref)

        assert [(row.state, row.is_final) for row in page.rows] == [
            ({"number": 1}, True),
            ({"number": 0}, False),
        ]
        assert [row.previous_snapshot_id for row in page.rows] == [page.rows[1].id, None]
        assert [row.parent_snapshot_id for row in page.rows] == [None, None]
        assert (await store.snapshots(replace(ref, tenant_id=OTHERS))).rows == ()


class TestStranded:
    async def test_executions_of_a_lost_process_are_found(self, store: PostgresSessions) -> None:
        """1.1.1: and the reconciler continues from where its last scan ended."""
        session_id = await new_session_id(store)
        launched = (await store.post(a_message(session_id))).execution
        queued = (await store.post(a_message(session_id))).execution
        running = await start_execution(store, await new_session_id(store))
        done = await start_execution(store, await new_session_id(store))
        await finish_execution(store, done)
        assert await store.repair_candidates("desk", 3600) == await store.repair_candidates("elsewhere", 0)

        over_now = await start_execution(store, await new_session_id(store))
        lost = await accept_execution(store, parent_execution_id=over_now.execution_id)
        await accept_execution(store, parent_execution_id=running.execution_id)
        await finish_execution(store, over_now)

        found, cursor = list[Any](), None
        while True:
            look = await store.repair_candidates("desk", 0, cursor, limit=1, pending_only=False)
            found += [("launch", launch.ref) for launch in look.launches]
            found += [("queued", ref) for ref in look.queued]
            found += [("orphan", ref) for ref in look.orphans]
            found += [("open", launch.ref) for launch in look.open]
            cursor = look.cursor
            if cursor is None:
                break
        assert sorted(found, key=str) == sorted(
            [("launch", launched), ("queued", queued), ("orphan", lost), ("open", running)], key=str
        )


MANY = """
    INSERT INTO agent_sessions (id, tenant_id, user_id, related_type, related_id, title, status, created_at)
    SELECT gen_random_uuid(), 'tenant ' || i % 3, 'user ' || i % 50, CASE WHEN i % 10 = 0 THEN 'ticket' END,
           CASE WHEN i % 10 = 0 THEN i::text END, 'Trip number ' || i,
           CASE WHEN i % 100 = 0 THEN 'archived' ELSE 'active' END, now() - i * interval '1 second'
      FROM generate_series(1, 6000) AS i;
    INSERT INTO agent_session_messages (id, tenant_id, session_id, role, content, created_at)
    SELECT gen_random_uuid(), tenant_id, id, 'user', 'text', created_at + n * interval '1 second'
      FROM agent_sessions, generate_series(1, 5) AS n;
    INSERT INTO agent_session_usage (session_id, tenant_id, agent, model)
    SELECT id, tenant_id, 'a', 'm' FROM agent_sessions;
    INSERT INTO agent_feedback (message_id, tenant_id, rating, given_by)
    SELECT id, tenant_id, 'up', 'user' FROM agent_session_messages LIMIT 15000;
    INSERT INTO agent_executions (id, tenant_id, session_id, user_id, agent_type, agent_config, status,
                                  agent_id, created_at, updated_at, released_at)
    SELECT gen_random_uuid(), tenant_id, id, user_id, 'helper', '{}',
           CASE i % 100 WHEN 0 THEN 'pending' WHEN 1 THEN 'paused' ELSE 'completed' END, gen_random_uuid(),
           created_at, created_at, created_at
      FROM (SELECT *, row_number() OVER () AS i FROM agent_sessions) AS session;
    INSERT INTO agent_transcript (execution_id, tenant_id, step, idx, role, content)
    SELECT id, tenant_id, 1, n, CASE n WHEN 3 THEN 'note' ELSE 'user' END, '{}'
      FROM agent_executions, generate_series(1, 3) AS n;
    INSERT INTO agent_tool_calls (execution_id, tenant_id, call_id, step, idx, name, args, need, args_digest)
    SELECT id, tenant_id, 'call', 1, 0, 'user_input', '{}', 'input', '' FROM agent_executions;
    INSERT INTO agent_requests (id, tenant_id, execution_id, user_id, call_id, kind, created_at)
    SELECT gen_random_uuid(), tenant_id, id, user_id, 'call', 'input', created_at FROM agent_executions;
    ANALYZE;
"""


Read: TypeAlias = Callable[[PostgresSessions, Scope, UUID], Awaitable[object]]


LISTS: Mapping[str, Read] = {
    "sessions": lambda store, scope, _: store.sessions(scope, limit=20),
    "sessions of a status": lambda store, scope, _: store.sessions(
        scope, SessionFilter(status=SessionStatus.ARCHIVED), limit=20
    ),
    "sessions about something": lambda store, scope, _: store.sessions(
        scope, SessionFilter(related_type="ticket", related_id="100"), limit=20
    ),
    "inbox": lambda store, scope, _: store.inbox(scope, limit=20),
    "executions": lambda store, scope, _: store.executions_of(scope, ExecutionFilter(), limit=20),
    "executions of a session": lambda store, scope, session_id: store.executions_of(
        scope, ExecutionFilter(session_id), limit=20
    ),
    "messages": lambda store, scope, session_id: store.messages(scope, session_id, limit=20),
    # Found by an index and then sorted: there are few.
    "stranded": lambda store, _, __: store.repair_candidates("desk", 1, limit=20),
    "search": lambda store, scope, _: store.sessions(scope, SessionFilter(search="trip 1999"), limit=20),
}


async def test_no_list_is_a_sequential_scan(own_database: str) -> None:
    """Each first page comes from an index, for one user and for a service that sees all of a tenant."""
    engine = create_engine(own_database)
    store, plans = PostgresSessions(engine), list[str]()
    with psycopg.connect(own_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(MANY.encode())
    (session,) = (await store.sessions(Scope("tenant 0", "user 0"), limit=1)).rows

    @event.listens_for(engine.sync_engine, "before_cursor_execute", retval=True)
    def explain(*given: Any) -> tuple[str, Any]:  # pyright: ignore[reportUnusedFunction] -- SQLAlchemy calls it
        _, cursor, statement, parameters, *_ = given
        cursor.execute(f"EXPLAIN {statement}", parameters)
        plans.append("\n".join(line for (line,) in cursor.fetchall()))
        return statement, parameters

    for scope in (Scope("tenant 0", "user 0"), Scope("tenant 0")):
        for name, read in LISTS.items():
            plans.clear()
            await read(store, scope, session.id)
            assert plans
            # The waiting executions of limited tenants are not in the database of this test.
            for plan in (each for each in plans if "agent_places" not in each):
                assert "Seq Scan" not in plan, f"{name} of {scope}:\n{plan}"
                # The remaining scans read the metadata of one execution: few keys.
                page, _, _ = plan.partition("SubPlan")
                assert name in {"search", "stranded"} or "Sort" not in page, f"{name} of {scope}:\n{plan}"
    await engine.dispose()


def test_a_title_is_taken_from_the_first_message() -> None:
    assert title_from("  Book\na trip ") == "Book a trip"
    assert title_from("word " * 20) == "word word word word word word word word word word word word…"
    assert title_from("x" * 80) == "x" * 60 + "…"
