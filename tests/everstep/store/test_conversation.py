"""The contract of every store: steering, and the conversation of continued executions.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

import asyncio
from uuid import uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message, Role, user
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    TERMINAL,
    a_call,
    a_ref,
    a_reply,
    a_result,
    a_step_start,
    accept_execution,
    end_execution,
    result_record,
    run_step,
    texts,
)


class TestSteering:
    async def test_messages_are_inserted_before_the_reply_oldest_first(self, store: ExecutionStore) -> None:
        """8.3.1: inserted at the next step boundary, never between a call and its result."""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_reply(ref, "Look", a_call("c0")))
        for key in ("b", "a", "c"):
            assert await store.steer(ref, key, user(f"Steered {key}"))
        assert texts(await store.transcript(ref)) == ["Hello", "Look"]
        await store.record_call(result_record(ref, a_result("c0")))

        begun = await store.begin_step(a_step_start(ref, 2, hears=2))
        await store.record_reply(a_reply(ref, "Right", number=2))

        said = ["Hello", "Look", "found", "Steered b", "Steered a"]
        assert texts(begun.material.messages) == said
        material = await store.material(ref)
        assert texts(material.messages) == texts(await store.transcript(ref)) == [*said, "Right"]
        assert texts(material.before_reply(2).messages) == said
        assert (
            texts(material.before_step(2).messages)
            == texts(begun.material.before_step(2).messages)
            == said[:3]
        )
        follow_up = await accept_execution(store, "More", continues=ref.execution_id)
        assert texts((await store.material(follow_up)).before_step(1).messages) == [*said, "Right", "More"]
        assert texts((await store.steps(ref))[1].messages) == ["Steered b", "Steered a", "Right"]
        assert [step.heard for step in await store.steps(ref)] == [0, 2]

    async def test_a_second_attempt_gets_the_same_messages(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.steer(ref, "a", user("first"))
        await store.begin_step(a_step_start(ref, hears=1))
        await store.steer(ref, "b", user("second"))

        begun = await store.begin_step(a_step_start(ref, attempt=2, hears=1))

        assert texts(begun.material.messages) == ["Hello", "first"]
        await store.record_reply(a_reply(ref))
        begun = await store.begin_step(a_step_start(ref, 2, hears=1))
        assert texts(begun.material.messages) == ["Hello", "first", "Hi", "second"]

    async def test_a_message_that_arrives_between_attempts_keeps_its_position(
        self, store: ExecutionStore
    ) -> None:
        ref = await accept_execution(store)
        await store.steer(ref, "a", user("first"))
        await store.begin_step(a_step_start(ref, hears=2))
        await store.steer(ref, "b", user("second"))

        begun = await store.begin_step(a_step_start(ref, attempt=2, hears=2))

        assert texts(begun.material.messages) == ["Hello", "first", "second"]

    async def test_a_message_is_stored_once(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        assert await store.steer(ref, "k", user("Hurry"))
        assert not await store.steer(ref, "k", user("Hurry up"))
        await store.begin_step(a_step_start(ref, hears=5))
        assert not await store.steer(ref, "k", user("Hurry up"))

        assert texts(await store.transcript(ref)) == ["Hello", "Hurry"]

    async def test_of_concurrent_copies_of_a_message_one_is_stored(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)

        results = await asyncio.gather(*(store.steer(ref, "k", user(f"Hurry {i}")) for i in range(10)))

        assert results.count(True) == 1
        await store.begin_step(a_step_start(ref, hears=5))
        assert texts(await store.transcript(ref)) == ["Hello", f"Hurry {results.index(True)}"]

    async def test_parts_and_metadata_are_stored(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        message = Message(Role.USER, [{"type": "text", "text": "Look"}], frozen_map({"z": 1, "a": 2}))  # type: ignore[arg-type]
        await store.steer(ref, "k", message)

        begun = await store.begin_step(a_step_start(ref, hears=1))

        assert begun.material.messages[-1] == message

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_an_execution_that_has_ended_accepts_no_message(
        self, store: ExecutionStore, status: ExecutionStatus
    ) -> None:
        """8.3.1: an accepted message is never dropped, so it is not accepted."""
        ref = await accept_execution(store)
        await store.steer(ref, "before", user("Hurry"))
        await end_execution(store, ref, status)

        with pytest.raises(ExecutionEnded):
            await store.steer(ref, "after", user("Hurry"))
        assert not await store.steer(ref, "before", user("Hurry"))

    async def test_an_unknown_execution_cannot_be_steered(self, store: ExecutionStore) -> None:
        with pytest.raises(NotFound, match="There is no execution"):
            await store.steer(a_ref(), "k", user("Hurry"))


class TestTheConversation:
    async def test_it_continues_from_execution_to_execution(self, store: ExecutionStore) -> None:
        """8.2.4: a new execution starts with the conversation so far."""
        session = uuid4()
        refs: list[ExecutionRef] = []
        for i in range(5):
            continues = refs[-1].execution_id if refs else None
            refs.append(
                await accept_execution(store, f"Question {i}", continues=continues, session_id=session)
            )
            await run_step(store, refs[-1], 1, f"Thought {i}", a_call("c0"))
            await run_step(store, refs[-1], 2, f"Answer {i}")
            await end_execution(store, refs[-1])

        said = texts(await store.transcript(refs[-1]))
        assert said == [
            t for i in range(5) for t in (f"Question {i}", f"Thought {i}", "found", f"Answer {i}")
        ]
        assert texts(await store.transcript(refs[2])) == said[:12]
        assert [step.number for step in await store.steps(refs[2])] == [1, 2]

    async def test_later_messages_of_the_continued_execution_are_included(
        self, store: ExecutionStore
    ) -> None:
        """8.3.1: a queued execution starts when the earlier ones have ended."""
        first = await accept_execution(store, "One")
        second = await accept_execution(store, "Two", continues=first.execution_id)
        await run_step(store, first, 1, "First answer")

        begun = await store.begin_step(a_step_start(second))

        assert texts(begun.material.messages) == ["One", "First answer", "Two"]

    async def test_two_executions_may_continue_the_same_one(self, store: ExecutionStore) -> None:
        first = await accept_execution(store, "One")
        left, right = [
            await accept_execution(store, text, continues=first.execution_id) for text in ("Left", "Right")
        ]

        assert texts(await store.transcript(left)) == ["One", "Left"]
        assert texts(await store.transcript(right)) == ["One", "Right"]

    async def test_every_message_is_stored_unchanged(self, store: ExecutionStore) -> None:
        said = (
            Message(Role.SYSTEM, "Be brief"),
            Message(Role.DEVELOPER, ""),
            Message(Role.USER, [{"type": "text", "text": "ä\U0001f600\\u0000"}, {"z": 1, "a": 1.0}]),  # type: ignore[arg-type]
            Message(Role.ASSISTANT, "", frozen_map({"tool_calls": [{"z": "1", "a": {"b": None}}]})),
            Message(Role.TOOL, "\x01\u2028", frozen_map({"tool_call_id": "c"})),
        )
        ref = await accept_execution(store, *said)

        assert repr(await store.transcript(ref)) == repr(said)

    async def test_an_unknown_execution_has_no_conversation(self, store: ExecutionStore) -> None:
        assert await store.transcript(a_ref()) == ()
