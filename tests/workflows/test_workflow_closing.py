"""How the workflow of an ended execution closes, and what its callers and its parent read of it."""

from collections.abc import Awaitable, Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import ModelError, RateLimited
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.client.client import Client, Execution
from everstep.client.structured_results import CompletedExecution
from everstep.client.temporal_entry import ActRequest, ExecutionReport
from everstep.runtime.temporal import data_converter
from everstep.workflows import search_attributes, workflow_closing
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionInput, ExecutionResult, workflow_id
from everstep.workflows.workflow_closing import EXECUTION_FAILED
from tests.histories.ways import cut_like
from tests.workflows.failpoints import FailpointStrike
from tests.workflows.harness import (
    HeldModel,
    Office,
    an_agent,
    an_office,
    at_work,
    events_of,
    eventually,
    final_result,
    of_type,
    runs_of,
)
from tests.workflows.test_people import asks, user_input
from tests.workflows.test_subagents import a_boss, a_hand, child_of, hires

Act = Callable[[Office, Execution], Awaitable[object]]

COMPLETED, FAILED, CANCELED = (
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.CANCELED,
)


async def status_of(execution: Execution) -> WorkflowExecutionStatus | None:
    """The status of its workflow."""
    return (await execution.workflow.describe()).status


async def failure_of(execution: Execution) -> ApplicationError | CancelledError:
    """What a caller gets who waits for the result with a Temporal client."""
    handle = execution.client.temporal.get_workflow_handle(execution.workflow.id)
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, ApplicationError | CancelledError)
    return raised.value.cause


async def activities_of(execution: Execution) -> list[str]:
    """The names of the activities that its history has, without local ones."""
    scheduled = of_type(await events_of(execution), "ACTIVITY_TASK_SCHEDULED")
    return [each.activity_task_scheduled_event_attributes.activity_type.name for each in scheduled]


def asking() -> DefinitionBuilder:
    return an_agent(asks("?"), "Done", tools=[user_input()])


