"""A capability that sets and reads marks: the same decisions durably and in-process."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.agent_domain.values import thaw
from everstep.local.runner import LocalRunner
from tests.workflows.failpoints import FailpointStrike
from tests.workflows.harness import an_agent, at_work, progress
from tests.workflows.reviewing import SHORT, UseReview

LOOKS, PEEKS = calls(("look", {})), calls(("peek", {}))


@dataclass(frozen=True)
class Case:
    """The agent's replies, and what the marks lead to."""

    script: Sequence[InferenceResponse | str]
    said: Sequence[str]
    """The messages after the first."""
    marks: dict[str, object]
    reason: StopReason = StopReason.COMPLETED

    def agent(self) -> DefinitionBuilder:
        # One runs in an activity of its own, the other one where the model is asked.
        look = MockTool.returning("look", "", "seen")
        peek = MockTool("peek", handler=lambda: "seen", options=ToolOptions(quick=True))
        return an_agent(*self.script, tools=[look, peek]).with_capability(UseReview())


def a_review(is_fine: bool, number: int) -> dict[str, object]:
    return {"is_fine": is_fine, "round": number}


CASES = {
    "fine at once": Case(["All fine"], ["All fine"], {"step": 1, "review": a_review(True, 1)}),
    "fine at last": Case(
        [LOOKS, PEEKS, "Fine", "All fine"],
        ["", "seen", "", "seen", "Fine", SHORT, "All fine"],
        {"step": 4, "calls": 2, "calls of": 2, "review": a_review(True, 2)},
    ),
    "never fine": Case(
        ["Fine", "Well"],
        ["Fine", SHORT, "Well"],
        {"step": 2, "review": a_review(False, 2)},
        StopReason.GUARD,
    ),
    "a call removes the review": Case(
        ["Fine", LOOKS, "Well", "All fine"],
        ["Fine", SHORT, "", "seen", "Well", SHORT, "All fine"],
        {"step": 4, "calls": 1, "calls of": 2, "review": a_review(True, 2)},
    ),
    "too many calls": Case(
        [LOOKS, PEEKS, LOOKS, "All fine"],
        ["", "seen", "", "seen", "", "seen"],
        {"step": 3, "calls": 3, "calls of": 3},
        StopReason.GUARD,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_capability_with_marks_needs_nothing_of_the_core(temporal: TemporalClient, name: str) -> None:
    """4.5.6, 1.1.2"""
    case = CASES[name]
    async with at_work(temporal, case.agent()) as office:
        execution, result = await office.run()
        said = await office.conversation(execution)
        facts = (await progress(execution)).facts
    local = await LocalRunner(case.agent().definition()).run(AgentState.empty().with_messages("Go"))

    assert said == [message.text for message in local.messages] == ["Go", *case.said]
    assert thaw(facts.marks) == thaw(local.marks) == case.marks
    assert local.last_outcome
    assert result.stop_reason is local.last_outcome.stop_reason is case.reason


@pytest.mark.parametrize("point", [Failpoint.PROCESS_BEFORE, Failpoint.PROCESS_AFTER_RECORD])
async def test_a_mark_whose_worker_is_lost_is_set_once(temporal: TemporalClient, point: Failpoint) -> None:
    """4.5.6, 1.1.1"""
    case, strike = CASES["fine at last"], FailpointStrike(point)
    async with at_work(temporal, case.agent(), strike=strike) as office:
        execution, _ = await office.run()
        facts = (await progress(execution)).facts

    assert strike.at is None
    assert thaw(facts.marks) == case.marks
