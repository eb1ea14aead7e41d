"""Executions whose tools and workers behave, how they start, and how they end where no step can go on."""

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everstep.agent_domain.agents.plan import CriterionRef
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.errors import (
    InvalidInput,
    NotFound,
    UnknownName,
)
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import Settlement
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn
from everstep.workflows import agent_execution
from tests.workflows.failpoints import FORGIVING, results
from tests.workflows.harness import (
    an_agent,
    an_office,
    at_work,
    events_of,
    eventually,
    final_result,
    of_type,
    scheduled_activities,
)


class TestInputs:
    @pytest.mark.parametrize("is_quick", [True, False], ids=["quick", "regular"])
    async def test_a_worker_does_not_read_what_it_has_recorded(
        self, temporal: TemporalClient, *, is_quick: bool
    ) -> None:
        """18.1.7"""
        look = MockTool("look", handler=lambda: "seen", options=ToolOptions(quick=is_quick))
        agent = an_agent(calls(("look", {})), calls(("look", {})), "Done", tools=[look])
        async with at_work(temporal, agent) as office, office.store.hold("preview_step") as reads:
            _, result = await office.run()

        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 3)
        assert not reads.is_set()


class TestTools:
    async def test_calls_of_one_response_run_at_the_same_time(self, temporal: TemporalClient) -> None:
        """5.4.1: each as its own activity; the results are in response order."""
        meeting = asyncio.Barrier(2)
        order = asyncio.Event()

        @tool
        async def first() -> str:
            "Ends last."
            await meeting.wait()
            await order.wait()
            return "one"

        @tool
        async def second() -> str:
            "Ends first."
            await meeting.wait()
            order.set()
            return "two"

        agent = an_agent(calls(("first", {}), ("second", {})), "Done", tools=[first, second])
        async with at_work(temporal, agent) as office:
            execution, _ = await office.run()

            assert await office.conversation(execution) == ["Go", "", "one", "two", "Done"]
        assert len(scheduled_activities(await events_of(execution), "run_tool")) == 2

    async def test_an_agent_without_parallel_tools_runs_its_calls_in_order(
        self, temporal: TemporalClient
    ) -> None:
        """5.4.1: in response order."""
        at_once: list[str] = []
        seen: list[list[str]] = []

        @tool
        async def work(name: str) -> None:
            "Works."
            at_once.append(name)
            await asyncio.to_thread(str)
            seen.append([*at_once])
            at_once.remove(name)

        agent = an_agent(calls(*(("work", {"name": n}) for n in "abc")), "Done", tools=[work])
        async with at_work(temporal, agent.with_parallel_tools(False)) as office:
            await office.run()

        assert seen == [["a"], ["b"], ["c"]]

    async def test_a_quick_tool_is_a_local_activity(self, temporal: TemporalClient) -> None:
        """1.1.3: it gets its two ids and has one recorded result, and needs no round trip to the server."""
        seen: list[ToolContext] = []

        class Quick(MockTool):
            def call(self, args: dict[str, Any], context: ToolContext) -> Any:
                seen.append(context)
                return len(args["text"])

        quick = Quick("quick", options=ToolOptions(quick=True))
        agent = an_agent(calls(("quick", {"text": "four"})), "Done", tools=[quick])
        async with at_work(temporal, agent) as office:
            execution, _ = await office.run()
            (step, _) = await execution.steps()

            assert await results(execution) == ["4"]
        assert [(c.execution_id, c.tool_call_id, c.step_number) for c in seen] == [
            (execution.id, step.calls[0].call.id, 1)
        ]
        assert scheduled_activities(await events_of(execution), "run_tool") == []

    async def test_quick_and_regular_tools_of_one_response(self, temporal: TemporalClient) -> None:
        """5.4.1: both kinds are in response order."""
        slow, quick = MockTool.returning("slow", "", "s"), MockTool("quick", options=ToolOptions(quick=True))
        agent = an_agent(calls(("slow", {}), ("quick", {}), ("slow", {})), "Done", tools=[slow, quick])
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()

            assert await results(execution) == ["s", "null", "s"]
        assert result.steps == 2

    async def test_a_call_that_never_ran_has_its_error_in_the_result(self, temporal: TemporalClient) -> None:
        """12.2: arguments that are no object, by the driver's own flag."""
        script = (
            '{"thought": "t", "type": "call_tool", "tool": "look", "args": [1]}',
            '{"thought": "t", "type": "final_answer", "answer": "Done"}',
        )
        agent = an_agent(tools=[MockTool("look")]).with_driver(ReActDriver(ScriptedModel(*script)))
        async with at_work(temporal, agent.with_error_policy(FORGIVING)) as office:
            execution, _ = await office.run()

            assert await office.conversation(execution) == [
                "Go",
                "Thought: t\nAction: look\nAction Input: [1]",
                "Observation: Error: Pass args as a JSON object keyed by parameter name, not as an array",
                "Done",
            ]

    async def test_a_call_that_cannot_run_fails(self, temporal: TemporalClient) -> None:
        """5.4.3: the model reads the error as the failure of its call."""

        @tool
        def look(where: str | None) -> str | None:
            "Looks."
            return where

        turn = ScriptedTurn(
            calls=(
                ScriptedCall(name="nothing"),
                ScriptedCall(name="look"),
                ScriptedCall(name="look", arguments="[1]"),
                ScriptedCall(name="look", args={"where": None}),
            )
        )
        agent = an_agent(model=ScenarioModel(Script.of(turn, "Done")), tools=[look])
        async with at_work(temporal, agent.with_error_policy(FORGIVING)) as office:
            execution, _ = await office.run()

            assert await results(execution) == [
                "Error: No tool named 'nothing'. Choose from: look",
                "Error: Required arguments are missing: where",
                "Error: Pass the arguments as a JSON object",
                "null",
            ]


