"""Durable executions with conversations that outgrow the window of their model."""

from typing import Any
from uuid import uuid4

from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.values import frozen_map
from tests.compaction import NarrowModel, texts
from tests.workflows.failpoints import FailpointStrike
from tests.workflows.harness import Office, an_agent, at_work, final_result

WINDOW = ContextWindow(1000, 200)
WORDS = "some words to fill the window " * 10
LONG = [each for n in range(6) for each in (user(f"Message {n}: {WORDS}"), assistant(f"Answer {n}"))]
NOW = user("And now?")


def a_compacting(model: NarrowModel, *tools: Any, **compaction: Any) -> DefinitionBuilder:
    return an_agent(model=model, tools=tools).with_compaction(**compaction)


def seen(n: int) -> str:
    return f"{n} seen. " * 150


async def details(office: Office, execution: Any) -> list[str]:
    ref = execution.ref
    stored = await office.store.envelopes(ref.tenant_id, ref.stream_id)
    return [each.payload["detail"] for each in stored if "compaction" in each.payload]


async def test_a_long_conversation_is_compacted_once_also_if_the_worker_is_lost(
    temporal: TemporalClient,
) -> None:
    """14.4, 14.5, 14.6"""
    model, strike = NarrowModel(says("Done", Usage(9, 1)), window=WINDOW), FailpointStrike()
    strike.at = Failpoint.INFER_AFTER_RESPONSE
    async with at_work(temporal, a_compacting(model), strike=strike) as office:
        execution, result = await office.run([*LONG, NOW])
        (step,) = await execution.steps()
        row, said = await execution.get(), await office.conversation(execution)
        shown = await details(office, execution)
    assert strike.at is None
    assert (result.stop_reason, row.step_count) == (StopReason.COMPLETED, 1)
    assert len(model.requests) == 2
    count = len(model.summaries)
    (compaction,) = step.compactions
    assert compaction.usage == Usage(40 * count, 2 * count)
    assert row.usage["total"] == result.tokens == 42 * count + 10
    assert said == [*texts(LONG), "And now?", "Done"]
    assert shown == [compaction.text]
    assert model.requests[0] == model.requests[1]
    assert "They talked." in model.requests[0].messages[0].text


async def test_the_next_execution_continues_from_what_was_compacted(temporal: TemporalClient) -> None:
    """14.6"""
    model = NarrowModel(window=WINDOW)
    agent = a_compacting(model).definition()
    async with at_work(temporal, agent) as office:
        first, _ = await office.run([*LONG, NOW])
        count, sent = len(model.summaries), model.requests[0].messages
        ref, plan = ExecutionRef(uuid4()), agent.plan()
        data = frozen_map(plan.model_dump(mode="json"))
        follow_up = NewExecution(ref, agent.spec(), (user("Go on"),), continues=first.id, plan=data)
        await office.store.accept(follow_up)
        await final_result(await office.client.launch(ref, plan))
        (step,) = await office.client.execution(ref.execution_id).steps()
    assert len(model.summaries) == count > 0
    assert step.compactions == ()
    assert texts(model.requests[1].messages) == [*texts(sent), "ok", "Go on"]


async def test_usage_of_the_continued_execution_replaces_the_estimate(temporal: TemporalClient) -> None:
    """14.4: a session of single steps is not compacted early either."""

    def answer(request: InferenceRequest) -> InferenceResponse:
        return says("Noted", Usage(sum(len(message.text) for message in request.messages) // 5, 1))

    model = NarrowModel(answer, window=WINDOW, is_estimating=False)
    agent = a_compacting(model).definition()
    talk = [user(f"Message {number}: {WORDS}") for number in range(8)]
    async with at_work(temporal, agent) as office:
        last = None
        for message in talk:
            ref, plan = ExecutionRef(uuid4()), agent.plan()
            data = frozen_map(plan.model_dump(mode="json"))
            await office.store.accept(NewExecution(ref, agent.spec(), (message,), continues=last, plan=data))
            await final_result(await office.client.launch(ref, plan))
            last = ref.execution_id
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 7, 9, 11, 13, 15]


async def test_old_results_are_cut_and_their_record_stays_whole(temporal: TemporalClient) -> None:
    """14.4"""
    look = MockTool("look", handler=seen)
    model = NarrowModel(
        *(calls(("look", {"n": n})) for n in range(5)), "Done", window=ContextWindow(4200, 200)
    )
    async with at_work(temporal, a_compacting(model, look)) as office:
        execution, result = await office.run("Look five times")
        steps = await execution.steps()
    assert result.stop_reason is StopReason.COMPLETED
    assert not model.summaries
    sent = [message.text for message in model.requests[-1].messages if message.is_tool]
    assert sent[0] == "[This old result of 1200 characters was removed]"
    assert all(len(call.record.text) == 1200 for step in steps for call in step.calls if call.record)
    assert [bool(step.compactions) for step in steps].count(True) >= 1


async def test_a_refused_request_is_compacted_and_sent_once_more(temporal: TemporalClient) -> None:
    """14.7"""
    model = NarrowModel(hidden=700)
    async with at_work(temporal, a_compacting(model)) as office:
        execution, result = await office.run([*LONG, NOW])
        (step,) = await execution.steps()
    assert (model.refused, result.stop_reason) == (1, StopReason.COMPLETED)
    assert len(step.compactions) == 1


async def test_a_message_that_is_too_long_ends_the_execution_with_a_sentence(
    temporal: TemporalClient,
) -> None:
    """14.8"""
    model = NarrowModel(window=WINDOW)
    async with at_work(temporal, a_compacting(model)) as office:
        execution = await office.start("word " * 5000)
        await office.until_status(execution, ExecutionStatus.FAILED)
        row = await execution.get()
    assert not model.requests
    assert row.error_message
    assert row.error_message.startswith("The message is too long for the model: it has about 10008 tokens")


async def test_messages_of_hooks_before_the_conversation_are_sent(temporal: TemporalClient) -> None:
    """14.6"""

    class Dated(AgentHook):
        def before_step(self, state: AgentState) -> AgentState:
            day = user(f"It is day {state.facts.recorded_steps}")
            return state.with_messages((day, *state.messages))

    look = MockTool("look", handler=lambda: WORDS)
    model = NarrowModel(calls(("look", {})), calls(("look", {})), "Done", window=ContextWindow(1700, 200))
    async with at_work(temporal, a_compacting(model, look).add_hook(Dated())) as office:
        _, result = await office.run([*LONG, NOW])
    assert result.stop_reason is StopReason.COMPLETED
    first, second, third = (texts(request.messages) for request in model.requests)
    assert first[0] == "It is day 0"
    assert second[:2] == ["It is day 1", "It is day 0"]
    assert third[:3] == ["It is day 2", "It is day 1", "It is day 0"]
    assert first[1] == second[2] == third[3]
    assert first[1].startswith("<conversation-summary>")
