"""Sessions in PostgreSQL: questions, published messages, cancelling and forks."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.sessions import (
    OnBusy,
    Route,
    SessionBusy,
)
from everstep.agent_domain.stream import session_messages
from everstep.agent_domain.stream.records import EventRecord
from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.everstep.store.session_words import (
    ALL,
    BOB,
    HERS,
    a_message,
    all_messages,
    finish_execution,
    new_reference,
    new_session_id,
    run_three_steps,
    start_execution,
    start_with_questions,
)
from tests.everstep.store.store_words import (
    OTHERS,
    TENANT,
    a_call,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    end_execution,
    run_step,
    texts,
)


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine)


class TestQuestions:
    async def test_the_next_message_is_an_answer(self, store: PostgresSessions) -> None:
        """8.5.3: to the oldest question, or the named one; nothing is stored before it is validated."""
        session_id = await new_session_id(store)
        ref = await start_with_questions(store, session_id, "Which?", "When?")
        first, second = await store.open_requests(ref)
        oldest = await store.post(a_message(session_id, "Red"))
        named = await store.post(a_message(session_id, "Now", request_id=second.id))

        assert (oldest.route, oldest.execution, oldest.question) == (Route.ANSWER, ref, first.id)
        assert named.question == second.id
        assert oldest.message is None
        assert len((await store.messages(HERS, session_id)).rows) == 2

    async def test_a_question_that_is_not_open_cannot_be_answered(self, store: PostgresSessions) -> None:
        """8.5.3"""
        session_id = await new_session_id(store)
        await start_with_questions(store, session_id, "Which?")
        with pytest.raises(NotFound, match="There is no open question"):
            await store.post(a_message(session_id, "Red", request_id=uuid4()))

    async def test_an_interrupting_message_is_not_an_answer(self, store: PostgresSessions) -> None:
        """8.3.1"""
        session_id = await new_session_id(store)
        ref = await start_with_questions(store, session_id, "Which?")
        posted = await store.post(a_message(session_id, "Stop", OnBusy.INTERRUPT))

        assert (posted.route, posted.cancels) == (Route.INTERRUPT, ref)

    async def test_an_approval_is_not_a_question(self, store: PostgresSessions) -> None:
        """8.6.2: it is decided with its digest only."""
        session_id = await new_session_id(store)
        await start_with_questions(store, session_id, "rm -rf", need=CallNeed.APPROVAL)

        assert (await store.post(a_message(session_id, "Yes"))).route is Route.QUEUE

    async def test_an_answer_is_a_message_of_the_session(self, store: PostgresSessions) -> None:
        """7.7.1: `input.received`; a repeated post is recognised."""
        session_id = await new_session_id(store)
        ref = await start_with_questions(store, session_id, "Which?")
        (request,) = await store.open_requests(ref)
        message = a_message(session_id, "Red")
        heard = session_messages.input_received_announcement(
            "Red", message.id, {"request_id": str(request.id)}
        )
        event = EventRecord("received", "agent.input.received", {}, heard)
        assert await store.resolve(ref, request.id, Resolution("answer", "Red"), [event])
        again = await store.post(message)

        assert again.message
        assert (again.route, again.message.content, again.question) == (Route.ANSWER, "Red", request.id)

    async def test_every_user_has_an_inbox(self, store: PostgresSessions) -> None:
        """8.4.1: open questions and approvals, oldest first, over all sessions."""
        refs = [
            await start_with_questions(store, await new_session_id(store), f"Question {n}") for n in range(3)
        ]
        approval = await start_with_questions(
            store, await new_session_id(store), "rm", need=CallNeed.APPROVAL
        )
        first, rest = await store.inbox(HERS, limit=1), list[Any]()
        cursor = first.cursor
        while cursor:
            page = await store.inbox(HERS, cursor=cursor, limit=2)
            rest += page.rows
            cursor = page.cursor

        assert [row.ref for row in (*first.rows, *rest)] == [*refs, approval]
        assert (await store.inbox(Scope(TENANT, BOB))).rows == ()
        assert (await store.inbox(Scope(OTHERS))).rows == ()
        assert len((await store.inbox(ALL)).rows) == 4


class TestMessages:
    async def test_events_are_published_as_messages_of_the_session(self, store: PostgresSessions) -> None:
        """7.7.1: once, next to the envelope of the same event, in one order."""
        session_id = await new_session_id(store)
        ref = await start_execution(store, session_id)
        event = replace(an_event("step/1"), announces=session_messages.step_started_announcement(1))
        for _ in range(2):
            await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, key="once", events=[event]))
        messages = await all_messages(store, session_id)
        envelopes = await store.envelopes(TENANT, session_id)

        assert [(m.role, m.content) for m in messages] == [
            ("user", "Hello"),
            ("info", "Execution queued"),
            ("info", "Started step 1"),
        ]
        assert [m.execution_id for m in messages] == [None, ref.execution_id, ref.execution_id]
        assert [e.type for e in envelopes] == [
            "message.received",
            "execution.queued",
            "agent.status",
            "step.started",
        ]
        announced = [e for e in envelopes if e.type != "agent.status"]
        assert [e.id for e in announced] == [m.id for m in messages]
        assert [e.created_at for e in announced] == [m.created_at for m in messages]
        assert announced[-1].payload == {
            "message_id": str(messages[-1].id),
            "event_type": "step.started",
            "content": "Started step 1",
            "metadata": {"step_number": 1},
        }

    async def test_messages_of_a_subagent_appear_only_when_it_needs_an_answer(
        self, store: PostgresSessions
    ) -> None:
        """8.1.2: its steps are published as envelopes, under its own id."""
        session_id = await new_session_id(store)
        parent = await start_execution(store, session_id)
        child = await accept_execution(store, session_id=session_id, parent_execution_id=parent.execution_id)
        begins = replace(an_event("begins"), announces=session_messages.step_started_announcement(1))
        asks = replace(
            an_event("asks"),
            announces=session_messages.input_requested_announcement(uuid4(), "Which?", (), None),
        )
        await store.settle(a_settlement(child, ExecutionStatus.PAUSED, events=[begins, asks]))

        contents = [m.content for m in await all_messages(store, session_id)]
        assert contents == ["Hello", "Execution queued", "Which?"]
        await end_execution(store, child)
        session = await store.session(HERS, session_id)
        assert session
        assert session.last_execution_id == parent.execution_id
        assert session.last_snapshot_id is None

    async def test_without_a_session_there_are_no_messages(self, store: PostgresSessions) -> None:
        ref = await accept_execution(store)
        event = replace(an_event("begins"), announces=session_messages.started_announcement())
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, events=[event]))

        assert [e.type for e in await store.envelopes(TENANT, ref.execution_id)] == ["agent.status"]

    async def test_they_are_read_page_by_page(self, store: PostgresSessions) -> None:
        """7.8.3: by their time, then by their id."""
        session_id = await new_session_id(store)
        await asyncio.gather(*(store.post(a_message(session_id, f"m{n}")) for n in range(5)))
        page = await store.messages(HERS, session_id, limit=3)
        rest = await store.messages(HERS, session_id, cursor=page.cursor, limit=50)

        messages = [*page.rows, *rest.rows]
        assert len({m.id for m in messages}) == 10
        assert messages == sorted(messages, key=lambda m: (m.created_at, m.id), reverse=True)


class TestCancelling:
    async def test_an_execution_that_has_not_begun_never_begins(self, store: PostgresSessions) -> None:
        """8.2.1"""
        session_id = await new_session_id(store)
        posted = await store.post(a_message(session_id))
        assert await store.cancel_pending(posted.execution)
        assert not await store.cancel_pending(posted.execution)
        row = await store.execution(posted.execution)

        assert row
        assert (row.status, row.stop_reason) == (ExecutionStatus.CANCELLED, StopReason.USER_REQUESTED)
        assert await store.launch(posted.execution) is None
        with pytest.raises(ExecutionEnded):
            await store.begin_step(a_step_start(posted.execution))
        contents = [m.content for m in await all_messages(store, session_id)]
        assert contents == ["Hello", "Execution queued", "Execution cancelled"]

    async def test_an_execution_that_has_begun_is_not_cancelled_this_way(
        self, store: PostgresSessions
    ) -> None:
        ref = await start_execution(store, await new_session_id(store))

        assert not await store.cancel_pending(ref)
        with pytest.raises(NotFound):
            await store.cancel_pending(replace(ref, tenant_id=OTHERS))


class TestForks:
    @pytest.mark.parametrize(
        ("step", "content", "heard"),
        [
            (0, None, ["Hello"]),
            (0, "Good day", ["Good day"]),
            (1, None, ["Hello", "", "found"]),
            (2, "And now?", ["Hello", "", "found", "Two", "And now?"]),
            (3, None, ["Hello", "", "found", "Two", "Three"]),
        ],
    )
    async def test_it_shares_the_conversation(
        self, store: PostgresSessions, step: int, content: str | None, heard: list[str]
    ) -> None:
        """8.1.2: up to a step, and names its origin."""
        origin = await run_three_steps(store, None)
        fork = new_reference(origin)
        assert await store.fork(origin, step, fork, content)
        row = await store.execution(fork)

        assert texts(await store.transcript(fork)) == heard
        assert row
        assert row.metadata == {"forked_from": str(origin.execution_id), "forked_step": step}
        assert row.status is ExecutionStatus.PENDING
        assert await store.steps(fork) == ()

    async def test_another_first_message_keeps_the_earlier_conversation(
        self, store: PostgresSessions
    ) -> None:
        session_id = await new_session_id(store)
        await finish_execution(store, await start_execution(store, session_id, "One"), "First")
        second = await start_execution(store, session_id, "Two")
        await finish_execution(store, second, "Second")
        fork = new_reference(second)
        await store.fork(second, 0, fork, "Deux")
        await finish_execution(store, fork, "Deuxième")
        third = await store.post(a_message(session_id, "Three"))

        assert texts(await store.transcript(fork))[:3] == ["One", "First", "Deux"]
        assert texts(await store.transcript(third.execution)) == [
            "One",
            "First",
            "Deux",
            "Deuxième",
            "Three",
        ]

    async def test_the_same_fork_again_is_the_same_execution(self, store: PostgresSessions) -> None:
        """1.1.3: and repeating it once it has begun starts nothing."""
        session_id = await new_session_id(store)
        origin = await run_three_steps(store, session_id)
        new = new_reference(origin)
        first = await store.fork(origin, 1, new, "Else")

        assert await store.fork(origin, 1, new, "Else") == first
        await finish_execution(store, new)
        assert await store.fork(origin, 1, new, "Else") is None
        contents = [m.content for m in await all_messages(store, session_id)]
        assert contents == ["Hello", "Execution queued", "Else", "Execution queued"]

    async def test_only_from_a_complete_step(self, store: PostgresSessions) -> None:
        ref = await accept_execution(store)
        await run_step(store, ref, 1, "One")
        await store.begin_step(a_step_start(ref, 2))
        await store.record_reply(a_reply(ref, "", a_call("open"), number=2))
        for step in (-1, 2, 3):
            with pytest.raises(InvalidInput, match=f"step {step} cannot be forked from.*from 0 to 1$"):
                await store.fork(ref, step, new_reference(ref))

    async def test_not_while_an_execution_is_in_progress(self, store: PostgresSessions) -> None:
        session_id = await new_session_id(store)
        origin = await run_three_steps(store, session_id)
        await start_execution(store, session_id)
        with pytest.raises(SessionBusy):
            await store.fork(origin, 1, new_reference(origin))

    async def test_not_of_another_users_execution(self, store: PostgresSessions) -> None:
        origin = await run_three_steps(store, None)
        with pytest.raises(NotFound):
            await store.fork(
                replace(origin, tenant_id=OTHERS), 1, replace(new_reference(origin), tenant_id=OTHERS)
            )
