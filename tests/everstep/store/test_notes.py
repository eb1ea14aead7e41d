"""Metadata and messages that calls, hooks and processors add to an execution, in both stores."""

from dataclasses import replace
from uuid import uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message, Role, user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.calls import InnerReply
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.storage.steps import HookAdditions, RecordProcessing
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    result_record,
)


def an_addition(**values: object) -> HookAdditions:
    return HookAdditions(notes=MetadataChanges(frozen_map(values)))


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


async def metadata(store: ExecutionStore, ref: ExecutionRef) -> dict[str, object]:
    return dict((await store.material(ref)).metadata)


async def record_first_reply(store: ExecutionStore, ref: ExecutionRef, *calls: str, number: int = 1) -> None:
    await store.begin_step(a_step_start(ref, number))
    await store.record_reply(a_reply(ref, f"Reply {number}", *map(a_call, calls), number=number))


def a_processing_record(ref: ExecutionRef, number: int = 1, **fields: object) -> RecordProcessing:
    return replace(RecordProcessing(ref, number, frozen_map({"seconds": 1.5})), **fields)


class TestCalls:
    async def test_a_call_of_the_same_step_does_not_see_them(self, store: ExecutionStore) -> None:
        """9.4.2: stored after the step, so a read in the same step sees the old value."""
        ref = await accept_execution(store, metadata=frozen_map({"topic": "tea"}))
        await record_first_reply(store, ref, "c0", "c1")

        await store.record_call(result_record(ref, a_result("c0"), metadata=frozen_map({"topic": "rum"})))

        assert (await store.preview_call(ref, "c1")).metadata == {"topic": "tea"}
        assert (await store.reserve_call(ref, "c1", 1)).metadata == {"topic": "tea"}
        assert await metadata(store, ref) == {"topic": "rum"}

    async def test_of_two_calls_the_later_in_the_reply_wins(self, store: ExecutionStore) -> None:
        """4.4.4: in any order of completion."""
        ref = await accept_execution(store)
        await record_first_reply(store, ref, "c0", "c1")

        second = result_record(ref, a_result("c1"), index=1, metadata=frozen_map({"by": "second", "b": 2}))
        await store.record_call(second)
        await store.record_call(
            result_record(ref, a_result("c0"), metadata=frozen_map({"by": "first", "a": 1}))
        )

        assert await metadata(store, ref) == {"by": "second", "a": 1, "b": 2}
        row = await store.execution(ref)
        assert row
        assert row.metadata == {"by": "second", "a": 1, "b": 2}

    async def test_added_metadata_are_not_a_message(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store, "Hello")
        await record_first_reply(store, ref, "c0")
        await store.record_call(result_record(ref, a_result("c0", "done"), metadata=frozen_map({"a": 1})))

        assert texts(await store.transcript(ref)) == ["Hello", "Reply 1", "done"]
        assert texts((await store.steps(ref))[0].messages) == ["Reply 1", "done"]


class TestHooks:
    async def test_their_messages_surround_the_conversation(self, store: ExecutionStore) -> None:
        """4.5.2: messages that hooks put before a step precede its reply and follow the user's messages."""
        ref = await accept_execution(store, "Hello")
        await store.steer(ref, "k", user("Hurry"))
        await store.begin_step(a_step_start(ref, hears=1))
        added = HookAdditions(
            (Message(Role.SYSTEM, "Skills"),), (user("Remember"),), MetadataChanges(frozen_map({"a": 1}))
        )

        await store.record_reply(replace(a_reply(ref, "Hi", a_call("c0")), added=added))

        assert texts(await store.transcript(ref)) == ["Skills", "Hello", "Hurry", "Remember", "Hi"]
        (step,) = await store.steps(ref)
        assert (texts(step.messages), step.heard) == (["Hurry", "Remember", "Hi"], 2)
        assert (await store.preview_call(ref, "c0")).metadata == {"a": 1}

    async def test_later_messages_are_put_further_to_the_front(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store, "Hello")
        await store.begin_step(a_step_start(ref))
        first, second, third = (
            HookAdditions((Message(Role.SYSTEM, text),)) for text in ("one", "two", "three")
        )
        await store.record_reply(replace(a_reply(ref, "Hi"), added=first))
        await store.record_processing(a_processing_record(ref, added=second))
        await store.begin_step(a_step_start(ref, 2))
        await store.record_reply(replace(a_reply(ref, "Ho", number=2), added=third))

        assert texts(await store.transcript(ref)) == ["three", "two", "one", "Hello", "Hi", "Ho"]


