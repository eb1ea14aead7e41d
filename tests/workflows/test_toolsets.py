"""Third-party tools in durable executions: listed once and recorded, and called like any other."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.client.client import Execution
from everstep.workflows import agent_execution
from tests.toolsets import FakeToolset
from tests.workflows.failpoints import FailpointStrike, results
from tests.workflows.harness import HeldModel, Office, an_agent, an_office, at_work, final_result, runs_of

FETCHES = calls(("fetch", {}))


def fetch_for_tenant(args: dict[str, Any], context: ToolContext) -> str:
    del args
    return f"for {context.tenant_id}"


def a_shelf(
    fetch: Callable[[dict[str, Any], ToolContext], Any] = fetch_for_tenant, **given: Any
) -> FakeToolset:
    return FakeToolset({"fetch": fetch}, **given)


def a_fetcher(
    shelf: FakeToolset, *script: InferenceResponse | str, model: HeldModel | None = None
) -> DefinitionBuilder:
    return an_agent(*script, model=model).with_toolset(shelf)


async def available(office: Office, execution: Execution) -> list[list[str]]:
    """The tools that viewers saw for each step."""
    envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)
    return [list(e.payload["available_tools"]) for e in envelopes if e.type == "agent.step.started"]


async def test_a_toolset_is_listed_once_for_each_execution(temporal: TemporalClient) -> None:
    """9.10.1: for the execution and its tenant, at its first step; its tools run with the others."""
    shelf = a_shelf()
    own = MockTool.returning("look", "", "blue")
    both = calls(("fetch", {}), ("look", {}), ("fetch", {}))
    agent = a_fetcher(shelf, both, FETCHES, "Done", both, "Again").with_tools([own])
    async with at_work(temporal, agent) as office:
        first, _ = await office.run()
        assert await results(first) == ["for default", "blue", "for default", "for default"]
        asked = [asker.execution_id for asker in shelf.askers]
        second, _ = await office.run()

    assert asked == [first.id]
    assert [(asker.execution_id, asker.tenant_id) for asker in shelf.askers[1:]] == [(second.id, "default")]


async def test_viewers_learn_of_its_tools_once_they_are_known(temporal: TemporalClient) -> None:
    """7.2, 9.10.1: the first step begins before the toolset was asked."""
    agent = a_fetcher(a_shelf(), FETCHES, "Done").with_tools([MockTool("look")])
    async with at_work(temporal, agent) as office:
        execution, _ = await office.run()

        assert await available(office, execution) == [["look"], ["fetch", "look"]]


async def test_a_tool_of_the_agent_wins(temporal: TemporalClient) -> None:
    """9.10.1"""
    agent = a_fetcher(a_shelf(), FETCHES, "Done").with_tools([MockTool.returning("fetch", "", "ours")])
    async with at_work(temporal, agent) as office:
        execution, _ = await office.run()

        assert await results(execution) == ["ours"]


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.INFER_AFTER_RESPONSE,
        Failpoint.INFER_BEFORE_REPORT,
        Failpoint.TOOL_AFTER_EFFECT,
        Failpoint.TOOL_BEFORE_REPORT,
    ],
)
async def test_a_second_attempt_does_not_ask_again(temporal: TemporalClient, point: Failpoint) -> None:
    """9.10.1, 1.1.3"""
    shelf, strike = a_shelf(), FailpointStrike(point)
    model = HeldModel(FETCHES, FETCHES, "Done", holds=0)
    async with at_work(temporal, a_fetcher(shelf, model=model), strike=strike) as office:
        execution, _ = await office.run()

        assert set(await results(execution)) == {"for default"}
    assert strike.at is None
    assert len(shelf.askers) == 1


async def test_another_worker_finds_the_recorded_list(temporal: TemporalClient) -> None:
    """9.10.1: also if the server has changed; a call of a removed tool fails, and the execution continues."""
    shelf, model = a_shelf(), HeldModel(FETCHES, FETCHES, FETCHES, "Done", holds=2)
    office = an_office(temporal, a_fetcher(shelf, model=model).with_error_policy(ErrorPolicy.retry_all(3)))
    async with office.worker():
        execution = await office.start()
        await model.begun.wait()
    model.go_on.set()
    shelf.tools["new"] = shelf.tools["fetch"]
    async with office.worker():
        await final_result(execution)

        assert await results(execution) == ["for default", "for default"]
        assert await available(office, execution) == [[], ["fetch"], ["fetch"]]
    assert len(shelf.askers) == 1
    offered = [[tool["function"]["name"] for tool in request.tools] for request in model.requests]
    assert offered == [["fetch"]] * len(offered)


async def test_a_history_that_is_cut_asks_nothing_again(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.10.1, 1.1.4: neither does the worker that continues from there."""
    monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 20)
    shelf = a_shelf()
    async with at_work(temporal, a_fetcher(shelf, *[FETCHES] * 6, "Done")) as office:
        execution, _ = await office.run()

        assert await results(execution) == ["for default"] * 6
        assert len(await runs_of(execution)) > 1
    assert len(shelf.askers) == 1


