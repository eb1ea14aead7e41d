"""People answer, approve, steer, pause and cancel: the effects on an execution, and the refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client as TemporalClient

from everstep.activities.call_records import NOT_ALLOWED
from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.capabilities.approvals import args_digest
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.client.client import Execution
from everstep.client.command_delivery import CommandDelivery
from everstep.client.errors import Refused
from everstep.workflows.contracts import CallReply
from tests.workflows.harness import (
    HeldModel,
    Office,
    an_agent,
    at_work,
    events_of,
    final_result,
    of_type,
    progress,
    reset_execution,
    scheduled_activities,
    seconds_between,
)


def user_input(wait_seconds: float | None = None, handler: Callable[..., Any] | None = None) -> MockTool:
    """A tool for questions to people; without an answer, the handler decides."""
    options = ToolOptions(need=CallNeed.INPUT, wait_seconds=wait_seconds)
    schema = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}
    return MockTool("user_input", handler=handler, schema=schema, options=options)


def asks(*prompts: str, **more: Any) -> InferenceResponse:
    """A response that asks people."""
    return calls(*(("user_input", {"prompt": prompt, **more}) for prompt in prompts))


async def results(execution: Execution) -> list[tuple[str, bool]]:
    """The results of each call, and whether it counts as a success."""
    steps = await execution.steps()
    return [(c.record.text, c.record.success) for step in steps for c in step.calls if c.record]


async def test_a_reset_workflow_receives_its_answers_again(temporal: TemporalClient) -> None:
    """8.4.1, 18.9.1: with its first task, before it has read its steps from their records."""
    model = HeldModel(calls(("look", {})), asks("Which colour?"), "Done", holds=3)
    agent = an_agent(model=model, tools=[user_input(), MockTool("look")])
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await execution.submit_input("Blue")
        await model.begun.wait()
        await reset_execution(execution)
        model.go_on.set()
        result = await final_result(execution)

        assert result.status is AgentStatus.COMPLETED
        assert [text for text, _ in await results(execution)][1:] == ["Blue"]
        assert model.asked <= 4, "the third step alone may be asked twice"


class TestQuestions:
    async def test_an_answer_becomes_the_result_of_the_call(self, temporal: TemporalClient) -> None:
        """8.4.1, 8.5.2, 8.5.3: the same execution continues in the same step."""
        ask = user_input()
        async with at_work(temporal, an_agent(asks("Which colour?"), "Done", tools=[ask])) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            (request,) = await execution.requests()
            row = await execution.get()
            await execution.submit_input("Blue")
            result = await final_result(execution)

            assert request.request["prompt"] == "Which colour?"
            assert (row.status, row.step_count) == (ExecutionStatus.PAUSED, 0)
            assert await results(execution) == [("Blue", True)]
            assert await office.conversation(execution) == ["Go", "", "Blue", "Done"]
            assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]
            kinds = await office.envelope_types(execution)
        asked_at = kinds.index("agent.input.requested")
        assert kinds[asked_at + 1] == "agent.status"
        assert result.steps == 2
        assert ask.calls == []

    async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(
        self, temporal: TemporalClient
    ) -> None:
        """8.5.4: nothing is stored, the execution stays paused."""
        agent = an_agent(asks("Which?", choices=["Red", "Blue"]), "Done", tools=[user_input()])
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            with pytest.raises(InvalidInput, match=r"^Answer must be one of: Red, Blue$"):
                await execution.submit_input("Green")

            assert len(await execution.requests()) == 1
            assert (await execution.get()).status is ExecutionStatus.PAUSED
            await execution.submit_input(" Red ")
            await final_result(execution)
            assert await results(execution) == [("Red", True)]
        accepted = of_type(await events_of(execution), "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        assert len(accepted) == 1

    async def test_several_questions_are_asked_one_after_the_other(self, temporal: TemporalClient) -> None:
        """8.5.2: in response order; a message answers the oldest."""
        agent = an_agent(asks("First?", "Second?"), "Done", tools=[user_input()])
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            for answer in ("one", "two"):
                await office.until_waiting(execution)
                await execution.submit_input(answer)
            await final_result(execution)

            assert await results(execution) == [("one", True), ("two", True)]
            assert (await office.statuses(execution)).count("paused") == 2

    async def test_no_answer_arrives_in_time(self, temporal: TemporalClient) -> None:
        """8.5.5: the tool decides on its default or a failure."""

        def no_answer(**_args: object) -> str:
            raise TimeoutError("No answer within 0.05s")

        def default(**_args: object) -> str:
            return "Blue"

        with_default = an_agent(asks("?"), "Done", tools=[user_input(0.05, default)])
        without = an_agent(asks("?"), tools=[user_input(0.05, no_answer)])
        agents = with_default.with_name("with"), without.with_name("without")
        async with at_work(temporal, *agents) as office:
            (first, _), (second, failed) = await asyncio.gather(
                office.run(agent="with"), office.run(agent="without")
            )

            assert await results(first) == [("Blue", True)]
            assert await results(second) == [("Error: No answer within 0.05s", False)]
            assert await first.requests() == ()
            (step,) = await second.steps()
        error = step.calls[0].record and step.calls[0].record.error
        assert error
        assert error.type is ErrorType.TIMEOUT
        assert failed.stop_reason is StopReason.ERROR

    async def test_an_answer_whose_signal_was_lost_is_delivered_again(self, temporal: TemporalClient) -> None:
        """8.5.3: the answer was stored, but the execution did not receive it: sending the same answer again
        helps.
        """
        async with at_work(temporal, an_agent(asks("?"), "Done", tools=[user_input()])) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            (request,) = await execution.requests()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CommandDelivery, "_update", nothing_happens)
                await execution.submit_input("Blue")
            await execution.submit_input("Blue", request_id=request.id)
            await final_result(execution)

            assert await results(execution) == [("Blue", True)]


async def nothing_happens(*_args: object) -> None:
    """The process died before it signalled the workflow."""


def delete(path: str) -> str:
    """Deletes a file."""
    return f"deleted {path}"


def careful(*paths: str, also: list[tuple[str, dict[str, Any]]] | None = None) -> Any:
    """An agent that deletes files, and asks first."""
    script = calls(*(("delete", {"path": path}) for path in paths), *(also or []))
    return an_agent(script, "Done", tools=[tool(delete)]).with_approval("delete", "always")


async def approve(execution: Execution) -> None:
    await execution.approve()


async def deny(execution: Execution) -> None:
    await execution.deny()


async def deny_because(execution: Execution) -> None:
    await execution.deny(reason=" Keep it ")


async def edit(execution: Execution) -> None:
    await execution.edit({"path": "b"})


class TestApprovals:
    @pytest.mark.parametrize(
        ("decide", "text", "success"),
        [
            (approve, "deleted a", True),
            (deny, "Denied by user", False),
            (deny_because, "Denied by user: Keep it", False),
            (edit, '[Arguments edited by user: {"path":"b"}]\ndeleted b', True),
        ],
    )
    async def test_a_decision(
        self,
        temporal: TemporalClient,
        decide: Callable[[Execution], Awaitable[None]],
        text: str,
        success: bool,
    ) -> None:
        """8.6.2: the call that runs, and its result; a denial is no error for the error policy."""
        async with at_work(temporal, careful("a")) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            (request,) = await execution.requests()
            await decide(execution)
            result = await final_result(execution)

            assert (request.tool, request.args) == ("delete", {"path": "a"})
            assert request.args_digest == args_digest("delete", {"path": "a"})
            assert await results(execution) == [(text, success)]
            assert [s.errors for s in await execution.steps()] == [(), ()]
            kinds = [kind for kind in await office.envelope_types(execution) if "approval" in kind]
        assert kinds == ["agent.approval.requested", "agent.approval.resolved"]
        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)

    async def test_a_decision_holds_for_one_call_with_these_arguments_once(
        self, temporal: TemporalClient
    ) -> None:
        """8.6.3: another digest, other arguments that do not fit, and a second decision are refused."""
        async with at_work(temporal, careful("a", "b")) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            first, second = await execution.requests()
            with pytest.raises(Refused, match=r"^Approval does not match the pending call$"):
                await execution.approve(first.id, args_digest=second.args_digest)
            for digest in ("", " ", first.args_digest.upper(), first.args_digest[:63]):
                for decided in (
                    execution.approve(first.id, args_digest=digest),
                    execution.deny(first.id, args_digest=digest),
                    execution.edit({"path": "b"}, first.id, args_digest=digest),
                ):
                    with pytest.raises(InvalidInput, match="64 lower-case hexadecimal digits"):
                        await decided
            with pytest.raises(InvalidInput, match=r"^Required arguments are missing: path$"):
                await execution.edit({}, first.id)
            assert len(await execution.requests()) == 2

            approved = await execution.approve(first.id, key="mine")
            assert (await execution.approve(first.id, key="mine")).id == approved.id
            for key in ("hers", None):
                with pytest.raises(Refused, match=r"^Approval already resolved$"):
                    await execution.deny(first.id, key=key)
            await execution.deny(second.id)
            await final_result(execution)

            assert await results(execution) == [("deleted a", True), ("Denied by user", False)]

    async def test_an_approval_that_is_remembered_covers_later_calls(self, temporal: TemporalClient) -> None:
        """8.6.4: those that match, in this execution; the others ask again."""
        paths = ("a1", "a2", "b1")
        script = [calls(("delete", {"path": path})) for path in paths]
        agent = an_agent(*script, "Done", tools=[tool(delete)]).with_approval("delete", "always")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            with pytest.raises(InvalidInput, match="does not match the call that is approved"):
                await execution.approve(remember={"path": "b*"})
            await execution.approve(remember={"path": "a*"})
            await office.until_waiting(execution)
            (request,) = await execution.requests()
            assert request.args == {"path": "b1"}
            await execution.approve()
            await final_result(execution)

            assert await results(execution) == [(f"deleted {path}", True) for path in paths]

    async def test_only_a_stored_decision_approves_a_call(self, temporal: TemporalClient) -> None:
        """8.6.3: access to the workflow alone does not approve anything."""
        async with at_work(temporal, careful("a")) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            (request,) = await execution.requests()
            workflow: Any = execution.workflow
            await workflow.execute_update("resolve_approval", CallReply(request.call_id))
            await final_result(execution)

            assert await results(execution) == [(f"Error: {NOT_ALLOWED}", False)]

    async def test_a_decision_while_another_call_still_runs(self, temporal: TemporalClient) -> None:
        """8.6.2: it counts although nothing waited for it yet."""
        runs, go_on = asyncio.Event(), asyncio.Event()

        @tool
        async def look() -> str:
            "Looks, for long."
            runs.set()
            await go_on.wait()
            return "seen"

        agent = careful("a", also=[("look", {})]).with_tools([look])
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await runs.wait()
            await execution.approve()
            go_on.set()
            await final_result(execution)

            assert await results(execution) == [("deleted a", True), ("seen", True)]
            assert "paused" not in await office.statuses(execution)

    async def test_an_approval_has_no_deadline(self, temporal: TemporalClient) -> None:
        """8.4.1, 8.6.2: silence approves nothing, also where an answer may be late."""
        ask = user_input(wait_seconds=0.001)
        agent = an_agent(asks("?"), "Done", tools=[ask]).with_approval(ask.name, "always")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await execution.deny()
            await final_result(execution)

        assert of_type(await events_of(execution), "TIMER_STARTED") == []
        assert ask.calls == []

    async def test_an_approval_may_expire(self, temporal: TemporalClient) -> None:
        """8.6.10: each call at its own time, and the model reads the reason."""
        rules = [
            {"tool": "delete", "args": {"path": "a"}, "approval": "always", "expires_after": 0.2},
            {"tool": "delete", "args": {"path": "b"}, "approval": "always", "expires_after": 0.5},
            {"tool": "delete", "approval": "always"},
        ]
        agent = careful("a", "b", "c").with_approval("delete", rules)
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)

            async def has_one_request() -> bool:
                return len(await execution.requests()) == 1

            await office.store.until(has_one_request)
            (request,) = await execution.requests()
            assert (request.args, request.expires_at) == ({"path": "c"}, None)
            await execution.approve(request.id)
            await final_result(execution)

            assert await results(execution) == [
                ("Denied: No decision within 0.2s", False),
                ("Denied: No decision within 0.5s", False),
                ("deleted c", True),
            ]
            first, *_ = await execution.all_requests()
            assert first.resolution is not None
            assert (first.resolution.outcome, first.resolution.by) == ("expired", None)
            assert await office.port.pending_commands(execution.ref) == ()
            envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)
            announced = [e.payload for e in envelopes if e.type == "agent.approval.requested"]
            assert [bool(payload["expires_at"]) for payload in announced[:3]] == [True, True, False]

    async def test_a_decision_that_is_stored_first_counts(self, temporal: TemporalClient) -> None:
        """8.6.10: even if its update arrives after the expiry; one after that is refused."""
        agent = careful("a", "b").with_approval("delete", "always", expires_after=0.3)
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            first, second = await execution.requests()
            stored = await office.store.resolve(execution.ref, first.id, Resolution("approve"))
            assert stored

            async def is_second_denied() -> bool:
                row = await office.port.request(execution.ref, second.id)
                return row is not None and row.resolution is not None

            await office.store.until(is_second_denied)
            with pytest.raises(Refused, match="Approval already resolved"):
                await execution.approve(second.id)
            (command,) = await office.port.pending_commands(execution.ref)
            await execution.deliver(command)
            await final_result(execution)

            assert await results(execution) == [
                ("deleted a", True),
                ("Denied: No decision within 0.3s", False),
            ]

    async def test_calls_without_approval_run_in_the_meantime(self, temporal: TemporalClient) -> None:
        """8.6.2: and the results are in response order."""
        agent = careful("a", also=[("look", {})]).with_tools([MockTool.returning("look", "", "seen")])
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)

            assert await results(execution) == [("seen", True)]
            await execution.approve()
            await final_result(execution)
            assert await office.conversation(execution) == ["Go", "", "deleted a", "seen", "Done"]


class TestSteering:
    async def test_a_message_is_inserted_at_the_next_boundary(self, temporal: TemporalClient) -> None:
        """8.3.1: after the step is recorded, never between a call and its result; it requests a step."""
        model = HeldModel(calls(("look", {})), "Done", "Blue then", holds=1)
        async with at_work(temporal, an_agent(model=model, tools=[MockTool("look")])) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.steer("Blue, please")
            model.go_on.set()
            result = await final_result(execution)

            assert await office.conversation(execution) == ["Go", "", "null", "Blue, please", "Done"]
        assert (result.steps, result.unheard) == (2, 0)

    async def test_a_message_requests_one_more_step(self, temporal: TemporalClient) -> None:
        """8.3.1: it counts as a continuation request."""
        model = HeldModel("Red", "Blue", holds=1)
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.steer("Blue, please", key="once")
            await execution.steer("Blue, please", key="once")
            model.go_on.set()
            result = await final_result(execution)
            first, _ = await execution.steps()

            assert await office.conversation(execution) == ["Go", "Red", "Blue, please", "Blue"]
        assert first.outcome
        assert first.outcome["resolvedBy"] == "ContinuationRequest"
        assert (result.steps, result.unheard) == (2, 0)

    async def test_a_message_that_a_guard_forbids_stays_in_the_queue(self, temporal: TemporalClient) -> None:
        """8.3.1: the boundary is evaluated without it, and the result reports it."""
        model = HeldModel("Red")
        async with at_work(temporal, an_agent(model=model).with_max_steps(1)) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.steer("Blue, please")
            model.go_on.set()
            result = await final_result(execution)

            assert await office.conversation(execution) == ["Go", "Red"]
        assert (result.steps, result.unheard, result.stop_reason) == (1, 1, StopReason.COMPLETED)

    async def test_a_message_during_the_end_is_kept(self, temporal: TemporalClient) -> None:
        """8.3.2: once it is accepted, the workflow cannot refuse it any more."""
        async with at_work(temporal, an_agent("Done")) as office:
            async with office.store.hold("settle") as settling:
                execution = await office.start_directly()
                await settling.wait()
                await execution.steer("Wait", key="once")
            await final_result(execution)
            with pytest.raises(ExecutionEnded):
                await execution.steer("Wait")

            steering = await office.store.steering(execution.ref, "once")
            assert not steering.is_settled
            assert await office.store.pending_commands(execution.ref) == ()


class TestPausing:
    async def test_a_resume_delivers_the_pause_that_was_accepted_before_it(
        self, temporal: TemporalClient
    ) -> None:
        """8.2.9: a process was lost between the two; the pause does not arrive after its resume."""
        model = HeldModel("Done")
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            await office.store.command(execution.ref, "pause/lost", CommandKind.PAUSE)
            await execution.resume()
            assert await office.store.pending_commands(execution.ref) == ()
            assert not (await progress(execution)).facts.is_paused
            model.go_on.set()
            await final_result(execution)

    async def test_a_pause_delivers_the_resume_that_was_accepted_before_it(
        self, temporal: TemporalClient
    ) -> None:
        """8.2.9: the resume does not arrive after the pause."""
        model = HeldModel("Done")
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.pause()
            await office.store.command(execution.ref, "resume/lost", CommandKind.RESUME)
            await execution.pause()
            assert await office.store.pending_commands(execution.ref) == ()
            assert (await progress(execution)).facts.is_paused
            await execution.resume()
            model.go_on.set()
            await final_result(execution)

    async def test_a_paused_execution_finishes_its_work_and_waits(self, temporal: TemporalClient) -> None:
        """8.4.1: then continues where it stopped."""
        model = HeldModel(calls(("look", {})), "Done")
        async with at_work(temporal, an_agent(model=model, tools=[MockTool("look")])) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.pause()
            model.go_on.set()
            await office.until_waiting(execution)
            paused = await progress(execution)
            asked = model.asked
            await execution.resume()
            result = await final_result(execution)

            assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]
        assert (paused.status, paused.facts.is_paused, asked) == (ExecutionStatus.PAUSED, True, 1)
        assert result.steps == 2

    async def test_a_message_during_a_pause_is_inserted_later(self, temporal: TemporalClient) -> None:
        """8.3.1: a paused execution inserts it at its next boundary too."""
        model = HeldModel(calls(("look", {})), "Done")
        async with at_work(temporal, an_agent(model=model, tools=[MockTool("look")])) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.pause()
            model.go_on.set()
            await office.until_waiting(execution)
            await execution.steer("Look twice")
            await execution.resume()
            await final_result(execution)

            assert await office.conversation(execution) == ["Go", "", "null", "Look twice", "Done"]

    async def test_only_a_paused_execution_can_be_resumed(self, temporal: TemporalClient) -> None:
        """8.2.1: resuming a running execution is refused."""
        model = HeldModel("Done")
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            with pytest.raises(Refused, match=r"^the execution is not paused$"):
                await execution.resume()
            model.go_on.set()
            await final_result(execution)

    async def test_an_answer_to_a_paused_execution_waits_until_it_is_resumed(
        self, temporal: TemporalClient
    ) -> None:
        """8.5.3: the call has its answer, the pause continues."""
        async with at_work(temporal, an_agent(asks("?"), "Done", tools=[user_input()])) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await execution.pause()
            await execution.submit_input("Blue")
            facts = (await progress(execution)).facts
            assert facts.is_paused
            assert [call.need for call in facts.pending] == [CallNeed.RUN]
            await execution.resume()
            await final_result(execution)

            assert await results(execution) == [("Blue", True)]


class Stubborn:
    """A model that replies although the caller disconnected."""

    def __init__(self, answer: InferenceResponse) -> None:
        self.answer = answer
        self.begun = asyncio.Event()

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request, on_text
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task
            task.uncancel()
        return self.answer


async def by_update(execution: Execution) -> None:
    await execution.cancel()


async def by_temporal(execution: Execution) -> None:
    await execution.workflow.cancel()


def asked_to_stop(events: list[HistoryEvent]) -> HistoryEvent:
    """The moment when it was cancelled."""
    ours = of_type(events, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
    return (ours or of_type(events, "WORKFLOW_EXECUTION_CANCEL_REQUESTED"))[0]


async def cancelled_history(office: Office, execution: Execution) -> list[HistoryEvent]:
    """The history of an execution that has ended as cancelled."""
    result, row = await final_result(execution), await execution.get()
    assert (result.status, result.stop_reason) == (AgentStatus.COMPLETED, StopReason.USER_REQUESTED)
    assert (row.status, row.completed_at is None) == (ExecutionStatus.CANCELLED, False)
    assert (await office.statuses(execution))[-1] == "cancelled"
    return await events_of(execution)


@pytest.mark.parametrize("cancel", [by_update, by_temporal])
class TestCancelling:
    async def test_during_a_stream(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1: the provider's connection is closed and the status stored within a second."""
        model = HeldModel("Never")
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            await cancel(execution)
            events = await cancelled_history(office, execution)

            assert await office.conversation(execution) == ["Go"]
        assert model.was_closed
        assert seconds_between(asked_to_stop(events), events[-1]) < 1.0

    async def test_during_a_tool(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """1.1.5: its call gets a result all the same, and so do those that never ran."""
        runs, was_closed = asyncio.Event(), asyncio.Event()

        @tool
        async def look() -> None:
            "Looks for ever."
            runs.set()
            try:
                await asyncio.Event().wait()
            finally:
                was_closed.set()

        agent = an_agent(calls(("look", {}), ("look", {})), tools=[look]).with_parallel_tools(False)
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await runs.wait()
            await cancel(execution)
            await cancelled_history(office, execution)

            assert await office.conversation(execution) == ["Go", "", CANCELLED_CALL, CANCELLED_CALL]
        assert was_closed.is_set()

    async def test_while_people_are_asked(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1: a paused execution may be cancelled; its questions need no answer any more."""
        async with at_work(temporal, an_agent(asks("?"), tools=[user_input()])) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await cancel(execution)
            await cancelled_history(office, execution)

            assert await execution.requests() == ()
            assert await office.conversation(execution) == ["Go", "", CANCELLED_CALL]

    async def test_after_a_pause_was_requested(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1: a cancel outranks a pause."""
        model = HeldModel("Never")
        async with at_work(temporal, an_agent(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.pause()
            await cancel(execution)
            await cancelled_history(office, execution)

            assert "paused" not in await office.statuses(execution)

    async def test_when_the_answer_came_all_the_same(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1, 1.1.5: its calls are not run any more."""
        model, look = Stubborn(calls(("look", {}))), MockTool("look")
        async with at_work(temporal, an_agent(model=model, tools=[look])) as office:
            execution = await office.start()
            await model.begun.wait()
            await cancel(execution)
            events = await cancelled_history(office, execution)

            assert await office.conversation(execution) == ["Go", "", CANCELLED_CALL]
        assert scheduled_activities(events, "run_tool") == []
        assert look.calls == []

    async def test_during_a_write(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.3: its end is stored despite any cancel in the meantime."""
        async with at_work(temporal, an_agent(asks("?"), tools=[user_input()])) as office:
            async with office.store.hold("settle") as settling:
                execution = await office.start_directly()
                await settling.wait()
                await cancel(execution)
            await cancelled_history(office, execution)


async def test_a_cancel_that_is_stored_before_the_end_comes_first(temporal: TemporalClient) -> None:
    """8.2.1: although its workflow had decided to complete, and refused the cancel."""
    async with at_work(temporal, an_agent(says("Done"))) as office:
        async with office.store.hold("settle") as settling:
            execution = await office.start_directly()
            await settling.wait()
            await office.store.command(execution.ref, "cancel/1", CommandKind.CANCEL)
        await cancelled_history(office, execution)

        assert await office.conversation(execution) == ["Go", "Done"]
        assert "completed" not in await office.statuses(execution)


class TestEndedExecutions:
    async def test_an_ended_execution_refuses_everything(self, temporal: TemporalClient) -> None:
        """8.2.1: with the reason that it has ended."""
        async with at_work(temporal, an_agent(says("Done"))) as office:
            execution, _ = await office.run()
            for late in (execution.pause(), execution.resume(), execution.cancel()):
                with pytest.raises(Refused, match="The execution has ended"):
                    await late
            with pytest.raises(ExecutionEnded, match="has ended as completed"):
                await execution.steer("Wait")
            with pytest.raises(Refused, match="No question is open"):
                await execution.submit_input("Blue")
            with pytest.raises(Refused, match="No approval is open"):
                await execution.approve()

            assert await office.conversation(execution) == ["Go", "Done"]
