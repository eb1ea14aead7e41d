"""Signals of services that have only a Temporal client: plain JSON, and nothing of Everstep."""

from base64 import b64encode
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as TemporalClient, WorkflowHandle
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.storage.requests import RequestRow
from everstep.capabilities.user_input import UseUserInput
from everstep.client.client import Execution
from everstep.client.command_delivery import CommandDelivery
from everstep.client.signal_entry import MAX_SIGNAL_BYTES, SIGNALS_MAY_NOT_APPROVE
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect, data_converter
from everstep.workflows import agent_execution, people_signals
from everstep.workflows.agent_execution import AgentExecution
from tests.services import Servers
from tests.workflows.failpoints import AttemptDied
from tests.workflows.harness import (
    HeldModel,
    an_agent,
    an_office,
    at_work,
    events_of,
    eventually,
    final_result,
    of_type,
    progress,
    runs_of,
)
from tests.workflows.test_people import asks, careful, results

DAY = {"type": "object", "properties": {"day": {"enum": ["Friday"]}}, "required": ["day"]}


class Service:
    """A program with a bare Temporal client."""

    def __init__(self, execution: Execution, temporal: TemporalClient) -> None:
        self.workflow: WorkflowHandle[Any, Any] = temporal.get_workflow_handle(execution.workflow.id)

    async def send(self, signal: str, *arguments: object) -> None:
        await self.workflow.signal(signal, args=arguments)

    async def read_refusals(self) -> list[tuple[str, str]]:
        return [(each["signal"], each["reason"]) for each in (await self.workflow.query("state"))["refused"]]

    async def wait_for_refusals(self, count: int) -> list[tuple[str, str]]:
        """Wait until so many are refused."""

        async def has_refusals() -> bool:
            return len(await self.read_refusals()) >= count

        await eventually(has_refusals)
        return await self.read_refusals()


@pytest.fixture
async def bare(services: Servers) -> TemporalClient:
    """A client as any service makes it."""
    return await TemporalClient.connect(services.temporal_address)


async def wait_for_message(execution: Execution) -> None:
    """Wait until the workflow received a message."""

    async def has_message() -> bool:
        return (await progress(execution)).facts.steered == 1

    await eventually(has_message)


async def only_request(execution: Execution) -> RequestRow:
    (request,) = await execution.requests()
    return request


@pytest.mark.parametrize(
    ("question", "answer", "reads"),
    [
        ({}, "Friday", "Friday"),
        ({"choices": ["Monday", "Friday"]}, {"text": "Friday", "request_id": None}, "Friday"),
        ({"schema": DAY}, {"data": {"day": "Friday"}}, '{"day":"Friday"}'),
        ({"schema": {"type": "boolean"}}, {"data": False}, "false"),
    ],
)
async def test_an_answer(
    temporal: TemporalClient, bare: TemporalClient, question: dict[str, Any], answer: Any, reads: str
) -> None:
    """8.12.1, 8.5.3: it is stored and delivered as over the API, and its text is in the history once."""
    agent = an_agent(asks("Which day?", **question), "Done").with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        service = Service(execution, bare)
        await service.send("user_input", answer)
        await final_result(execution)

        assert await results(execution) == [(reads, True)]
        assert await service.read_refusals() == []
        assert (await office.envelope_types(execution)).count("agent.input.received") == 1
    events = await events_of(execution)
    assert len(of_type(events, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")) == 1
    assert sum("Which day" in str(event) for event in events) == 0


def raw(data: bytes, encoding: str = "json/plain") -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding.encode()}, data=data))


