"""Services that use a Temporal client only."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError
from temporalio.client import ActivityFailureError, Client as TemporalClient
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.testing import calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.capabilities.user_input import UseUserInput
from everstep.client.temporal_entry import (
    ActRequest,
    ExecutionReport,
    StartBudget,
    StartRequest,
    TemporalEntry,
)
from everstep.runtime.agents import AgentBook
from everstep.runtime.worker import make_worker
from everstep.steps.attachments import Attachments
from everstep.store.memory_attachments import MemoryAttachments
from tests.workflows.harness import NoModels, Office, WatchedStore, an_agent, an_office

ASKING = an_agent(
    calls(("user_input", {"prompt": "Which day?", "choices": ["Monday", "Friday"]})), says("Friday it is.")
).with_capability(UseUserInput())


def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@asynccontextmanager
async def open_service(temporal: TemporalClient, agent: DefinitionBuilder = ASKING) -> AsyncGenerator[Office]:
    """A worker with the Temporal entry activities, and its parts."""
    office = an_office(temporal, agent)
    book = AgentBook(office.client.agents.values(), NoModels())
    door = TemporalEntry(office.client)
    async with make_worker(temporal, office.port, book, office.settings, front_door=door):
        yield office


async def call_entry(
    office: Office, name: str, request: StartRequest | ActRequest, key: str | None = None
) -> ExecutionReport:
    """The calls of such a service."""
    return await office.temporal.execute_activity(
        f"everstep.{name}",
        request,
        id=key or str(uuid4()),
        task_queue=office.settings.task_queue,
        start_to_close_timeout=timedelta(seconds=20),
        result_type=ExecutionReport,
    )


async def test_an_execution_is_started_answered_and_followed_to_its_end(temporal: TemporalClient) -> None:
    """8.5.3"""
    async with open_service(temporal) as office:
        begun = await call_entry(office, "start", StartRequest(agent="agent", message="Plan it"))
        execution = office.client.execution(begun.execution_id)
        await office.until_status(execution, ExecutionStatus.PAUSED)

        await call_entry(
            office, "act", ActRequest(execution_id=begun.execution_id, act="answer", text="Friday")
        )
        await execution.result()

        ended = await call_entry(office, "act", ActRequest(execution_id=begun.execution_id, act="show"))
        assert (ended.status, ended.stop_reason) == (ExecutionStatus.COMPLETED, StopReason.COMPLETED)
        assert ended.response == "Friday it is."


async def test_an_execution_is_started_in_debug_mode(temporal: TemporalClient) -> None:
    """8.1.3"""
    async with open_service(temporal) as office:
        for debug in (False, True):
            begun = await call_entry(
                office, "start", StartRequest(agent="agent", message="Plan it", debug=debug)
            )
            execution = office.client.execution(begun.execution_id)

            assert (await office.store.material(execution.ref)).is_debug is debug


async def test_a_repeated_activity_starts_no_other_execution(temporal: TemporalClient) -> None:
    """1.1.4"""
    async with open_service(temporal) as office:
        request = StartRequest(agent="agent", message="Plan it")
        one = await call_entry(office, "start", request, "order-17")
        other = await call_entry(office, "start", request, "order-17")

        assert one.execution_id == other.execution_id


async def test_activities_of_different_workflows_start_different_executions(temporal: TemporalClient) -> None:
    """1.1.4: within a workflow the ids of activities are numbers."""
    office = an_office(temporal, ASKING)
    entry, environment = TemporalEntry(office.client), ActivityEnvironment()
    started: list[ExecutionReport] = []
    for workflow in ("first", "second", "second"):
        environment.info = replace(
            environment.info, workflow_id=workflow, workflow_run_id="run", activity_id="1"
        )
        started.append(await environment.run(entry.start, StartRequest(agent="agent", message="Plan it")))

    first, second, again = (each.execution_id for each in started)
    assert first != second
    assert second == again


async def test_a_decision_is_bound_to_the_listed_arguments(temporal: TemporalClient) -> None:
    """8.6.3"""
    agent = an_agent(calls(("delete", {"path": "a"})), says("Done."), tools=[tool(delete)])
    agent = agent.with_approval("delete", "always", approver="role:temporal")
    async with open_service(temporal, agent) as office:
        begun = await call_entry(office, "start", StartRequest(agent="agent", message="Delete a"))
        execution = office.client.execution(begun.execution_id)
        await office.until_status(execution, ExecutionStatus.PAUSED)
        act = ActRequest(execution_id=begun.execution_id, act="show")
        (asked,) = (await call_entry(office, "act", act)).requests
        assert (asked.kind, asked.tool) == (CallNeed.APPROVAL, "delete")

        for verdict in ("approve", "deny", "edit"):
            with pytest.raises(ActivityFailureError) as failure:
                await call_entry(office, "act", act.model_copy(update={"act": verdict}))
            assert f"{verdict} needs an args_digest" in str(failure.value.cause)
        approval = {"act": "approve", "args_digest": asked.args_digest}
        await call_entry(office, "act", act.model_copy(update=approval))
        await execution.result()
        (decided,) = await execution.all_requests()
        assert decided.resolution is not None
        assert decided.resolution.by is not None
        assert (decided.resolution.by.subject, decided.resolution.by.roles) == (
            "temporal:everstep.act",
            ("temporal",),
        )

        assert (await call_entry(office, "act", act)).status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize("approver", ["approve", "owner"])
async def test_a_client_of_temporal_decides_only_if_a_setting_permits_it(
    temporal: TemporalClient, approver: str
) -> None:
    """8.6.8: its calls carry no token."""
    agent = an_agent(calls(("delete", {"path": "a"})), says("Done."), tools=[tool(delete)])
    agent = agent.with_approval("delete", "always", approver=approver)
    async with open_service(temporal, agent) as office:
        execution = await office.client.start("agent", "Delete a", user_id="ann")
        await office.until_status(execution, ExecutionStatus.PAUSED)
        (asked,) = await execution.requests()
        environment = ActivityEnvironment()
        decision = ActRequest(execution_id=execution.id, act="approve", args_digest=asked.args_digest)

        with pytest.raises(ApplicationError, match=r"Only .* may decide about this call") as refused:
            await environment.run(TemporalEntry(office.client).act, decision)
        assert refused.value.type == "NotPermitted"
        await environment.run(TemporalEntry(office.client, may_approve=True).act, decision)
        await execution.result()


@pytest.mark.parametrize("digest", ["", " ", "A" * 64, "a" * 63])
def test_a_malformed_digest_is_refused_before_it_is_sent(digest: str) -> None:
    """8.6.3"""
    with pytest.raises(ValidationError, match="64 lower-case hexadecimal digits"):
        ActRequest(execution_id=UUID(int=5), act="approve", args_digest=digest)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (StartRequest(agent="nobody", message="x"), "No agent named 'nobody'"),
        (
            StartRequest(agent="agent", message="x", budget=StartBudget(on_exhausted="ask")),
            "budget has no amount; pass usd, tokens or steps",
        ),
        (StartRequest(agent="agent", message="x", model="fast"), "the agent 'agent' has a model of its own"),
        (ActRequest(execution_id=UUID(int=5), act="show"), "There is no execution"),
        (ActRequest(execution_id=UUID(int=5), act="answer", text="x"), "There is no execution"),
    ],
)
async def test_an_invalid_request_is_not_retried(
    temporal: TemporalClient, request_: StartRequest | ActRequest, complaint: str
) -> None:
    async with open_service(temporal) as office:
        name = "start" if isinstance(request_, StartRequest) else "act"

        with pytest.raises(ActivityFailureError) as failure:
            await call_entry(office, name, request_)

        assert isinstance(failure.value.cause, ApplicationError)
        assert complaint in str(failure.value.cause)
        assert failure.value.cause.non_retryable


async def test_a_start_has_a_budget_and_uploaded_files(temporal: TemporalClient) -> None:
    """4.8.1, 5.6.1: as a start over HTTP; a file itself is not sent through Temporal."""
    memory = MemoryAttachments()
    files = Attachments(memory, memory)
    office = an_office(temporal, an_agent("Seen."))
    office.store = WatchedStore()
    entry = TemporalEntry(replace(office.client, attachments=files))
    new = files.new_file("notes.txt", b"hello", "text/plain")
    file = await files.upload(office.client.tenant_id, "ann", new)
    budget = StartBudget(steps=5, on_exhausted="ask")
    request = StartRequest(agent="agent", message="Look", budget=budget, attachments=(file.id,))

    async with office.worker():
        begun = await ActivityEnvironment().run(entry.start, request)
        execution = office.client.execution(begun.execution_id)
        await execution.result()

        (account,) = await execution.budgets()
        assert (account.limit, account.spent, account.on_exhausted) == (5, 1, "ask")
        message, _ = await office.store.transcript(execution.ref)
        assert [each.name for each in message.attachments] == ["notes.txt"]
        unknown = request.model_copy(update={"attachments": (uuid4(),), "execution_id": uuid4()})
        with pytest.raises(ApplicationError, match="There is no attachment"):
            await ActivityEnvironment().run(entry.start, unknown)


@pytest.mark.parametrize("given", [[{"name": "a.png", "data": "iVBO"}], [b"PNG"], {"name": "a.png"}])
def test_a_file_itself_is_refused_with_what_to_do(given: object) -> None:
    """5.6.1"""
    with pytest.raises(ValidationError, match="upload each with POST /agent/attachments and pass its id"):
        StartRequest.model_validate({"agent": "agent", "message": "Look", "attachments": given})