async def test_a_list_that_cannot_be_fetched_fails_the_step_and_not_the_worker(
    temporal: TemporalClient,
) -> None:
    """9.10.1, 4.5.4: the execution ends as its error policy says."""
    shelf = a_shelf(fails=InvalidInput("the server is gone"))
    async with at_work(temporal, a_fetcher(shelf, "Never")) as office:
        execution, result = await office.run()
        row, (step,) = await execution.get(), await execution.steps()

    assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)
    assert (row.status, row.error_message) == (ExecutionStatus.FAILED, "the server is gone")
    assert [error.message for error in step.errors] == ["the server is gone"]
    assert len(shelf.askers) == 1


async def test_a_list_that_is_available_later_is_requested_by_the_next_step(temporal: TemporalClient) -> None:
    """9.10.1, 4.5.4"""

    class Late(FakeToolset):
        async def list_tools(self, asker: Any) -> Any:
            self.fails = None if self.askers else InvalidInput("not yet")
            return await super().list_tools(asker)

    shelf = Late({"fetch": fetch_for_tenant})
    agent = a_fetcher(shelf, FETCHES, "Done").with_error_policy(ErrorPolicy.retry_all(3))
    async with at_work(temporal, agent) as office:
        execution, result = await office.run()

        assert await results(execution) == ["for default"]
    assert (result.steps, result.status) == (3, AgentStatus.COMPLETED)
    assert len(shelf.askers) == 2


@pytest.mark.parametrize(
    ("effect", "ran", "reads"),
    [(Effect.IDEMPOTENT, 2, "for default"), (Effect.AT_MOST_ONCE, 1, f"Error: {EFFECT_UNKNOWN}")],
)
async def test_a_call_whose_worker_is_lost_continues_as_it_was_listed(
    temporal: TemporalClient, effect: Effect, ran: int, reads: str
) -> None:
    """9.10.2: the plan knows nothing of it."""
    done = list[UUID]()

    def fetch(args: dict[str, Any], context: ToolContext) -> str:
        done.append(context.execution_id)
        return fetch_for_tenant(args, context)

    shelf = a_shelf(fetch, options=ToolOptions(effect=effect))
    agent = a_fetcher(shelf, FETCHES, "Done").with_error_policy(ErrorPolicy.retry_all(3))
    async with at_work(temporal, agent, strike=FailpointStrike(Failpoint.TOOL_AFTER_EFFECT)) as office:
        execution, _ = await office.run()

        assert await results(execution) == [reads]
    assert len(done) == ran


async def test_people_approve_it_by_its_listed_name(temporal: TemporalClient) -> None:
    """8.6.1, 8.6.4, 9.10.1: and may approve more of its calls at once."""
    script = (calls(("fetch", {"path": "a1"})), calls(("fetch", {"path": "a2"})), "Done")
    agent = a_fetcher(a_shelf(), *script).with_approval("fetch", "always")
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await execution.approve(remember={"path": "a*"})
        await final_result(execution)

        assert await results(execution) == ["for default"] * 2
        assert (await office.envelope_types(execution)).count("agent.approval.requested") == 1