ABSENT = str(uuid4())
USER_INPUT = "user_input takes one argument: a text, or an object {text | data, request_id?}"
BAD: list[tuple[str, tuple[object, ...], str]] = [
    ("user_input", (), USER_INPUT),
    ("user_input", (7,), USER_INPUT),
    ("user_input", ("Friday", "Monday"), USER_INPUT),
    ("user_input", ({},), f"{USER_INPUT}: either text or data"),
    ("user_input", ({"text": "Friday", "data": 1},), f"{USER_INPUT}: either text or data"),
    (
        "user_input",
        ({"answer": "Friday"},),
        "user_input does not fit: answer: there is no such key; choose from",
    ),
    ("user_input", ({"text": "Friday", "request_id": "x"},), "user_input does not fit: request_id: "),
    ("user_input", ({"text": "Friday", "request_id": ABSENT},), f"There is no question {ABSENT}"),
    ("user_input", ("Sunday",), "Answer must be one of: Monday, Friday"),
    ("user_input", ("x" * (MAX_SIGNAL_BYTES - 2),), "text has 262142 characters; send at most 200000"),
    ("user_input", ("x" * MAX_SIGNAL_BYTES,), "user_input has 262146 bytes; send at most 262144"),
    ("user_input", ("Fri\x00day",), "text "),
    ("user_input", (raw(b"{"),), "user_input cannot be read"),
    ("user_input", (raw(b"[" * 100_000),), "user_input cannot be read"),
    ("user_input", (raw(b"\xff"),), "user_input cannot be read"),
    ("user_input", (raw(b"Friday", "theirs"),), "user_input cannot be read"),
    ("user_input", (b"Friday",), USER_INPUT),
    ("steer", (), "steer takes one argument: a text"),
    ("steer", (" ",), "steer has no text"),
    ("approve", ("yes",), "approve takes one argument: an object"),
    ("approve", ({"request_id": ABSENT, "decision": "yes"},), "approve does not fit: "),
    (
        "approve",
        ({"request_id": ABSENT, "decision": "approve", "args_digest": "0" * 64},),
        f"There is no approval {ABSENT}",
    ),
    ("cancel", ("now",), "cancel takes no argument"),
    (
        "user-input",
        ("Friday",),
        "nothing handles this signal; send one of: user_input, approve, steer, cancel;",
    ),
    ("x" * 500, (), "nothing handles this signal"),
]


async def test_what_is_refused_is_shown_and_logged(
    temporal: TemporalClient, bare: TemporalClient, caplog: pytest.LogCaptureFixture
) -> None:
    """8.12.2, 8.12.4: the last twenty; nothing is stored, steered or decided, and no workflow task fails."""
    agent = an_agent(asks("Which?", choices=["Monday", "Friday"]), "Done").with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        service, kinds = Service(execution, bare), await office.envelope_types(execution)
        seen = list[tuple[str, str]]()
        for signal, arguments, reason in BAD:
            await service.send(signal, *arguments)

            async def is_refused(reason: str = reason) -> bool:
                nonlocal seen
                before, seen = seen, await service.read_refusals()
                return seen != before and seen[-1][1].startswith(reason)

            await eventually(is_refused)
        assert [name for name, _ in seen] == [name[:100] for name, *_ in BAD[-20:]]
        assert await office.envelope_types(execution) == kinds
        assert (await execution.get()).status is ExecutionStatus.PAUSED
        await service.send("user_input", "Friday")
        await final_result(execution)

        assert await results(execution) == [("Friday", True)]
        assert await office.conversation(execution) == ["Go", "", "Friday", "Done"]
        assert await service.read_refusals() == seen
    assert not of_type(await events_of(execution), "WORKFLOW_TASK_FAILED")
    warnings = [r.getMessage() for r in caplog.records if "the signal" in r.getMessage()]
    assert len(warnings) == len(BAD)
    assert "Monday" not in "".join(warnings)


async def test_the_same_signal_twice(temporal: TemporalClient, bare: TemporalClient) -> None:
    """8.12.2: a repeated answer changes nothing; one without an open question is refused and not steered."""
    model = HeldModel(asks("Which?"), "Done", holds=2)
    agent = an_agent(model=model).with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        service, request = Service(execution, bare), await only_request(execution)
        answer = {"text": "Friday", "request_id": str(request.id)}
        await service.send("user_input", answer)
        await service.send("user_input", answer)
        await model.begun.wait()
        await service.send("user_input", "Monday")
        assert await service.wait_for_refusals(1) == [("user_input", "No question is open")]
        model.go_on.set()
        result = await final_result(execution)

        assert await office.conversation(execution) == ["Go", "", "Friday", "Done"]
        assert (await office.envelope_types(execution)).count("agent.input.received") == 1
        assert result.unheard == 0


