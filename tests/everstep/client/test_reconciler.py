"""The reconciler repairs the traces of lost processes and of operators, once."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client as TemporalClient, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.commands import Command
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution
from everstep.agent_domain.storage.sessions import ExecutionFilter, OnBusy, Route
from everstep.agent_domain.storage.steps import BeginStep
from everstep.agent_domain.testing import calls
from everstep.capabilities.user_input import UseUserInput
from everstep.client.errors import Ended, Ending, Gone
from everstep.client.execution import Execution
from everstep.client.reconciler import Repairs
from everstep.client.sessions import SendResult, Sessions
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, open_session_setup
from tests.workflows.harness import HeldModel, an_agent, eventually

EVERY = ExecutionFilter()
NEW = NewExecution(ExecutionRef(uuid4()), ExecutionSpec(agent="agent"), (user("Go"),))


class ProcessLost(Exception):
    """The process dies here."""


async def accept_and_lose_process(parlour: SessionSetup, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """A message is stored, and its process is lost before the workflow starts."""
    session_id = await parlour.session()

    async def dies(*_: object, **__: object) -> None:
        raise ProcessLost

    with monkeypatch.context() as patch:
        patch.setattr("everstep.client.client.Client.launch", dies)
        with pytest.raises(ProcessLost):
            await parlour.post(session_id, key=key)
    (row,) = await parlour.executions(session_id)
    assert row.status is ExecutionStatus.PENDING


async def test_an_accepted_message_is_started_by_the_reconciler(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.2: an accepted message runs, once."""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        await accept_and_lose_process(parlour, monkeypatch, "once")
        both = await asyncio.gather(parlour.reconciler.once(), parlour.reconciler.once())
        (row,) = (await parlour.port.executions_of(parlour.scope, EVERY)).rows
        await parlour.wait_for_completion(row.ref.execution_id)

        assert 1 <= sum(repairs.launched for repairs in both) <= 2
        assert await parlour.conversation(row.ref.execution_id) == ["Hello", "Done"]
        assert not await parlour.reconciler.once()


async def test_an_accepted_message_is_started_when_it_is_posted_again(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.2"""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        await accept_and_lose_process(parlour, monkeypatch, "once")
        (row,) = (await parlour.port.executions_of(parlour.scope, EVERY)).rows
        assert row.ref.session_id
        sent = await parlour.post(row.ref.session_id, key="once")
        await parlour.wait_for_completion(sent)

        assert sent.execution_id == row.ref.execution_id
        assert len(await parlour.executions(row.ref.session_id)) == 1


async def test_a_message_behind_an_ended_execution_is_started(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.3.1: although the worker was lost that should have started it."""
    model = HeldModel("One", "Two")
    parlour = a_session_setup(temporal, store, an_agent(model=model))
    async with parlour.worker(forgetful=True):
        session_id = await parlour.session()
        first = await parlour.post(session_id)
        await model.begun.wait()
        second = await parlour.post(session_id, "And?")
        model.go_on.set()
        await parlour.wait_for_completion(first)
        assert second.route is Route.QUEUE
        repairs = await parlour.reconciler.once()
        await parlour.wait_for_completion(second)

        assert repairs == Repairs(launched=1)
        assert await parlour.conversation(second) == ["Hello", "One", "And?", "Two"]


@asynccontextmanager
async def open_busy_session(
    temporal: TemporalClient, store: PostgresSessions
) -> AsyncGenerator[tuple[SessionSetup, HeldModel, SendResult, SendResult]]:
    """A session whose first message waits for the model, and whose second is queued behind it."""
    model = HeldModel("One", "Two")
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        session_id = await parlour.session()
        first = await parlour.post(session_id)
        await model.begun.wait()
        yield parlour, model, first, await parlour.post(session_id, "And?")


async def test_an_execution_with_a_terminated_workflow_is_closed(
    temporal: TemporalClient, store: PostgresSessions, caplog: pytest.LogCaptureFixture
) -> None:
    """8.2.3: and the next message of its session starts."""
    async with open_busy_session(temporal, store) as (parlour, model, first, second):
        await parlour.execution(first).workflow.terminate("by an operator")
        reconciler = parlour.reconciler

        async def is_closed() -> bool:
            return (await reconciler.once()).closed == 1

        with caplog.at_level(logging.WARNING):
            await eventually(is_closed)
        model.go_on.set()
        await parlour.wait_for_completion(second)
        row = await parlour.execution(first).get()

        assert (row.status, row.error_message) == (ExecutionStatus.FAILED, "Its workflow was terminated")
        assert "Its workflow was terminated" in await parlour.message_texts(
            first.message.session_id, "notification"
        )
        assert f"closed the execution {first.execution_id} as failed" in caplog.text
        assert reconciler.total.closed == 1


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "terminated"])
async def test_an_execution_whose_workflow_is_gone_can_be_cancelled(
    temporal: TemporalClient, store: PostgresSessions, *, is_deleted: bool
) -> None:
    """8.2.13: by its user, or by a message of its session; the reconciler has not seen it yet."""
    question = calls(("user_input", {"prompt": "Which?"}))
    agent = an_agent(question, question, "Done").with_capability(UseUserInput())
    async with open_session_setup(temporal, store, agent) as parlour:
        session_id = await parlour.session()
        alone, first = await parlour.post(await parlour.session()), await parlour.post(session_id)
        for each in (alone, first):
            await parlour.wait_for_status(each, ExecutionStatus.PAUSED)
            await end_workflow(temporal, parlour.execution(each), is_deleted=is_deleted)
        urgent = await parlour.post(session_id, "Stop!", on_busy=OnBusy.INTERRUPT)
        execution = parlour.execution(alone)

        assert await parlour.sessions.cancel(execution.ref, "k-1"), "its end is stored"
        assert await parlour.sessions.cancel(execution.ref, "k-1"), "and may be requested again"
        await parlour.wait_for_completion(urgent)
        for each in (alone, first):
            row = await parlour.execution(each).get()
            assert (row.status, row.stop_reason) == (ExecutionStatus.CANCELLED, StopReason.USER_REQUESTED)
            assert not await parlour.execution(each).requests()
        assert await store.commands(parlour.settings.task_queue, 0.0) == ((), None)


