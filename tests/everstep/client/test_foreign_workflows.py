"""Workflows of other programs in the same namespace, on a real Temporal server with a real worker."""

import asyncio
import json
import logging
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    ActivityFailureError,
    Client as TemporalClient,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.background import FAILURES
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.reconciler import NAME, Reconciler
from everstep.runtime.codec import ENCODING
from everstep.runtime.temporal import names_an_execution
from everstep.store.sessions import PostgresSessions
from everstep.workflows.contracts import (
    CHILD_STATUS_SIGNAL,
    ID_PREFIX,
    PARENT_PAUSE_SIGNAL,
    WORKFLOW,
    ExecutionInput,
    execution_id_of,
    workflow_id,
)
from everstep.workflows.foreign_workflows import FOREIGN_WORKFLOW
from tests.everstep.client.parlour import SessionSetup, a_session_setup, open_session_setup
from tests.workflows.harness import HeldModel, an_agent, eventually

REF = ExecutionRef(uuid4())

FOREIGN: dict[str, list[Any]] = {
    "nothing": [],
    "None": [None],
    "a text": ["hello"],
    "a number": [7],
    "a list": [[1, 2]],
    "an empty object": [{}],
    "bytes": [b"\x00\xff"],
    "an object of theirs": [{"ref": "main", "plan": {}}],
    "an id that is none": [{"ref": {"execution_id": "hello"}, "plan": {}}],
    "two arguments": ["hello", "world"],
    "more than one of ours": [ExecutionInput(REF, ExecutionPlan()), True],
    "one of ours under another id": [ExecutionInput(REF, ExecutionPlan())],
}


async def start_foreign(
    parlour: SessionSetup, given: list[Any], id_: str | None = None
) -> WorkflowHandle[Any, Any]:
    """A workflow of our type that another program starts."""
    return await parlour.sessions.client.temporal.start_workflow(
        WORKFLOW, args=given, id=id_ or f"hello-{uuid4()}", task_queue=parlour.settings.task_queue
    )