@pytest.mark.parametrize(
    ("decided", "text"),
    [
        ({"decision": "approve"}, "deleted a"),
        ({"decision": "deny", "reason": "Keep it"}, "Denied by user: Keep it"),
        ({"decision": "edit", "args": {"path": "b"}}, '[Arguments edited by user: {"path":"b"}]\ndeleted b'),
    ],
)
async def test_a_decision(
    temporal: TemporalClient, bare: TemporalClient, decided: dict[str, Any], text: str
) -> None:
    """8.12.3: only where the setting allows it; bound to the digest, once."""
    office = an_office(temporal, careful("a"))
    execution = await office.start()
    service = Service(execution, bare)
    async with office.worker():
        await office.until_waiting(execution)
        request = await only_request(execution)
        decision = {"request_id": str(request.id), "args_digest": request.args_digest, **decided}
        await service.send("approve", decision)
        ((name, reason),) = await service.wait_for_refusals(1)
        assert (name, reason.endswith(f"ask one of them. {SIGNALS_MAY_NOT_APPROVE}")) == ("approve", True)
        assert await only_request(execution) == request
    office.settings = office.settings.model_copy(update={"approve_by_signal": "on"})
    async with office.worker():
        await service.send("approve", {**decision, "args_digest": "0" * 64})
        assert (await service.wait_for_refusals(2))[1] == (
            "approve",
            "Approval does not match the pending call",
        )
        await service.send("approve", decision)
        await final_result(execution)

        assert [result for result, _ in await results(execution)] == [text]
        assert len(await service.read_refusals()) == 2
        decided_request = await office.store.request(execution.ref, request.id)
        decider = decided_request.resolution.by
        assert decider.subject == f"temporal:{bare.identity}"
        assert decider.scopes == (("approve", "approve:edit") if "args" in decided else ("approve",))


async def test_a_decision_about_a_call_that_names_the_role(
    temporal: TemporalClient, bare: TemporalClient
) -> None:
    """8.12.3: whatever the setting; other arguments need the scope."""
    agent = careful("a").with_approval("delete", "always", approver="role:temporal")
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        service, request = Service(execution, bare), await only_request(execution)
        decision = {"request_id": str(request.id), "args_digest": request.args_digest}
        await service.send("approve", {**decision, "decision": "edit", "args": {"path": "b"}})
        ((_, reason),) = await service.wait_for_refusals(1)
        assert reason.startswith("Other arguments need the scope 'approve:edit'")
        await service.send("approve", {**decision, "decision": "approve"})
        await final_result(execution)

        assert await results(execution) == [("deleted a", True)]
        decided = await office.store.request(execution.ref, request.id)
        assert (decided.resolution.by.scopes, decided.resolution.by.roles) == ((), ("temporal",))


async def test_a_worker_is_lost_between_a_signal_and_its_activity(
    temporal: TemporalClient, bare: TemporalClient
) -> None:
    """8.12.1: the answer is stored once, by the next worker."""
    office = an_office(temporal, an_agent(asks("Which?"), "Done").with_capability(UseUserInput()))
    execution = await office.start()
    async with office.store.hold("resolve") as resolving:
        async with office.worker():
            await office.until_waiting(execution)
            await Service(execution, bare).send("user_input", "Friday")
            await resolving.wait()
        assert await only_request(execution)
    async with office.worker():
        await final_result(execution)
        assert await results(execution) == [("Friday", True)]
        assert (await office.envelope_types(execution)).count("agent.input.received") == 1


