"""Debug mode: the full state is kept after each step, and can be read."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import pytest_asyncio

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import ModelUnavailable, RateLimited
from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.storage.sessions import SnapshotRow
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.agent_domain.values import thaw
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.user_input import UseUserInput
from everstep.client.client import Execution
from everstep.local.runner import LocalRunner
from everstep.store.engine import create_engine
from everstep.store.sessions import PostgresSessions
from everstep.workflows import agent_execution
from tests.scenarios import SCENARIOS
from tests.services import Servers, make_database
from tests.workflows.harness import (
    HeldModel,
    Office,
    WatchedStore,
    an_agent,
    an_office,
    connect_temporal,
    final_result,
)
from tests.workflows.reviewing import UseReview
from tests.workflows.test_scenarios import agent_of
from tests.workflows.test_subagents import Hire, child_of, hires

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def database(services: Servers) -> str:
    """The store in memory has no snapshots."""
    return make_database(services, "debugged")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    engine = create_engine(database)
    yield PostgresSessions(engine)
    await engine.dispose()


@dataclass(frozen=True)
class Debugging:
    services: Servers
    store: PostgresSessions

    @asynccontextmanager
    async def at_work(
        self, *agents: DefinitionBuilder | AgentDefinition, strike: Strike = inert
    ) -> AsyncGenerator[Office]:
        office = an_office(await connect_temporal(self.services), *agents)
        office = replace(office, store=WatchedStore(self.store))
        async with office.worker(strike=strike):
            yield office

    async def snapshots(self, execution: Execution) -> list[SnapshotRow]:
        """The snapshots, oldest first."""
        return [*(await self.store.snapshots(execution.ref)).rows][::-1]


@pytest.fixture
def debugging(services: Servers, store: PostgresSessions) -> Debugging:
    return Debugging(services, store)


def states(kept: list[SnapshotRow]) -> list[AgentState]:
    """The states in them, as they were written."""
    read = [AgentState.from_dict(row.state) for row in kept]
    assert [thaw(state.to_dict()) for state in read] == [thaw(row.state) for row in kept]
    return read


def texts(state: AgentState) -> list[str]:
    return [message.text for message in state.messages]


# Comparison with the in-process runner.


UNLIKE = {
    *("id", "agentId", "executionId", "tool_call_id", "inputMessages", "seconds"),
    *("createdAt", "startedAt", "completedAt", "updatedAt"),
    *("cumulativeExecutionSeconds", "sessionExecutionSeconds"),
}
"""Values that differ in each run, and those that the store does not keep twice."""


def as_in_process(state: Mapping[str, Any]) -> Any:
    """A stored state in the form of this process: errors without a reference, and votes with the exceptions'
    messages.

    Every stored exception has a unique reference.
    """
    errors = [each for each in _maps(thaw(state)) if each.get("exception")]
    references = [str(error.get("ref")) for error in errors]
    assert all(re.fullmatch("[0-9a-f]{12}", reference) for reference in references)
    assert len(set(references)) == len(references)
    words = {f"{e['exception']} (ref {e['ref']})": e["message"] for e in errors}

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        entries = {key: plain(each) for key, each in cast("dict[str, Any]", value).items()}
        if entries.get("exception"):
            del entries["ref"]
        if "criterion" in entries:
            for redacted, raised in words.items():
                entries["reason"] = entries["reason"].replace(redacted, raised)
        return entries

    return plain(thaw(state))


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield cast("dict[str, Any]", value)
        value = [*cast("dict[str, Any]", value).values()]
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _maps(each)


def comparable(state: Mapping[str, Any]) -> Any:
    def alike(value: Any) -> Any:
        if isinstance(value, list):
            return [alike(each) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        known = {key: alike(each) for key, each in cast("dict[str, Any]", value).items() if key not in UNLIKE}
        # By the ids of calls.
        return known | {"needs": [*known["needs"].values()]} if "needs" in known else known

    return alike(thaw(state))


@tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b


def reacting() -> DefinitionBuilder:
    """An agent whose first reply is invalid, whose second passes a list in place of a map, and whose third is
    right.
    """
    script = (
        "no decision",
        '{"thought": "t", "type": "call_tool", "tool": "add", "args": [1]}',
        '{"thought": "t", "type": "call_tool", "tool": "add", "args": {"a": 1, "b": 2}}',
        '{"thought": "t", "type": "final_answer", "answer": "3"}',
    )
    driver = ReActDriver(ScriptedModel(*script), max_retries=0)
    builder = DefinitionBuilder.base().with_name("reacting").with_driver(driver).with_tools([add])
    return builder.with_error_policy(ErrorPolicy.retry_all(5))


def quick() -> DefinitionBuilder:
    """An agent whose calls have their results before the workflow gets the reply."""
    look = MockTool("look", handler=lambda: {"z": [1, 2.0], "a": None}, options=ToolOptions(quick=True))
    script = (calls(("look", {}), ("look", {}), usage=Usage(3, 2)), says("Done", Usage(1)))
    return an_agent(*script, tools=[look]).with_name("quick").with_system_prompt("Be brief")


def busy() -> DefinitionBuilder:
    """An agent whose model recovers within the budget of both runners: one step without a trace of the
    failure.
    """
    return an_agent(RateLimited("slow down"), ModelUnavailable("503"), "Done").with_name("busy")


def reviewed() -> DefinitionBuilder:
    """An agent whose hooks and processors set marks."""
    agent = an_agent(calls(("add", {"a": 1, "b": 2})), "3", "It is 3", tools=[add]).with_name("reviewed")
    return agent.with_capability(UseReview())


DEFINITIONS: dict[str, Callable[[], AgentDefinition]] = {
    **{scenario.name: lambda scenario=scenario: agent_of(scenario) for scenario in SCENARIOS},
    "reacting": lambda: reacting().definition(),
    "quick": lambda: quick().definition(),
    "busy": lambda: busy().definition(),
    "reviewed": lambda: reviewed().definition(),
}


@dataclass(frozen=True)
class RunPair:
    """An agent that ran in debug mode, and in-process."""

    kept: list[SnapshotRow]
    here: AgentState


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(services: Servers, store: PostgresSessions) -> Mapping[str, RunPair]:
    """All of them, in parallel."""
    debugging = Debugging(services, store)

    async def run(office: Office, name: str) -> RunPair:
        execution, _ = await office.run(agent=name, debug=True)
        here = await LocalRunner(DEFINITIONS[name]()).run(AgentState.empty().with_messages("Go"))
        return RunPair(await debugging.snapshots(execution), here)

    async with debugging.at_work(*(made() for made in DEFINITIONS.values())) as office:
        ran = await asyncio.gather(*(run(office, name) for name in DEFINITIONS))
    return dict(zip(DEFINITIONS, ran, strict=True))


@pytest.mark.parametrize("name", DEFINITIONS)
class TestBothRunners:
    async def test_the_final_snapshot_is_the_state_of_the_in_process_runner(
        self, runs: Mapping[str, RunPair], name: str
    ) -> None:
        """8.1.3, 4.1.7, 3.5.1; 5.4.4: an error has its reference where it is stored."""
        kept, here = runs[name].kept, runs[name].here

        # Here the driver knows the tools; a durable execution stores the tool definitions for the model.
        expected = here.to_dict() | {"cachedContext": DEFINITIONS[name]().spec().cached_context}
        assert kept[-1].is_final
        assert comparable(as_in_process(kept[-1].state)) == comparable(expected)

    async def test_a_stored_state_can_be_read_and_counts_the_same(
        self, runs: Mapping[str, RunPair], name: str
    ) -> None:
        """8.1.3, 4.1.7"""
        kept, here = runs[name].kept, AgentState.from_dict(runs[name].here.to_dict())
        before, last = states(kept)[:-1], AgentState.from_dict(as_in_process(kept[-1].state))

        records = last.execution.step_executions
        # An exception after a step became a step without a model call.
        followed = [record for record in records if record.outcome and record.outcome.should_continue]
        assert [row.step_number for row in kept[:-1]] == [record.number for record in followed]
        assert [state.step_count for state in before] == [record.number for record in followed]
        assert [state.last_outcome for state in before] == [record.outcome for record in followed]
        for count in ("step_count", "usage", "trailing_failures", "status", "last_outcome", "final_response"):
            assert getattr(last, count) == getattr(here, count), count
        assert last.facts.total_failures == here.facts.total_failures
        assert last.marks == here.marks


async def test_a_provider_that_recovers_leaves_no_trace_in_the_steps_of_either_runner(
    runs: Mapping[str, RunPair],
) -> None:
    """3.5.1: attempts below the loop are no steps."""
    busy_ones = [AgentState.from_dict(runs["busy"].kept[-1].state), runs["busy"].here]

    assert [(state.step_count, state.facts.total_failures) for state in busy_ones] == [(1, 0), (1, 0)]
    assert [state.final_response for state in busy_ones] == ["Done", "Done"]


# The moments of snapshots.


ASK = calls(("user_input", {"prompt": "Which day?"}))


class Struck:
    """Ends the attempt that is about to request a step, the first time."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, point: Failpoint) -> None:
        if point is Failpoint.INFER_BEFORE_MODEL:
            self.left -= 1
            if self.left == 0:
                raise ConnectionAbortedError


