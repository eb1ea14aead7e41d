"""Hooks and processors: in a durable execution they work as in-process, and are recorded once."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client as TemporalClient, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from everstep.activities.step_state import facts_with_results
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import Decision, Rules, decide
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.tools.tools import (
    QUICK_SECONDS,
    ToolCall,
    ToolExecution,
    ToolOptions,
)
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.local.runner import LocalRunner
from everstep.runtime.temporal import data_converter
from everstep.steps import hooks
from everstep.workflows import agent_execution
from everstep.workflows.activity_options import MODEL, QUICK_TOOL, TOOL
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionResult
from tests.scenarios import describe
from tests.services import Servers
from tests.workflows.harness import (
    DEADLINE,
    Office,
    WatchedStore,
    an_agent,
    an_office,
    at_work,
    connect_temporal,
    final_result,
    runs_of,
)
from tests.workflows.hook_cases import (
    ALL,
    BOTH,
    DONE,
    ESCAPING,
    EVERYWHERE,
    LOOKS,
    POLICIES,
    REFUSED,
    Case,
    Change,
    Meddler,
    agent_of,
    an_office_worker,
    counts,
    raises,
    stops,
)

SOME = 16


@dataclass(frozen=True)
class RunSummary:
    """The comparable part of an execution."""

    decisions: Sequence[str]
    status: AgentStatus
    reason: StopReason | None
    said: Sequence[tuple[str, str]]
    metadata: Mapping[str, Any]
    usage: Usage
    types: Sequence[str]


@dataclass(frozen=True)
class DurableRun:
    """All results of a durable execution."""

    summary: RunSummary
    row: ExecutionRow
    result: ExecutionResult
    errors: Sequence[str]
    history: Sequence[WorkflowHistory]


async def run_locally(case: Case) -> RunSummary:
    """Run in-process."""
    decisions: list[Decision] = []
    runner = LocalRunner(agent_of(case).definition(), on_decision=decisions.append)
    state = await runner.run(AgentState.empty().with_messages((user("Go"),)))
    return RunSummary(
        list(map(describe, decisions)),
        state.status,
        state.last_outcome and state.last_outcome.stop_reason,
        [(str(message.role), message.text) for message in state.messages],
        dict(state.metadata),
        state.usage,
        [str(step.step_type) for step in state.steps],
    )


async def run_durably(office: Office, case: Case, decisions: Mapping[str, list[str]]) -> DurableRun:
    """Run on a worker."""
    execution = await office.start(agent=agent_of(case).definition().descriptor.name)
    result, row = await final_result(execution), await execution.get()
    material, steps = await office.store.material(execution.ref), await execution.steps()
    went = RunSummary(
        decisions[execution.workflow.id],
        result.status,
        result.stop_reason,
        [(str(message.role), message.text) for message in await office.store.transcript(execution.ref)],
        dict(material.metadata),
        result.usage,
        [str(facts_with_results(step, step.facts).step_type) for step in steps if step.facts],
    )
    records = [call.record for step in steps for call in step.calls if call.record]
    errors = [error.message for step in steps for error in step.errors]
    errors += [record.error.message for record in records if record.error]
    history = [WorkflowHistory(execution.workflow.id, run) for run in await runs_of(execution)]
    return DurableRun(went, row, result, errors, history)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(services: Servers) -> AsyncGenerator[Mapping[str, DurableRun]]:
    """Every case, several in parallel: the time limit of one is not spent waiting for all the others."""
    decisions: dict[str, list[str]] = {}
    some = asyncio.Semaphore(SOME)

    async def one(office: Office, case: Case) -> DurableRun:
        async with some:
            return await run_durably(office, case, decisions)

    def listening(facts: ExecutionFacts, rules: Rules, now: datetime) -> Decision:
        decision = decide(facts, rules, now)
        if not workflow.unsafe.is_replaying():
            decisions.setdefault(workflow.info().workflow_id, []).append(describe(decision))
        return decision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_execution, "decide", listening)
        async with at_work(await connect_temporal(services), *map(agent_of, ALL)) as office:
            all_of_them = await asyncio.gather(*(one(office, case) for case in ALL))
    yield {case.name: each for case, each in zip(ALL, all_of_them, strict=True)}


@pytest.mark.parametrize("case", BOTH, ids=lambda case: case.name)
async def test_hooks_and_processors_do_the_same_in_every_shell(
    runs: Mapping[str, DurableRun], case: Case
) -> None:
    """1.1.6, 2.4.2, 4.3.4, 4.5.2, 4.5.4, 4.5.7, 4.5.8: messages, metadata, usage, steps, the end."""
    assert runs[case.name].summary == await run_locally(case)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
async def test_the_effects_of_hooks_and_processors_are_replayed(
    runs: Mapping[str, DurableRun], case: Case
) -> None:
    """1.1.1, 1.1.2: they do not run in the workflow, so the same decisions follow."""
    replayer = Replayer(
        workflows=[AgentExecution],
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=data_converter(),
    )
    for run in runs[case.name].history:
        await replayer.replay_workflow(run)


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_a_durable_execution_cannot_store_is_a_failure_step(
    runs: Mapping[str, DurableRun], name: str
) -> None:
    """4.3.4, 4.5.4: never a stuck workflow, and the error names the alternative."""
    known = runs[f"refused: {name}"]

    assert (known.result.status, known.result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)
    assert known.row.status is ExecutionStatus.FAILED
    assert known.summary.types[-1] == "error"
    assert [error for error in known.errors if REFUSED[name] in error]


@pytest.mark.parametrize(
    ("where", "change"), [(where, change) for where, changes in ESCAPING.items() for change in changes]
)
async def test_an_exception_that_escapes_from_code_is_a_failure_step_in_every_shell(
    runs: Mapping[str, DurableRun], where: str, change: Change
) -> None:
    """4.5.4, 1.1.6: in-process, too, where it would end the process that runs the agent."""
    name = f"{where} {change.__name__}"
    case = next(case for case in ALL if case.name == f"refused: {name}")
    locally, durably = await run_locally(case), runs[case.name].summary

    assert (locally.status, locally.reason) == (AgentStatus.FAILED, StopReason.ERROR)
    assert (locally.types, locally.decisions) == (durably.types, durably.decisions)


class Blocking(AgentHook):
    """Blocks its thread until it is released."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.has_begun = threading.Event()
        self.go_on = threading.Event()
        self.was_let_go = False

    def _at(self, where: str, state: AgentState) -> AgentState:
        if where == self.where and not self.has_begun.is_set():
            self.has_begun.set()
            self.was_let_go = self.go_on.wait(DEADLINE)
        return state

    def before_step(self, state: AgentState) -> AgentState:
        return self._at("before_step", state)

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        del call
        return self._at("before_tool", state)

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        del execution
        return self._at("after_tool", state)

    def after_step(self, state: AgentState) -> AgentState:
        return self._at("after_step", state)

    def __call__(self, state: AgentState) -> AgentState:
        return self._at("processor", state)

    def joins(self, agent: DefinitionBuilder) -> DefinitionBuilder:
        return agent.add_processor(self) if self.where == "processor" else agent.add_hook(self)