class TestWorkers:
    async def test_an_agent_that_no_worker_knows_waits_visibly(self, temporal: TemporalClient) -> None:
        """1.1.1: and continues once a worker knows it."""
        known, unknown = an_agent("Hello").with_name("known"), an_agent("Hello").with_name("unknown")
        office = an_office(temporal, unknown, known)
        async with office.worker(office.agents[1]):
            execution = await office.start()

            async def tells() -> bool:
                pending = (await execution.workflow.describe()).raw_description.pending_activities
                return any("No agent named 'unknown'" in p.last_failure.message for p in pending)

            await eventually(tells)
        async with office.worker():
            assert (await final_result(execution)).status is AgentStatus.COMPLETED

    async def test_it_runs_in_the_sandbox_too(self, temporal: TemporalClient) -> None:
        """1.1.2: Temporal's sandbox finds the workflow deterministic."""
        work = MockTool("work", options=ToolOptions(quick=True))
        office = an_office(temporal, an_agent(calls(("work", {}), ("work", {})), "Done", tools=[work]))
        async with office.worker_with(SandboxedWorkflowRunner()):
            execution, result = await office.run()

        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)
        assert of_type(await events_of(execution), "WORKFLOW_TASK_FAILED") == []


@dataclass(frozen=True)
class Broken:
    """A plan's criterion that is not registered."""

    def decide(self, state: object) -> Any:
        raise NotImplementedError