class TestWhen:
    async def test_after_each_step_on_a_pause_and_at_the_end(self, debugging: Debugging) -> None:
        """8.1.3: each after the previous one, with the outcome that led to the next step."""
        look = MockTool.returning("look", "Looks", {"found": [1, 2]})
        agent = an_agent(calls(("look", {}), usage=Usage(5)), ASK, "Done", tools=[look])
        async with debugging.at_work(agent.with_capability(UseUserInput())) as office:
            execution = await office.start(debug=True)
            await office.until_waiting(execution)
            await execution.submit_input("Friday")
            result = await final_result(execution)
            kept = await debugging.snapshots(execution)
            row = await office.store.material(execution.ref)

        assert [(each.step_number, each.is_final) for each in kept] == [
            (1, False),
            (1, False),
            (2, False),
            (3, True),
        ]
        assert {each.debug_mode for each in kept} == {True}
        assert [each.previous_snapshot_id for each in kept] == [None, *(each.id for each in kept[:-1])]
        first, paused, second, final = states(kept)
        found = '{"found":[1,2]}'
        assert [texts(state) for state in (first, paused, second, final)] == [
            ["Go", "", found],
            ["Go", "", found],
            ["Go", "", found, "", "Friday"],
            ["Go", "", found, "", "Friday", "Done"],
        ]
        assert [call.name for call in paused.facts.pending] == ["user_input"]
        assert not paused.is_paused
        assert [state.status for state in (first, paused, second)] == [AgentStatus.IN_PROGRESS] * 3
        assert (final.status, final.usage, final.step_count) == (result.status, result.usage, result.steps)
        assert final.last_outcome
        assert final.last_outcome.stop_reason is StopReason.COMPLETED
        assert final.agent_id == row.agent_id
        seconds = final.state_info.cumulative_execution_seconds
        assert seconds == pytest.approx(sum(step.seconds for step in final.steps))
        assert seconds > 0

    async def test_only_in_debug_mode(self, debugging: Debugging) -> None:
        """8.1.3: the slim form otherwise, and only of the end and of pauses."""
        look = MockTool("look")
        plain = an_agent(calls(("look", {})), "Done", tools=[look]).with_name("plain")
        always = an_agent(calls(("look", {})), "Done", tools=[look]).with_name("always").with_debug()
        async with debugging.at_work(plain, always) as office:
            ran = [(await office.run(agent=name))[0] for name in ("plain", "always")]
            one, other = [await debugging.snapshots(execution) for execution in ran]

        assert [(each.debug_mode, each.is_final, each.state["schema_version"]) for each in one] == [
            (False, True, 1)
        ]
        assert [(each.debug_mode, each.is_final) for each in other] == [(True, False), (True, True)]

    async def test_a_subagent_is_linked_to_the_latest_snapshot_of_its_parent(
        self, debugging: Debugging
    ) -> None:
        """8.1.2, 8.1.3: that of the step before; `previous_snapshot_id` stays within one execution."""
        spawn = calls(("spawn_subagent", {"subagent": "helper", "prompt": "Look"}))
        agent = an_agent(calls(("look", {})), spawn, "Blue", "Thanks", tools=[MockTool("look")])
        registry = AgentSpecRegistry([AgentSpec("helper", "Helps", "You help.")])
        async with debugging.at_work(agent.with_capability(UseSubagents(registry))) as office:
            execution, _ = await office.run(debug=True)
            child = await child_of(office, execution)
            row, of_child = await child.get(), await debugging.snapshots(child)
            kept = await debugging.snapshots(execution)

        assert row.metadata["parent_execution_id"] == str(execution.id)
        assert row.metadata["parent_snapshot_id"] == str(kept[0].id)
        assert [(each.step_number, each.is_final) for each in of_child] == [(1, True)]
        assert [each.parent_snapshot_id for each in of_child] == [kept[0].id]
        assert {each.parent_snapshot_id for each in kept} == {None}
        assert of_child[0].state["parent_agent_id"] == str(states(kept)[0].agent_id)

    async def test_a_second_attempt_stores_nothing_twice(self, debugging: Debugging) -> None:
        """8.1.3, 1.1.3"""
        agent = an_agent(calls(("look", {})), "Done", tools=[MockTool("look")])
        async with debugging.at_work(agent, strike=Struck(2)) as office:
            execution, _ = await office.run(debug=True)
            kept = await debugging.snapshots(execution)

        assert [(each.step_number, each.is_final) for each in kept] == [(1, False), (2, True)]
        assert kept[1].previous_snapshot_id == kept[0].id

    async def test_a_pause_names_the_reason_for_waiting(self, debugging: Debugging) -> None:
        """8.1.3: here a person's pause; a complete step is not judged yet."""
        model = HeldModel(calls(("look", {})), "Done")
        agent = an_agent(model=model, tools=[MockTool("look", options=ToolOptions(quick=True))])
        async with debugging.at_work(agent) as office:
            execution = await office.start(debug=True)
            await model.begun.wait()
            await execution.pause()
            model.go_on.set()
            await office.until_waiting(execution)
            await execution.resume()
            await final_result(execution)
            kept = await debugging.snapshots(execution)

        paused, first, final = states(kept)
        assert [each.step_number for each in kept] == [1, 1, 2]
        assert (paused.is_paused, first.is_paused, final.is_paused) == (True, False, False)
        assert (paused.step_count, paused.facts.is_applied, first.facts.is_applied) == (1, True, False)
        assert texts(paused) == texts(first) == ["Go", "", "null"]
        assert paused.last_outcome is None

    async def test_a_steering_message_follows_the_previous_step(self, debugging: Debugging) -> None:
        """8.1.3, 8.3.1"""
        model = HeldModel("Hello", "Goodbye")
        async with debugging.at_work(an_agent(model=model)) as office:
            execution = await office.start(debug=True)
            await model.begun.wait()
            await execution.steer("Hurry")
            model.go_on.set()
            await final_result(execution)
            first, final = states(await debugging.snapshots(execution))

        assert (texts(first), texts(final)) == (["Go", "Hello"], ["Go", "Hello", "Hurry", "Goodbye"])
        assert [message.text for message in final.steps[1].output_messages] == ["Goodbye"]

    async def test_a_step_that_is_cut_short_has_no_call_without_a_result(self, debugging: Debugging) -> None:
        """8.1.3, 1.1.5"""
        begun = asyncio.Event()

        @tool
        async def wait() -> None:
            "Waits for ever."
            begun.set()
            await asyncio.Event().wait()

        async with debugging.at_work(an_agent(calls(("wait", {})), tools=[wait])) as office:
            execution = await office.start(debug=True)
            await begun.wait()
            await execution.cancel()
            await final_result(execution)
            (final,) = states(await debugging.snapshots(execution))

            assert texts(final) == await office.conversation(execution) == ["Go", "", CANCELLED_CALL]
        (step,) = final.steps
        assert [made.result for made in step.tool_executions] == [CANCELLED_CALL]
        assert (final.status, final.facts.pending) == (AgentStatus.COMPLETED, ())
        assert final.last_outcome
        assert final.last_outcome.stop_reason is StopReason.USER_REQUESTED

    async def test_a_parent_whose_child_waits_for_people_was_paused_by_no_person(
        self, debugging: Debugging
    ) -> None:
        """8.1.3, 8.4.1; 8.1.4: and the child's snapshots follow its own agent's setting."""
        boss = an_agent(hires("clerk"), "Settled", tools=[Hire()]).with_name("boss")
        clerk = an_agent(ASK, "Friday it is").with_name("clerk").with_capability(UseUserInput())
        async with debugging.at_work(boss, clerk) as office:
            execution = await office.start(debug=True)
            await office.until_waiting(execution)
            (step,) = await execution.steps()
            child = office.client.execution(subagent_id(execution.id, step.calls[0].call.id))
            await child.submit_input("Friday")
            await final_result(execution)
            kept, of_child = await debugging.snapshots(execution), await debugging.snapshots(child)

        paused, first, final = states(kept)
        assert [call.name for call in paused.facts.pending] == ["hire"]
        assert (paused.is_paused, paused.step_count, texts(paused)) == (False, 0, ["Go"])
        assert texts(first) == ["Go", "", "[Subagent: clerk] Friday it is"]
        assert final.steps[0].tool_executions == first.steps[0].tool_executions
        assert {each.debug_mode for each in of_child} == {False}

    async def test_an_edit_by_people_precedes_the_result(self, debugging: Debugging) -> None:
        """8.1.3: the call is the model's, and the note names what ran."""
        agent = an_agent(calls(("add", {"a": 1, "b": 1})), "Done", tools=[add])
        async with debugging.at_work(agent.with_approval("add", "always")) as office:
            execution = await office.start(debug=True)
            await office.until_waiting(execution)
            await execution.edit({"a": 2, "b": 3})
            await final_result(execution)
            *_, final = states(await debugging.snapshots(execution))

        (made,) = final.steps[0].tool_executions
        assert (made.call.args, made.result) == ({"a": 1, "b": 1}, 5)
        assert made.note == '[Arguments edited by user: {"a":2,"b":3}]\n'

    async def test_a_step_that_could_not_be_carried_out_is_the_failure_that_ended_it(
        self, debugging: Debugging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """8.1.3, 3.7.1: in the place of the step that was under way, whose text stays."""
        decide, asked = agent_execution.decide, 0

        def sometimes(*args: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise ZeroDivisionError("nobody foresaw this")
            return decide(*args)

        monkeypatch.setattr(agent_execution, "decide", sometimes)
        agent = an_agent(calls(("look", {})), tools=[MockTool("look")])
        async with debugging.at_work(agent) as office:
            execution, _ = await office.run(debug=True)
            (final,) = states(await debugging.snapshots(execution))

            assert texts(final) == await office.conversation(execution) == ["Go", "", CANCELLED_CALL]
        (step,) = final.steps
        assert (step.is_failure, step.errors_as_text) == (True, "nobody foresaw this")
        assert (final.status, final.facts.total_failures) == (AgentStatus.FAILED, 1)