async def test_a_foreign_workflow_fails_once(
    temporal: TemporalClient, store: PostgresSessions, caplog: pytest.LogCaptureFixture
) -> None:
    """1.3.4."""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        for kind, given in FOREIGN.items():
            handle = await start_foreign(parlour, given)
            with pytest.raises(WorkflowFailureError) as raised:
                await handle.result()

            assert isinstance(raised.value.cause, ApplicationError), kind
            assert (raised.value.cause.type, raised.value.cause.non_retryable) == (FOREIGN_WORKFLOW, True), (
                kind
            )
            events = [event async for event in handle.fetch_history_events()]
            assert len(events) == 5, kind  # started, scheduled, started, completed, failed
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_input_of_a_newer_version_waits_for_it(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """1.3.4: an older worker must not end an execution that a newer one began."""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        ref = ExecutionRef(uuid4())
        given = {
            "ref": {"execution_id": str(ref.execution_id)},
            "plan": {"max_steps": {"from": "the future"}},
        }
        handle = await start_foreign(parlour, [given], workflow_id(ref))

        async def has_failed_a_task() -> bool:
            return (await handle.describe()).raw_description.pending_workflow_task.attempt > 1

        await eventually(has_failed_a_task)
        await handle.terminate()


@pytest.mark.parametrize(
    ("payload", "is_ours"),
    [
        (Payload(metadata={"encoding": ENCODING}, data=b"?"), True),
        (Payload(data=b"\xff"), False),
        (Payload(data=b"[" * 100_000), False),
        (Payload(data=json.dumps({"ref": {"execution_id": str(uuid4())}, "plan": {}}).encode()), True),
    ],
    ids=["encrypted", "no JSON", "deep", "ours"],
)
def test_our_input_is_recognised_by_its_fields(payload: Payload, *, is_ours: bool) -> None:
    """1.3.4."""
    assert names_an_execution(payload) is is_ours


def test_only_the_canonical_form_of_an_id_is_ours() -> None:
    """1.3.4."""
    execution_id = uuid4()
    assert execution_id_of(f"{ID_PREFIX}{execution_id}") == execution_id
    for other in (str(execution_id), f"{ID_PREFIX}hello", f"{ID_PREFIX}{execution_id.hex}", "hello", ""):
        assert execution_id_of(other) is None


async def test_ended_foreign_workflows_are_not_reconciled(
    temporal: TemporalClient, store: PostgresSessions, caplog: pytest.LogCaptureFixture
) -> None:
    """1.3.4: a lost execution among them is repaired."""
    parlour = a_session_setup(temporal, store, an_agent(model=HeldModel()))
    handles = [
        await start_foreign(parlour, ["hello"], id_)
        for id_ in (f"hello-{uuid4()}", f"{ID_PREFIX}hello-{uuid4()}", f"{ID_PREFIX}{uuid4().hex}")
    ]
    session_id = await parlour.session()
    sent = await parlour.post(session_id)
    deleted = f"{ID_PREFIX}{uuid4()}"
    handles.append(await start_foreign(parlour, ["hello"], deleted))
    for handle in [*handles, parlour.execution(sent).workflow]:
        await handle.terminate()
    reconciler = parlour.reconciler
    caplog.set_level(logging.INFO, "everstep.client.reconciler")

    async def is_closed() -> bool:
        # Temporal's lists are late.
        await reconciler.once()
        return reconciler.total.closed == 1 and len(reconciler.logged) == 1

    await eventually(is_closed)
    assert (await parlour.execution(sent).get()).status is ExecutionStatus.FAILED
    await reconciler.once()
    named = [line for line in caplog.messages if line.endswith("and there is no execution of it")]
    assert named == [f"the workflow {deleted} is terminated, and there is no execution of it"]


async def test_an_execution_that_cannot_be_repaired_does_not_block_the_others(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.3.3."""
    parlour = a_session_setup(temporal, store, an_agent(model=HeldModel()))
    sent = [await parlour.post(await parlour.session()) for _ in range(3)]
    for each in sent:
        await parlour.execution(each).workflow.terminate()
    poisoned, close = sent[1].execution_id, vars(Reconciler)["_close"]

    async def breaks(self: Any, ref: ExecutionRef, *given: Any) -> None:
        if ref.execution_id == poisoned:
            raise ValueError("a row of nonsense")
        await close(self, ref, *given)

    monkeypatch.setattr("everstep.client.reconciler.Reconciler._close", breaks)
    reconciler, before = parlour.reconciler, FAILURES.counts[NAME]

    async def has_closed_others() -> bool:
        await reconciler.once()
        return reconciler.total.closed == 2

    await eventually(has_closed_others)
    assert FAILURES.counts[NAME] > before
    assert FAILURES.last[NAME] == "ValueError: a row of nonsense"


async def test_the_reconciler_continues_after_an_unexpected_error(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.3.3."""
    reconciler, stop, looks = a_session_setup(temporal, store, an_agent()).reconciler, asyncio.Event(), 0

    async def breaks(*_: Any, **__: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            stop.set()
        raise ZeroDivisionError

    monkeypatch.setattr(reconciler, "once", breaks)
    async with asyncio.timeout(10):
        await reconciler.run(stop, interval=0)

    assert looks == 3


INVALID: list[list[Any]] = [[], ["hello"], [{}], [1, 2, 3]]
"""Arguments of messages and activities that are none of ours."""


@pytest.mark.parametrize("name", [PARENT_PAUSE_SIGNAL, CHILD_STATUS_SIGNAL, "nothing-of-ours"])
async def test_an_invalid_signal_is_dropped(
    temporal: TemporalClient, store: PostgresSessions, name: str
) -> None:
    """1.3.4: a signal stays in the history."""
    model = HeldModel()
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        sent = await parlour.post(await parlour.session())
        await model.begun.wait()
        for given in INVALID:
            await parlour.execution(sent).workflow.signal(name, args=given)
        model.go_on.set()
        await parlour.wait_for_completion(sent)


async def test_an_invalid_update_is_refused(temporal: TemporalClient, store: PostgresSessions) -> None:
    """1.3.4."""
    model = HeldModel()
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        sent = await parlour.post(await parlour.session())
        await model.begun.wait()
        workflow: Any = parlour.execution(sent).workflow
        for name, given in product(("submit_input", "resolve_approval", "nothing"), INVALID[1:]):
            with pytest.raises((WorkflowUpdateFailedError, RPCError)):
                await workflow.execute_update(name, args=given)
        model.go_on.set()
        await parlour.wait_for_completion(sent)


async def test_a_foreign_activity_with_our_name_fails_without_effect(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """1.3.4."""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        names = ("infer", "run_tool", "process", "settle", "spawn", "report", "close")
        for name, given in product(names, INVALID):
            with pytest.raises(ActivityFailureError):
                await temporal.execute_activity(
                    name,
                    args=given,
                    id=f"other-{uuid4()}",
                    task_queue=parlour.settings.task_queue,
                    schedule_to_close_timeout=timedelta(seconds=30),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )
        await parlour.wait_for_completion(await parlour.post(await parlour.session()))
