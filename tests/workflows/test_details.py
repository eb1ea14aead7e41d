"""The details of an execution in the Temporal UI: its activity, and after its end, the outcome."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client as TemporalClient
from temporalio.exceptions import ApplicationError

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.testing import MockTool, calls
from everstep.client.client import Execution
from tests.histories.ways import cut_like
from tests.workflows.harness import an_agent, at_work, final_result, runs_of
from tests.workflows.test_people import asks, user_input
from tests.workflows.test_subagents import a_boss, a_hand, child_of, hires

Act = Callable[[Execution], Awaitable[object]]


async def details(execution: Execution, run: str | None = None) -> list[str]:
    """The lines in the UI, as the server returns them."""
    workflow: Any = execution.client.temporal.get_workflow_handle(execution.workflow.id, run_id=run)
    metadata = await workflow.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details.splitlines()


async def cancel(execution: Execution) -> None:
    await execution.cancel()


async def cancel_in_temporal(execution: Execution) -> None:
    await execution.workflow.cancel()


async def answer(execution: Execution) -> None:
    await execution.submit_input("Blue")


@dataclass(frozen=True)
class Case:
    """An agent, a person's action once it waits, and how it ends."""

    agent: Callable[[], DefinitionBuilder]
    ended: str
    decided_by: str
    act: Act | None = None
    errors: str | None = None


def asking() -> DefinitionBuilder:
    return an_agent(asks("?"), "Done", tools=[user_input()])


def looking() -> DefinitionBuilder:
    return an_agent(calls(("look", {})), "Done", tools=[MockTool("look")])


CASES = {
    "completed": Case(looking, "completed (completed)", "ToolCallPresenceCheck"),
    "limited": Case(lambda: looking().with_max_steps(1), "completed (steps_limit)", "StepsLimit"),
    "failed": Case(
        lambda: an_agent(ModelError("no")), "failed (error)", "ErrorPolicyCriterion", errors="ModelError"
    ),
    "answered": Case(asking, "completed (completed)", "ToolCallPresenceCheck", answer),
    "cancelled": Case(asking, "cancelled (user_requested)", "cancel", cancel),
    "cancelled in Temporal": Case(asking, "cancelled (user_requested)", "cancel", cancel_in_temporal),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_ended_execution_shows_its_outcome(temporal: TemporalClient, name: str) -> None:
    """1.2.3: and no longer its last activity."""
    case = CASES[name]
    async with at_work(temporal, case.agent()) as office:
        execution = await office.start()
        if case.act:
            await office.until_waiting(execution)
            assert (await details(execution))[0].endswith("waiting for people: user_input")
            await case.act(execution)
        await final_result(execution)
        shown = await details(execution)

    errors = [f"- errors: {case.errors}"] if case.errors else []
    assert shown[0] == f"**agent**: {case.ended}"
    assert shown[-1 - len(errors) :] == [f"- decided by: {case.decided_by}", *errors]


async def test_an_activity_that_fails_for_good_is_shown(temporal: TemporalClient) -> None:
    """1.2.3: by the kind of its error, without its text."""

    def breaks(point: Failpoint) -> None:
        if point is Failpoint.INFER_BEFORE_MODEL:
            raise ApplicationError("secret", type="Broken", non_retryable=True)

    async with at_work(temporal, looking(), strike=breaks) as office:
        execution = await office.start()
        await final_result(execution)
        shown = await details(execution)

    assert shown[0] == "**agent**: failed (error)"
    assert shown[-1] == "- errors: ApplicationError"


async def test_parents_show_that_their_children_wait_and_both_show_their_ends(
    temporal: TemporalClient,
) -> None:
    """1.2.3"""
    hand = a_hand(asks("?"), "Done", tools=[user_input()])
    async with at_work(temporal, a_boss(hires("hand"), "Done"), hand) as office:
        execution = await office.start()
        child = await child_of(office, execution)
        await office.until_waiting(child)
        await office.until_waiting(execution)
        assert (await details(execution))[0].endswith("where people are asked")
        await child.submit_input("Blue")
        await final_result(execution)

        for ended in (execution, child):
            assert (await details(ended))[0].endswith("completed (completed)")


async def test_a_run_that_was_cut_shows_that_the_next_one_continues(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.2.3, 1.1.4"""
    cut_like("rolled_over", monkeypatch)
    turns = [calls(("look", {})) for _ in range(12)]
    async with at_work(temporal, an_agent(*turns, "Done", tools=[MockTool("look")])) as office:
        execution = await office.start()
        await final_result(execution)
        runs = [events[0].workflow_execution_started_event_attributes for events in await runs_of(execution)]
        shown = [(await details(execution, run.original_execution_run_id))[0] for run in runs]

    assert len(shown) > 1
    assert {line.split(": ")[1] for line in shown[:-1]} == {"continues in the next run of this workflow"}
    assert shown[-1] == "**agent**: completed (completed)"