class TestUnforeseen:
    @pytest.mark.parametrize("nth", [1, 3])
    async def test_an_exception_in_workflow_code_ends_the_execution_as_failed(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch, nth: int
    ) -> None:
        """3.7.1, 8.2.3: recorded like any other end; the workflow task does not fail without end."""
        decide, asked = agent_execution.decide, 0

        def sometimes(*args: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked >= nth:
                raise ZeroDivisionError("nobody foresaw this")
            return decide(*args)

        monkeypatch.setattr(agent_execution, "decide", sometimes)
        agent = an_agent(calls(("work", {})), tools=[MockTool("work")])
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()
            row = await execution.get()

            assert (await office.statuses(execution))[-1] == "failed"
        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)
        assert (row.status, row.error_message) == (ExecutionStatus.FAILED, "nobody foresaw this")
        assert of_type(await events_of(execution), "WORKFLOW_TASK_FAILED") == []

    async def test_a_cancel_that_is_stored_before_comes_first(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """8.2.1: the execution ends as cancelled, not as failed."""

        def fail(*_: Any) -> None:
            raise ZeroDivisionError("nobody foresaw this")

        monkeypatch.setattr(agent_execution, "decide", fail)
        async with at_work(temporal, an_agent("Done")) as office:
            async with office.store.hold("settle") as settling:
                execution = await office.start_directly()
                await settling.wait()
                await office.store.command(execution.ref, "cancel/1", CommandKind.CANCEL)
            result = await final_result(execution)

        assert (result.status, result.stop_reason) == (AgentStatus.COMPLETED, StopReason.USER_REQUESTED)
        assert (await execution.get()).status is ExecutionStatus.CANCELLED

    async def test_an_execution_that_was_ended_elsewhere_ends(self, temporal: TemporalClient) -> None:
        """8.2.1, 15.6.1: a write of an ended execution is refused; Temporal shows the stored end."""
        office = an_office(temporal, an_agent("Done"))
        execution = await office.start()
        await office.store.settle(Settlement(execution.ref, "reconciler", ExecutionStatus.CANCELLED))
        async with office.worker():
            result = await final_result(execution)

        assert result.stop_reason is StopReason.USER_REQUESTED
        assert (await execution.get()).status is ExecutionStatus.CANCELLED
        assert (await execution.workflow.describe()).status is WorkflowExecutionStatus.CANCELED

    async def test_an_execution_that_is_gone_from_the_store_fails_visibly(
        self, temporal: TemporalClient
    ) -> None:
        """8.2.3: there is no row for its end."""
        async with at_work(temporal, an_agent("Done")) as office:
            gone = NotFound("execution", "any more")
            office.store.fail_next("begin_step", gone)
            office.store.fail_next("material_with_steps", *[gone] * 4)
            execution = await office.start()
            with pytest.raises(WorkflowFailureError) as failure:
                await final_result(execution)

        assert isinstance(failure.value.cause, ApplicationError)
        assert "could not be recorded" in str(failure.value.cause)

    async def test_a_criterion_that_cannot_be_planned_is_refused_at_start(
        self, temporal: TemporalClient
    ) -> None:
        """2.1.4: before anything is stored."""
        agent = an_agent("Done").add_continuation_criteria(Broken())
        office = an_office(temporal, agent)
        id_ = uuid4()
        with pytest.raises(InvalidInput, match="the criterion Broken is not registered"):
            await office.start(execution_id=id_)

        assert await office.store.execution(ExecutionRef(id_)) is None

    async def test_a_criterion_that_no_worker_knows_ends_the_execution(
        self, temporal: TemporalClient
    ) -> None:
        """2.2.7: for starters of workflows that do not use our client."""
        office = an_office(temporal, an_agent("Done"))
        plan = office.agents[0].plan().model_copy(update={"criteria": (CriterionRef(name="nobody.knows"),)})
        async with office.worker():
            execution = await office.start_directly(plan)
            result = await final_result(execution)

        assert result.stop_reason is StopReason.ERROR
        assert "No criterion named 'nobody.knows'" in ((await execution.get()).error_message or "")


class TestStarting:
    async def test_the_same_id_starts_once(self, temporal: TemporalClient) -> None:
        """1.1.4: one execution is one workflow id, for any number of requests."""
        id_ = uuid4()
        async with at_work(temporal, an_agent("Done")) as office:
            await final_result(await office.start(execution_id=id_))
            again = await office.start(execution_id=id_)
            await final_result(again)

            assert await office.conversation(again) == ["Go", "Done"]

    async def test_an_agent_that_the_client_does_not_know_is_refused(self, temporal: TemporalClient) -> None:
        """10.2.1: with the names that it knows."""
        with pytest.raises(UnknownName, match=r"No agent named 'nobody'\. Choose from: agent"):
            await an_office(temporal, an_agent("Done")).start(agent="nobody")

    async def test_a_stop_before_the_first_step_runs_none(self, temporal: TemporalClient) -> None:
        """8.2.1: a cancelled execution that was pending never starts a step."""
        office = an_office(temporal, an_agent("Done"))
        execution = await office.start()
        await execution.workflow.cancel()
        async with office.worker():
            result = await final_result(execution)

            assert (result.stop_reason, result.steps) == (StopReason.USER_REQUESTED, 0)
            assert (await execution.get()).status is ExecutionStatus.CANCELLED
            assert scheduled_activities(await events_of(execution), "infer") == []