class TestProcessors:
    async def test_their_messages_follow_the_results(self, store: ExecutionStore) -> None:
        """4.5.2: a processor sees the step, and its messages come after it."""
        ref = await accept_execution(store, "Hello", metadata=frozen_map({"gone": 1}))
        await record_first_reply(store, ref, "c0")
        await store.record_call(result_record(ref, a_result("c0", "done"), metadata=frozen_map({"a": 1})))
        added = HookAdditions(
            said=(user("Critique"),), notes=MetadataChanges(frozen_map({"a": 2}), ("gone",))
        )

        assert await store.processing(ref, 1) is None
        told = await store.record_processing(a_processing_record(ref, added=added))

        assert told == await store.processing(ref, 1) == {"seconds": 1.5}
        assert texts(await store.transcript(ref)) == ["Hello", "Reply 1", "done", "Critique"]
        assert await metadata(store, ref) == {"a": 2}
        (row,) = (await store.executions(ref.tenant_id)).rows
        assert row.metadata == {"a": 2}

    async def test_a_second_attempt_adds_nothing(self, store: ExecutionStore) -> None:
        """1.1.1: and gets the messages that the first one recorded."""
        ref = await accept_execution(store, "Hello")
        await record_first_reply(store, ref)
        await store.record_processing(a_processing_record(ref, added=HookAdditions(said=(user("First"),))))

        late = a_processing_record(
            ref, outcome=frozen_map({"seconds": 9}), added=HookAdditions(said=(user("Second"),))
        )
        assert await store.record_processing(late) == {"seconds": 1.5}

        assert texts(await store.transcript(ref)) == ["Hello", "Reply 1", "First"]

    async def test_a_step_without_an_answer_is_not_processed(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        with pytest.raises(NotFound, match="There is no step 1"):
            await store.record_processing(a_processing_record(ref))
        await store.begin_step(a_step_start(ref))
        with pytest.raises(NotFound, match="There is no step 1"):
            await store.record_processing(a_processing_record(ref))

    async def test_an_execution_that_has_ended_does_not_change(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await record_first_reply(store, ref)
        await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED))

        with pytest.raises(ExecutionEnded):
            await store.record_processing(a_processing_record(ref, added=an_addition(a=1)))

        assert await metadata(store, ref) == {}