class TestTakingTime:
    """Hooks and processors that block, or never return."""

    @pytest.mark.parametrize("where", EVERYWHERE)
    async def test_a_blocking_hook_does_not_block_others(self, temporal: TemporalClient, where: str) -> None:
        """4.5.5: the worker continues its heartbeats, and serves others in the meantime."""
        blocking = Blocking(where)
        agents = blocking.joins(an_office_worker()), an_agent("Done").with_name("neighbour")
        async with at_work(temporal, *agents) as office:
            execution = await office.start()
            await asyncio.to_thread(blocking.has_begun.wait, DEADLINE)
            _, neighbour = await office.run(agent="neighbour")
            blocking.go_on.set()
            result = await final_result(execution)

        assert blocking.was_let_go
        assert (neighbour.status, result.status, result.steps) == (
            AgentStatus.COMPLETED,
            AgentStatus.COMPLETED,
            2,
        )

    @pytest.mark.parametrize("where", [*EVERYWHERE, "before_tool, quick", "after_tool, quick"])
    async def test_a_hook_that_does_not_return_is_a_failure_step(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        """4.5.5, 4.5.4, 3.1.1: of type timeout, and never a stuck workflow."""
        place, _, is_quick = where.partition(", ")
        monkeypatch.setattr(hooks, "QUICK_HOOK_SECONDS" if is_quick else "HOOK_SECONDS", 0.05)
        blocking = Blocking(place)
        look = MockTool.returning("look", "", "seen")
        look.options = ToolOptions(quick=bool(is_quick))
        agent = blocking.joins(an_agent(LOOKS, DONE, tools=[look]))
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()
            blocking.go_on.set()
            steps = await execution.steps()
            records = [call.record for step in steps for call in step.calls if call.record]
        errors = [*steps[-1].errors, *(record.error for record in records if record.error)]

        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)
        assert "did not finish within 0.05s" in " ".join(error.message for error in errors)
        assert ErrorType.TIMEOUT in [error.type for error in errors]

    async def test_a_processor_that_waits_without_end_is_a_failure_step(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """4.5.5, 4.5.4: also one that does not block."""
        monkeypatch.setattr(hooks, "HOOK_SECONDS", 0.05)

        async def waits(state: AgentState) -> AgentState:
            await asyncio.Event().wait()
            return state

        async with at_work(temporal, an_agent("Done").add_processor(waits)) as office:
            execution, result = await office.run()
            answered, failed = await execution.steps()

        assert (result.status, answered.errors) == (AgentStatus.FAILED, ())
        assert [error.type for error in failed.errors] == [ErrorType.TIMEOUT]

    def test_their_timeout_is_shorter_than_that_of_their_activity(self) -> None:
        """4.5.5: which would be retried without end."""
        model, tool, quick = (
            options.get("start_to_close_timeout", timedelta()).total_seconds()
            for options in (MODEL, TOOL, QUICK_TOOL)
        )

        assert min(model, tool) > hooks.HOOK_SECONDS
        assert quick > QUICK_SECONDS + 2 * hooks.QUICK_HOOK_SECONDS


class TestPausing:
    """A hook may pause; the resumed execution is where it was."""

    @pytest.mark.parametrize("where", EVERYWHERE)
    async def test_a_hook_pauses(self, temporal: TemporalClient, where: str) -> None:
        """8.4.1: once the work under way is done; nothing is requested or run twice."""
        meddler = Meddler(where, AgentState.paused, 1)
        agent = an_office_worker()
        agent = agent.add_processor(meddler) if where == "processor" else agent.add_hook(meddler)
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            (step,) = await execution.steps()
            await execution.resume()
            result = await final_result(execution)

            # The hook before the step has no calls under way yet.
            assert [call.record is not None for call in step.calls] == [where != "before_step"]
            assert await office.conversation(execution) == ["Go", "", "seen", "Done"]
            assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]
        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)

    async def test_each_call_may_pause(self, temporal: TemporalClient) -> None:
        """8.4.1, 5.4.1: one after the other; a granted pause request is not granted again."""
        script = calls(("look", {}), ("look", {}))
        agent = an_office_worker(script, DONE).with_parallel_tools(False)
        agent.add_hook(Meddler("after_tool", AgentState.paused))
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            answered: list[int] = []
            for _ in range(2):
                await office.until_waiting(execution)
                (step,) = await execution.steps()
                answered.append(sum(call.record is not None for call in step.calls))
                await execution.resume()
                await office.until_running_again(execution)
            result = await final_result(execution)

        assert (answered, result.steps) == ([1, 2], 2)

    async def test_a_stop_signal_outlives_a_pause(self, temporal: TemporalClient) -> None:
        """2.4.2: the first evaluation after the step sees it."""
        agent = an_office_worker().add_processor(lambda state: stops(state.paused()))
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await execution.resume()
            result = await final_result(execution)

        assert (result.stop_reason, result.steps) == (StopReason.GUARD, 1)


