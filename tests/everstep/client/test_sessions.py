"""Sessions on real servers: messages, turns, answers and forks."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from temporalio.client import Client as TemporalClient, WorkflowExecutionStatus

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import InvalidInput, NotFound, UnknownName
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.sessions import (
    OnBusy,
    Route,
    SessionBusy,
    SessionChanges,
    SessionNotActive,
    SessionStatus,
)
from everstep.agent_domain.stream.session_messages import Context
from everstep.agent_domain.testing import MockTool, calls
from everstep.capabilities.user_input import UseUserInput
from everstep.client.context_validation import ContextRules
from everstep.client.errors import Refused
from everstep.client.sessions import UserMessage
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, message_with, open_session_setup
from tests.workflows.harness import HeldModel, an_agent, eventually, final_result

ANN = ContextCaller("ann", "default")


def counting_agent() -> DefinitionBuilder:
    """An agent that counts its answers."""
    return an_agent("One", "Two", "Three")


def counted_reply(**_args: object) -> str:
    return "it"


async def start_held_execution(parlour: SessionSetup, model: HeldModel) -> tuple[UUID, UUID]:
    """A session whose agent is working: the session, the execution."""
    session_id = await parlour.session()
    sent = await parlour.post(session_id)
    await model.begun.wait()
    return session_id, sent.execution_id


class TestPosting:
    async def test_a_run_is_published_in_its_session(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """7.7.1, 8.2.3: all message types of the table, in the order of the events."""
        agent = an_agent(
            calls(("look", {"where": "there"}), ("fail", {})),
            "Seen.",
            tools=[MockTool("look", handler=counted_reply), MockTool("fail", handler=lambda: 1 / 0)],
        )
        agent.with_max_steps(5).with_error_policy(ErrorPolicy.retry_all(3))
        async with open_session_setup(temporal, store, agent) as parlour:
            session_id = await parlour.session()
            row = await parlour.wait_for_completion(await parlour.post(session_id, "Look!"))
            messages = await parlour.messages(session_id)
            envelopes = await parlour.store.envelopes(parlour.scope.tenant_id, session_id)
            session = await parlour.port.session(parlour.scope, session_id)

        about_tools = {m.content for m in messages if m.metadata.get("tool") in {"look", "fail"}}
        told = [(m.role, m.content) for m in messages if m.content not in about_tools]
        assert told == [
            ("user", "Look!"),
            ("info", "Execution queued"),
            ("info", "Execution started"),
            ("info", "Started step 1"),
            ("info", "Completed step 1 of 5"),
            ("info", "Started step 2"),
            ("info", "Completed step 2 of 5"),
            ("assistant", "Seen."),
        ]
        by_tool = [(m.role, m.metadata["tool"]) for m in messages if m.content in about_tools]
        assert sorted(by_tool) == [
            ("info", "fail"),
            ("info", "look"),
            ("info", "look"),
            ("notification", "fail"),
        ]
        assert {m.execution_id for m in messages[1:]} == {row.ref.execution_id}
        assert messages[-1].metadata == {"stop_reason": "completed"}
        assert row.output == {"response": "Seen.", "stop_reason": "completed"}
        assert session
        assert (session.title, session.last_execution_id) == ("Look!", row.ref.execution_id)
        assert [e.seq for e in envelopes] == list(range(1, len(envelopes) + 1))
        times = [e.created_at for e in envelopes]
        assert times == sorted(set(times))

    async def test_the_conversation_continues(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.4"""
        async with open_session_setup(temporal, store, counting_agent()) as parlour:
            session_id = await parlour.session()
            await parlour.wait_for_completion(await parlour.post(session_id, "First"))
            second = await parlour.post(session_id, "Second")
            await parlour.wait_for_completion(second)

            assert (await parlour.conversation(second))[:3] == ["First", "One", "Second"]

    async def test_a_message_may_create_its_session(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.2: and a repeated post with the same key creates no other one."""
        async with open_session_setup(temporal, store, counting_agent()) as parlour:
            message = message_with("Hello there")
            sent, again = [await parlour.sessions.begin(parlour.scope, message) for _ in range(2)]
            await parlour.wait_for_completion(sent)
            session = await parlour.port.session(parlour.scope, sent.message.session_id)

            assert (sent.message, sent.execution_id) == (again.message, again.execution_id)
            assert session
            assert len(await parlour.executions(session.id)) == 1
            assert session.title == "Hello there"

    async def test_of_concurrent_copies_of_a_message_one_begins(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.2: at any process, and regardless of which one starts it."""
        async with open_session_setup(temporal, store, counting_agent()) as parlour:
            message = message_with("Hello there")
            attempts = (parlour.sessions.begin(parlour.scope, message) for _ in range(5))
            first, *others = await asyncio.gather(*attempts)
            await parlour.wait_for_completion(first)

            assert others == [first] * 4
            assert await parlour.message_texts(first.message.session_id, "user", "assistant") == [
                "Hello there",
                "One",
            ]

    async def test_a_session_may_have_its_own_agent(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        other = an_agent("I am the other").with_name("other")
        async with open_session_setup(temporal, store, counting_agent(), other) as parlour:
            sent = await parlour.sessions.begin(parlour.scope, message_with(agent="other"))
            session_id = sent.message.session_id
            await parlour.wait_for_completion(sent)
            await parlour.wait_for_completion(await parlour.post(session_id, "Who are you?"))
            await parlour.wait_for_completion(await parlour.post(session_id, "And now?", agent="agent"))

            answers = await parlour.message_texts(session_id, "assistant")
            assert answers == ["I am the other", "I am the other", "One"]

    @pytest.mark.parametrize(
        ("fields", "error", "told"),
        [
            ({"agent": "nobody"}, UnknownName, "No agent named 'nobody'. Choose from: agent"),
            ({"content": "  "}, InvalidInput, "content is empty; say something"),
            ({"content": "x" * 200_001}, InvalidInput, "content has 200001 characters; send at most"),
            ({"content": "\0"}, InvalidInput, "NUL"),
            (
                {"context": Context("ticket", "1")},
                InvalidInput,
                "related_type 'ticket' is not allowed; none is configured",
            ),
        ],
    )
    async def test_an_invalid_message_changes_nothing(
        self,
        temporal: TemporalClient,
        store: PostgresSessions,
        *,
        fields: dict[str, Any],
        error: type[Exception],
        told: str,
    ) -> None:
        """8.2.2"""
        parlour = a_session_setup(temporal, store, counting_agent())
        session_id = await parlour.session()
        with pytest.raises(error, match=told):
            await parlour.post(session_id, **fields)

        assert await parlour.messages(session_id) == []
        assert await parlour.executions(session_id) == []

    async def test_a_setting_lists_the_allowed_subjects_of_sessions(self) -> None:
        """8.2.2"""
        rules = ContextRules(frozenset({"ticket", "order"}))
        context = Context("ticket", "1", "https://example.org/")

        assert await rules.check(context, ANN) == (context, None)
        with pytest.raises(
            InvalidInput, match="related_type 'user' is not allowed; choose from: order, ticket"
        ):
            await rules.check(Context("user", "1"), ANN)

    async def test_a_key_means_another_message_for_another_user(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.9.3: also where their names have slashes."""
        parlour = a_session_setup(temporal, store, counting_agent())
        tenant = parlour.scope.tenant_id

        async def begins(tenant: str, user: str) -> UUID:
            client = replace(parlour.sessions.client, tenant_id=tenant)
            sessions = replace(parlour.sessions, client=client)
            return (
                await sessions.begin(Scope(tenant, user), UserMessage("Hello", user, key="k"))
            ).execution_id

        people = [(tenant, "eu/ann"), (f"{tenant}/eu", "ann"), (f"{tenant}/eu/ann", "ann")]
        assert len({await begins(*person) for person in people}) == 3

    async def test_the_subject_of_a_message_is_not_shown_to_the_agent(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.1.1: it is stored with the message."""
        async with open_session_setup(temporal, store, counting_agent()) as parlour:
            rules = ContextRules(frozenset({"ticket"}))
            parlour.sessions = replace(parlour.sessions, contexts=rules)
            about = Context("ticket", "42", "https://example.org/tickets/42")
            session_id = await parlour.session(context=about)
            sent = await parlour.post(session_id, "Hello", context=about)
            await parlour.wait_for_completion(sent)

            assert sent.message.context == about
            assert await parlour.conversation(sent) == ["Hello", "One"]

    async def test_a_closed_session_accepts_no_message(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.2"""
        parlour = a_session_setup(temporal, store, counting_agent())
        session_id = await parlour.session()
        await parlour.port.change_session(
            parlour.scope, session_id, SessionChanges(status=SessionStatus.CLOSED)
        )
        with pytest.raises(SessionNotActive):
            await parlour.post(session_id)
        with pytest.raises(NotFound):
            await parlour.post(uuid4())


class TestBusy:
    async def test_messages_wait_for_the_running_execution(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.3.1: `enqueue`"""
        model = HeldModel("One", "Two", "Three")
        async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            waiting = [await parlour.post(session_id, content) for content in ("And?", "Then?")]
            statuses = [row.status for row in await parlour.executions(session_id)]
            model.go_on.set()
            for sent in (first, *waiting):
                await parlour.wait_for_completion(sent)

            assert [sent.route for sent in waiting] == [Route.QUEUE] * 2
            assert statuses == ["running", "pending", "pending"]
            assert await parlour.conversation(waiting[1]) == ["Hello", "One", "And?", "Two", "Then?", "Three"]

    async def test_concurrent_messages_are_processed_one_after_the_other(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.3.1: in arrival order, and never two at once."""
        async with open_session_setup(temporal, store, an_agent(*["Yes"] * 20)) as parlour:
            session_id = await parlour.session()
            await asyncio.gather(*(parlour.post(session_id, f"Message {n}") for n in range(20)))
            arrived = await parlour.message_texts(session_id, "user")
            executions = await parlour.executions(session_id)
            for execution in executions:
                await parlour.execution(execution.ref.execution_id).result()

            rows = sorted(await parlour.executions(session_id), key=lambda row: row.started_at or 0)
            assert len(rows) == len(set(arrived)) == 20
            assert {row.status for row in rows} == {ExecutionStatus.COMPLETED}
            assert [
                (await parlour.store.material(row.ref)).messages[-2].text for row in rows[::5]
            ] == arrived[::5]
            for earlier, later in pairwise(rows):
                assert earlier.completed_at
                assert later.started_at
                assert earlier.completed_at < later.started_at

    async def test_a_steered_message_is_processed_in_the_next_step(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.3.1: `steer`, after the step is recorded and as a request to continue."""
        model = HeldModel("One", "Two")
        async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            sent = await parlour.post(session_id, "Shorter!", on_busy=OnBusy.STEER)
            model.go_on.set()
            await parlour.wait_for_completion(first)

            assert (sent.route, sent.execution_id) == (Route.STEER, first)
            assert await parlour.conversation(first) == ["Hello", "One", "Shorter!", "Two"]
            assert await parlour.message_texts(session_id, "user") == ["Hello", "Shorter!"]

    async def test_a_steered_message_that_a_guard_forbids_is_posted_as_a_new_one(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.3.1: the steered message becomes an `enqueue`."""
        model = HeldModel("One", "Two")
        async with open_session_setup(temporal, store, an_agent(model=model).with_max_steps(1)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            await parlour.post(session_id, "Shorter!", on_busy=OnBusy.STEER)
            model.go_on.set()
            row = await parlour.wait_for_completion(first)

            async def is_queued() -> bool:
                return len(await parlour.executions(session_id)) == 2

            await eventually(is_queued)
            _, second = await parlour.executions(session_id)
            await parlour.wait_for_completion(second.ref.execution_id)

            assert row.stop_reason is StopReason.COMPLETED
            assert await parlour.conversation(first) == ["Hello", "One"]
            assert await parlour.conversation(second.ref.execution_id) == ["Hello", "One", "Shorter!", "Two"]

    async def test_an_interrupting_message_is_processed_at_once(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.3.1, 15.6.3: `interrupt`: ahead of the queue; the other one is Canceled in Temporal."""
        model = HeldModel("One", "Two", "Three")
        async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            queued = await parlour.post(session_id, "Later")
            urgent = await parlour.post(session_id, "Stop!", on_busy=OnBusy.INTERRUPT)
            row = await parlour.wait_for_status(first, ExecutionStatus.CANCELLED)
            await parlour.wait_for_completion(urgent)
            await parlour.wait_for_completion(queued)

            async def is_closed() -> bool:
                return model.was_closed

            async def is_canceled() -> bool:
                workflow = parlour.execution(first).workflow
                return (await workflow.describe()).status is WorkflowExecutionStatus.CANCELED

            # At the next heartbeat; other executions do not wait for it.
            await eventually(is_closed)
            await eventually(is_canceled)
            assert row.stop_reason is StopReason.USER_REQUESTED
            assert await parlour.conversation(queued) == ["Hello", "Stop!", "Two", "Later", "Three"]

    async def test_a_message_that_may_not_wait_is_refused(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.3.1: `reject`"""
        model = HeldModel()
        async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            with pytest.raises(SessionBusy, match="Session is busy"):
                await parlour.post(session_id, "Now!", on_busy=OnBusy.REJECT)
            model.go_on.set()
            await parlour.wait_for_completion(first)

            assert await parlour.message_texts(session_id, "user") == ["Hello"]


ASKS_TO_CHOOSE = calls(("user_input", {"prompt": "Which?", "choices": ["Red", "Blue"]}))
ASKS_FOR_A_FORM = calls(
    ("user_input", {"prompt": "When?", "schema": {"type": "object", "required": ["day"]}})
)


class TestAnswering:
    async def test_the_next_message_is_the_answer(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.5.2, 8.5.3, 8.5.4: an invalid one changes nothing."""
        agent = an_agent(ASKS_TO_CHOOSE, ASKS_FOR_A_FORM, "Done").with_capability(UseUserInput())
        async with open_session_setup(temporal, store, agent) as parlour:
            session_id = await parlour.session()
            sent = await parlour.post(session_id, "Paint it")
            await parlour.wait_for_status(sent, ExecutionStatus.PAUSED)
            before = await parlour.messages(session_id)
            with pytest.raises(InvalidInput, match="Answer must be one of: Red, Blue"):
                await parlour.post(session_id, "Green")
            assert await parlour.messages(session_id) == before
            answer = await parlour.post(session_id, " Red ")

            async def is_question_open() -> bool:
                requests = await parlour.execution(sent).requests()
                return [r.request["prompt"] for r in requests] == ["When?"]

            await parlour.store.until(is_question_open)
            await parlour.wait_for_status(sent, ExecutionStatus.PAUSED)
            with pytest.raises(InvalidInput, match='does not match the schema: "day" is a required'):
                await parlour.post(session_id, "{}")
            await parlour.post(session_id, "", data={"day": "Friday"})
            await parlour.wait_for_completion(sent)
            messages = await parlour.messages(session_id)

            assert (answer.route, answer.execution_id) == (Route.ANSWER, sent.execution_id)
            assert await parlour.conversation(sent) == ["Paint it", "", "Red", "", '{"day":"Friday"}', "Done"]
            told = [(m.role, m.content) for m in messages if m.role in {"user", "assistant"}]
            assert told == [
                ("user", "Paint it"),
                ("assistant", "Which?"),
                ("user", " Red "),
                ("assistant", "When?"),
                ("user", '{"day":"Friday"}'),
                ("assistant", "Done"),
            ]
            question = messages[before.index(before[-1])]
            assert question.metadata.keys() == {"request_id", "choices", "schema"}
            assert "Execution resumed" in [m.content for m in messages]

    async def test_a_repeated_answer_changes_nothing(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """1.1.3"""
        agent = an_agent(ASKS_TO_CHOOSE, "Done").with_capability(UseUserInput())
        async with open_session_setup(temporal, store, agent) as parlour:
            session_id = await parlour.session()
            sent = await parlour.post(session_id)
            await parlour.wait_for_status(sent, ExecutionStatus.PAUSED)
            answers = [await parlour.post(session_id, "Red", key="once") for _ in range(2)]
            await parlour.wait_for_completion(sent)
            late = await parlour.post(session_id, "Red", key="once")

            assert answers == [late, late]
            assert await parlour.message_texts(session_id, "user") == ["Hello", "Red"]

    async def test_of_two_answers_one_counts(self, temporal: TemporalClient, store: PostgresSessions) -> None:
        """8.5.3: the other one is an ordinary message."""
        agent = an_agent(ASKS_TO_CHOOSE, "Done", "Fine").with_capability(UseUserInput())
        async with open_session_setup(temporal, store, agent) as parlour:
            session_id = await parlour.session()
            sent = await parlour.post(session_id)
            await parlour.wait_for_status(sent, ExecutionStatus.PAUSED)
            both = await asyncio.gather(parlour.post(session_id, "Red"), parlour.post(session_id, "Blue"))
            for execution in await parlour.executions(session_id):
                await parlour.wait_for_completion(execution.ref.execution_id)

            assert len(await parlour.message_texts(session_id, "user")) == 3
            assert Route.ANSWER in {sent.route for sent in both}

    async def test_a_named_question_must_be_open(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.5.3"""
        parlour = a_session_setup(temporal, store, counting_agent())
        session_id = await parlour.session()
        with pytest.raises(NotFound, match="There is no open question"):
            await parlour.post(session_id, "Red", request_id=uuid4())


class TestCancelling:
    async def test_a_queued_execution_is_cancelled_and_the_next_one_is_not(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.1"""
        model = HeldModel("One", "Two")
        async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            second, third = [await parlour.post(session_id, content) for content in ("Second", "Third")]
            await parlour.sessions.cancel(parlour.execution(second).ref)
            await parlour.sessions.cancel(parlour.execution(first).ref)
            await parlour.wait_for_completion(third)

            statuses = [row.status for row in await parlour.executions(session_id)]
            assert statuses == ["cancelled", "cancelled", "completed"]
            assert await parlour.conversation(third) == ["Hello", "Third", "Two"]
            assert (await parlour.message_texts(session_id)).count("Execution cancelled") == 2

    async def test_a_started_execution_without_a_worker_is_cancelled_without_effect(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.1: there is no worker yet; when one starts, there is no work left."""
        model = HeldModel()
        parlour = a_session_setup(temporal, store, an_agent(model=model))
        session_id = await parlour.session()
        sent = await parlour.post(session_id)
        execution = parlour.execution(sent)
        await parlour.sessions.cancel(execution.ref)
        async with parlour.worker():
            await final_result(execution)

        assert model.asked == 0
        assert (await execution.get()).status is ExecutionStatus.CANCELLED
        assert (await parlour.message_texts(session_id)).count("Execution cancelled") == 1

    async def test_an_ended_execution_cannot_be_cancelled(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """8.2.1"""
        async with open_session_setup(temporal, store, counting_agent()) as parlour:
            sent = await parlour.post(await parlour.session())
            await parlour.wait_for_completion(sent)
            await parlour.execution(sent).workflow.result()
            with pytest.raises(Refused, match="has ended"):
                await parlour.sessions.cancel(parlour.execution(sent).ref)

    async def test_a_session_is_deleted_when_no_execution_is_in_progress(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        model = HeldModel()
        async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
            session_id, first = await start_held_execution(parlour, model)
            with pytest.raises(SessionBusy):
                await parlour.sessions.delete(parlour.scope, session_id)
            await parlour.sessions.cancel(parlour.execution(first).ref)
            await parlour.wait_for_status(first, ExecutionStatus.CANCELLED)

            assert await parlour.sessions.delete(parlour.scope, session_id)
            assert await parlour.port.session(parlour.scope, session_id) is None


class TestForks:
    async def test_a_fork_from_a_step_runs_no_tool_again(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """1.1.3: earlier results are shared; 8.1.4: the plan too, debug mode included."""
        looked = list[int]()

        def looks(**_args: object) -> str:
            looked.append(1)
            return "seen"

        look = MockTool("look", handler=looks)
        agent = an_agent(calls(("look", {})), "A cat", "Two cats", tools=[look])
        async with open_session_setup(temporal, store, agent) as parlour:
            session_id = await parlour.session()
            sent = await parlour.post(session_id, "What is there?", debug=True)
            await parlour.wait_for_completion(sent)
            fork = await parlour.sessions.fork(parlour.execution(sent).ref, 1, "How many?")
            row = await parlour.wait_for_completion(fork.id)

            assert looked == [1]
            assert (await parlour.store.material(fork.ref)).is_debug
            assert await parlour.conversation(fork.id) == [
                "What is there?",
                "",
                "seen",
                "How many?",
                "Two cats",
            ]
            assert row.metadata["forked_from"] == str(sent.execution_id)
            assert await parlour.message_texts(session_id, "user") == ["What is there?", "How many?"]