class TestConversations:
    async def test_the_next_execution_has_the_metadata_of_the_last_one(self, store: ExecutionStore) -> None:
        """9.3.2: the tasks of a conversation are kept; 9.7.2: the critique of an execution ends with it."""
        first = await accept_execution(store, metadata=frozen_map({"topic": "tea"}))
        await record_first_reply(store, first)
        await store.record_processing(
            a_processing_record(
                first, added=an_addition(tasks=[1], self_critic_result={}, self_critic_iteration=1)
            )
        )
        second = a_ref()
        await store.accept(replace(a_new_execution(second, "Again", continues=first.execution_id)))

        assert await metadata(store, second) == {"topic": "tea", "tasks": [1]}

    async def test_a_fork_has_the_metadata_up_to_its_step(self, store: ExecutionStore) -> None:
        """9.4.2: metadata survive a fork unchanged."""
        ref = await accept_execution(store)
        for number in (1, 2, 3):
            await record_first_reply(store, ref, number=number)
            await store.record_processing(a_processing_record(ref, number, added=an_addition(step=number)))
        branch = a_ref()
        await store.accept(
            replace(a_new_execution(branch, "Otherwise", continues=ref.execution_id), continues_until=2)
        )

        assert await metadata(store, branch) == {"step": 2}
        await record_first_reply(store, branch, "c0")
        assert (await store.preview_call(branch, "c0")).metadata == {"step": 2}

    async def test_the_task_is_the_message_that_began_the_execution(self, store: ExecutionStore) -> None:
        """9.7.1: in a longer conversation, with steering, and in forks with and without a new message."""
        first = await accept_execution(store, "Paint the door")
        await record_first_reply(store, first)
        second = a_ref()
        await store.accept(a_new_execution(second, "Paint the gate", continues=first.execution_id))
        await store.steer(second, "quickly", user("Quickly"))
        await store.begin_step(replace(a_step_start(second), hears=1))
        await store.record_reply(a_reply(second))
        silent, fork = a_ref(), a_ref()
        branch = replace(a_new_execution(silent, "", continues=second.execution_id), continues_until=1)
        await store.accept(replace(branch, messages=()))
        await store.accept(replace(branch, ref=fork, messages=(user("Paint the fence"),)))

        refs = (first, second, silent, fork)
        assert [(await store.material(ref)).task for ref in refs] == [
            "Paint the door",
            "Paint the gate",
            "Paint the gate",
            "Paint the fence",
        ]
        assert "Quickly" in texts(await store.transcript(fork))

    async def test_a_fork_has_the_messages_put_before_the_conversation_up_to_its_step(
        self, store: ExecutionStore
    ) -> None:
        """4.5.2: by hooks and by processors."""
        ref = await accept_execution(store, "Hello")
        for number in (1, 2, 3):
            by_hook, by_processor = (
                HookAdditions((Message(Role.SYSTEM, f"{who} {number}"),)) for who in ("hook", "processor")
            )
            await store.begin_step(a_step_start(ref, number))
            await store.record_reply(replace(a_reply(ref, "Hi", number=number), added=by_hook))
            await store.record_processing(a_processing_record(ref, number, added=by_processor))
        branch, beginning = a_ref(), a_ref()
        shared = a_new_execution(branch, "Otherwise", continues=ref.execution_id)
        await store.accept(replace(shared, continues_until=2))
        await store.accept(replace(shared, ref=beginning, continues_until=0))

        openings = ["processor 2", "hook 2", "processor 1", "hook 1"]
        assert texts(await store.transcript(branch)) == [*openings, "Hello", "Hi", "Hi", "Otherwise"]
        assert texts(await store.transcript(beginning)) == ["Hello", "Otherwise"]


class TestInnerReplies:
    RESPONSE = frozen_map(InferenceResponse("Yes").to_dict())

    async def test_a_models_answer_is_paid_for_once(self, store: ExecutionStore) -> None:
        """1.1.1, 4.2.1"""
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        given = InnerReply("call/c0/0", "digest", self.RESPONSE)
        assert await store.inner_reply(ref, given.key) is None

        assert await store.record_inner_reply(ref, given, Usage(input=3)) == given
        late = replace(given, response=frozen_map(InferenceResponse("No").to_dict()))
        assert await store.record_inner_reply(ref, late, Usage(input=3)) == given

        assert await store.inner_reply(ref, given.key) == given
        row = await store.execution(ref)
        assert row
        assert row.usage["total"] == 3

    async def test_another_question_has_its_own_answer(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        await store.begin_step(a_step_start(ref))
        await store.record_inner_reply(ref, InnerReply("k", "one", self.RESPONSE), Usage())
        other = InnerReply("k", "two", frozen_map(InferenceResponse("No").to_dict()))

        assert await store.record_inner_reply(ref, other, Usage()) == other
        assert await store.inner_reply(ref, "k") == other


class TestListedTools:
    async def test_the_first_list_is_the_one(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        assert await store.recorded_tools(ref) is None

        assert await store.record_tools(ref, frozen_map({"time": [1]})) == {"time": [1]}
        assert await store.record_tools(ref, frozen_map({"time": [2]})) == {"time": [1]}

        assert await store.recorded_tools(ref) == {"time": [1]}
        assert (await store.material(ref)).spec.listed == {"time": [1]}

    async def test_an_execution_of_another_tenant_has_none(self, store: ExecutionStore) -> None:
        ref = await accept_execution(store)
        theirs = replace(ref, tenant_id="theirs")

        with pytest.raises(NotFound):
            await store.record_tools(theirs, frozen_map({}))
        with pytest.raises(NotFound):
            await store.record_tools(ExecutionRef(uuid4()), frozen_map({}))
        assert await store.recorded_tools(theirs) is None
        assert await store.inner_reply(theirs, "k") is None
        assert await store.processing(theirs, 1) is None