ENDS: dict[str, tuple[Callable[[], DefinitionBuilder], WorkflowExecutionStatus, ExecutionStatus]] = {
    "completed": (lambda: an_agent("Done"), COMPLETED, ExecutionStatus.COMPLETED),
    "limited": (
        lambda: an_agent(calls(("look", {})), tools=[MockTool("look")]).with_max_steps(1),
        COMPLETED,
        ExecutionStatus.COMPLETED,
    ),
    "failed": (lambda: an_agent(ModelError("secret")), FAILED, ExecutionStatus.FAILED),
    "failed after retries": (
        lambda: an_agent(ModelError("secret")).with_error_policy(ErrorPolicy.retry_all(2)),
        FAILED,
        ExecutionStatus.FAILED,
    ),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_workflow_closes_like_its_execution(temporal: TemporalClient, name: str) -> None:
    """1.2.1, 15.6.1: a limit is a completed execution."""
    agent, closes, ends = ENDS[name]
    async with at_work(temporal, agent()) as office:
        execution = await office.start()
        result = await execution.result()

        assert await status_of(execution) is closes
        assert (await execution.get()).status is ends
        assert isinstance(result, CompletedExecution)
        assert result.steps == (await execution.get()).step_count


async def test_a_failure_says_why_and_carries_the_result(temporal: TemporalClient) -> None:
    """15.6.2: with the kind of the error and no text of it, and no policy of a caller retries it."""
    async with at_work(temporal, an_agent(ModelError("secret"))) as office:
        execution = await office.start()
        failure = await failure_of(execution)
        result = await execution.result()
        history = await execution.workflow.fetch_history()

    assert isinstance(failure, ApplicationError)
    assert (failure.type, failure.non_retryable) == (EXECUTION_FAILED, True)
    assert failure.message.startswith("failed: ")
    assert "ModelError" in failure.message
    assert failure.details[0]["status"] == "failed"
    assert failure.details[0]["stop_reason"] == result.stop_reason == StopReason.ERROR
    assert failure.details[0]["steps"] == result.steps == 1
    assert "secret" not in history.to_json()


async def by_client(office: Office, execution: Execution) -> None:
    del office
    await execution.cancel()


async def by_signal(office: Office, execution: Execution) -> None:
    del office
    await execution.workflow.signal("cancel")


async def by_update(office: Office, execution: Execution) -> None:
    del office
    workflow: Any = execution.workflow
    await workflow.execute_update("cancel")


async def by_activity(office: Office, execution: Execution) -> None:
    await office.temporal.execute_activity(
        "everstep.act",
        ActRequest(execution_id=execution.id, act="cancel"),
        id=str(uuid4()),
        task_queue=office.settings.task_queue,
        start_to_close_timeout=timedelta(seconds=30),
        result_type=ExecutionReport,
    )


async def by_temporal(office: Office, execution: Execution) -> None:
    del office
    await execution.workflow.cancel()


CANCELS: dict[str, Act] = {
    "client": by_client,
    "signal": by_signal,
    "update": by_update,
    "activity": by_activity,
    "temporal": by_temporal,
}


@pytest.mark.parametrize("way", CANCELS)
class TestCancelling:
    async def test_while_the_model_writes(self, temporal: TemporalClient, way: str) -> None:
        """1.2.1, 15.6.3: Temporal's own request is in the history of every cancelled execution."""
        model = HeldModel("Never")
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            await CANCELS[way](office, execution)
            await self.check_cancel(execution)

    async def test_while_people_are_asked(self, temporal: TemporalClient, way: str) -> None:
        """1.2.1, 15.6.3: also where its end is stored before the cancel is acknowledged."""
        async with at_work(temporal, asking()) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await CANCELS[way](office, execution)
            await self.check_cancel(execution)

    async def check_cancel(self, execution: Execution) -> None:
        cause = await failure_of(execution)
        result = await execution.result()
        events = await events_of(execution)

        assert isinstance(cause, CancelledError)
        carried, because = cause.details
        assert carried["stop_reason"] == result.stop_reason == StopReason.USER_REQUESTED
        assert because.startswith("cancelled")
        assert await status_of(execution) is CANCELED
        assert len(of_type(events, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")) == 1
        assert (await execution.get()).status is ExecutionStatus.CANCELLED


async def test_the_result_of_the_client_has_one_shape(temporal: TemporalClient) -> None:
    """15.6.2: usage, time and cost of an execution are read in the same way, however it ended."""
    usage = Usage(input=3, output=1)
    look = calls(("look", {}), usage=usage)
    done = an_agent(look, "Done", tools=[MockTool("look")])
    failed = an_agent(look, ModelError("no"), tools=[MockTool("look")])
    model = HeldModel(look, "Never", holds=2)
    held = an_agent(model=model, tools=[MockTool("look")])
    results = list[ExecutionResult]()
    for agent in (done, failed, held):
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            if agent is held:
                await model.begun.wait()
                await execution.cancel()
            results.append(await execution.result())

    assert [type(result) for result in results] == [CompletedExecution] * 3
    assert {result.usage for result in results} == {usage}
    assert {result.tokens for result in results} == {4}
    kinds: list[list[object]] = [
        [type(getattr(result, field.name)) for field in fields(CompletedExecution)] for result in results
    ]
    assert kinds[0] == kinds[1] == kinds[2]


async def test_the_end_is_stored_first(temporal: TemporalClient) -> None:
    """1.2.1: Temporal shows no end that the store does not have."""
    async with at_work(temporal, an_agent(ModelError("no"))) as office:
        async with office.store.hold("settle") as settling:
            execution = await office.start_directly()
            await settling.wait()
            assert await status_of(execution) is WorkflowExecutionStatus.RUNNING
        await final_result(execution)
        row, closed = await execution.get(), (await execution.workflow.describe()).close_time

    assert row.completed_at is not None
    assert closed is not None
    assert row.completed_at <= closed


async def test_a_worker_that_is_lost_after_the_end_was_stored_changes_nothing(
    temporal: TemporalClient,
) -> None:
    """1.2.1, 1.1.3: the next attempt finds the stored end, and closes the workflow like it."""
    strike = FailpointStrike(Failpoint.SETTLE_BEFORE_REPORT)
    async with at_work(temporal, an_agent(ModelError("no")), strike=strike) as office:
        execution = await office.start()
        await final_result(execution)

        assert strike.at is None
        assert await status_of(execution) is FAILED
        assert (await office.statuses(execution)).count("failed") == 1


async def test_no_retry_policy_of_a_caller_starts_it_again(temporal: TemporalClient) -> None:
    """15.6.2"""
    async with at_work(temporal, an_agent(ModelError("no"))) as office:
        ref = ExecutionRef(uuid4())
        await office.store.accept(NewExecution(ref, office.agents[0].spec(), (user("Go"),)))
        handle = await temporal.start_workflow(
            AgentExecution.run,
            ExecutionInput(ref, office.agents[0].plan()),
            id=workflow_id(ref),
            task_queue=office.settings.task_queue,
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1)),
        )
        execution = Execution(office.client, ref)
        await final_result(execution)

        assert (await handle.describe()).run_id == handle.result_run_id
        assert len(await runs_of(execution)) == 1


class TestChildren:
    async def test_a_parent_cancels_two_children(self, temporal: TemporalClient) -> None:
        """15.6.4: all three close as cancelled, and what the children used is counted."""
        usage = Usage(input=3, output=1)
        ask = calls(("user_input", {"prompt": "?"}), usage=usage)
        hands = [a_hand(ask, tools=[user_input()], name=name) for name in ("one", "two")]
        async with at_work(temporal, a_boss(hires("one", "two"), "Thanks"), *hands) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            children = [await child_of(office, execution, index) for index in (0, 1)]
            await execution.cancel()
            result = await execution.result()

            assert [await status_of(each) for each in (execution, *children)] == [CANCELED] * 3
            assert result.child_tokens == 2 * usage.total
            # The children have recorded their own ends.
            assert "close" not in await activities_of(execution)

    async def test_a_parent_reads_the_end_of_a_failed_child(self, temporal: TemporalClient) -> None:
        """15.6.4, 9.6.3: and completes, as its model reads that the child failed."""
        usage = Usage(input=3, output=1)
        hand = a_hand(calls(("look", {}), usage=usage), ModelError("no"), tools=[MockTool("look")]).with_name(
            "hand"
        )
        boss = a_boss(hires("hand"), "Thanks").with_error_policy(ErrorPolicy.ignore_tool_errors())
        async with at_work(temporal, boss, hand) as office:
            execution = await office.start()
            result = await execution.result()
            child = await child_of(office, execution)

            assert await status_of(child) is FAILED
            assert await status_of(execution) is COMPLETED
            assert result.child_tokens == usage.total
            assert "close" not in await activities_of(execution)

    async def test_a_child_is_cancelled_alone(self, temporal: TemporalClient) -> None:
        """15.6.4, 8.2.1: its parent continues."""
        hand = a_hand(asks("?"), tools=[user_input()])
        boss = a_boss(hires("hand"), "Thanks").with_error_policy(ErrorPolicy.ignore_tool_errors())
        async with at_work(temporal, boss, hand) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            child = await child_of(office, execution)
            await child.cancel()
            await final_result(execution)

            assert await status_of(child) is CANCELED
            assert await status_of(execution) is COMPLETED
            assert "close" not in await activities_of(execution)


async def test_a_cancel_during_the_write_of_another_end_changes_nothing(temporal: TemporalClient) -> None:
    """1.2.1: the workflow closes like the end that is stored."""
    async with at_work(temporal, an_agent(says("Done"))) as office:
        async with office.store.hold("settle") as settling:
            execution = await office.start_directly()
            await settling.wait()
            await execution.workflow.cancel()
        await final_result(execution)

        assert (await execution.get()).status is ExecutionStatus.COMPLETED
        assert await status_of(execution) is COMPLETED


async def test_a_pending_execution_is_cancelled(temporal: TemporalClient) -> None:
    """15.6.3: no worker has taken it; once there is one, the workflow closes without work."""
    model = HeldModel()
    office = an_office(temporal, an_agent(model=model))
    execution = await office.start()
    command, _ = await office.store.command(execution.ref, "cancel/1", CommandKind.CANCEL)
    assert await execution.cancel_pending(command)
    async with office.worker():
        assert isinstance(await failure_of(execution), CancelledError)

    assert model.asked == 0
    assert (await execution.get()).status is ExecutionStatus.CANCELLED
    assert await status_of(execution) is CANCELED


@pytest.mark.parametrize("way", ["client", "temporal"])
async def test_a_run_that_continues_an_earlier_one_is_cancelled(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """15.6.3, 1.1.4: the cancel reaches the current run."""
    cut_like("rolled_over", monkeypatch)
    turns = [calls(("look", {})) for _ in range(12)]
    model = HeldModel(*turns, "Never", holds=10)
    async with at_work(temporal, an_agent(model=model, tools=[MockTool("look")])) as office:
        execution = await office.start()
        await model.begun.wait()
        await CANCELS[way](office, execution)
        await final_result(execution)

        assert len(await runs_of(execution)) > 1
        assert await status_of(execution) is CANCELED
        assert (await execution.get()).status is ExecutionStatus.CANCELLED


async def test_a_server_that_refuses_the_request_delays_no_end(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15.6.3: the workflow then closes as completed, with the same result; nothing waits for ever."""
    attempts = 0

    async def refuse(*_: object, **__: object) -> None:
        nonlocal attempts
        attempts += 1
        raise RPCError("no", RPCStatusCode.PERMISSION_DENIED, b"")

    retries = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3)
    monkeypatch.setitem(workflow_closing.CANCEL_REQUEST, "retry_policy", retries)
    async with at_work(temporal, asking()) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        with monkeypatch.context() as patch:
            patch.setattr("temporalio.client.WorkflowHandle.cancel", refuse)
            await execution.cancel()
            result = await final_result(execution)

        assert attempts == 3
        assert result.stop_reason is StopReason.USER_REQUESTED
        assert await status_of(execution) is COMPLETED
        assert (await execution.get()).status is ExecutionStatus.CANCELLED


async def test_a_terminated_workflow_has_no_result(temporal: TemporalClient) -> None:
    """15.6.2: its end is not recorded by itself; the reconciler records it."""
    async with at_work(temporal, asking()) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await execution.workflow.terminate()
        with pytest.raises(WorkflowFailureError) as raised:
            await execution.result()

    assert isinstance(raised.value.cause, TerminatedError)


async def test_the_details_of_a_cancel_are_encrypted_with_a_payload_key(temporal: TemporalClient) -> None:
    """8.9.4, 15.6.2: a client without the key reads nothing of them."""
    config = temporal.config()
    config["data_converter"] = data_converter("c2VjcmV0" * 5 + "c2U=")
    keyed = TemporalClient(**config)
    async with at_work(keyed, asking()) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await execution.cancel()
        result = await execution.result()
        end = (await events_of(execution))[-1].workflow_execution_canceled_event_attributes

    assert result.stop_reason is StopReason.USER_REQUESTED
    assert len(end.details.payloads) == 2
    assert {payload.metadata["encoding"] for payload in end.details.payloads} != {b"json/plain"}
    assert b"user_requested" not in end.SerializeToString()


async def test_with_a_payload_key_a_cancel_does_not_wait_for_the_next_attempt(
    temporal: TemporalClient,
) -> None:
    """8.9.4: Temporal writes of the model call that it had not started, in plain text."""
    config = temporal.config()
    config["data_converter"] = data_converter("c2VjcmV0" * 5 + "c2U=")
    async with at_work(TemporalClient(**config), an_agent(RateLimited("busy", 30), "Done")) as office:
        execution = await office.start()

        async def is_waiting() -> bool:
            return any(step.waits for step in await execution.steps())

        await eventually(is_waiting)
        await execution.cancel()
        result = await execution.result()
        (cancelled,) = of_type(await events_of(execution), "ACTIVITY_TASK_CANCELED")

    assert result.stop_reason is StopReason.USER_REQUESTED
    assert b"NOT_STARTED" in cancelled.SerializeToString()


def is_not_patched(patch_id: str) -> bool:
    del patch_id
    return False


async def test_a_workflow_of_an_older_release_closes_as_completed(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.2.1: the client reads that result as well."""
    monkeypatch.setattr(workflow_closing.workflow, "patched", is_not_patched)
    async with at_work(temporal, an_agent(ModelError("no"))) as office:
        execution = await office.start()
        result = await execution.result()

        assert result.stop_reason is StopReason.ERROR
        assert await status_of(execution) is COMPLETED


class TestNames:
    async def test_lists_and_pages_name_agent_session_and_console(self, temporal: TemporalClient) -> None:
        """15.6.5: also of a subagent."""
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand("Three")) as office:
            client = Client(
                temporal,
                office.port,
                office.client.agents,
                office.settings.task_queue,
                public_url="https://agents.example/here",
            )
            session = uuid4()
            execution = await client.start("boss", "Go", session_id=session)
            await final_result(execution)
            child = await child_of(office, execution)

            for each, agent in ((execution, "boss"), (child, "hand")):
                described = await each.workflow.describe()
                console = f"https://agents.example/here/console/executions/{each.id}"
                assert await described.memo() == {"agent": agent, "session": str(session), "console": console}
                assert await described.static_summary() == f"{agent} · session {session}"
                details = await described.static_details() or ""
                assert f"[Open in the console]({console})" in details
                assert f"everstep show {each.id}" in details

    async def test_without_a_public_url_there_is_no_link(self, temporal: TemporalClient) -> None:
        """15.6.5"""
        async with at_work(temporal, an_agent("Done")) as office:
            execution, _ = await office.run()
            described = await execution.workflow.describe()

        assert await described.memo() == {"agent": "agent"}
        assert "console" not in (await described.static_details() or "")


async def test_an_unregistered_search_attribute_prevents_no_start(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15.6.6: the execution starts without search attributes."""
    unknown = SearchAttributeKey.for_keyword(f"EverstepTenant{uuid4().hex}")
    monkeypatch.setattr(search_attributes, "TENANT", unknown)
    async with at_work(temporal, an_agent("Done")) as office:
        office.search_attributes = True
        execution, _ = await office.run()

        described: Any = await execution.workflow.describe()
        names = {pair.key.name for pair in described.typed_search_attributes}
        assert not any(name.startswith("Everstep") for name in names)