async def test_a_worker_is_lost_after_an_answer_is_stored(
    temporal: TemporalClient, bare: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.12.1: the next attempt delivers it."""
    update, died = vars(CommandDelivery)["_update"], False

    async def dies(self: Any, *given: Any) -> None:
        nonlocal died
        if not died:
            died = True
            raise AttemptDied
        await update(self, *given)

    monkeypatch.setattr("everstep.client.command_delivery.CommandDelivery._update", dies)
    agent = an_agent(asks("Which?"), "Done").with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await Service(execution, bare).send("user_input", "Friday")
        await final_result(execution)

        assert died
        assert await results(execution) == [("Friday", True)]
        assert (await office.envelope_types(execution)).count("agent.input.received") == 1


async def test_messages_and_cancels_reach_pending_running_and_paused_executions(
    temporal: TemporalClient, bare: TemporalClient
) -> None:
    """8.12.1: and Temporal refuses those to an execution that has ended."""
    model = HeldModel("One", "Two")
    office = an_office(temporal, an_agent(model=model))
    execution = await office.start()
    service = Service(execution, bare)
    await service.send("steer", "Mind the gap")
    async with office.worker():
        await wait_for_message(execution)
        await model.begun.wait()
        await execution.pause()
        model.go_on.set()
        await office.until_status(execution, ExecutionStatus.PAUSED)
        await service.send("cancel")
        result = await final_result(execution)

        assert result.stop_reason is StopReason.USER_REQUESTED
        assert await service.read_refusals() == []
        with pytest.raises(RPCError) as refused:
            await service.send("cancel")
        assert refused.value.status is RPCStatusCode.NOT_FOUND


async def test_a_message_is_read_before_the_next_step(temporal: TemporalClient, bare: TemporalClient) -> None:
    """8.12.1, 8.3.2."""
    model = HeldModel("One", "Two")
    async with at_work(temporal, an_agent(model=model)) as office:
        execution = await office.start()
        await model.begun.wait()
        service = Service(execution, bare)
        await service.send("steer", "Mind the gap")
        await wait_for_message(execution)
        model.go_on.set()
        await final_result(execution)
        assert await office.conversation(execution) == ["Go", "One", "Mind the gap", "Two"]


async def test_the_next_run_keeps_what_was_refused(
    temporal: TemporalClient, bare: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.12.2, 1.3.2: and counts its own signals."""
    monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 5)
    agent = an_agent(asks("First?"), asks("Second?"), "Done").with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        service = Service(execution, bare)
        for answer in ("one", "two"):
            await office.until_waiting(execution)
            await service.send("approve", answer)
            await service.send("user_input", answer)
            await office.until_running_again(execution)
        await final_result(execution)

        assert await results(execution) == [("one", True), ("two", True)]
        assert [name for name, _ in await service.read_refusals()] == ["approve", "approve"]
    assert len(await runs_of(execution)) > 1


async def test_plain_signals_where_payloads_are_encrypted(
    services: Servers, temporal: TemporalClient, bare: TemporalClient
) -> None:
    """8.12.2, 8.9.4: shown as refused; encrypted ones are carried out."""
    key = b64encode(bytes(32)).decode()
    encrypted = await connect(Settings(temporal_address=services.temporal_address, payload_key=key))
    agent = an_agent(asks("Which?"), "Done").with_capability(UseUserInput())
    async with at_work(encrypted, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        service = Service(execution, encrypted)
        await Service(execution, bare).send("user_input", "Monday")
        ((name, reason),) = await service.wait_for_refusals(1)
        assert (name, "is not encrypted" in reason) == ("user_input", True)
        await service.send("user_input", "Friday")
        await final_result(execution)
        assert await results(execution) == [("Friday", True)]


async def test_histories_of_a_release_that_ignored_signals_are_replayed(
    temporal: TemporalClient, bare: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.12.5, 1.1.2: no command is added to them."""
    agent = an_agent(asks("Which?"), "Done").with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        with monkeypatch.context() as patch:
            patch.setattr(people_signals, "PEOPLE_SIGNALS", ())
            await Service(execution, bare).send("user_input", "Friday")
            await Service(execution, bare).wait_for_refusals(1)
            await execution.submit_input("Monday")
            await final_result(execution)
        history = await execution.workflow.fetch_history()
    await Replayer(workflows=[AgentExecution], data_converter=data_converter()).replay_workflow(history)


async def test_signals_wait_for_earlier_ones_and_a_cancel_does_not(
    temporal: TemporalClient, bare: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.12.1, 8.12.2: further ones are refused, so that the execution can end."""
    monkeypatch.setattr(people_signals, "MAX_WAITING", 1)
    agent = an_agent(asks("Which?"), "Done").with_capability(UseUserInput())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        service = Service(execution, bare)
        async with office.store.hold("resolve") as resolving:
            await service.send("user_input", "Friday")
            await resolving.wait()
            await service.send("steer", "Hurry")
            ((name, reason),) = await service.wait_for_refusals(1)
            assert (name, reason) == ("steer", "1 earlier signals are not carried out yet; send it later")
            await service.send("cancel")
            await office.until_status(execution, ExecutionStatus.CANCELLED)
        await final_result(execution)

        assert (await service.read_refusals())[1][0] == "user_input"
        assert await results(execution) == [("Error: Cancelled before it finished", False)]