async def test_a_cancel_without_a_workflow_starts_the_next_message_of_the_session(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.2.13: also through the handle of the execution, which commands and other Temporal clients use."""
    async with open_busy_session(temporal, store) as (parlour, model, first, second):
        await end_workflow(temporal, parlour.execution(first), is_deleted=True)
        await parlour.execution(first).cancel()
        model.go_on.set()
        await parlour.wait_for_completion(second)
        assert (await parlour.execution(first).get()).status is ExecutionStatus.CANCELLED


async def end_workflow(temporal: TemporalClient, execution: Execution, *, is_deleted: bool) -> None:
    """Delete a workflow as `temporal workflow delete` does, or terminate it."""
    if not is_deleted:
        await execution.workflow.terminate()
        return
    target = WorkflowExecution(workflow_id=execution.workflow.id)
    request = DeleteWorkflowExecutionRequest(namespace=temporal.namespace, workflow_execution=target)
    await temporal.workflow_service.delete_workflow_execution(request)

    async def is_missing() -> bool:
        try:
            await execution.workflow.describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await eventually(is_missing)


async def test_a_cancel_waits_for_a_workflow_that_has_just_started(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.13: its workflow was missing when the cancel was sent, and runs by now."""
    parlour = a_session_setup(temporal, store, an_agent("Done"))
    sent = await parlour.post(await parlour.session())
    execution = parlour.execution(sent)
    await store.begin_step(BeginStep(execution.ref, 1, 1, None))

    async def finds_none(*_: object) -> None:
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr("everstep.client.command_delivery.CommandDelivery._update", finds_none)
        with pytest.raises(Ending):
            await parlour.sessions.cancel(execution.ref, "k-1")
    assert (await execution.get()).status is ExecutionStatus.RUNNING
    async with parlour.worker():
        await parlour.reconciler.once()
        await parlour.wait_for_status(sent, ExecutionStatus.CANCELLED)


async def test_an_execution_whose_workflow_is_missing_in_temporal_runs_again_from_its_records(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.9.1: for example when Temporal's database was lost."""
    parlour = a_session_setup(temporal, store, an_agent("Done"))
    ref = replace(NEW.ref, execution_id=uuid4())
    await store.accept(replace(NEW, ref=ref, task_queue=parlour.settings.task_queue))
    await store.begin_step(BeginStep(ref, 1, 1, None))
    async with parlour.worker():
        repairs = await parlour.reconciler.once(thorough=True)

        async def is_completed() -> bool:
            row = await store.execution(ref)
            return row is not None and row.status is ExecutionStatus.COMPLETED

        await eventually(is_completed)
        assert repairs == Repairs(launched=1)


async def test_a_workflow_without_an_execution_is_ended(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.9.2: what a database that was restored from an older backup leaves in Temporal."""
    model = HeldModel("One")
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        session_id = await parlour.session()
        sent = await parlour.post(session_id)
        await model.begun.wait()
        handle = parlour.execution(sent).workflow
        async with store.engine.connect() as connection:
            statement = text("DELETE FROM agent_executions WHERE id = :id")
            await connection.execute(statement, {"id": sent.execution_id})

        reconciler = parlour.reconciler

        async def is_ended() -> bool:
            # Temporal's lists are late.
            await reconciler.once(thorough=True)
            return (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED

        await eventually(is_ended)
        assert reconciler.total.ended == 1


async def test_a_command_is_stored_until_there_is_a_worker(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.9: and delivered once, by the first of several reconcilers."""
    monkeypatch.setattr("everstep.client.reconciler.DELIVERY_SECONDS", 0.2)
    parlour = a_session_setup(temporal, store, an_agent("One", "Two"))
    sent = [await parlour.post(await parlour.session()) for _ in range(3)]
    for each in sent:
        await store.steer(parlour.execution(each).ref, "k-1", user("Hurry"))
    assert not await parlour.reconciler.once()

    async with parlour.worker():
        monkeypatch.undo()
        # Temporal may still have updates of the first pass, and then delivers them itself.
        await asyncio.gather(parlour.reconciler.once(), parlour.reconciler.once())
        for each in sent:
            await parlour.wait_for_completion(each)
            assert (await parlour.conversation(each)).count("Hurry") == 1

    assert await store.commands(parlour.settings.task_queue, 0.0) == ((), None)


async def test_an_execution_that_takes_no_command_does_not_keep_others_from_theirs(
    temporal: TemporalClient,
    store: PostgresSessions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """8.2.9: its workflow's task fails, for example; a later pass delivers it."""
    parlour = a_session_setup(temporal, store, an_agent("One", "Two"))
    stuck, other = [await parlour.post(await parlour.session()) for _ in range(2)]
    for each in (stuck, other):
        await store.steer(parlour.execution(each).ref, "k-1", user("Hurry"))
    carry_out = Sessions.carry_out

    async def refuse_one(sessions: Sessions, command: Command) -> None:
        if command.ref.execution_id == parlour.execution(stuck).ref.execution_id:
            raise RPCError("Workflow Task in failed state", RPCStatusCode.FAILED_PRECONDITION, b"")
        await carry_out(sessions, command)

    async with parlour.worker():
        with monkeypatch.context() as patch:
            patch.setattr(Sessions, "carry_out", refuse_one)
            reconciler = parlour.reconciler
            for _ in range(2):
                await reconciler.once()
        await parlour.wait_for_completion(other)
        assert (await parlour.conversation(other)).count("Hurry") == 1
        name = f"the execution {parlour.execution(stuck).id}"
        named = f"{name} takes no command: Workflow Task in failed state"
        assert warnings_of(caplog).count(named) == 1, "once, not at every pass"
        assert "1 delivered" in caplog.text, "the pass ended in order"

        await parlour.reconciler.once()
        assert await store.commands(parlour.settings.task_queue, 0.0) == ((), None)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings in the log."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_cancel_that_cannot_end_an_execution_yet_is_one_repair(
    temporal: TemporalClient,
    store: PostgresSessions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """8.2.9: its activity is paused in Temporal, for example; the end of the execution marks the cancel."""
    parlour = a_session_setup(temporal, store, an_agent("Done"))
    execution = parlour.execution(await parlour.post(await parlour.session()))
    await store.begin_step(BeginStep(execution.ref, 1, 1, None))
    await execution.request_cancel(key="k-1")

    async def is_accepted(*_: object) -> None:
        pass

    monkeypatch.setattr("everstep.client.command_delivery.CommandDelivery._update", is_accepted)
    reconciler = parlour.reconciler
    assert [(await reconciler.once()).delivered for _ in range(3)] == [1, 0, 0]
    delivered = f"delivered to the execution {execution.id}: cancel"
    assert [each for each in warnings_of(caplog) if execution.id.hex in each.replace("-", "")] == [delivered]


async def test_an_outage_is_waited_for(
    temporal: TemporalClient, store: PostgresSessions, caplog: pytest.LogCaptureFixture
) -> None:
    parlour = a_session_setup(temporal, store, an_agent())
    parlour.store.fail_next("repair_candidates", EverstepError("the database is away"))
    reconciler, stop, seen = parlour.reconciler, asyncio.Event(), list[int]()

    async def has_scanned_twice() -> bool:
        seen.append(1)
        return reconciler.last_pass_at is not None

    running = asyncio.create_task(reconciler.run(stop, interval=0.01))
    await eventually(has_scanned_twice)
    stop.set()
    await running

    assert "nothing was reconciled: the database is away" in caplog.text


def test_repairs_are_described() -> None:
    repairs = Repairs(launched=1)
    repairs.add(Repairs(closed=2))

    assert str(repairs) == (
        "1 launched, 0 released, 2 closed, 0 delivered, 0 handed_over, 0 admitted, 0 charged, 0 scheduled, "
        "0 repeated, 0 ended"
    )
    assert repairs
    assert not Repairs()


async def test_a_resume_follows_the_pause_that_waits_for_the_workflow(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2.9: both are accepted before the workflow begins, and it receives them in their order."""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        await accept_and_lose_process(parlour, monkeypatch, "once")
        (row,) = (await parlour.port.executions_of(parlour.scope, EVERY)).rows
        execution = parlour.execution(row.ref.execution_id)
        with pytest.raises(Ended):
            await execution.resume()
        await execution.pause(key="early")
        await execution.pause(key="early")
        await execution.resume()

        async def is_over() -> bool:
            await parlour.reconciler.once()
            return (await execution.get()).status is ExecutionStatus.COMPLETED

        await eventually(is_over)
        assert await parlour.store.pending_commands(row.ref) == ()
