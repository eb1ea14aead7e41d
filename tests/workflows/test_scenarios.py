"""The workflow is the third shell of the loop: it decides as the table says, and acts accordingly."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import pytest
import pytest_asyncio
from temporalio import workflow

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import REGISTERED
from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.explanation.because import ExecutionBecause
from everstep.agent_domain.loop.explanations import explain_end
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import Decision, Rules, decide
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import ToolCall
from everstep.workflows import agent_execution
from everstep.workflows.contracts import ExecutionResult
from tests.scenarios import SCENARIOS, Scenario, Turn, describe, drive
from tests.services import Servers
from tests.workflows.harness import (
    Office,
    an_agent,
    at_work,
    connect_temporal,
    events_of,
    executed_commands,
    final_result,
    progress,
)


@dataclass(frozen=True)
class ScenarioRun:
    """The workflow's results for a scenario."""

    decisions: list[str]
    commands: list[str]
    result: ExecutionResult
    facts: ExecutionFacts
    row: ExecutionRow
    steps: tuple[StepRow, ...]
    because: ExecutionBecause


def fails(**_args: object) -> None:
    raise ToolFailed("it does not work")


def response(turn: Turn) -> InferenceResponse | Exception:
    calls = tuple(ToolCall("", name) for name in turn.calls)
    usage = Usage(output=turn.tokens)
    return turn.raises or InferenceResponse("" if calls else "Done", calls, turn.finish_reason, usage)


def agent_of(scenario: Scenario) -> AgentDefinition:
    """An agent that plays the scenario; its model is called only once, as the table knows no retries."""
    tools = [MockTool("look"), MockTool("listen"), MockTool("bad", handler=fails)]
    builder = an_agent(*map(response, scenario.turns), tools=tools).with_name(scenario.name)
    builder.add_continuation_criteria(*map(REGISTERED.build, scenario.plan.criteria))
    definition = builder.definition()
    own = {"agent": scenario.name, "tools": definition.base_plan.tools, "model_attempts": 1}
    return replace(definition, base_plan=scenario.plan.model_copy(update=own))


def command_of(decision: str) -> str:
    """The workflow's command for a decision, without the decider."""
    return decision.split(" for ", maxsplit=1)[0].split(" by ", maxsplit=1)[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(services: Servers) -> AsyncGenerator[Mapping[str, ScenarioRun]]:
    """Every scenario, in parallel."""
    decisions: dict[str, list[str]] = {}

    def listening(facts: ExecutionFacts, rules: Rules, now: datetime) -> Decision:
        decision = decide(facts, rules, now)
        if not workflow.unsafe.is_replaying():
            decisions.setdefault(workflow.info().workflow_id, []).append(describe(decision))
        return decision

    async def run(office: Office, scenario: Scenario) -> ScenarioRun:
        execution = await office.start(agent=scenario.name)
        result = await final_result(execution)
        return ScenarioRun(
            decisions[execution.workflow.id],
            executed_commands(await events_of(execution)),
            result,
            (await progress(execution)).facts,
            await execution.get(),
            tuple(await execution.steps()),
            await execution.because(),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_execution, "decide", listening)
        async with at_work(await connect_temporal(services), *map(agent_of, SCENARIOS)) as office:
            all_of_them = await asyncio.gather(*(run(office, scenario) for scenario in SCENARIOS))
    yield {scenario.name: each for scenario, each in zip(SCENARIOS, all_of_them, strict=True)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
class TestScenarios:
    def test_the_workflow_decides_as_the_table_says(
        self, runs: Mapping[str, ScenarioRun], scenario: Scenario
    ) -> None:
        """1.1.2: every decision is a function of recorded facts, the same in every shell."""
        assert runs[scenario.name].decisions == list(scenario.decisions)

    def test_only_the_decisions_are_carried_out(
        self, runs: Mapping[str, ScenarioRun], scenario: Scenario
    ) -> None:
        """1.1.2, 5.4.1: the commands in history are the decisions, and there are no others."""
        assert runs[scenario.name].commands == [command_of(decision) for decision in scenario.decisions]

    def test_it_ends_as_the_table_says(self, runs: Mapping[str, ScenarioRun], scenario: Scenario) -> None:
        """3.7.1: status and stop reason, in the workflow's result and in the store."""
        result, row = runs[scenario.name].result, runs[scenario.name].row
        assert (result.status, result.stop_reason) == (scenario.status, scenario.reason)
        assert row.stop_reason is scenario.reason
        assert row.output is not None
        assert row.output["stop_reason"] == scenario.reason

    def test_it_counts_as_bare_facts_count(self, runs: Mapping[str, ScenarioRun], scenario: Scenario) -> None:
        """2.6.1, 2.6.2, 3.4.3: steps, tokens and failures."""
        known, bare = runs[scenario.name], drive(scenario, lambda _decision: None)
        facts, row = known.facts, known.row

        assert (known.result.steps, known.result.usage) == (bare.step_count, bare.usage)
        assert (facts.total_failures, facts.trailing_failures) == (
            bare.total_failures,
            bare.trailing_failures,
        )
        assert (row.step_count, row.usage["total"]) == (bare.step_count, bare.usage.total)
        assert [step.number for step in known.steps] == list(range(1, bare.step_count + 1))

    def test_the_trace_shows_why_each_step_followed(
        self, runs: Mapping[str, ScenarioRun], scenario: Scenario
    ) -> None:
        """2.1.3, 2.2.1: the outcome of each evaluation is stored with the step that it judged."""
        deciders = [step.outcome["resolvedBy"] for step in runs[scenario.name].steps if step.outcome]
        judged = [d for d in scenario.decisions[1:] if d.startswith(("infer", "stop"))]

        assert deciders == [name.rsplit(" ", maxsplit=1)[1] for name in judged]

    def test_it_says_why_it_ended(self, runs: Mapping[str, ScenarioRun], scenario: Scenario) -> None:
        """15.1.1: the sentence of the table, as for a run in this process."""
        assert runs[scenario.name].because.sentence == scenario.because

    def test_its_workflow_says_why_it_ended(
        self, runs: Mapping[str, ScenarioRun], scenario: Scenario
    ) -> None:
        """15.1.2: facts alone have no texts of errors; the kind of an exception takes their place."""
        facts = runs[scenario.name].facts

        assert facts.last_outcome
        sentence = explain_end(facts.last_outcome, facts)
        assert sentence.replace(": ToolFailed;", ",") == (scenario.because_of_facts or scenario.because)