class TestCallsAndHooks:
    """Hooks around calls."""

    @pytest.mark.parametrize("is_quick", [False, True])
    async def test_the_other_calls_of_a_step_that_a_hook_fails_get_results(
        self, temporal: TemporalClient, is_quick: bool
    ) -> None:
        """1.1.5, 4.5.4: no stored conversation has a call without a result; the run may continue."""

        class Refusing(AgentHook):
            def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
                return raises(state) if call.args else state

        look = MockTool.returning("look", "", "seen")
        look.options = ToolOptions(quick=is_quick)
        ask = MockTool("ask", options=ToolOptions(need=CallNeed.INPUT))
        script = calls(("look", {}), ("look", {"at": 1}), ("ask", {"prompt": "Well?"}))
        agent = an_agent(script, DONE, tools=[look, ask]).add_hook(Refusing())
        async with at_work(temporal, agent.with_error_policy(POLICIES["retry_all"])) as office:
            execution, result = await office.run()
            said = await office.conversation(execution)
            steps = await execution.steps()

        assert said[2:] == [
            "seen",
            "Error: ValueError in a hook before the call: no good, with 1 messages",
            CANCELLED_CALL,
            "Done",
        ]
        assert [error.message for error in steps[0].errors] == [
            "a hook failed; the error of its call has the details"
        ]
        assert look.calls == [{}]
        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)

    @pytest.mark.parametrize("is_quick", [False, True])
    @pytest.mark.parametrize("where", ["before_tool", "after_tool"])
    async def test_what_a_step_used_before_its_hook_failed_counts(
        self, temporal: TemporalClient, where: str, is_quick: bool
    ) -> None:
        """4.7.6, 1.1.6: its reply and the model calls of its tools, in both shells."""

        class Failing(AgentHook):
            def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
                return raises(state) if where == "before_tool" and call.name == "look" else state

            def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
                is_look = execution.call.name == "look"
                return raises(state) if where == "after_tool" and is_look else state

        query: tuple[str, dict[str, Any]] = ("llm_query", {"query": "?"})
        asked = [("look", dict[str, Any]())] if is_quick else [("look", dict[str, Any]()), query]

        def a_failing_agent() -> DefinitionBuilder:
            look = MockTool.returning("look", "", "seen")
            look.options = ToolOptions(quick=is_quick)
            asks = calls(*asked, usage=Usage(10, 5).with_cost(Decimal("0.02")))
            blue = [says("Blue", Usage(3, 1).with_cost(Decimal("0.005")))][: len(asked) - 1]
            done = says("Done", Usage(20, 3).with_cost(Decimal("0.1")))
            agent = an_agent(asks, *blue, done, tools=[look, LlmQueryTool()]).add_hook(Failing())
            return agent.with_error_policy(POLICIES["retry_all"])

        async with at_work(temporal, a_failing_agent()) as office:
            execution, result = await office.run()
            row, steps = await execution.get(), await execution.steps()
        state = await LocalRunner(a_failing_agent().definition()).run(
            AgentState.empty().with_messages((user("Go"),))
        )

        first, total = (Decimal("0.02"), Usage(30, 8)) if is_quick else (Decimal("0.025"), Usage(33, 9))
        cost = first + Decimal("0.1")
        assert (result.usage, result.usage.cost_usd, row.cost_usd) == (total, cost, cost)
        assert (state.usage, state.cost_usd) == (total, cost)
        assert row.usage["total"] == total.total
        assert [step.cost_usd for step in steps] == [first, Decimal("0.1")]
        assert [step.cost_usd for step in state.steps] == [first, Decimal("0.1")]

    async def test_what_a_step_used_counts_if_the_activity_of_a_call_fails(
        self, temporal: TemporalClient
    ) -> None:
        """4.7.6: the reply of the step was paid for, although no result of the call was recorded."""

        class Broken(WatchedStore):
            async def record_call(self, *args: Any, **options: Any) -> Any:
                raise ApplicationError("the result cannot be stored", non_retryable=True)

        agent = an_agent(LOOKS, DONE, tools=[MockTool.returning("look", "", "seen")])
        agent = agent.with_error_policy(POLICIES["retry_all"])
        office = an_office(temporal, agent)
        office.store = Broken()
        async with office.worker():
            _, result = await office.run()

        assert result.usage == Usage(input=30, output=8)

    async def test_a_hook_gets_the_conversation_although_another_call_ends_in_the_meantime(
        self, temporal: TemporalClient
    ) -> None:
        """4.4.4, 4.5.5: the whole conversation before the step."""
        shown = list[list[str]]()

        class Looking(AgentHook):
            def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
                shown.append([message.text for message in state.messages])
                return state

        class Overtaken(WatchedStore):
            """The second reader of the steps gets them after a call was recorded."""

            def __init__(self) -> None:
                super().__init__()
                self.looks, self.is_recorded = 0, asyncio.Event()

            async def steps(self, *args: Any, **kwargs: Any) -> Any:
                self.looks += 1
                if self.looks == 2:
                    await self.is_recorded.wait()
                return await self.__getattr__("steps")(*args, **kwargs)

            async def record_call(self, *args: Any, **kwargs: Any) -> Any:
                recorded = await self.__getattr__("record_call")(*args, **kwargs)
                self.is_recorded.set()
                return recorded

        agent = an_agent(calls(("look", {}), ("look", {"at": 1})), DONE, tools=[MockTool("look")])
        office = an_office(temporal, agent.add_hook(Looking()))
        office.store = Overtaken()
        async with office.worker():
            await office.run("Go")

        assert shown == [["Go"], ["Go"]]

    async def test_hooks_of_concurrent_calls_do_not_lose_each_others_notes(
        self, temporal: TemporalClient
    ) -> None:
        """4.4.4: their changes are merged by key after all calls; of one key the later call's wins."""

        class Noting(AgentHook):
            def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
                place = execution.call.args["at"]
                return state.with_metadata({f"looked at {place}": True, "last": place})

        look = MockTool("look", schema={"type": "object", "required": ["at"]})
        script = calls(*(("look", {"at": place}) for place in range(5)))
        async with at_work(temporal, an_agent(script, DONE, tools=[look]).add_hook(Noting())) as office:
            execution, _ = await office.run()
            metadata = (await office.store.material(execution.ref)).metadata

        assert metadata == {**{f"looked at {place}": True for place in range(5)}, "last": 4}

    async def test_people_are_asked_before_hooks_see_the_call(self, temporal: TemporalClient) -> None:
        """8.6.1: a hook surrounds the call as it is run."""
        seen: list[Mapping[str, Any]] = []

        class Seeing(AgentHook):
            def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
                seen.append(dict(call.args))
                return counts(state)

        agent = an_office_worker().with_approval("look", "always").add_hook(Seeing())
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            before = [*seen]
            await execution.edit({"at": "the sea"})
            await final_result(execution)
            metadata = (await office.store.material(execution.ref)).metadata

        assert (before, seen, metadata) == ([], [{"at": "the sea"}], {"seen": 1})
